// SPDX-License-Identifier: Apache-2.0
// The one clock (design: CLOCK_MONOTONIC, nanoseconds in integers).
#pragma once

#include <ctime>

#include "base/types.hpp"

namespace adverb::nic {

inline Instant clock_now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return Instant(std::chrono::seconds(t.tv_sec) + std::chrono::nanoseconds(t.tv_nsec));
}

}  // namespace adverb::nic
