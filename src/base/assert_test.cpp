// SPDX-License-Identifier: Apache-2.0
#include "base/assert.hpp"

#include <gtest/gtest.h>

#include <cstdio>

namespace adverb {
namespace {

TEST(AssertDeathTest, SaysWhatBrokeAndStopsTheProcess) {
  assert_hook = [](const char* expression, const char* file, int) {
    std::fprintf(stderr, "broken: %s in %s", expression, file);
  };
  int sent = 3, acked = 4;
  EXPECT_DEATH(ASSERT(acked <= sent), "broken: acked <= sent in .*assert_test.cpp");
  assert_hook = nullptr;
  EXPECT_DEATH(ASSERT(acked <= sent), "");
}

TEST(Assert, EvaluatesOnceAndPasses) {
  int evaluated = 0;
  ASSERT(++evaluated == 1);
  EXPECT_EQ(evaluated, 1);
}

}  // namespace
}  // namespace adverb
