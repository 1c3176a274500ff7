// SPDX-License-Identifier: Apache-2.0
#include "wire/flow_key.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "wire/testing.hpp"

namespace adverb::wire {
namespace {

using Bytes = std::vector<std::uint8_t>;

Bytes operator+(Bytes a, const Bytes& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}
const Bytes macs{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9};
const Bytes ports{0x12, 0x34, 0xab, 0xcd, 0, 8, 0, 0};
Bytes ipv4(std::uint8_t flags, std::uint8_t protocol) {
  return {0x45, 0x1c, 0, 28, 0, 1, flags, 0, 63, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2};
}
Bytes ipv6(std::uint8_t next) {
  Bytes b(40);
  b[0] = 0x6a, b[1] = 0xb1, b[2] = 0x23, b[3] = 0x45, b[6] = next, b[7] = 61;
  b[8] = 0xfd, b[23] = 1, b[24] = 0xfd, b[39] = 2;
  return b;
}
FlowKey key_of(const Bytes& frame) {
  const testing::Exact exact(frame);
  return flow_key_of(exact);
}

TEST(FlowKey, OfIpv4AndUdp) {
  const FlowKey k = key_of(macs + Bytes{8, 0} + ipv4(0x40, 17) + ports);
  EXPECT_EQ(k.dst_mac[5], 1);
  EXPECT_EQ(k.src_mac[5], 9);
  EXPECT_EQ(k.ether_type[0], 8);
  EXPECT_EQ(k.tagged, 0);
  EXPECT_EQ(k.ip_version, 4);
  EXPECT_EQ(k.next_header, 17);
  EXPECT_EQ(k.traffic_class, 0x1c);
  EXPECT_EQ(k.hop_limit, 63);
  EXPECT_EQ(k.fragment, 2);
  EXPECT_EQ(k.src_ip[3], 1);
  EXPECT_EQ(k.dst_ip[3], 2);
  EXPECT_EQ(k.ports, 1);
  EXPECT_EQ(k.src_port[0], 0x12);
  EXPECT_EQ(k.dst_port[1], 0xcd);
}

TEST(FlowKey, OfVlansAndIpv6BehindExtensionHeaders) {
  const Bytes hop{44, 0, 0, 0, 0, 0, 0, 0}, fragment{6, 0, 0, 1, 0, 0, 0, 0};
  const FlowKey k = key_of(macs + Bytes{0x88, 0xa8, 0, 7, 0x81, 0, 0, 9, 0x86, 0xdd} + ipv6(0) +
                           hop + fragment + ports);
  EXPECT_EQ(k.tagged, 1);
  EXPECT_EQ(k.vlan_tag[1], 7);
  EXPECT_EQ(k.ether_type[0], 0x86);
  EXPECT_EQ(k.ip_version, 6);
  EXPECT_EQ(k.traffic_class, 0xab);
  EXPECT_EQ(k.flow_label[1] << 16 | k.flow_label[2] << 8 | k.flow_label[3], 0x12345);
  EXPECT_EQ(k.hop_limit, 61);
  EXPECT_EQ(k.src_ip[0], 0xfd);
  EXPECT_EQ(k.dst_ip[15], 2);
  EXPECT_EQ(k.next_header, 6);
  EXPECT_EQ(k.fragment, 4);  // the first of several
  EXPECT_EQ(k.ports, 1);
}

TEST(FlowKey, LaterFragmentsHaveNoPorts) {
  Bytes later = ipv4(0x20, 17);
  later[7] = 5;
  FlowKey k = key_of(macs + Bytes{8, 0} + later + ports);
  EXPECT_EQ(k.next_header, 17);
  EXPECT_EQ(k.fragment, 4);
  EXPECT_EQ(k.ports, 0);
  k = key_of(macs + Bytes{0x86, 0xdd} + ipv6(44) + Bytes{17, 0, 0, 8, 0, 0, 0, 0} + ports);
  EXPECT_EQ(k.next_header, 17);
  EXPECT_EQ(k.ports, 0);
}

// C60: whatever is cut off is not there; nothing is read outside the frame.
TEST(FlowKey, OfFramesThatAreCutShort) {
  const Bytes whole[] = {
      macs + Bytes{8, 0} + ipv4(0, 6) + ports,
      macs + Bytes{0x81, 0, 0, 7, 0x86, 0xdd} + ipv6(60) + Bytes{17, 0, 0, 0, 0, 0, 0, 0} + ports};
  for (const Bytes& frame : whole) {
    for (std::size_t n = 0; n <= frame.size(); ++n) {
      const FlowKey k = key_of(Bytes(frame.begin(), frame.begin() + static_cast<long>(n)));
      if (n < 14) {
        EXPECT_EQ(k, FlowKey{});
      }
      // The ports are the first four of the last eight bytes.
      EXPECT_EQ(k.ports, n + 4 >= frame.size() ? 1 : 0) << n << " of " << frame.size();
    }
  }
}

}  // namespace
}  // namespace adverb::wire
