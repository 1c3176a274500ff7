// SPDX-License-Identifier: Apache-2.0
// Random operations of every kind over networks of every quality.  A failure prints its seed.
#include <gtest/gtest.h>

#include <cstdlib>

#include "engine/network.hpp"

namespace adverb::engine::network {
namespace {

// How many seeds each test runs; ADVERB_SEEDS asks for more.
std::uint64_t seeds(std::uint64_t usual) {
  const char* more = std::getenv("ADVERB_SEEDS");
  return more ? std::strtoull(more, nullptr, 10) : usual;
}

// Every knob is drawn from the seed, small values often.
Options drawn(std::uint64_t seed) {
  Prng r(seed * 7919);
  Options o;
  o.seed = seed;
  o.hosts = 2 + static_cast<unsigned>(r.below(2));
  o.qps = 1 + static_cast<unsigned>(r.below(4));
  o.mtu = static_cast<Mtu>(1 + r.below(5));
  o.depth = 1 + static_cast<unsigned>(r.below(8));
  o.recv_depth = 1 + static_cast<unsigned>(r.below(8));
  o.srq = r.chance(1, 3);
  o.credits = r.chance(1, 2);
  if (r.chance(1, 2)) o.window = 1500 + r.below(20000);
  if (r.chance(1, 2)) o.read_budget = 1 + r.below(8000);
  o.chunk = 1 + static_cast<std::uint32_t>(r.below(6));
  o.rd_atomic = static_cast<std::uint8_t>(1 + r.below(5));
  o.timeout = static_cast<std::uint8_t>(5 + r.below(6));
  o.receive_lag = r.chance(1, 2) ? static_cast<unsigned>(r.below(999)) : 0;
  o.first_psn = 0x1000000 - static_cast<std::uint32_t>(r.below(60));
  if (r.chance(1, 4)) o.arena = TxBurst::max_frame;
  return o;
}

// C43, C35, C36, C37, C45: exact data and exactly once, across the PSN wrap.
TEST(Network, PerfectNetworkNeverRetransmits) {
  for (std::uint64_t seed = 1; seed <= seeds(30); ++seed) {
    Options o = drawn(seed);
    o.receive_lag = 0;
    Network n(o);
    ASSERT_TRUE(n.run(100)) << "seed " << seed;
    if (o.recv_depth == 8 && !o.srq) {
      EXPECT_EQ(n.sum(&Counters::local_ack_timeout_err), 0u) << "seed " << seed;
    }
    EXPECT_EQ(n.sum(&Counters::packet_seq_err), 0u) << "seed " << seed;
    EXPECT_EQ(n.sum(&Counters::implied_nak_seq_err), 0u) << "seed " << seed;
  }
}

// C44 at the engine: loss, duplicates, reordering, all operations mixed.
TEST(Network, C44_LossDuplicatesAndReordering) {
  for (std::uint64_t seed = 1; seed <= seeds(60); ++seed) {
    Options o = drawn(seed);
    Prng r(seed);
    o.loss = static_cast<unsigned>(r.below(40));
    o.duplicate = static_cast<unsigned>(r.below(60));
    o.reorder = static_cast<unsigned>(r.below(60));
    Network n(o);
    ASSERT_TRUE(n.run(100)) << "seed " << seed;
  }
}

// Duplicates alone: nobody times out because the network said something twice.
TEST(Network, DuplicatesAloneCauseNoTimeout) {
  for (std::uint64_t seed = 1; seed <= seeds(20); ++seed) {
    Options o = drawn(seed);
    o.receive_lag = 0;
    o.recv_depth = 8;
    o.srq = false;
    o.timeout = 14;
    o.duplicate = 300;
    Network n(o);
    ASSERT_TRUE(n.run(100)) << "seed " << seed;
    EXPECT_EQ(n.sum(&Counters::local_ack_timeout_err), 0u) << "seed " << seed;
  }
}

}  // namespace
}  // namespace adverb::engine::network
