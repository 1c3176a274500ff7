// SPDX-License-Identifier: Apache-2.0
#include "wire/pcap.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "wire/testing.hpp"

namespace adverb::wire {
namespace {

using namespace testing;

TEST(Pcap, FileHeader) {
  Bytes b(pcap_file_header_bytes);
  EXPECT_EQ(pcap_header(b.data()), b.size());
  EXPECT_EQ(b, (Bytes{0xa1, 0xb2, 0x3c, 0x4d, 0, 2, 0, 4, 0, 0, 0, 0,
                      0,    0,    0,    0,    0, 4, 0, 0, 0, 0, 0, 101}));
  pcap_header(b.data(), LinkType::erf);
  EXPECT_EQ(b[23], 197);
}

TEST(Pcap, C59_Ipv4RecordCarriesTosVerbatimAndDontFragment) {
  IpPath path{.source = Gid::from_v4(0x02004d0a),
              .destination = Gid::from_v4(0x01004d0a),
              .source_port = 0xc123,
              .identification = 0xbeef,
              .traffic_class = 0xa9,
              .hop_limit = 63};
  Bytes transport{1, 2, 3, 4};
  Bytes b(pcap_record_header_bytes + ip_udp_bytes(path) + transport.size());
  EXPECT_EQ(pcap_record(b.data(), 5'000'000'007, path, transport), b.size());
  EXPECT_EQ(b, (Bytes{0,    0,    0,    5,    0,    0,    0,    7,    0,    0,    0,    32,
                      0,    0,    0,    32,   0x45, 0xa9, 0x00, 0x20, 0xbe, 0xef, 0x40, 0x00,
                      0x3f, 0x11, 0x67, 0x98, 10,   77,   0,    2,    10,   77,   0,    1,
                      0xc1, 0x23, 0x12, 0xb7, 0x00, 0x0c, 0x00, 0x00, 1,    2,    3,    4}));
}

std::uint32_t ones_sum(std::span<const std::uint8_t> b, std::uint32_t sum = 0) {
  for (std::size_t i = 0; i < b.size(); i += 2) sum += b[i] * 256u + b[i + 1];
  while (sum > 0xffff) sum = sum % 0x10000 + sum / 0x10000;
  return sum;
}

TEST(Pcap, Ipv6RecordHasARightUdpChecksum) {
  IpPath path{.source = Gid{{0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 3, 4, 5, 6, 7, 8, 9}},
              .destination = Gid{{0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}},
              .source_port = 49153,
              .traffic_class = 0xa9,
              .flow_label = 0xabcde};
  Random random(1);
  for (std::size_t n = 16; n < 80; n += 4) {
    Bytes transport = random_bytes(random, n);
    Bytes b(pcap_record_header_bytes + ip_udp_bytes(path) + n);
    ASSERT_EQ(pcap_record(b.data(), 0, path, transport), b.size());
    std::span<const std::uint8_t> ip = std::span(b).subspan(16);
    EXPECT_TRUE(std::ranges::equal(
        ip.first(8), Bytes{0x6a, 0x9a, 0xbc, 0xde, 0, static_cast<std::uint8_t>(8 + n), 17, 64}));
    auto pseudo = ones_sum(ip.subspan(8, 32), static_cast<std::uint32_t>(17 + 8 + n));
    EXPECT_EQ(ones_sum(ip.subspan(40), pseudo), 0xffffu);
  }
}

TEST(Pcap, NativeRecord) {
  Bytes frame{0xaa, 0xbb, 0xcc}, b(pcap_record_header_bytes + erf_header_bytes + frame.size());
  EXPECT_EQ(pcap_native_record(b.data(), 3'500'000'000, frame), b.size());
  EXPECT_EQ(b, (Bytes{0, 0,    0, 3, 0x1d, 0xcd, 0x65, 0, 0, 0,  0, 19, 0, 0, 0,    19,   0,   0,
                      0, 0x80, 3, 0, 0,    0,    21,   4, 0, 19, 0, 0,  0, 3, 0xaa, 0xbb, 0xcc}));
}

}  // namespace
}  // namespace adverb::wire
