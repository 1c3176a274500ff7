// SPDX-License-Identifier: Apache-2.0
// The lock of a queue: held for some tens of nanoseconds by posters and pollers.  Spins with PAUSE
// for a short while, then gives the CPU up, so that a holder that was scheduled out on a small
// machine can finish.
#pragma once

#include <atomic>

namespace adverb {

// Gives the CPU to another thread, for the nth time in this wait (from 1 on).  Set by whoever may
// call the operating system (src/nic, once, before a second thread exists); while it is null,
// waiting only spins.
using SpinYield = void (*)(unsigned n);
extern std::atomic<SpinYield> spin_yield;

class SpinLock {
 public:
  void lock() {
    if (!held_.exchange(true, std::memory_order_acquire)) return;
    lock_slowly();
  }
  bool try_lock() { return !held_.exchange(true, std::memory_order_acquire); }
  void unlock() { held_.store(false, std::memory_order_release); }

 private:
  void lock_slowly() {
    for (unsigned spins = 0; held_.exchange(true, std::memory_order_acquire);)
      while (held_.load(std::memory_order_relaxed)) pause(++spins);
  }
  static void pause(unsigned spins);
  std::atomic<bool> held_{false};
};

}  // namespace adverb
