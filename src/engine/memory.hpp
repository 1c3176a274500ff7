// SPDX-License-Identifier: Apache-2.0
// The one gate to application memory (design: memory is touched through one gate).  A key names a
// memory region, or a window while it is bound to one; resolve() checks key, protection domain,
// rights and range with overflow-safe arithmetic (IBTA 10.6.3, 10.6.7) and grants a span; bytes
// move only by the grant's copy functions, which survive memory that the application has taken away
// (base/guarded.hpp).
//
// Keys: the upper 24 bits are a keyed permutation of the table's index, the low 8 bits are drawn at
// random for each registration, and freed indexes are reused first in, first out: a key cannot be
// guessed from another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <expected>
#include <memory>
#include <span>

#include "base/prng.hpp"
#include "engine/types.hpp"

namespace adverb::engine {

// Memory that loads and stores of this process do not reach.  False: a fault.
class IndirectMemory {
 public:
  virtual bool store(std::byte* at, const void* from, std::size_t n) const = 0;
  virtual bool load(void* to, const std::byte* at, std::size_t n) const = 0;

 protected:
  ~IndirectMemory() = default;
};
// Discards what is written, and is read as zeros (ibv_alloc_null_mr(3)).
const IndirectMemory& null_memory();

// Type 1 is bound by a verb and works for every queue pair of its PD; type 2 is 2B: bound by a work
// request, it works for the queue pair that bound it (IBTA 10.6.7.2).
enum class WindowType : std::uint8_t { none, type_1, type_2 };

// A row of the table: a memory region, or a memory window.
struct MemoryRegion {
  // The address space that work requests use (reg_mr_iova2), else the CPU address.
  std::uint64_t iova{};
  std::uint64_t length{};
  std::byte* base{};       // CPU address of byte 0
  std::uint32_t access{};  // Access bits
  PdId pd{};
  // Both lkey and rkey; of a window rkey only.  0: nothing can use it (free, invalidated, not
  // bound).
  std::uint32_t key{};
  const IndirectMemory* indirect{};  // null: loads and stores reach it
  bool invalidatable{};              // region: may be invalidated by SEND_WITH_INV or LOCAL_INV
  WindowType window{};
  Qpn qpn{};                 // window of type 2, while bound: whose requests may use it
  MemoryRegion* bound_to{};  // window: its region, or null
  std::uint32_t windows{};   // region: how many windows are bound to it
};

// What BIND_MW asks for.  `key`: any key that the window had; of `new_key` the low byte counts.
// [address, address + length) lies in the address space of the region that `lkey` names.
struct WindowBinding {
  std::uint32_t key{}, new_key{};
  PdId pd{};
  Qpn qpn{};
  std::uint32_t lkey{}, access{};
  std::uint64_t address{}, length{};
};

// A range that was granted.  Valid until the next change of the table; copy at once.
struct Grant {
  std::byte* data{};
  std::uint64_t length{};
  const IndirectMemory* indirect{};
  // False: a fault (the application unmapped, protected or truncated the memory).
  [[nodiscard]] bool copy_in(std::uint64_t offset, const void* from, std::size_t n) const;
  [[nodiscard]] bool copy_out(std::uint64_t offset, void* to, std::size_t n) const;
};

enum class KeyError : std::uint8_t { bad_key, bad_pd, bad_access, bad_range };

class KeyTable {
 public:
  // Registrations (max_mr) and windows (max_mw) at once; together at most 2^20.  `secret`: for the
  // keys.
  KeyTable(std::uint32_t max_regions, std::uint64_t secret, std::uint32_t max_windows = 0);

  // Null when there are max_regions.
  MemoryRegion* add(const MemoryRegion&);  // fills in .key
  void remove(MemoryRegion&);  // also after invalidate(); no window may be bound to it any more
  MemoryRegion* find(std::uint32_t key);  // any live key, no rights checked
  // May `access` bits (a subset test) be exercised by `pd` on [address, address + length)?  length
  // 0 is always in range but the key must be good.  Reading locally needs no right, so access may
  // be 0.  `requests_of`: the queue pair that received the request; none for a local key, which no
  // window has.
  std::expected<Grant, KeyError> resolve(std::uint32_t key, PdId pd, std::uint64_t address,
                                         std::uint64_t length, std::uint32_t access,
                                         Qpn requests_of = {}) const;
  // SEND_WITH_INV / LOCAL_INV: the key stops working; the region keeps its place until remove(), a
  // window waits for its next binding.  False when it is no key that may be invalidated by pd, or a
  // window of another queue pair.
  bool invalidate(std::uint32_t key, PdId pd, Qpn qpn = {});

  // A window that is not bound, and in `key` its first key.  Null when there are max_windows.
  MemoryRegion* add_window(WindowType, PdId, std::uint32_t& key);
  // False: the binding is refused, and nothing has changed (IBTA 10.6.7.2, bind operation).
  bool bind(const WindowBinding&);
  void unbind(MemoryRegion& window);
  std::uint32_t size() const { return size_; }

 private:
  MemoryRegion* take_place();
  MemoryRegion* window_of(std::uint32_t key);
  std::uint32_t permute(std::uint32_t index) const;
  std::uint32_t unpermute(std::uint32_t upper) const;

  std::uint32_t draw_key(std::uint32_t index);

  // Zeroed by the system, so that a large table costs memory only where it was used.
  struct Release {
    void operator()(void* p) const { std::free(p); }
  };
  template <class T>
  using Table = std::unique_ptr<T[], Release>;
  struct Slot {
    bool used{};
    std::uint8_t last_low{};  // low byte of the latest key
  };

  std::uint32_t max_regions_, max_windows_, capacity_;
  std::uint32_t size_ = 0, windows_ = 0;  // rows in use, and windows among them
  std::uint64_t secret_;
  SplitMix random_;
  Table<MemoryRegion> regions_;
  Table<Slot> slots_;
  std::uint32_t fresh_ = 0;    // indexes from here on were never used; they go first
  Table<std::uint32_t> free_;  // FIFO ring of returned indexes
  std::uint64_t free_head_ = 0, free_tail_ = 0;
};

// Whether a registration may have these rights together: remote writes and atomics need local write
// (IBTA 11.2.8.2; ibv_reg_mr(3)).
bool valid_access(std::uint32_t access);

// Gathers n bytes that start `offset` bytes into the scatter/gather list, or scatters n bytes
// there.  Zero-length elements are skipped without a look at their key (ibv_post_send(3)).  What is
// gathered from an element shows that all of it will be, so it must lie in its region as a whole,
// before a packet leaves.  A message may be shorter than the list that it is scattered to (drivers
// and programs round receive buffers up), so there only the n bytes must; they need
// access_local_write.  too_short: the list has fewer than offset + n bytes, and nothing was moved.
enum class SgStatus : std::uint8_t { ok, protection, fault, too_short };
SgStatus gather(const KeyTable&, PdId, std::span<const Sge>, std::uint64_t offset, void* to,
                std::size_t n);
SgStatus scatter(const KeyTable&, PdId, std::span<const Sge>, std::uint64_t offset,
                 const void* from, std::size_t n);

}  // namespace adverb::engine
