// SPDX-License-Identifier: Apache-2.0
#include "base/spin_lock.hpp"

#include <gtest/gtest.h>
#include <sched.h>

#include <mutex>
#include <thread>

namespace adverb {
namespace {

TEST(SpinLock, KeepsOthersOut) {
  spin_yield = [](unsigned) { sched_yield(); };
  SpinLock lock;
  long counter = 0;
  const auto count = [&] {
    for (int i = 0; i < 100'000; ++i) {
      std::lock_guard hold(lock);
      ++counter;
    }
  };
  std::thread a(count), b(count), c(count);
  a.join(), b.join(), c.join();
  EXPECT_EQ(counter, 300'000);
  spin_yield = nullptr;
}

TEST(SpinLock, TryLockFailsWhileHeld) {
  SpinLock lock;
  EXPECT_TRUE(lock.try_lock());
  EXPECT_FALSE(lock.try_lock());
  lock.unlock();
  EXPECT_TRUE(lock.try_lock());
  lock.unlock();
}

// The waiter must give up the CPU, or a holder that was scheduled out would wait for its time
// slice.
TEST(SpinLock, AWaiterYieldsTheCpuInTheEnd) {
  static std::atomic<bool> yielded;
  yielded = false;
  spin_yield = [](unsigned n) { yielded = n > 1, sched_yield(); };
  SpinLock lock;
  bool entered = false;
  lock.lock();
  std::thread waiter([&] {
    std::lock_guard hold(lock);
    entered = true;
  });
  while (!yielded) sched_yield();
  EXPECT_FALSE(entered);
  lock.unlock();
  waiter.join();
  EXPECT_TRUE(entered);
  spin_yield = nullptr;
}

}  // namespace
}  // namespace adverb
