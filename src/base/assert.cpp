// SPDX-License-Identifier: Apache-2.0
// Where a broken invariant ends: tell the hook, then stop at an illegal instruction (the core dump
// points here).
#include "base/assert.hpp"

namespace adverb {

constinit AssertHook assert_hook = nullptr;

void assertion_failed(const char* expression, const char* file, int line) {
  if (assert_hook) assert_hook(expression, file, line);
  __builtin_trap();
}

}  // namespace adverb
