// SPDX-License-Identifier: Apache-2.0
// Hierarchical timer wheel: bounded work per tick, no allocation, deterministic order.  Four levels
// of 64 buckets; a tick is 1024 ns, so the wheel spans about 17 s and later deadlines wait in one
// more list and are re-placed.  No timer fires before its deadline.  Timers that are due fire by
// tick, and within a tick in the order in which they were armed.
//
// A timer sits in the level of the highest base-64 digit in which its tick differs from the current
// one, in the bucket of that digit.  Hence everything in a level is earlier than everything in the
// levels above, and timers of one tick are always together, in order.
#pragma once

#include <array>
#include <cstdint>

#include "base/types.hpp"

namespace adverb {

// Embedded in what waits.  `owner` and `kind` are the user's.  Must be cancelled before it is
// destroyed.
struct Timer {
  Timer* next = nullptr;
  Timer* previous = nullptr;
  Instant deadline = never;
  void* owner = nullptr;
  std::uint8_t kind = 0;
  std::uint8_t level = 0, bucket = 0;
  bool armed = false;
};

class TimerWheel {
 public:
  TimerWheel();
  TimerWheel(const TimerWheel&) = delete;

  // Arms or re-arms.  A deadline in the past fires at the next expire().
  void arm(Timer&, Instant deadline);
  void cancel(Timer&);
  // Takes one timer that is due at `now` (deadline <= now) out of the wheel; null when none is.
  // Call until null. `now` never runs backwards (a smaller value counts as the last one seen).
  Timer* expire(Instant now);
  // A time not later than the earliest deadline, at most one tick (or, beyond the first level, one
  // bucket) early; `never` when the wheel is empty.
  Instant next_deadline() const;
  bool empty() const { return count_ == 0; }

 private:
  static constexpr unsigned levels = 4, buckets = 64, digit_bits = 6, tick_shift = 10;
  static constexpr unsigned far_level = levels;      // Timer::level of far_
  static constexpr unsigned due_level = levels + 1;  // Timer::level of due_
  static constexpr unsigned span_bits = levels * digit_bits;
  struct Bucket {
    Timer* head = nullptr;
    Timer* tail = nullptr;
  };
  // A place in the wheel and the first tick that belongs to it.
  struct Position {
    unsigned level = due_level;
    std::uint64_t start = ~std::uint64_t{0};
  };

  static std::uint64_t tick_of(Instant);
  static Instant start_of(std::uint64_t tick);
  static unsigned digit(std::uint64_t tick, unsigned level);
  Bucket& bucket_of(const Timer&);
  void append(Timer&, unsigned level, unsigned bucket);
  void unlink(Timer&);
  void place(Timer&);
  Position earliest() const;
  void advance();
  void take_due(unsigned bucket);
  void cascade(unsigned level);
  bool recall_far(std::uint64_t target);

  std::array<std::array<Bucket, buckets>, levels> wheel_{};
  std::array<std::uint64_t, levels> occupied_{};
  Bucket far_{};  // beyond the span: another value above the digits
  Bucket due_{};  // deadline <= now_
  Instant now_{};
  std::uint64_t now_tick_ = 0;
  std::uint32_t count_ = 0;
};

}  // namespace adverb
