// SPDX-License-Identifier: Apache-2.0
// The opcode table against the specification's tables written out by hand, and the sequence rule
// against lists of what may come next.
#include "wire/opcode.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

namespace adverb::wire {
namespace {

// BTH and extension headers, by operation, on RC.
const std::map<unsigned, unsigned> rc_header_bytes{
    {0, 12},  {1, 12},  {2, 12},  {3, 16},  {4, 12},  {5, 16},  {6, 28},  {7, 12},  {8, 12},
    {9, 16},  {10, 28}, {11, 32}, {12, 28}, {13, 16}, {14, 12}, {15, 16}, {16, 16}, {17, 16},
    {18, 24}, {19, 40}, {20, 40}, {22, 16}, {23, 16}, {28, 32}, {29, 28}};
const std::set<unsigned> responses{13, 14, 15, 16, 17, 18};
const std::set<unsigned> without_payload{12, 17, 18, 19, 20, 28};

std::map<unsigned, unsigned> expected_header_bytes() {
  std::map<unsigned, unsigned> all{{0x81, 12}, {0x64, 20}, {0x65, 24}};
  for (auto [op, bytes] : rc_header_bytes) {
    all[op] = bytes;
    if (op <= 11) all[0x20 | op] = bytes;
    all[0xa0 | op] = responses.count(op) ? bytes : bytes + 4;
  }
  return all;
}

TEST(Opcode, LegalBytesAndTheirHeadersAreTheSpecifications) {
  auto expected = expected_header_bytes();
  for (unsigned b = 0; b < 256; ++b) {
    const OpcodeInfo& op = info_of(Opcode{static_cast<std::uint8_t>(b)});
    ASSERT_EQ(static_cast<bool>(op), expected.count(b) == 1) << b;
    if (!op) continue;
    EXPECT_EQ(op.header_bytes, expected[b]) << b;
    if (b == 0x81) continue;
    EXPECT_EQ(op.payload, without_payload.count(b & 31) == 0) << b;
    EXPECT_EQ(static_cast<unsigned>(op.operation), b & 31);
    EXPECT_EQ(static_cast<unsigned>(op.transport), b >> 5);
    EXPECT_EQ(opcode_of(op.transport, op.operation), Opcode{static_cast<std::uint8_t>(b)});
  }
}

TEST(Opcode, OffsetsPutTheHeadersOneAfterTheOther) {
  const OpcodeInfo& write_imm =
      info_of(opcode_of(Transport::xrc, Operation::write_only_imm));  // BTH XRCETH RETH ImmDt
  EXPECT_EQ(offset_of(write_imm, ext_xrceth), 12u);
  EXPECT_EQ(offset_of(write_imm, ext_reth), 16u);
  EXPECT_EQ(offset_of(write_imm, ext_imm_dt), 32u);
  const OpcodeInfo& flush = info_of(opcode_of(Transport::rc, Operation::flush));  // BTH FETH RETH
  EXPECT_EQ(offset_of(flush, ext_feth), 12u);
  EXPECT_EQ(offset_of(flush, ext_reth), 16u);
  const OpcodeInfo& atomic_ack = info_of(opcode_of(Transport::rc, Operation::atomic_acknowledge));
  EXPECT_EQ(offset_of(atomic_ack, ext_aeth), 12u);
  EXPECT_EQ(offset_of(atomic_ack, ext_atomic_ack_eth), 16u);
}

// IBTA 9.7.4.1.3 and 9.8.2.1.1 as lists: what may come after each operation of the same queue pair.
const std::set<unsigned> starters{0, 4, 5, 6, 10, 11, 12, 13, 16, 17, 18, 19, 20, 23, 28, 29};
std::set<unsigned> allowed_after(unsigned op) {
  switch (op) {
    case 0:
    case 1:
      return {1, 2, 3, 22};
    case 6:
    case 7:
      return {7, 8, 9};
    case 13:
    case 14:
      return {14, 15};
    default:
      return starters;
  }
}

TEST(Opcode, FollowsAgreesWithTheListsForEveryPair) {
  unsigned pairs = 0;
  for (auto& prev : opcodes)
    for (auto& cur : opcodes) {
      if (!prev || !cur || prev.transport != cur.transport || prev.verb == Verb::cnp) continue;
      bool allowed = allowed_after(static_cast<unsigned>(prev.operation))
                         .count(static_cast<unsigned>(cur.operation));
      EXPECT_EQ(follows(prev, cur), allowed) << prev.name << " then " << cur.name;
      ++pairs;
    }
  EXPECT_EQ(pairs, 25u * 25 + 12 * 12 + 2 * 2 + 25 * 25);
}

TEST(Opcode, OnlyAStartFollowsNothing) {
  for (auto& cur : opcodes)
    if (cur && cur.verb != Verb::cnp) {
      EXPECT_EQ(follows(OpcodeInfo{}, cur),
                starters.count(static_cast<unsigned>(cur.operation)) == 1)
          << cur.name;
    }
}

TEST(Opcode, NamesAreUniqueWithinATransport) {
  std::set<std::string> names;
  for (auto& op : opcodes)
    if (op) {
      EXPECT_TRUE(
          names.insert(std::to_string(static_cast<int>(op.transport)) + std::string(op.name))
              .second)
          << op.name;
    }
}

}  // namespace
}  // namespace adverb::wire
