// SPDX-License-Identifier: Apache-2.0
// The wheel turns from occupied bucket to occupied bucket (a bitmap per level finds the next),
// never tick by tick: a jump of an hour costs no more than one of a microsecond.
#include "base/timer_wheel.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/assert.hpp"

namespace adverb {

TimerWheel::TimerWheel() = default;

std::uint64_t TimerWheel::tick_of(Instant t) {
  return static_cast<std::uint64_t>(t.time_since_epoch().count()) >> tick_shift;
}

Instant TimerWheel::start_of(std::uint64_t tick) {
  return Instant(Duration(static_cast<Duration::rep>(tick << tick_shift)));
}

unsigned TimerWheel::digit(std::uint64_t tick, unsigned level) {
  return tick >> (level * digit_bits) & (buckets - 1);
}

TimerWheel::Bucket& TimerWheel::bucket_of(const Timer& t) {
  if (t.level == due_level) return due_;
  if (t.level == far_level) return far_;
  return wheel_[t.level][t.bucket];
}

void TimerWheel::append(Timer& t, unsigned level, unsigned bucket) {
  t.level = static_cast<std::uint8_t>(level);
  t.bucket = static_cast<std::uint8_t>(bucket);
  Bucket& b = bucket_of(t);
  t.next = nullptr;
  t.previous = b.tail;
  (b.tail ? b.tail->next : b.head) = &t;
  b.tail = &t;
  if (level < levels) occupied_[level] |= std::uint64_t{1} << bucket;
}

void TimerWheel::unlink(Timer& t) {
  Bucket& b = bucket_of(t);
  (t.previous ? t.previous->next : b.head) = t.next;
  (t.next ? t.next->previous : b.tail) = t.previous;
  if (!b.head && t.level < levels) occupied_[t.level] &= ~(std::uint64_t{1} << t.bucket);
}

void TimerWheel::place(Timer& t) {
  const std::uint64_t tick = tick_of(t.deadline);
  ASSERT(tick >= now_tick_);
  const std::uint64_t differs = tick ^ now_tick_;
  if (differs >> span_bits) return append(t, far_level, 0);
  const unsigned level = differs ? (std::bit_width(differs) - 1) / digit_bits : 0;
  append(t, level, digit(tick, level));
}

void TimerWheel::arm(Timer& t, Instant deadline) {
  if (t.armed) cancel(t);
  t.armed = true;
  t.deadline = deadline;
  ++count_;
  if (deadline <= now_)
    append(t, due_level, 0);
  else
    place(t);
}

void TimerWheel::cancel(Timer& t) {
  if (!t.armed) return;
  unlink(t);
  t.armed = false;
  t.next = t.previous = nullptr;
  --count_;
}

Timer* TimerWheel::expire(Instant now) {
  if (now > now_) {
    now_ = now;
    advance();
  }
  Timer* t = due_.head;
  if (t) cancel(*t);
  return t;
}

// The occupied place that comes first in time; start is all ones when there is none.
TimerWheel::Position TimerWheel::earliest() const {
  for (unsigned level = 0; level < levels; ++level) {
    if (!occupied_[level]) continue;
    const std::uint64_t bucket = std::countr_zero(occupied_[level]);
    const unsigned shift = level * digit_bits;
    const std::uint64_t above = now_tick_ >> (shift + digit_bits) << digit_bits;
    return {level, (above | bucket) << shift};
  }
  if (far_.head) return {far_level, ((now_tick_ >> span_bits) + 1) << span_bits};
  return {};
}

// Brings the wheel to now_: what is due moves to due_.
void TimerWheel::advance() {
  const std::uint64_t target = tick_of(now_);
  for (;;) {
    const Position p = earliest();
    if (p.start > target) break;
    if (p.level == far_level) {
      if (!recall_far(target)) break;
      continue;
    }
    now_tick_ = p.start;
    if (p.level == 0) {
      take_due(digit(p.start, 0));
      if (p.start == target) break;  // what is left there is due later within this tick
    } else {
      cascade(p.level);
    }
  }
  now_tick_ = target;
}

void TimerWheel::take_due(unsigned bucket) {
  for (Timer *t = wheel_[0][bucket].head, *next; t; t = next) {
    next = t->next;
    if (t->deadline > now_) continue;
    unlink(*t);
    append(*t, due_level, 0);
  }
}

// The wheel has reached the start of a bucket of an upper level: its timers belong to lower ones
// now.
void TimerWheel::cascade(unsigned level) {
  const unsigned bucket = digit(now_tick_, level);
  Timer* t = std::exchange(wheel_[level][bucket], Bucket{}).head;
  occupied_[level] &= ~(std::uint64_t{1} << bucket);
  while (t) {
    Timer* const next = t->next;
    place(*t);
    t = next;
  }
}

// All levels are empty.  Turns the wheel to the earliest span that some far timer falls into and
// brings that span's timers in.  False when the span lies behind the target.
bool TimerWheel::recall_far(std::uint64_t target) {
  std::uint64_t span = ~std::uint64_t{0};
  for (Timer* t = far_.head; t; t = t->next)
    span = std::min(span, tick_of(t->deadline) >> span_bits);
  if (span > target >> span_bits) return false;
  now_tick_ = span << span_bits;
  for (Timer *t = far_.head, *next; t; t = next) {
    next = t->next;
    if (tick_of(t->deadline) >> span_bits != span) continue;
    unlink(*t);
    place(*t);
  }
  return true;
}

Instant TimerWheel::next_deadline() const {
  const Timer* first = due_.head;
  if (!first) {
    const Position p = earliest();
    if (p.level == due_level) return never;
    if (p.level != 0 || p.start != now_tick_) return start_of(p.start);
    // Within the current tick only the exact time lets a caller that waits for it make progress.
    first = wheel_[0][digit(p.start, 0)].head;
  }
  Instant earliest_deadline = never;
  for (; first; first = first->next)
    earliest_deadline = std::min(earliest_deadline, first->deadline);
  return earliest_deadline;
}

}  // namespace adverb
