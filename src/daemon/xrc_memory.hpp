// SPDX-License-Identifier: Apache-2.0
// The memory of an XRC domain that processes share (docs/adr/0006): its targets, and who holds
// them.  A sealed memfd that adverbd makes and hands to everybody who opens the domain.
//
// Always true: a record with a QPN has at least one holder, or its last one has just died and
// adverbd is about to take it out.  The segment's lock covers which records are in use and who
// holds them, a record's own lock its target's state; who needs both takes the segment's first.
// Both are robust: the kernel gives them back when their owner dies.
#pragma once

#include <pthread.h>

#include <array>
#include <atomic>
#include <bitset>
#include <optional>

#include "daemon/descriptors.hpp"
#include "daemon/protocol.hpp"
#include "engine/shared_target.hpp"

namespace adverb::daemon {

// The inode that a domain belongs to, and the device, by the index of its network interface.
struct XrcKey {
  std::uint64_t device = 0, inode = 0;
  std::uint32_t ifindex = 0;
  friend auto operator<=>(const XrcKey&, const XrcKey&) = default;
};

struct XrcRecord {
  pthread_mutex_t lock;
  std::atomic<std::uint32_t> ready{0};                                // `lock` is made
  std::array<std::atomic<std::uint64_t>, slot_limit / 64> holders{};  // a bit for each slot
  engine::SharedTarget target;
};

struct XrcSegment {
  static constexpr std::uint32_t max_targets = 4096;
  std::uint32_t magic = protocol_magic;
  std::uint32_t version = 1;
  std::uint64_t record_bytes = sizeof(XrcRecord);
  std::atomic<std::uint32_t> used{0};  // records before this one have been in use
  std::atomic<std::uint32_t> news{0};
  pthread_mutex_t lock;
  std::array<XrcRecord, max_targets> records;  // pages that nobody touched cost nothing
};

class XrcMemory {
 public:
  static std::optional<XrcMemory> create();         // nullopt leaves errno
  static std::optional<XrcMemory> map(Descriptor);  // checks size, seals, header
  XrcMemory(XrcMemory&&) noexcept;
  XrcMemory& operator=(XrcMemory&&) = delete;
  ~XrcMemory();

  int descriptor() const { return fd_.get(); }

  // As of engine::TargetStore, for the process of a slot.
  engine::SharedTarget* find(Qpn);
  engine::SharedTarget* create(Qpn, unsigned slot);
  bool hold(engine::SharedTarget&, unsigned slot);
  bool release(engine::SharedTarget&, unsigned slot);
  bool lock(engine::SharedTarget&);
  void unlock(engine::SharedTarget&);
  std::uint32_t news() const { return segment_->news.load(std::memory_order_acquire); }
  void add_news() { segment_->news.fetch_add(1, std::memory_order_acq_rel); }
  std::bitset<slot_limit> holders(const engine::SharedTarget&) const;

  // The slot's process is gone, and with it its handles.  False: not yet, a lock is taken.
  bool forget_slot(unsigned slot);
  // Is the QPN of some target of that slot?  Then nobody else may have the slot.
  bool has_number_of(unsigned slot) const;

 private:
  XrcMemory(Descriptor fd, XrcSegment* segment) : fd_(std::move(fd)), segment_(segment) {}
  static XrcRecord& record_of(engine::SharedTarget&);
  static const XrcRecord& record_of(const engine::SharedTarget&);
  bool drop_holder(XrcRecord&, unsigned slot);
  template <class F>
  void each_in_use(F&&) const;

  Descriptor fd_;
  XrcSegment* segment_ = nullptr;
};

}  // namespace adverb::daemon
