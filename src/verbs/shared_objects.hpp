// SPDX-License-Identifier: Apache-2.0
// What a context tells those who import it (ibv_import_device(3)).  Its command descriptor is a
// memfd that holds a table of the protection domains, regions and device memories that were made on
// it.  Whoever has the descriptor maps the table, finds in it what a handle means, and adds what
// he makes; a row is written by the process that it belongs to, and read with suspicion.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "engine/types.hpp"

namespace adverb::verbs {

enum class SharedKind : std::uint32_t { none, pd, mr, dm };

struct SharedObject {
  SharedKind kind{};
  std::uint32_t pd{};      // MR: handle of its PD
  std::uint32_t access{};  // MR
  pid_t owner{};
  std::uint64_t base{}, length{}, iova{};  // MR, DM; base: an address of the owner's
};

class SharedObjects {
 public:
  // A new table for a device, with its descriptor.  Null when there can be none: imports are then
  // refused, and handles are only numbers.
  static std::shared_ptr<SharedObjects> create(const std::string& device,
                                               const std::array<std::uint8_t, 8>& guid, int& fd);
  // The table behind a descriptor; one object for each table that this process has.  Null: the
  // descriptor is no context's.
  static std::shared_ptr<SharedObjects> open(int fd);
  static void forget_all();  // in a forked child: what this process had is the parent's
  ~SharedObjects();
  SharedObjects(const SharedObjects&) = delete;

  const std::string& device() const { return device_; }
  const std::array<std::uint8_t, 8>& guid() const { return guid_; }

  // A handle of no row: of what nobody can import.
  static std::uint32_t private_handle();
  // The new handle, from 1; a private one when the table is full.
  std::uint32_t add(SharedObject);
  void change(std::uint32_t handle, SharedObject);
  void remove(std::uint32_t handle);
  std::optional<SharedObject> find(std::uint32_t handle, SharedKind) const;

  // The number that a PD has in this process's engines: `id`, unless it was made or imported here
  // before.
  engine::PdId name_domain(std::uint32_t handle, engine::PdId id);
  std::optional<engine::PdId> domain(std::uint32_t handle) const;
  // Does the process have this table, so that what a row says of it is about this very process?
  bool held_by(pid_t) const;

 private:
  struct Row;
  struct Header;
  SharedObjects() = default;
  static std::shared_ptr<SharedObjects> map(int fd, std::uint64_t inode);
  Row& row(std::uint32_t handle) const;

  std::string device_;
  std::array<std::uint8_t, 8> guid_{};
  std::uint64_t inode_ = 0;
  std::byte* memory_ = nullptr;
  mutable std::mutex mutex_;
  std::deque<std::uint32_t> free_;         // rows that this process gave back, oldest first
  std::unordered_set<std::uint32_t> own_;  // rows that this process has filled
  std::unordered_map<std::uint32_t, engine::PdId> domains_;
};

}  // namespace adverb::verbs
