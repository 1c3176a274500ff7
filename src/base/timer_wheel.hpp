// SPDX-License-Identifier: Apache-2.0
// Hierarchical timer wheel: bounded work per tick, no allocation, deterministic order.  Four levels of 64
// buckets; a tick is 1024 ns, so the wheel spans about 17 s and later deadlines wait in the last level and are
// re-placed.  Timers that are due in the same tick fire in the order in which they were armed.
#pragma once

#include <array>
#include <cstdint>

#include "base/types.hpp"

namespace adverb {

// Embedded in what waits.  `owner` and `kind` are the user's.  Must be cancelled before it is destroyed.
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
  // Takes one timer that is due at `now` out of the wheel; null when none is.  Call until null.
  // `now` never runs backwards (a smaller value counts as the last one seen).
  Timer* expire(Instant now);
  // A time not later than the earliest deadline, at most one tick (or, beyond the first level, one bucket)
  // early; `never` when the wheel is empty.
  Instant next_deadline() const;
  bool empty() const { return count_ == 0; }

 private:
  static constexpr unsigned levels = 4, buckets = 64, tick_shift = 10;
  struct Bucket {
    Timer* head = nullptr;
    Timer* tail = nullptr;
  };
  void place(Timer&);
  void unlink(Timer&);
  void cascade(unsigned level);

  std::array<std::array<Bucket, buckets>, levels> wheel_{};
  std::array<std::uint64_t, levels> occupied_{};
  Bucket due_{};
  std::uint64_t now_tick_ = 0;
  std::uint32_t count_ = 0;
};

}  // namespace adverb
