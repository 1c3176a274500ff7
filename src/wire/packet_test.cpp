// SPDX-License-Identifier: Apache-2.0
// decode() and encode_headers() over the whole opcode table, and over what is no packet.
#include "wire/packet.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "wire/header_layouts.hpp"
#include "wire/testing.hpp"

namespace adverb::wire {
namespace {

using namespace testing;

void expect_same(const Packet& a, const Packet& b) {
  EXPECT_EQ(a.bth, b.bth);
  EXPECT_EQ(a.reth, b.reth);
  EXPECT_EQ(a.atomic, b.atomic);
  EXPECT_EQ(a.atomic_ack, b.atomic_ack);
  EXPECT_EQ(a.deth, b.deth);
  EXPECT_EQ(a.aeth, b.aeth);
  EXPECT_EQ(a.imm, b.imm);
  EXPECT_EQ(a.ieth, b.ieth);
  EXPECT_EQ(a.xrc, b.xrc);
  EXPECT_EQ(a.feth, b.feth);
  EXPECT_TRUE(std::ranges::equal(a.payload, b.payload));
}

std::vector<std::size_t> payload_sizes(const OpcodeInfo& op) {
  if (op.verb == Verb::cnp) return {16};
  if (!op.payload) return {0};
  return {0, 1, 2, 3, 4, 5, 255, 256, 1023, 4096};
}

TEST(Packet, EveryOpcodeComesBackFromItsBytes) {
  Random random(1);
  for (Opcode opcode : legal_opcodes())
    for (std::size_t n : payload_sizes(info_of(opcode)))
      for (int round = 0; round < 20; ++round) {
        Bytes payload = random_bytes(random, n);
        Packet p = random_packet(opcode, random, payload);
        p.bth.mig_req = (random() & 1) != 0;
        Exact bytes(bytes_of(p));
        auto q = decode(bytes);
        ASSERT_TRUE(q) << p.info().name;
        expect_same(p, *q);
      }
}

TEST(Packet, PayloadPointsIntoTheBytesAndLeavesThePadOut) {
  Bytes payload{1, 2, 3, 4, 5};
  Random random(2);
  Bytes bytes = bytes_of(random_packet(Opcode{0x04}, random, payload));
  auto p = decode(bytes);
  ASSERT_TRUE(p);
  EXPECT_EQ(p->payload.data(), bytes.data() + 12);
  EXPECT_EQ(p->payload.size(), 5u);
}

TEST(Packet, C60_EveryIllegalOpcodeIsRefused) {
  Bytes bytes(64);
  unsigned refused = 0;
  for (unsigned b = 0; b < 256; ++b)
    if (!opcodes[b]) {
      bytes[0] = static_cast<std::uint8_t>(b);
      auto p = decode(Exact(bytes));
      ASSERT_FALSE(p) << b;
      EXPECT_EQ(p.error(), DecodeError::unknown_opcode);
      ++refused;
    }
  EXPECT_EQ(refused, 256u - 65);
}

// The verdict on the first n bytes of a packet, from the specification's words.
std::optional<DecodeError> expected_error(const OpcodeInfo& op, std::size_t n, unsigned pad) {
  if (n < 12 || n < op.header_bytes) return DecodeError::too_short;
  std::size_t rest = n - op.header_bytes;
  bool good = op.verb == Verb::cnp ? rest == 16 && pad == 0
              : op.payload         ? rest % 4 == 0 && rest >= pad
                                   : rest == 0 && pad == 0;
  if (!good) return DecodeError::bad_pad;
  return std::nullopt;
}

TEST(Packet, C60_EveryLengthAndPadIsJudgedWithoutReadingPastTheEnd) {
  Random random(3);
  for (Opcode opcode : legal_opcodes()) {
    Bytes whole = bytes_of(random_packet(opcode, random, {}));
    whole.resize(whole.size() + 24);
    for (unsigned pad = 0; pad < 4; ++pad) {
      whole[1] = static_cast<std::uint8_t>((whole[1] & ~0x30) | pad << 4);
      for (std::size_t n = 0; n <= whole.size(); ++n) {
        auto p = decode(Exact(std::span(whole).first(n)));
        auto error = expected_error(info_of(opcode), n, pad);
        ASSERT_EQ(p.has_value(), !error) << info_of(opcode).name << " " << n << " pad " << pad;
        if (error) {
          EXPECT_EQ(p.error(), *error) << info_of(opcode).name << " " << n << " pad " << pad;
        } else {
          EXPECT_EQ(p->payload.size(), n - info_of(opcode).header_bytes - pad);
        }
      }
    }
  }
}

TEST(Packet, C60_EveryTransportVersionButZeroIsRefused) {
  Random random(4);
  for (Opcode opcode : legal_opcodes())
    for (unsigned tver = 1; tver < 16; ++tver) {
      Bytes payload(info_of(opcode).verb == Verb::cnp ? 16 : 0);
      Bytes bytes = bytes_of(random_packet(opcode, random, payload));
      bytes[1] |= static_cast<std::uint8_t>(tver);
      auto p = decode(bytes);
      ASSERT_FALSE(p);
      EXPECT_EQ(p.error(), DecodeError::bad_version);
    }
}

TEST(Packet, C60_RandomBytesNeverReadPastTheEnd) {
  Random random(5);
  for (int i = 0; i < 200'000; ++i) {
    Bytes noise = random_bytes(random, random() % 80);
    if (!noise.empty() && i % 2)
      noise[0] = static_cast<std::uint8_t>(legal_opcodes()[random() % 65]);
    Exact bytes(noise);
    std::span<const std::uint8_t> span = bytes;
    if (auto p = decode(bytes); p && !p->payload.empty()) {
      ASSERT_GE(p->payload.data(), span.data());
      ASSERT_LE(p->payload.data() + p->payload.size(), span.data() + span.size());
    }
  }
}

TEST(Packet, C59_ReservedBitsAreSentAsZeroAndIgnored) {
  Random random(6);
  for (Opcode opcode : legal_opcodes()) {
    Bytes payload(info_of(opcode).verb == Verb::cnp ? 16 : 0);
    Packet p = random_packet(opcode, random, payload);
    Bytes bytes = bytes_of(p);
    EXPECT_EQ(bytes[4] & 0x3f, 0);
    EXPECT_EQ(bytes[8] & 0x7f, 0);
    bytes[4] |= 0x3f;
    bytes[8] |= 0x7f;
    auto reserved = [&](Ext e, std::initializer_list<std::pair<unsigned, unsigned>> masks) {
      if (!p.info().has(e)) return;
      for (auto [at, mask] : masks) {
        auto& byte = bytes[offset_of(p.info(), e) + at];
        EXPECT_EQ(byte & mask, 0u) << p.info().name;
        byte |= static_cast<std::uint8_t>(mask);
      }
    };
    reserved(ext_xrceth, {{0, 0xff}});
    reserved(ext_deth, {{4, 0xff}});
    reserved(ext_feth, {{0, 0xff}, {1, 0xff}, {2, 0xff}, {3, 0xc0}});
    auto q = decode(bytes);
    ASSERT_TRUE(q);
    expect_same(p, *q);
  }
}

// The sample packet of IBTA vol. 1, 7.8.3, from its BTH on.
TEST(Packet, C59_TheSpecificationsOwnSample) {
  const Bytes bytes{0x0a, 0x20, 0x24, 0x87, 0x00, 0x87, 0xb1, 0xb3, 0x00, 0x0d, 0xec,
                    0x2a, 0x01, 0x71, 0x0a, 0x1c, 0x01, 0x5d, 0x40, 0x02, 0x38, 0xf2,
                    0x7a, 0x05, 0x00, 0x00, 0x00, 0x0e, 0xbb, 0x88, 0x4d, 0x85, 0xfd,
                    0x5c, 0xfb, 0xa4, 0x72, 0x8b, 0xc0, 0x69, 0x0e, 0xd4, 0x00, 0x00};
  auto p = decode(bytes);
  ASSERT_TRUE(p);
  EXPECT_EQ(p->bth, (Bth{.opcode = opcode_of(Transport::rc, Operation::write_only),
                         .mig_req = false,
                         .pad_count = 2,
                         .pkey = 0x2487,
                         .dest_qp = Qpn(0x87b1b3),
                         .psn = Psn(0x0dec2a)}));
  EXPECT_EQ(p->reth, (Reth{0x01710a1c015d4002, 0x38f27a05, 14}));
  EXPECT_EQ(p->payload.size(), 14u);
  EXPECT_EQ(bytes_of(*p), bytes);
}

TEST(Packet, C59_GoldenBytes) {
  Packet send{.bth = {.opcode = opcode_of(Transport::rc, Operation::send_only_imm),
                      .solicited = true,
                      .dest_qp = Qpn(0x000011),
                      .ack_request = true,
                      .psn = Psn(0xabcdef)},
              .imm = {0x01020304}};
  EXPECT_EQ(bytes_of(send), (Bytes{0x05, 0xc0, 0xff, 0xff, 0, 0, 0, 0x11, 0x80, 0xab, 0xcd, 0xef, 1,
                                   2, 3, 4}));  // MigReq set, immediate in network order
  Packet ack{.bth = {.opcode = opcode_of(Transport::rc, Operation::acknowledge),
                     .pkey = 0x8001,
                     .becn = true,
                     .dest_qp = Qpn(0xfedcba),
                     .psn = Psn(1)},
             .aeth = {0x1f, 0x000203}};
  EXPECT_EQ(bytes_of(ack),
            (Bytes{0x11, 0x40, 0x80, 0x01, 0x40, 0xfe, 0xdc, 0xba, 0, 0, 0, 1, 0x1f, 0, 2, 3}));
  Packet flush{.bth = {.opcode = opcode_of(Transport::rc, Operation::flush)},
               .reth = {0x1122334455667788, 0x99aabbcc, 0xddeeff00},
               .feth = {.selectivity = 1, .placement_type = 3}};
  EXPECT_EQ(bytes_of(flush),
            (Bytes{0x1c, 0x40, 0xff, 0xff, 0,    0,    0,    0,    0,    0,    0,
                   0,    0,    0,    0,    0x13, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66,
                   0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff, 0x00}));
  Packet ud{.bth = {.opcode = opcode_of(Transport::ud, Operation::send_only)},
            .deth = {0x80010000, Qpn(0x010203)}};
  EXPECT_EQ(bytes_of(ud),
            (Bytes{0x64, 0x40, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x80, 0x01, 0, 0, 0, 1, 2, 3}));
}

}  // namespace
}  // namespace adverb::wire
