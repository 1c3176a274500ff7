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
#pragma once

#include <atomic>

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
    held_.store(0, std::memory_order_seq_cst);
    if (waiters_.load(std::memory_order_seq_cst) != 0) held_.notify_one();
  }

 private:
  alignas(64) std::atomic<int> held_{0};
  std::atomic<int> waiters_{0};
};

}  // namespace adverb::nic
