// SPDX-License-Identifier: Apache-2.0
#include "base/timer_wheel.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <tuple>
#include <vector>

#include "base/prng.hpp"

namespace adverb {
namespace {

Instant at(std::int64_t ns) { return Instant(Duration(ns)); }
std::int64_t ns(Instant t) { return t.time_since_epoch().count(); }
constexpr std::int64_t tick = 1024, span = tick << 24;

std::vector<Timer*> drain(TimerWheel& wheel, Instant now) {
  std::vector<Timer*> fired;
  while (Timer* t = wheel.expire(now)) fired.push_back(t);
  return fired;
}

TEST(TimerWheel, FiresAtTheDeadlineAndNotBefore) {
  for (const std::int64_t deadline : {1L, 1023L, 1024L, 65'536L, 1'000'000L, 5'000'000'000L,
                                      20'000'000'000L, 3'600'000'000'000L}) {
    TimerWheel wheel;
    Timer t;
    wheel.arm(t, at(deadline));
    EXPECT_EQ(wheel.expire(at(deadline - 1)), nullptr) << deadline;
    EXPECT_EQ(wheel.expire(at(deadline)), &t) << deadline;
    EXPECT_FALSE(t.armed);
    EXPECT_TRUE(wheel.empty());
    EXPECT_EQ(wheel.next_deadline(), never);
  }
}

TEST(TimerWheel, TheSameTickFiresInTheOrderOfArming) {
  // Far ahead, so that the three are placed at different distances and cascade before they meet.
  for (const std::int64_t deadline : {100 * tick, 5'000 * tick, 300'000 * tick, 3 * span + 77}) {
    TimerWheel wheel;
    Timer a, b, c;
    wheel.arm(c, at(deadline));
    EXPECT_EQ(wheel.expire(at(deadline / 2)), nullptr);
    wheel.arm(a, at(deadline));
    EXPECT_EQ(wheel.expire(at(deadline - 10 * tick)), nullptr);
    wheel.arm(b, at(deadline));
    EXPECT_EQ(drain(wheel, at(deadline + 5 * tick)), (std::vector<Timer*>{&c, &a, &b}));
  }
}

TEST(TimerWheel, EarlierTicksFireFirst) {
  TimerWheel wheel;
  Timer a, b, c, d;
  wheel.arm(d, at(2 * span));
  wheel.arm(c, at(90 * tick));
  wheel.arm(b, at(70 * tick));
  wheel.arm(a, at(3 * tick));
  EXPECT_EQ(drain(wheel, at(3 * span)), (std::vector<Timer*>{&a, &b, &c, &d}));
}

TEST(TimerWheel, ADeadlineInThePastFiresAtTheNextCall) {
  TimerWheel wheel;
  Timer a, b;
  EXPECT_EQ(wheel.expire(at(1'000'000)), nullptr);
  wheel.arm(a, at(5));
  wheel.arm(b, at(-7));
  EXPECT_EQ(wheel.next_deadline(), at(-7));
  EXPECT_EQ(drain(wheel, at(1'000'000)), (std::vector<Timer*>{&a, &b}));
}

TEST(TimerWheel, TimeNeverRunsBackwards) {
  TimerWheel wheel;
  Timer t;
  EXPECT_EQ(wheel.expire(at(10 * tick)), nullptr);
  wheel.arm(t, at(20 * tick));
  EXPECT_EQ(wheel.expire(at(5)), nullptr);
  EXPECT_EQ(wheel.expire(at(20 * tick)), &t);
}

TEST(TimerWheel, ReArmingMovesAndCancellingForgets) {
  TimerWheel wheel;
  Timer a, b;
  wheel.arm(a, at(10 * tick));
  wheel.arm(b, at(10 * tick));
  wheel.arm(a, at(1'000 * tick));
  wheel.cancel(b);
  wheel.cancel(b);
  EXPECT_EQ(wheel.expire(at(999 * tick)), nullptr);
  EXPECT_EQ(wheel.expire(at(1'000 * tick)), &a);
  EXPECT_TRUE(wheel.empty());
  // Also one that is due already but was not taken yet.
  wheel.arm(a, at(0));
  wheel.arm(b, at(0));
  wheel.cancel(a);
  EXPECT_EQ(drain(wheel, at(1'000 * tick)), (std::vector<Timer*>{&b}));
}

TEST(TimerWheel, NeverStaysArmedForEver) {
  TimerWheel wheel;
  Timer t;
  wheel.arm(t, never);
  EXPECT_EQ(wheel.expire(at(std::int64_t{1} << 62)), nullptr);
  EXPECT_TRUE(t.armed);
  wheel.cancel(t);
}

// A loop that only ever waits for next_deadline() fires each timer exactly at its deadline, and is
// not woken more than a few times per timer.
TEST(TimerWheel, WaitingForNextDeadlineIsExactAndMakesProgress) {
  Prng random(3);
  TimerWheel wheel;
  std::deque<Timer> timers(500);
  for (Timer& t : timers)
    wheel.arm(t, at(1 + random.next() % (std::uint64_t{1} << random.between(1, 36))));
  unsigned fired = 0, wakes = 0;
  for (Instant now{}; !wheel.empty(); ++wakes) {
    const Instant next = wheel.next_deadline();
    ASSERT_TRUE(next > now || wakes == 0) << "no progress at " << ns(now);
    now = std::max(now, next);
    while (Timer* t = wheel.expire(now)) {
      EXPECT_EQ(ns(t->deadline), ns(now));
      ++fired;
    }
  }
  EXPECT_EQ(fired, timers.size());
  EXPECT_LE(wakes, timers.size() * 6 + 8);
}

// The wheel against a list that is searched in full.
class Model {
 public:
  void arm(Timer& t, Instant deadline) {
    cancel(t);
    armed_.push_back({&t, deadline, deadline <= now_, ++sequence_});
  }
  void cancel(Timer& t) {
    std::erase_if(armed_, [&](const Entry& e) { return e.timer == &t; });
  }
  // Overdue ones in the order of arming, then by tick and arming.
  std::vector<Timer*> drain(Instant now) {
    now_ = std::max(now_, now);
    std::vector<Entry> due;
    for (const Entry& e : armed_)
      if (e.deadline <= now_) due.push_back(e);
    std::erase_if(armed_, [&](const Entry& e) { return e.deadline <= now_; });
    std::sort(due.begin(), due.end(), [](const Entry& a, const Entry& b) {
      return std::tuple(!a.overdue, a.overdue ? 0 : ns(a.deadline) / tick, a.sequence) <
             std::tuple(!b.overdue, b.overdue ? 0 : ns(b.deadline) / tick, b.sequence);
    });
    std::vector<Timer*> timers;
    for (const Entry& e : due) timers.push_back(e.timer);
    return timers;
  }
  Instant earliest() const {
    Instant t = never;
    for (const Entry& e : armed_) t = std::min(t, e.deadline);
    return t;
  }
  Instant now() const { return now_; }

 private:
  struct Entry {
    Timer* timer;
    Instant deadline;
    bool overdue;
    std::uint64_t sequence;
  };
  std::vector<Entry> armed_;
  std::uint64_t sequence_ = 0;
  Instant now_{};
};

// At most one tick early within the first level, one bucket of the right level beyond it.
std::int64_t allowed_lead(Instant now, Instant deadline) {
  std::int64_t unit = tick;
  for (int level = 0; level < 4 && ns(now) / (unit * 64) != ns(deadline) / (unit * 64); ++level)
    unit *= 64;
  return unit;
}

TEST(TimerWheel, AgreesWithAListThatIsSearchedInFull) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    Prng random(seed);
    TimerWheel wheel;
    Model model;
    std::deque<Timer> timers(40);
    Instant now = at(seed % 2 ? random.below(std::uint64_t{1} << 50) : 0);
    const unsigned reach = static_cast<unsigned>(random.between(8, 38));
    for (int step = 0; step < 4'000; ++step) {
      Timer& t = timers[random.below(timers.size())];
      const std::int64_t distance = random.below(std::uint64_t{1} << random.between(1, reach));
      if (random.chance(2, 3)) {
        const Instant deadline =
            now + Duration(distance) - Duration(random.chance(1, 8) ? distance + 9 : 0);
        wheel.arm(t, deadline);
        model.arm(t, deadline);
      } else if (random.chance(1, 2)) {
        wheel.cancel(t);
        model.cancel(t);
      } else {
        now += Duration(distance / 4);
        ASSERT_EQ(drain(wheel, now), model.drain(now)) << "seed " << seed << " step " << step;
      }
      const Instant next = wheel.next_deadline(), earliest = model.earliest();
      ASSERT_LE(next, earliest) << "seed " << seed << " step " << step;
      ASSERT_EQ(wheel.empty(), earliest == never);
      if (earliest != never && ns(earliest) / span == ns(model.now()) / span) {
        ASSERT_GT(ns(next), ns(earliest) - allowed_lead(model.now(), earliest));
      }
    }
    for (Timer& t : timers) wheel.cancel(t);
    EXPECT_TRUE(wheel.empty());
  }
}

}  // namespace
}  // namespace adverb
