// SPDX-License-Identifier: Apache-2.0
// The memory that adverbd and all clients of a user share: one credit line for every slot, and who
// owns each slot, so that the next adverbd knows which slots are taken before their owners have
// come back.  A sealed memfd (it can neither shrink nor grow): nobody can make another process
// fault.  The owner table is written by adverbd only and read with suspicion.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "daemon/descriptors.hpp"
#include "daemon/protocol.hpp"
#include "engine/credit.hpp"

namespace adverb::daemon {

struct SlotOwner {
  std::atomic<std::uint32_t> taken{0};
  std::atomic<std::int32_t> pid{0};          // in the pid namespace below; 0 unknown
  std::atomic<std::uint64_t> start_time{0};  // field 22 of /proc/PID/stat; 0 unknown
  std::atomic<std::uint64_t> released{0};  // order of release: slots are reused first in, first out
  std::uint64_t reserved{0};
};
static_assert(sizeof(SlotOwner) == 32);

struct SlotMemory {
  std::array<engine::CreditLine, slot_limit> credit;
  struct Header {
    std::uint32_t magic = protocol_magic;
    std::uint16_t version = 1, reserved0 = 0;
    std::uint32_t slots = 0;
    std::uint32_t reserved1 = 0;
    std::uint64_t id = 0;             // random; names the relay sockets
    std::uint64_t pid_namespace = 0;  // of `pid` above
    std::atomic<std::uint64_t> releases{0};
    std::array<std::uint8_t, 4096 - 40> reserved2{};
  } header;
  std::array<SlotOwner, slot_limit> owners;
};
static_assert(sizeof(SlotMemory::Header) == 4096);

class SlotTable {
 public:
  static std::optional<SlotTable> create(unsigned slots);  // nullopt leaves errno
  static std::optional<SlotTable> map(Descriptor memory);  // checks size, seals, header
  SlotTable(SlotTable&&) noexcept;
  SlotTable& operator=(SlotTable&&) noexcept;
  ~SlotTable();

  int descriptor() const { return memory_fd_.get(); }
  unsigned slots() const { return slots_; }
  std::uint64_t id() const { return id_; }
  SlotMemory& memory() const { return *memory_; }
  std::span<engine::CreditLine> credit() const { return memory_->credit; }
  std::string relay_prefix(unsigned uid) const;

 private:
  SlotTable(Descriptor, SlotMemory*);
  Descriptor memory_fd_;
  SlotMemory* memory_ = nullptr;
  unsigned slots_ = 0;  // copies: the header is not trusted twice
  std::uint64_t id_ = 0;
};

// Inode of this process's pid namespace; 0 when /proc does not say.
std::uint64_t own_pid_namespace();
// When the process started; 0 when it is gone or /proc does not say.
std::uint64_t process_start_time(int pid);

}  // namespace adverb::daemon
