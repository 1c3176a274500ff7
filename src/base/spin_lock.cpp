// SPDX-License-Identifier: Apache-2.0
// One step of waiting for a lock that somebody holds.
#include "base/spin_lock.hpp"

namespace adverb {

namespace {
// Some 100 PAUSEs (a few microseconds) outlast any holder that is running.
constexpr unsigned spins_before_yield = 100;
}  // namespace

constinit std::atomic<SpinYield> spin_yield{nullptr};

void SpinLock::pause(unsigned spins) {
  if (spins > spins_before_yield)
    if (const SpinYield yield = spin_yield.load(std::memory_order_relaxed))
      return yield(spins - spins_before_yield);
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace adverb
