// SPDX-License-Identifier: Apache-2.0
// The table of keys, and the copies through it.
#include "engine/memory.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/assert.hpp"
#include "base/guarded.hpp"

namespace adverb::engine {

namespace {
// Addresses that are not this process's are numbers.
std::byte* at(std::byte* base, std::uint64_t offset) {
  return reinterpret_cast<std::byte*>(reinterpret_cast<std::uintptr_t>(base) + offset);
}
}  // namespace

bool Grant::copy_in(std::uint64_t offset, const void* from, std::size_t n) const {
  ASSERT(offset <= length && n <= length - offset);
  if (indirect) return indirect->store(at(data, offset), from, n);
  return guarded_copy(data + offset, from, n);
}

bool Grant::copy_out(std::uint64_t offset, void* to, std::size_t n) const {
  ASSERT(offset <= length && n <= length - offset);
  if (indirect) return indirect->load(to, at(data, offset), n);
  return guarded_copy(to, data + offset, n);
}

const IndirectMemory& null_memory() {
  static constexpr struct final : IndirectMemory {
    bool store(std::byte*, const void*, std::size_t) const override { return true; }
    bool load(void* to, const std::byte*, std::size_t n) const override {
      std::memset(to, 0, n);
      return true;
    }
  } memory;
  return memory;
}

bool valid_access(std::uint32_t access) {
  const bool remote_change = access & (access_remote_write | access_remote_atomic);
  return !remote_change || (access & access_local_write);
}

namespace {
template <class T>
T* zeroed(std::size_t n) {
  auto* p = static_cast<T*>(std::calloc(n, sizeof(T)));
  ASSERT(p);
  return p;
}

// A Feistel network over 2 x 12 bits: a bijection whatever the round function is, hence invertible.
constexpr unsigned half_bits = 12, rounds = 4;
constexpr std::uint32_t half_mask = (1u << half_bits) - 1;

std::uint32_t round_of(std::uint64_t secret, unsigned round, std::uint32_t half) {
  return SplitMix::mix(SplitMix::mix(secret + round) ^ half) & half_mask;
}
}  // namespace

KeyTable::KeyTable(std::uint32_t max_regions, std::uint64_t secret, std::uint32_t max_windows)
    : max_regions_(max_regions),
      max_windows_(max_windows),
      capacity_(std::bit_ceil(max_regions + max_windows)),
      secret_(SplitMix::mix(secret)),
      random_(SplitMix::mix(~secret)),
      regions_(zeroed<MemoryRegion>(capacity_)),
      slots_(zeroed<Slot>(capacity_)),
      free_(zeroed<std::uint32_t>(capacity_)) {
  ASSERT(capacity_ <= 1u << 20);
}

std::uint32_t KeyTable::permute(std::uint32_t index) const {
  std::uint32_t left = index >> half_bits, right = index & half_mask;
  for (unsigned round = 0; round < rounds; ++round) {
    const std::uint32_t next = left ^ round_of(secret_, round, right);
    left = right;
    right = next;
  }
  return left << half_bits | right;
}

std::uint32_t KeyTable::unpermute(std::uint32_t upper) const {
  std::uint32_t left = upper >> half_bits, right = upper & half_mask;
  for (unsigned round = rounds; round-- > 0;) {
    const std::uint32_t previous = right ^ round_of(secret_, round, left);
    right = left;
    left = previous;
  }
  return left << half_bits | right;
}

// Any low byte but the slot's latest, so that the key before this one has ceased to work; and
// neither 0 (no key) nor all ones (programs take it for "none").
std::uint32_t KeyTable::draw_key(std::uint32_t index) {
  const std::uint32_t upper = permute(index) << 8;
  std::uint8_t& low = slots_[index].last_low;
  for (;;) {
    const auto drawn = static_cast<std::uint8_t>(random_.next() >> 56);
    const std::uint32_t key = upper | drawn;
    if (drawn == low || key == 0 || key == ~0u) continue;
    low = drawn;
    return key;
  }
}

MemoryRegion* KeyTable::take_place() {
  const std::uint32_t index = fresh_ < capacity_ ? fresh_++ : free_[free_head_++ & (capacity_ - 1)];
  ASSERT(index < capacity_ && !slots_[index].used);
  slots_[index].used = true;
  ++size_;
  return &regions_[index];
}

MemoryRegion* KeyTable::add(const MemoryRegion& region) {
  if (size_ - windows_ == max_regions_) return nullptr;
  MemoryRegion* place = take_place();
  *place = region;
  place->key = draw_key(static_cast<std::uint32_t>(place - regions_.get()));
  return place;
}

MemoryRegion* KeyTable::add_window(WindowType type, PdId pd, std::uint32_t& key) {
  if (windows_ == max_windows_) return nullptr;
  MemoryRegion* place = take_place();
  ++windows_;
  *place = {.pd = pd, .window = type};
  key = draw_key(static_cast<std::uint32_t>(place - regions_.get()));
  return place;
}

void KeyTable::remove(MemoryRegion& region) {
  const auto index = static_cast<std::uint32_t>(&region - regions_.get());
  ASSERT(index < capacity_ && slots_[index].used && !region.windows);
  unbind(region);
  if (region.window != WindowType::none) --windows_;
  region = MemoryRegion{};
  slots_[index].used = false;
  free_[free_tail_++ & (capacity_ - 1)] = index;
  --size_;
}

MemoryRegion* KeyTable::find(std::uint32_t key) {
  const std::uint32_t index = unpermute(key >> 8);
  if (key == 0 || index >= capacity_ || regions_[index].key != key) return nullptr;
  return &regions_[index];
}

// Bound or not.
MemoryRegion* KeyTable::window_of(std::uint32_t key) {
  const std::uint32_t index = unpermute(key >> 8);
  if (index >= capacity_ || regions_[index].window == WindowType::none) return nullptr;
  return &regions_[index];
}

std::expected<Grant, KeyError> KeyTable::resolve(std::uint32_t key, PdId pd, std::uint64_t address,
                                                 std::uint64_t length, std::uint32_t access,
                                                 Qpn requests_of) const {
  const MemoryRegion* region = const_cast<KeyTable*>(this)->find(key);
  if (!region) return std::unexpected(KeyError::bad_key);
  if (region->pd != pd) return std::unexpected(KeyError::bad_pd);
  if (region->window != WindowType::none) {
    if (requests_of == Qpn{}) return std::unexpected(KeyError::bad_key);
    //= IBTA 10.6.7.2: a window of type 2B works for the queue pair that it was bound on
    if (region->window == WindowType::type_2 && region->qpn != requests_of)
      return std::unexpected(KeyError::bad_access);
  }
  if ((region->access & access) != access) return std::unexpected(KeyError::bad_access);
  if (length == 0) return Grant{region->base, 0, region->indirect};
  const std::uint64_t origin = region->access & access_zero_based ? 0 : region->iova;
  // Only differences that cannot wrap: [address, address + length) lies in [origin, origin + region
  // length), and does not run over the end of the address space either.
  const std::uint64_t offset = address - origin;
  if (address < origin || offset > region->length || length > region->length - offset ||
      length - 1 > ~address)
    return std::unexpected(KeyError::bad_range);
  return Grant{at(region->base, offset), length, region->indirect};
}

bool KeyTable::invalidate(std::uint32_t key, PdId pd, Qpn qpn) {
  MemoryRegion* region = find(key);
  if (!region || region->pd != pd) return false;
  if (region->window == WindowType::type_2 && region->qpn == qpn) return unbind(*region), true;
  if (!region->invalidatable || region->windows) return false;
  region->key = 0;
  return true;
}

bool KeyTable::bind(const WindowBinding& b) {
  constexpr std::uint32_t rights = access_remote_write | access_remote_read | access_remote_atomic;
  MemoryRegion* window = window_of(b.key);
  const std::uint32_t key = (b.key & ~0xffu) | (b.new_key & 0xff);
  if (!window || window->pd != b.pd || key == 0) return false;
  const bool type_1 = window->window == WindowType::type_1;
  if (!type_1 && window->bound_to) return false;  //= IBTA 10.6.7.2: type 2 is bound while free
  if (b.length == 0 && type_1) return unbind(*window), true;
  MemoryRegion* region = find(b.lkey);
  if (!region || region->window != WindowType::none) return false;
  const bool changes = b.access & (access_remote_write | access_remote_atomic);
  const std::uint32_t needed = access_mw_bind | (changes ? +access_local_write : 0u);
  const auto grant = resolve(b.lkey, b.pd, b.address, b.length, needed);
  if (!grant || b.length == 0) return false;
  unbind(*window);
  *window = {.iova = b.access & access_zero_based ? 0 : b.address,
             .length = b.length,
             .base = grant->data,
             .access = b.access & (rights | access_zero_based),
             .pd = b.pd,
             .key = key,
             .indirect = grant->indirect,
             .window = window->window,
             .qpn = b.qpn,
             .bound_to = region};
  ++region->windows;
  return true;
}

void KeyTable::unbind(MemoryRegion& window) {
  if (!window.bound_to) return;
  --window.bound_to->windows;
  window = {.pd = window.pd, .window = window.window};
}

namespace {
// Whose place in its region is looked at: all of an element, or the bytes that are to be moved.
enum class Checked : bool { element, bytes };

// Calls copy(grant, offset in the grant, offset in the message, bytes) for each piece of the n
// bytes that start `offset` bytes into the list.
template <Checked checked, class Copy>
SgStatus walk(const KeyTable& table, PdId pd, std::span<const Sge> list, std::uint64_t offset,
              std::size_t n, std::uint32_t access, Copy copy) {
  std::uint64_t total = 0;
  for (const Sge& sge : list) total += sge.length;
  if (offset > total || n > total - offset) return SgStatus::too_short;
  std::size_t done = 0;
  for (const Sge& sge : list) {
    if (done == n) break;
    if (offset >= sge.length) {
      offset -= sge.length;
      continue;
    }
    const std::size_t piece = std::min<std::size_t>(n - done, sge.length - offset);
    const std::uint64_t skipped = checked == Checked::bytes ? offset : 0;
    const std::size_t looked_at = checked == Checked::bytes ? piece : sge.length;
    if (sge.addr + skipped < sge.addr) return SgStatus::protection;
    const auto grant = table.resolve(sge.lkey, pd, sge.addr + skipped, looked_at, access);
    if (!grant) return SgStatus::protection;
    if (!copy(*grant, offset - skipped, done, piece)) return SgStatus::fault;
    done += piece;
    offset = 0;
  }
  return SgStatus::ok;
}
}  // namespace

SgStatus gather(const KeyTable& table, PdId pd, std::span<const Sge> list, std::uint64_t offset,
                void* to, std::size_t n) {
  return walk<Checked::element>(
      table, pd, list, offset, n, 0,
      [to](const Grant& grant, std::uint64_t at, std::size_t done, std::size_t piece) {
        return grant.copy_out(at, static_cast<std::byte*>(to) + done, piece);
      });
}

SgStatus scatter(const KeyTable& table, PdId pd, std::span<const Sge> list, std::uint64_t offset,
                 const void* from, std::size_t n) {
  return walk<Checked::bytes>(
      table, pd, list, offset, n, access_local_write,
      [from](const Grant& grant, std::uint64_t at, std::size_t done, std::size_t piece) {
        return grant.copy_in(at, static_cast<const std::byte*>(from) + done, piece);
      });
}

}  // namespace adverb::engine
