// SPDX-License-Identifier: Apache-2.0
#include "base/prng.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

namespace adverb {
namespace {

// The reference numbers come from another implementation of the two published algorithms.
TEST(SplitMix, GivesTheReferenceSequence) {
  SplitMix s(1234567);
  EXPECT_EQ(s.next(), 6457827717110365317u);
  EXPECT_EQ(s.next(), 3203168211198807973u);
  EXPECT_EQ(s.next(), 9817491932198370423u);
}

TEST(Prng, GivesTheReferenceSequence) {
  Prng p(42);
  for (const std::uint64_t expected : std::array<std::uint64_t, 4>{
           0x15780b2e0c2ec716u, 0x6104d9866d113a7eu, 0xae17533239e499a1u, 0xecb8ad4703b360a1u})
    EXPECT_EQ(p.next(), expected);
}

TEST(Prng, BelowStaysBelowAndReachesBothEnds) {
  Prng p(1);
  std::array<int, 7> seen{};
  for (int i = 0; i < 7000; ++i) ++seen.at(p.below(7));
  EXPECT_GT(*std::min_element(seen.begin(), seen.end()), 800);
  EXPECT_EQ(p.below(0), 0u);
  EXPECT_EQ(p.below(1), 0u);
  for (int i = 0; i < 100; ++i) {
    const auto x = p.between(5, 6);
    EXPECT_TRUE(x == 5 || x == 6);
  }
}

TEST(Prng, ChanceIsNeverAtZeroAndAlwaysAtOne) {
  Prng p(1);
  for (int i = 0; i < 1000; ++i) {
    EXPECT_FALSE(p.chance(0, 5));
    EXPECT_TRUE(p.chance(5, 5));
  }
}

}  // namespace
}  // namespace adverb
