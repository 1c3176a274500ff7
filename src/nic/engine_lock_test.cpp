// SPDX-License-Identifier: Apache-2.0
#include "nic/engine_lock.hpp"

#include <gtest/gtest.h>

#include <mutex>
#include <thread>
#include <vector>

namespace adverb::nic {
namespace {

TEST(EngineLock, TriedByOneAtATime) {
  EngineLock lock;
  ASSERT_TRUE(lock.try_lock());
  EXPECT_FALSE(lock.try_lock());
  lock.unlock();
  EXPECT_TRUE(lock.try_lock());
  lock.unlock();
}

TEST(EngineLock, ControlCallsAreNotStarvedByTryers) {
  EngineLock lock;
  constexpr int rounds = 2000;
  std::atomic<bool> done{false};
  long plain = 0;  // guarded by lock; ThreadSanitizer watches
  std::vector<std::thread> tryers;
  for (int i = 0; i < 3; ++i)
    tryers.emplace_back([&] {
      while (!done.load()) {
        if (!lock.try_lock()) continue;
        ++plain;
        lock.unlock();
      }
    });
  long before = 0;
  for (int i = 0; i < rounds; ++i) {
    std::lock_guard hold(lock);
    before = ++plain;
  }
  done = true;
  for (auto& t : tryers) t.join();
  EXPECT_GE(before, rounds);
}

// A holder that lost its CPU must get it back from those who poll meanwhile.
TEST(EngineLock, APollerStepsAsideForAHolderThatDoesNotLetGo) {
  EngineLock lock;
  lock.lock();
  // This thread is the holder, and runs only because the poller sleeps now and then.
  std::thread poller([&] {
    while (!lock.failed_to_poll()) {
    }
  });
  poller.join();
  lock.unlock();
  EXPECT_TRUE(lock.try_lock());
}

TEST(EngineLock, APollerIsPatientWithHoldersThatLetGo) {
  EngineLock lock;
  const Instant end = clock_now() + 10 * EngineLock::patience;
  while (clock_now() < end) {
    ASSERT_TRUE(lock.try_lock());
    EXPECT_FALSE(lock.failed_to_poll());  // the first failure with each holder
    lock.unlock();
  }
}

TEST(EngineLock, WhoeverLetsGoWakesThoseWhoStoodAside) {
  EngineLock lock;
  std::atomic<bool> done{false};
  std::atomic<long> slept{0};
  long entered = 0;  // guarded by lock
  std::vector<std::thread> pollers;
  for (int i = 0; i < 8; ++i)
    pollers.emplace_back([&] {
      while (!done.load()) {
        if (lock.try_lock()) {
          ++entered;
          lock.unlock();
        } else if (lock.failed_to_poll()) {
          ++slept;
        }
      }
    });
  while (slept.load() < 100) {
    lock.lock();
    const long before = slept.load();
    while (slept.load() == before) std::this_thread::yield();  // all stand aside, or will
    lock.unlock();
  }
  done = true;
  for (auto& t : pollers) t.join();
  EXPECT_GT(entered, 0);
}

TEST(EngineLock, NoDoorbellIsLost) {
  // The protocol of Device::doorbell, with a counter for the doorbell list.
  EngineLock lock;
  std::atomic<long> rung{0};
  long served = 0;
  const auto serve = [&] {
    do {
      served += rung.exchange(0, std::memory_order_seq_cst);
      lock.unlock();
    } while (rung.load(std::memory_order_seq_cst) != 0 && lock.try_lock());
  };
  constexpr long each = 20000;
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&] {
      for (long k = 0; k < each; ++k) {
        rung.fetch_add(1, std::memory_order_seq_cst);
        if (lock.try_lock()) serve();
      }
    });
  threads.emplace_back([&] {
    for (int k = 0; k < 1000; ++k) {
      lock.lock();
      serve();
    }
  });
  for (auto& t : threads) t.join();
  EXPECT_EQ(rung.load(), 0);
  EXPECT_EQ(served, 3 * each);
}

}  // namespace
}  // namespace adverb::nic
