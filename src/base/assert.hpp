// SPDX-License-Identifier: Apache-2.0
// ASSERT: a broken invariant is our bug and stops the process, in release builds too.  Bad input is
// never asserted on; it gets an error or a counter.
#pragma once

namespace adverb {

// Called before the trap, with a description that lives for ever.  Set by whoever has a place to
// print (the engine itself imports no I/O); may be null.
using AssertHook = void (*)(const char* expression, const char* file, int line);
extern AssertHook assert_hook;

[[noreturn]] void assertion_failed(const char* expression, const char* file, int line);

}  // namespace adverb

#define ASSERT(x) \
  (__builtin_expect(!!(x), 1) ? void() : ::adverb::assertion_failed(#x, __FILE__, __LINE__))
