// SPDX-License-Identifier: Apache-2.0
// The hash of whole frames, by the first rows of Microsoft's verification suite.
#include "engine/rx_hash.hpp"

#include <gtest/gtest.h>

#include <string>

#include "engine/toeplitz_testing.hpp"

namespace adverb::engine {
namespace {

using namespace std::literals;

constexpr std::uint32_t ipv4 = rx_src_ipv4 | rx_dst_ipv4, ipv6 = rx_src_ipv6 | rx_dst_ipv6,
                        tcp = rx_src_port_tcp | rx_dst_port_tcp,
                        udp = rx_src_port_udp | rx_dst_port_udp;
constexpr char of_tcp = 6, of_udp = 17;

const std::string macs(12, '\2');
const std::string ports = "\x0a\xea\x06\xe6"s;  // 2794 to 1766

// From 66.9.149.187 to 161.142.100.80; `flags`: of fragments.
std::string frame4(char protocol, char flags = 0, bool tagged = false) {
  return macs + (tagged ? "\x81\0\0\x07"s : ""s) + "\x08\0"s + "\x45\0\0\x1c\0\0"s + flags + '\0' +
         '\x40' + protocol + "\0\0"s + "\x42\x09\x95\xbb\xa1\x8e\x64\x50"s + ports + "\0\0\0\0"s;
}
// From 3ffe:2501:200:1fff::7 to 3ffe:2501:200:3::1; `extension`: a header that comes before.
std::string frame6(char protocol, const std::string& extension = "", char next = 0) {
  return macs + "\x86\xdd"s + "\x60\0\0\0\0\x08"s + (extension.empty() ? protocol : next) + '\x40' +
         "\x3f\xfe\x25\x01\x02\0\x1f\xff\0\0\0\0\0\0\0\x07"s +
         "\x3f\xfe\x25\x01\x02\0\0\x03\0\0\0\0\0\0\0\x01"s + extension + ports + "\0\0\0\0"s;
}
std::uint32_t hash(std::uint32_t fields, const std::string& frame) {
  return RxHash(suite_key, fields)
      .of(wire::flow_key_of({reinterpret_cast<const std::uint8_t*>(frame.data()), frame.size()}));
}

TEST(RxHash, AddressesAndPortsOfTheSuite) {
  for (const bool tagged : {false, true}) {
    EXPECT_EQ(hash(ipv4, frame4(of_udp, 0, tagged)), 0x323e8fc2u);
    EXPECT_EQ(hash(ipv4 | udp, frame4(of_udp, 0, tagged)), 0x51ccc178u);
    EXPECT_EQ(hash(ipv4 | tcp, frame4(of_tcp, 0, tagged)), 0x51ccc178u);
  }
  EXPECT_EQ(hash(ipv6, frame6(of_tcp)), 0x2cc18cd5u);
  EXPECT_EQ(hash(ipv6 | tcp, frame6(of_tcp)), 0x40207d3du);
  EXPECT_EQ(hash(ipv6 | udp, frame6(of_udp)), 0x40207d3du);
}

TEST(RxHash, SingleFieldsStandSideBySide) {
  const std::uint8_t source[]{0x42, 0x09, 0x95, 0xbb}, both_ports[]{0x0a, 0xea, 0x06, 0xe6};
  const std::uint8_t source_and_port[]{0x42, 0x09, 0x95, 0xbb, 0x06, 0xe6};
  EXPECT_EQ(hash(rx_src_ipv4, frame4(of_udp)), toeplitz_hash(suite_key, source));
  EXPECT_EQ(hash(udp, frame4(of_udp)), toeplitz_hash(suite_key, both_ports));
  EXPECT_EQ(hash(rx_src_ipv4 | rx_dst_port_udp, frame4(of_udp)),
            toeplitz_hash(suite_key, source_and_port));
}

TEST(RxHash, AFrameThatLacksAFieldHasNone) {
  EXPECT_EQ(hash(ipv6, frame4(of_udp)), 0u);
  EXPECT_EQ(hash(ipv4, frame6(of_udp)), 0u);
  EXPECT_EQ(hash(ipv4 | tcp, frame4(of_udp)), 0u);
  EXPECT_EQ(hash(ipv6 | udp, frame6(of_tcp)), 0u);
  EXPECT_EQ(hash(ipv4, macs + "\x88\xb5"s), 0u);
  EXPECT_EQ(hash(ipv4, ""), 0u);
  EXPECT_EQ(hash(0, frame4(of_udp)), 0u);
}

TEST(RxHash, FragmentsHaveAddressesOnly) {
  constexpr char more = 0x20;
  EXPECT_EQ(hash(ipv4 | udp, frame4(of_udp, more)), 0u);
  EXPECT_EQ(hash(ipv4, frame4(of_udp, more)), 0x323e8fc2u);
  const std::string first = std::string(1, of_udp) + "\0\0\x01\0\0\0\x09"s,
                    whole = std::string(1, of_udp) + "\0\0\0\0\0\0\x09"s;
  constexpr char fragment_header = 44;
  EXPECT_EQ(hash(ipv6 | udp, frame6(of_udp, first, fragment_header)), 0u);
  EXPECT_EQ(hash(ipv6, frame6(of_udp, first, fragment_header)), 0x2cc18cd5u);
  EXPECT_EQ(hash(ipv6 | udp, frame6(of_udp, whole, fragment_header)), 0x40207d3du);
}

TEST(RxHash, WhatNoFrameHasAtATime) {
  EXPECT_TRUE(RxHash::can_combine(0));
  EXPECT_TRUE(RxHash::can_combine(ipv4 | tcp));
  EXPECT_TRUE(RxHash::can_combine(rx_dst_ipv6 | rx_src_port_udp));
  EXPECT_FALSE(RxHash::can_combine(rx_src_ipv4 | rx_dst_ipv6));
  EXPECT_FALSE(RxHash::can_combine(rx_src_port_tcp | rx_dst_port_udp));
}

}  // namespace
}  // namespace adverb::engine
