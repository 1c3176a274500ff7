// SPDX-License-Identifier: Apache-2.0
// A piece of a host's memory and its shadow: what must be in it by all that is known.  Filled with
// a pattern first, so that a stray store shows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "sim/violation.hpp"

namespace adverb::sim {

class Area {
 public:
  static constexpr std::uint8_t untouched = 0xa5;

  void make(std::size_t size) {
    size_ = size;
    bytes_ = std::make_unique_for_overwrite<std::uint64_t[]>(size / 8 + 1);
    shadow_ = std::make_unique_for_overwrite<std::uint64_t[]>(size / 8 + 1);
    std::memset(bytes(), untouched, size);
    std::memset(shadow(), untouched, size);
  }
  std::size_t size() const { return size_; }
  std::uint8_t* bytes() { return reinterpret_cast<std::uint8_t*>(bytes_.get()); }
  std::uint8_t* shadow() { return reinterpret_cast<std::uint8_t*>(shadow_.get()); }
  const std::uint8_t* bytes() const { return reinterpret_cast<const std::uint8_t*>(bytes_.get()); }

  void set(std::size_t at, const std::uint8_t* from, std::size_t n) {
    if (n) std::memcpy(shadow() + at, from, n);
  }
  // What is there is right: the shadow learns it.
  void adopt(std::size_t at, std::size_t n) { set(at, bytes() + at, n); }
  std::uint64_t word(std::size_t at) const {
    std::uint64_t v;
    std::memcpy(&v, bytes() + at, 8);
    return v;
  }
  // The first byte that is not as the shadow has it; size() when all are.
  std::size_t first_difference(std::size_t from = 0) {
    return difference(bytes(), shadow(), from, size_);
  }
  static std::size_t difference(const std::uint8_t* a, const std::uint8_t* b, std::size_t from,
                                std::size_t to) {
    while (from + 512 <= to && std::memcmp(a + from, b + from, 512) == 0) from += 512;
    for (; from + 8 <= to && std::memcmp(a + from, b + from, 8) == 0; from += 8) {
    }
    while (from < to && a[from] == b[from]) ++from;
    return from;
  }

 private:
  std::size_t size_ = 0;
  std::unique_ptr<std::uint64_t[]> bytes_, shadow_;
};

}  // namespace adverb::sim
