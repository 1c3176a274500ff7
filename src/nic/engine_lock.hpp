// SPDX-License-Identifier: Apache-2.0
// The lock of the engine (design D3, Locking): tried on post and poll, waited for by control calls
// only.
//
//   - try_lock() fails while a control call waits, so that spinning pollers cannot starve it.
//   - No lost doorbell: whoever fails to take the lock has rung before, and whoever lets go looks
//   at the doorbells
//     afterwards.  Both sides are sequentially consistent, so one of them sees the other.  When
//     try_lock() failed for a waiting control call, that call will hold the engine, let go and
//     look.
//   - A holder that lost its CPU gets it back: whoever polls and finds the same holder again and
//     again steps aside until the lock is let go.  With more spinning threads than CPUs, each of
//     them would otherwise spin to the end of its time slice before the holder runs again.
#pragma once

#include <atomic>
#include <cstdint>

#include "nic/clock.hpp"

namespace adverb::nic {

class EngineLock {
 public:
  bool try_lock() {
    if (waiters_.load(std::memory_order_seq_cst) != 0) return false;
    if (held_.load(std::memory_order_seq_cst) != 0) return false;
    return held_.exchange(1, std::memory_order_seq_cst) == 0;
  }
  void lock() {
    waiters_.fetch_add(1, std::memory_order_seq_cst);
    while (held_.exchange(1, std::memory_order_seq_cst) != 0) held_.wait(1);
    waiters_.fetch_sub(1, std::memory_order_seq_cst);
  }
  void unlock() {
    releases_.store(releases_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    held_.store(0, std::memory_order_seq_cst);
    if (waiters_.load(std::memory_order_seq_cst) != 0) held_.notify_one();
    if (aside_.load(std::memory_order_seq_cst) != 0) wake_aside();
  }

  // For a poller whose try_lock() failed.  Mostly returns at once.  When this thread has failed for
  // `patience` while nobody let go of the lock, it sleeps until somebody does, 20 ms at most. True:
  // it slept.
  bool failed_to_poll() {
    thread_local Failures mine;
    const std::uint32_t seen = releases_.load(std::memory_order_relaxed);
    const Instant now = clock_now();
    if (mine.lock != this || mine.releases != seen) {
      mine = {.lock = this, .releases = seen, .since = now};
      return false;
    }
    if (now - mine.since < patience) return false;
    step_aside(seen);
    return true;
  }

  // A turn takes 2 to 20 us.
  static constexpr Duration patience = std::chrono::microseconds(20);

 private:
  struct Failures {
    const EngineLock* lock = nullptr;
    std::uint32_t releases = 0;
    Instant since{};  // of the first one
  };

  void step_aside(std::uint32_t seen);
  void wake_aside();

  alignas(64) std::atomic<int> held_{0};
  std::atomic<int> waiters_{0};
  std::atomic<std::uint32_t> releases_{0};  // written by the holder; pollers sleep on it
  std::atomic<int> aside_{0};               // pollers that sleep, or are about to
};

}  // namespace adverb::nic
