// SPDX-License-Identifier: Apache-2.0
// Microsoft's verification suite of the RSS hash: its key, addresses, ports and results.
#include "engine/toeplitz.hpp"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/toeplitz_testing.hpp"

namespace adverb::engine {
namespace {

struct Row {
  const char* destination;
  unsigned destination_port;
  const char* source;
  unsigned source_port;
  std::uint32_t of_addresses, with_ports;
};
constexpr Row suite[] = {
    {"161.142.100.80", 1766, "66.9.149.187", 2794, 0x323e8fc2, 0x51ccc178},
    {"65.69.140.83", 4739, "199.92.111.2", 14230, 0xd718262a, 0xc626b0ea},
    {"12.22.207.184", 38024, "24.19.198.95", 12898, 0xd2d0a5de, 0x5c2b394a},
    {"209.142.163.6", 2217, "38.27.205.30", 48228, 0x82989176, 0xafc7327f},
    {"202.188.127.2", 1303, "153.39.163.191", 44251, 0x5d1809c5, 0x10e828a2},
    {"3ffe:2501:200:3::1", 1766, "3ffe:2501:200:1fff::7", 2794, 0x2cc18cd5, 0x40207d3d},
    {"ff02::1", 4739, "3ffe:501:8::260:97ff:fe40:efab", 14230, 0x0f0c461c, 0xdde51bbf},
    {"fe80::200:f8ff:fe21:67cf", 38024, "3ffe:1900:4545:3:200:f8ff:fe21:67cf", 44251, 0x4b61e985,
     0x02d1feef},
};

using Bytes = std::vector<std::uint8_t>;

void append_address(Bytes& to, const char* text) {
  std::uint8_t address[16];
  const bool six = std::string(text).find(':') != std::string::npos;
  ASSERT_EQ(inet_pton(six ? AF_INET6 : AF_INET, text, address), 1) << text;
  to.insert(to.end(), address, address + (six ? 16 : 4));
}
void append_port(Bytes& to, unsigned port) {
  to.push_back(static_cast<std::uint8_t>(port >> 8));
  to.push_back(static_cast<std::uint8_t>(port));
}

TEST(Toeplitz, TheVerificationSuite) {
  for (const Row& row : suite) {
    Bytes input;
    append_address(input, row.source);
    append_address(input, row.destination);
    EXPECT_EQ(toeplitz_hash(suite_key, input), row.of_addresses) << row.source;
    append_port(input, row.source_port);
    append_port(input, row.destination_port);
    EXPECT_EQ(toeplitz_hash(suite_key, input), row.with_ports) << row.source;
  }
}

TEST(Toeplitz, NothingIsZeroAndOneBitIsTheKeyThere) {
  EXPECT_EQ(toeplitz_hash(suite_key, {}), 0u);
  const Bytes first{0x80}, last_of_five{0, 0, 0, 0, 0x01};
  EXPECT_EQ(toeplitz_hash(suite_key, first), 0x6d5a56dau);
  // Bits 39 to 70 of the key: the last bit of its fifth byte, then 31 more.
  EXPECT_EQ(toeplitz_hash(suite_key, last_of_five), (0x255b0ec2u << 7 | 0x41u >> 1));
}

}  // namespace
}  // namespace adverb::engine
