// SPDX-License-Identifier: Apache-2.0
// The guarded routines for CPUs that have no assembly yet: same placement (volatile stores in
// ascending order, the last behind a release fence), but a fault is not caught.
#if !defined(__x86_64__)
#include <atomic>

#include "base/guarded.hpp"

namespace adverb {

namespace {
template <class Word>
bool copy_word(void* destination, const void* source) {
  const auto either =
      reinterpret_cast<std::uintptr_t>(destination) | reinterpret_cast<std::uintptr_t>(source);
  if (either % sizeof(Word)) return false;
  *static_cast<volatile Word*>(destination) = *static_cast<const volatile Word*>(source);
  return true;
}
}  // namespace

bool guarded_copy(void* destination, const void* source, std::size_t size) {
  if (!size) return true;
  std::atomic_thread_fence(std::memory_order_release);
  if (size == 8 && copy_word<std::uint64_t>(destination, source)) return true;
  if (size == 4 && copy_word<std::uint32_t>(destination, source)) return true;
  if (size == 2 && copy_word<std::uint16_t>(destination, source)) return true;
  auto* to = static_cast<volatile std::uint8_t*>(destination);
  auto* from = static_cast<const volatile std::uint8_t*>(source);
  for (std::size_t i = 0; i + 1 < size; ++i) to[i] = from[i];
  const std::uint8_t last = from[size - 1];
  std::atomic_thread_fence(std::memory_order_release);
  to[size - 1] = last;
  return true;
}

bool guarded_fetch_add(std::uint64_t* target, std::uint64_t add, std::uint64_t* original) {
  *original = __atomic_fetch_add(target, add, __ATOMIC_SEQ_CST);
  return true;
}

bool guarded_compare_swap(std::uint64_t* target, std::uint64_t compare, std::uint64_t swap,
                          std::uint64_t* original) {
  *original = compare;
  __atomic_compare_exchange_n(target, original, swap, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  return true;
}

bool guarded_recover(void*) { return false; }

}  // namespace adverb
#endif
