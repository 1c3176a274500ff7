// SPDX-License-Identifier: Apache-2.0
#include "wire/native.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "wire/testing.hpp"

namespace adverb::wire {
namespace {

using namespace testing;

// IBTA vol. 1, 7.8.3: a local packet with its ICRC 96 25 b7 5a.
const Bytes sample{0x70, 0x12, 0x37, 0x5c, 0x00, 0x0e, 0x17, 0xd2, 0x0a, 0x20, 0x24, 0x87,
                   0x00, 0x87, 0xb1, 0xb3, 0x00, 0x0d, 0xec, 0x2a, 0x01, 0x71, 0x0a, 0x1c,
                   0x01, 0x5d, 0x40, 0x02, 0x38, 0xf2, 0x7a, 0x05, 0x00, 0x00, 0x00, 0x0e,
                   0xbb, 0x88, 0x4d, 0x85, 0xfd, 0x5c, 0xfb, 0xa4, 0x72, 0x8b, 0xc0, 0x69,
                   0x0e, 0xd4, 0x00, 0x00, 0x96, 0x25, 0xb7, 0x5a, 0x45, 0xfa};

TEST(Native, C59_TheSpecificationsOwnSample) {
  Exact bytes(sample);
  auto f = decode_native(bytes);
  ASSERT_TRUE(f);
  EXPECT_EQ(f->lrh,
            (Lrh{.vl = 7, .sl = 1, .lnh = 2, .dlid = 0x375c, .length = 14, .slid = 0x17d2}));
  EXPECT_FALSE(f->grh);
  EXPECT_EQ(f->packet.bth.dest_qp, Qpn(0x87b1b3));
  EXPECT_EQ(f->packet.payload.size(), 14u);
  Bytes out(native_bytes(*f));
  EXPECT_EQ(encode_native(*f, out.data()), out.size());
  EXPECT_EQ(out, sample);
}

NativeFrame random_frame(Opcode opcode, Random& random, std::span<const std::uint8_t> payload,
                         bool global) {
  NativeFrame f{.lrh = {.vl = static_cast<std::uint8_t>(random() & 15),
                        .sl = static_cast<std::uint8_t>(random() & 15),
                        .dlid = static_cast<std::uint16_t>(random()),
                        .slid = static_cast<std::uint16_t>(random())},
                .grh = {},
                .packet = random_packet(opcode, random, payload)};
  if (!global) return f;
  f.grh.emplace();
  f.grh->traffic_class = static_cast<std::uint8_t>(random());
  f.grh->flow_label = static_cast<std::uint32_t>(random() & 0xfffff);
  f.grh->hop_limit = static_cast<std::uint8_t>(random());
  std::ranges::copy(random_bytes(random, 16), f.grh->sgid.bytes.begin());
  std::ranges::copy(random_bytes(random, 16), f.grh->dgid.bytes.begin());
  return f;
}

TEST(Native, EveryOpcodeComesBackWithAndWithoutGrh) {
  Random random(1);
  for (Opcode opcode : legal_opcodes())
    for (bool global : {false, true}) {
      const OpcodeInfo& op = info_of(opcode);
      Bytes payload = random_bytes(random, op.verb == Verb::cnp ? 16
                                           : op.payload         ? random() % 40
                                                                : 0);
      NativeFrame f = random_frame(opcode, random, payload, global);
      Bytes bytes(native_bytes(f));
      ASSERT_EQ(encode_native(f, bytes.data()), bytes.size());
      Exact exact(bytes);
      auto g = decode_native(exact);
      ASSERT_TRUE(g) << op.name;
      EXPECT_EQ(g->lrh.vl, f.lrh.vl);
      EXPECT_EQ(g->lrh.dlid, f.lrh.dlid);
      EXPECT_EQ(g->lrh.length * 4u, bytes.size() - 2);
      ASSERT_EQ(g->grh.has_value(), global);
      if (global) {
        EXPECT_EQ(g->grh->payload_length, bytes.size() - 2 - 48);
        EXPECT_EQ(g->grh->sgid, f.grh->sgid);
        EXPECT_EQ(g->grh->dgid, f.grh->dgid);
        EXPECT_EQ(g->grh->flow_label, f.grh->flow_label);
      }
      EXPECT_EQ(g->packet.bth, f.packet.bth);
      EXPECT_TRUE(std::ranges::equal(g->packet.payload, payload));
    }
}

TEST(Native, C60_EveryFlipAndEveryTruncationIsRefused) {
  Random random(2);
  for (bool global : {false, true}) {
    Bytes payload = random_bytes(random, 21);
    NativeFrame f = random_frame(Opcode{0x0a}, random, payload, global);
    Bytes bytes(native_bytes(f));
    encode_native(f, bytes.data());
    for (std::size_t n = 0; n < bytes.size(); ++n)
      EXPECT_FALSE(decode_native(Exact(std::span(bytes).first(n)))) << n;
    for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
      Bytes flipped = bytes;
      flipped[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
      auto g = decode_native(flipped);
      ASSERT_FALSE(g);
      EXPECT_EQ(g.error(), NativeError::bad_vcrc);
    }
  }
}

// A switch may rewrite what the ICRC masks, and fixes the VCRC.
void fix_vcrc(Bytes& b) {
  std::uint16_t v = vcrc(std::span(b).first(b.size() - 2));
  b[b.size() - 2] = static_cast<std::uint8_t>(v);
  b[b.size() - 1] = static_cast<std::uint8_t>(v >> 8);
}

TEST(Native, TheIcrcSurvivesWhatSwitchesAndRoutersChange) {
  Random random(3);
  for (bool global : {false, true}) {
    Bytes payload = random_bytes(random, 8);
    NativeFrame f = random_frame(Opcode{0x04}, random, payload, global);
    Bytes bytes(native_bytes(f));
    encode_native(f, bytes.data());
    auto error_after = [&](std::size_t at, unsigned flip) -> std::optional<NativeError> {
      Bytes b = bytes;
      b[at] ^= static_cast<std::uint8_t>(flip);
      fix_vcrc(b);
      auto g = decode_native(b);
      if (g) return std::nullopt;
      return g.error();
    };
    std::size_t bth = global ? 48 : 8;
    EXPECT_EQ(error_after(0, 0x10), std::nullopt);  // VL
    EXPECT_EQ(error_after(bth + 4, 0xff), std::nullopt);
    EXPECT_EQ(error_after(bth + 11, 1), NativeError::bad_icrc);
    EXPECT_EQ(error_after(bytes.size() - 7, 1), NativeError::bad_icrc);
    EXPECT_EQ(error_after(0, 0x01), NativeError::bad_header);
    EXPECT_EQ(error_after(5, 1), NativeError::bad_length);
    if (global) {
      EXPECT_EQ(error_after(3, 1), std::nullopt);  // DLID: another subnet, another LRH
      EXPECT_EQ(error_after(9, 0xff), std::nullopt);
      EXPECT_EQ(error_after(11, 0xff), std::nullopt);
      EXPECT_EQ(error_after(15, 0xff), std::nullopt);
      EXPECT_EQ(error_after(16, 1), NativeError::bad_icrc);  // SGID
      EXPECT_EQ(error_after(13, 4), NativeError::bad_length);
      EXPECT_EQ(error_after(14, 1), NativeError::bad_header);
    } else {
      EXPECT_EQ(error_after(3, 1), NativeError::bad_icrc);
    }
  }
}

}  // namespace
}  // namespace adverb::wire
