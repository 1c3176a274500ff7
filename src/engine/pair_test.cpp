// SPDX-License-Identifier: Apache-2.0
// Two engines and a wire between them, in virtual time: whole operations end to end, with packets
// lost, doubled and reordered by a seed.
#include <gtest/gtest.h>

#include "engine/testing.hpp"

namespace adverb::engine {
namespace {

using testing::Pair;

TEST(Pair, WritePlacesBytesAndCompletes) {
  Pair p;
  p.fill(p.a, 0, 5000, 7);
  p.post_write(p.a, 0, 100, 5000);
  p.run();
  EXPECT_EQ(p.status_of(p.a), WcStatus::success);
  EXPECT_TRUE(p.same(0, 100, 5000));
}

TEST(Pair, SendReadAtomicMixUnderLoss) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    Pair p({.seed = seed, .loss = 50, .duplicate = 30, .reorder = 30});
    std::uint64_t expected_sum = 0;
    for (int i = 0; i < 20; ++i) {
      p.fill(p.a, 0, 20000, static_cast<std::uint8_t>(i + seed));
      p.post_write(p.a, 0, 30000, 20000);
      p.post_read(p.a, 50000, 30000, 20000);
      p.post_receive(p.b, 100000, 4000);
      p.post_send(p.a, 0, 3000);
      p.post_fetch_add(p.a, 80000, 200000, 3);
      p.run();
      for (int k = 0; k < 4; ++k)
        ASSERT_EQ(p.status_of(p.a), WcStatus::success) << seed << ' ' << i;
      ASSERT_EQ(p.status_of(p.b), WcStatus::success);
      ASSERT_TRUE(p.same(0, 30000, 20000)) << seed;
      ASSERT_EQ(std::memcmp(p.a.memory.data(), p.a.memory.data() + 50000, 20000), 0) << seed;
      ASSERT_TRUE(p.same(0, 100000, 3000)) << seed;
      std::uint64_t original;
      std::memcpy(&original, p.a.memory.data() + 80000, 8);
      ASSERT_EQ(original, expected_sum) << seed;
      expected_sum += 3;
    }
  }
}

TEST(Pair, SilentPeerExhaustsRetries) {
  Pair p({.seed = 1, .loss = 1000});
  p.post_write(p.a, 0, 100, 10);
  p.run();
  EXPECT_EQ(p.status_of(p.a), WcStatus::retry_exc_err);
  EXPECT_EQ(p.a.qp->state.load(), QpState::error);
}

TEST(Pair, MissingReceiveIsRetriedForEverUntilPosted) {
  Pair p;
  p.fill(p.a, 0, 100, 1);
  p.post_send(p.a, 0, 100);
  p.run_for(std::chrono::milliseconds(100));
  EXPECT_EQ(p.completions(p.a), 0u);
  p.post_receive(p.b, 1000, 100);
  p.run();
  EXPECT_EQ(p.status_of(p.a), WcStatus::success);
  EXPECT_TRUE(p.same(0, 1000, 100));
}

}  // namespace
}  // namespace adverb::engine
