// SPDX-License-Identifier: Apache-2.0
// Indexes for the numbers of QPs, SRQs and WQs: handed out in random order first, and then those
// that were given back longest ago, so that a packet of the past finds nobody for long.
#pragma once

#include <cstdint>
#include <memory>

#include "base/assert.hpp"
#include "base/prng.hpp"

namespace adverb::engine {

class NumberPool {
 public:
  NumberPool() = default;
  NumberPool(std::uint32_t count, Prng& random)  // at most 2^16
      : count_(count), tail_(count), ring_(std::make_unique<std::uint16_t[]>(count)) {
    for (std::uint32_t i = 0; i < count; ++i) {
      const auto j = static_cast<std::uint32_t>(random.below(i + 1));
      ring_[i] = ring_[j];
      ring_[j] = static_cast<std::uint16_t>(i);
    }
  }
  bool made() const { return count_ != 0; }
  bool empty() const { return head_ == tail_; }
  std::uint16_t take() {
    ASSERT(!empty());
    return ring_[head_++ % count_];
  }
  void give(unsigned index) { ring_[tail_++ % count_] = static_cast<std::uint16_t>(index); }

 private:
  std::uint32_t count_ = 0;
  std::uint64_t head_ = 0, tail_ = 0;
  std::unique_ptr<std::uint16_t[]> ring_;  // FIFO
};

}  // namespace adverb::engine
