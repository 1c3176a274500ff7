// SPDX-License-Identifier: Apache-2.0
// RoCE v1 frames: one written out by hand, and what the decoder refuses (annex A16).
#include "wire/roce_v1.hpp"

#include <gtest/gtest.h>

#include "wire/icrc.hpp"
#include "wire/native.hpp"
#include "wire/testing.hpp"

namespace adverb::wire {
namespace {

using namespace testing;

const Gid source{{0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, 0, 1}};
const Gid destination{{0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, 0, 2}};

// SEND_ONLY of four bytes to QPN 0x123456 with PSN 7.
const Bytes packet{0x04, 0x40, 0xff, 0xff, 0, 0x12, 0x34, 0x56, 0x80, 0, 0, 7, 'a', 'b', 'c', 'd'};
const Bytes headers{2,    0,    0,    0,    0, 2,  2,    0,  0, 0, 0, 1,    0x89, 0x15,  // Ethernet
                    0x60, 0xa1, 0x23, 0x45, 0, 20, 0x1b, 64,                             // GRH
                    0xfe, 0x80, 0,    0,    0, 0,  0,    0,  0, 0, 0, 0xff, 0xfe, 0,    0, 1,
                    0xfe, 0x80, 0,    0,    0, 0,  0,    0,  0, 0, 0, 0xff, 0xfe, 0,    0, 2};

Grh grh() {
  return {.traffic_class = 0x0a,
          .flow_label = 0x12345,
          .hop_limit = 64,
          .sgid = source,
          .dgid = destination};
}
IcrcPath path() { return {.source = source, .destination = destination, .grh = true}; }

std::uint32_t bitwise_crc32(const Bytes& bytes) {
  std::uint32_t r = ~0u;
  for (std::uint8_t b : bytes)
    for (int i = 0; i < 8; ++i) r = r >> 1 ^ (((r ^ b >> i) & 1) != 0 ? 0xedb88320 : 0);
  return ~r;
}

TEST(RoceV1, C59_HeadersAsTheAnnexHasThem) {
  Bytes out(roce_v1_header_bytes);
  encode_roce_v1({2, 0, 0, 0, 0, 2}, {2, 0, 0, 0, 0, 1}, grh(), packet.size(), out.data());
  EXPECT_EQ(out, headers);
}

// LRH as ones, GRH with traffic class, flow label and hop limit as ones, BTH with its fifth byte
// so.
TEST(RoceV1, C59_IcrcOverTheGrh) {
  Bytes masked(8, 0xff);
  masked.insert(masked.end(), headers.begin() + 14, headers.end());
  masked[8] = 0x6f;
  masked[9] = masked[10] = masked[11] = masked[15] = 0xff;
  masked.insert(masked.end(), packet.begin(), packet.end());
  masked[8 + 40 + 4] = 0xff;
  const Exact exact(packet);
  EXPECT_EQ(IcrcPrefix(path(), packet.size()).icrc(exact), bitwise_crc32(masked));
}

// A v4-mapped GID stands whole in the GRH: there is no Identification to guess.
TEST(RoceV1, IcrcWithMappedGids) {
  const IcrcPath v4{
      .source = Gid::from_v4(0x0100000a), .destination = Gid::from_v4(0x0200000a), .grh = true};
  const IcrcPrefix prefix(v4, packet.size());
  const std::uint32_t right = prefix.icrc(packet);
  EXPECT_EQ(prefix.icrc(packet, 77), right);
  EXPECT_TRUE(prefix.check(packet, right, 5));
  EXPECT_FALSE(prefix.check(packet, right ^ 1, 5));
  EXPECT_NE(
      right,
      IcrcPrefix({.source = v4.source, .destination = v4.destination}, packet.size()).icrc(packet));
}

TEST(RoceV1, C60_FramesThatAreNone) {
  Bytes whole = headers;
  whole.insert(whole.end(), packet.begin(), packet.end());
  whole.insert(whole.end(), {1, 2, 3, 4});
  const auto decode = [](const Bytes& b) { return decode_roce_v1(Exact(b)); };
  ASSERT_TRUE(decode(whole));
  {
    const Exact exact(whole);
    const auto f = decode_roce_v1(exact);
    EXPECT_EQ(Bytes(f->packet.begin(), f->packet.end()), packet);
    EXPECT_EQ(f->icrc, 0x04030201u);
    Grh want = grh();
    want.payload_length = 20;
    EXPECT_EQ(f->grh, want);
  }
  for (std::size_t n = 0; n < whole.size(); ++n)
    EXPECT_FALSE(decode(Bytes(whole.begin(), whole.begin() + static_cast<long>(n)))) << n;
  Bytes padded = whole;  // by Ethernet
  padded.resize(100);
  EXPECT_TRUE(decode(padded));
  for (const std::size_t at : {12u, 14u, 20u}) {  // type, version, next header
    Bytes other = whole;
    other[at] ^= 0x10;
    EXPECT_FALSE(decode(other)) << at;
  }
  Bytes tiny = padded;
  tiny[19] = 15;  // no room for a BTH and the ICRC
  EXPECT_FALSE(decode(tiny));
}

TEST(RoceV1, AddressesOfGroups) {
  const Mac v4{0x01, 0x00, 0x5e, 0x01, 2, 3}, v6{0x33, 0x33, 0xde, 0xad, 0xbe, 0xef};
  EXPECT_EQ(multicast_mac(Gid::from_v4(0x030281ef)), v4);  // 239.129.2.3
  Gid g;
  g.bytes = {0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xde, 0xad, 0xbe, 0xef};
  EXPECT_EQ(multicast_mac(g), v6);
}

}  // namespace
}  // namespace adverb::wire
