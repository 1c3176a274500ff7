// SPDX-License-Identifier: Apache-2.0
#include "nic/engine_lock.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>

namespace adverb::nic {

// The holder adds to `releases_`, lets go, then looks at `aside_`; a poller adds to `aside_` before
// the kernel compares `releases_`.  So either the poller does not sleep or the holder sees it.
void EngineLock::step_aside(std::uint32_t seen) {
  constexpr timespec at_most{.tv_sec = 0, .tv_nsec = 20'000'000};
  aside_.fetch_add(1, std::memory_order_seq_cst);
  ::syscall(SYS_futex, &releases_, FUTEX_WAIT_PRIVATE, seen, &at_most, nullptr, 0);
  aside_.fetch_sub(1, std::memory_order_seq_cst);
}

void EngineLock::wake_aside() {
  ::syscall(SYS_futex, &releases_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

}  // namespace adverb::nic
