// SPDX-License-Identifier: Apache-2.0
#include "base/types.hpp"

#include <arpa/inet.h>
#include <gtest/gtest.h>

namespace adverb {
namespace {

TEST(Psn, DistanceIsSignedOnTheCircle) {
  EXPECT_EQ(Psn(5) - Psn(3), 2);
  EXPECT_EQ(Psn(3) - Psn(5), -2);
  EXPECT_EQ(Psn(1) - Psn(0xffffff), 2);
  EXPECT_EQ(Psn(0xffffff) - Psn(1), -2);
  EXPECT_EQ(Psn(0x7fffff) - Psn(0), 0x7fffff);
  EXPECT_EQ(Psn(0x800000) - Psn(0), -0x800000);
}

TEST(Psn, WrapsAfter24Bits) {
  EXPECT_EQ((Psn(0xfffffe) + 3).raw(), 1u);
  EXPECT_EQ((Psn(1) - 3u).raw(), 0xfffffeu);
  EXPECT_EQ(Psn(0xff000007).raw(), 7u);
}

TEST(Qpn, IsSlotThenIndex) {
  const Qpn q = Qpn::of(1022, 0x3fff);
  EXPECT_EQ(q.raw(), 0xffbfffu);
  EXPECT_EQ(q.slot(), 1022u);
  EXPECT_EQ(q.index(), 0x3fffu);
}

TEST(Gid, HoldsAnIpv4AddressAsAnnexA17Says) {
  const std::uint32_t address = htonl(0x0a000102);
  const Gid g = Gid::from_v4(address);
  EXPECT_TRUE(g.is_v4());
  EXPECT_FALSE(g.is_zero());
  EXPECT_EQ(g.v4(), address);
  in6_addr expected;
  ASSERT_EQ(inet_pton(AF_INET6, "::ffff:10.0.1.2", &expected), 1);
  EXPECT_EQ(std::memcmp(&expected, g.bytes.data(), 16), 0);
  EXPECT_FALSE(Gid{}.is_v4());
  EXPECT_TRUE(Gid{}.is_zero());
}

}  // namespace
}  // namespace adverb
