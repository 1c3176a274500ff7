// SPDX-License-Identifier: Apache-2.0
// A fuzzer's input as a script: records of one size, an action each.  A mutation of one record
// leaves the meaning of the others alone, and whole records can be moved, repeated and crossed over
// (mutator.cpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <span>

namespace adverb::fuzz {

inline constexpr std::size_t record_bytes = 32;

// What must hold: says which it was, and stops as a crash, so that libFuzzer keeps the input.
#define REQUIRE(x) ((x) ? void(0) : ::adverb::fuzz::violated(#x, __FILE__, __LINE__))
[[noreturn]] inline void violated(const char* what, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: violated: %s\n", file, line, what);
  std::abort();
}

// The bytes of one record, in order; zero behind its end.
class Record {
 public:
  explicit Record(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}
  std::uint8_t byte() {
    if (bytes_.empty()) return 0;
    const std::uint8_t b = bytes_.front();
    bytes_ = bytes_.subspan(1);
    return b;
  }
  std::uint32_t word() {
    std::uint32_t v = 0;
    for (int i = 0; i < 4; ++i) v = v << 8 | byte();
    return v;
  }
  bool chance(unsigned of_256) { return byte() < of_256; }
  unsigned below(unsigned n) { return byte() % n; }
  template <class A>
  const auto& one_of(const A& all) {
    return all[below(static_cast<unsigned>(std::size(all)))];
  }

 private:
  std::span<const std::uint8_t> bytes_;
};

class Script {
 public:
  Script(const std::uint8_t* data, std::size_t size) : left_(data, size) {}
  bool empty() const { return left_.empty(); }
  Record next() {
    const std::size_t n = left_.size() < record_bytes ? left_.size() : record_bytes;
    const Record record(left_.first(n));
    left_ = left_.subspan(n);
    return record;
  }

 private:
  std::span<const std::uint8_t> left_;
};

}  // namespace adverb::fuzz
