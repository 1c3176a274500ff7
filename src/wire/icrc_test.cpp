// SPDX-License-Identifier: Apache-2.0
// The invariant CRC against a bitwise one over a pseudo header written out by hand, and what
// check() lets through.
#include "wire/icrc.hpp"

#include <gtest/gtest.h>

#include "wire/testing.hpp"

namespace adverb::wire {
namespace {

using namespace testing;

std::uint32_t bitwise_crc32(const Bytes& bytes) {
  std::uint32_t r = ~0u;
  for (std::uint8_t b : bytes)
    for (int i = 0; i < 8; ++i) {
      bool bit = ((r ^ b >> i) & 1) != 0;
      r = r >> 1 ^ (bit ? 0xedb88320 : 0);
    }
  return ~r;
}

void append(Bytes& b, std::initializer_list<unsigned> bytes) {
  for (unsigned x : bytes) b.push_back(static_cast<std::uint8_t>(x));
}
void append_udp(Bytes& b, const IcrcPath& p, std::size_t length) {
  append(b, {p.source_port / 256u, p.source_port % 256u, p.destination_port / 256u,
             p.destination_port % 256u, static_cast<unsigned>(length / 256),
             static_cast<unsigned>(length % 256), 0xff, 0xff});
}

// Annex A17.3.3, field by field.
std::uint32_t reference(const IcrcPath& p, Bytes packet, unsigned id) {
  std::size_t udp = 8 + packet.size() + 4;
  Bytes b(8, 0xff);
  if (p.source.is_v4()) {
    append(b, {0x45, 0xff, static_cast<unsigned>((20 + udp) / 256),
               static_cast<unsigned>((20 + udp) % 256), id / 256, id % 256, 0x40, 0x00, 0xff, 17,
               0xff, 0xff});
    b.insert(b.end(), p.source.bytes.begin() + 12, p.source.bytes.end());
    b.insert(b.end(), p.destination.bytes.begin() + 12, p.destination.bytes.end());
  } else {
    append(b, {0x6f, 0xff, 0xff, 0xff, static_cast<unsigned>(udp / 256),
               static_cast<unsigned>(udp % 256), 17, 0xff});
    b.insert(b.end(), p.source.bytes.begin(), p.source.bytes.end());
    b.insert(b.end(), p.destination.bytes.begin(), p.destination.bytes.end());
  }
  append_udp(b, p, udp);
  packet[4] = 0xff;
  b.insert(b.end(), packet.begin(), packet.end());
  return bitwise_crc32(b);
}

const IcrcPath v4_path{Gid::from_v4(0x02004d0a), Gid::from_v4(0x01004d0a), 0xc123};
const IcrcPath v6_path{Gid{{0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 3, 4, 5, 6, 7, 8, 9}},
                       Gid{{0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}}, 49153};
const std::size_t sizes[]{12, 16, 28, 76, 268, 1040, 4108, 4140};

TEST(Icrc, AgreesWithTheBitwiseReference) {
  Random random(1);
  for (auto& path : {v4_path, v6_path})
    for (std::size_t n : sizes)
      for (int round = 0; round < 10; ++round) {
        Bytes bytes = random_bytes(random, n);
        auto id = static_cast<std::uint16_t>(random());
        Exact exact(bytes);
        EXPECT_EQ(IcrcPrefix(path, n).icrc(exact, id),
                  reference(path, bytes, path.source.is_v4() ? id : 0));
      }
}

TEST(Icrc, EveryIdentificationAgreesWithTheReference) {
  Random random(2);
  Bytes bytes = random_bytes(random, 16);
  IcrcPrefix prefix(v4_path, 16);
  for (unsigned id = 0; id < 65536; ++id)
    ASSERT_EQ(prefix.icrc(bytes, static_cast<std::uint16_t>(id)), reference(v4_path, bytes, id));
}

TEST(Icrc, EveryIdentificationIsAcceptedAndFound) {
  Random random(3);
  for (std::size_t n : sizes) {
    Bytes bytes = random_bytes(random, n);
    IcrcPrefix prefix(v4_path, n);
    for (unsigned id = 0; id < 65536; ++id) {
      std::uint32_t icrc = prefix.icrc(bytes, static_cast<std::uint16_t>(id));
      auto expected = static_cast<std::uint16_t>(id & 1 ? 0 : id * 40503u);
      ASSERT_TRUE(prefix.check(bytes, icrc, expected)) << n << " " << id;
      ASSERT_EQ(prefix.identify(bytes, icrc, expected), id);
    }
  }
}

TEST(Icrc, C60_EverySingleBitFlipIsRefused) {
  Random random(4);
  for (auto& path : {v4_path, v6_path})
    for (std::size_t n : {16u, 76u, 1040u}) {
      Bytes bytes = random_bytes(random, n);
      IcrcPrefix prefix(path, n);
      std::uint32_t icrc = prefix.icrc(bytes, 0x1234);
      for (std::uint16_t expected : {0x1234, 0}) {
        ASSERT_TRUE(prefix.check(bytes, icrc, expected));
        for (std::size_t bit = 0; bit < 8 * n; ++bit) {
          bytes[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
          bool masked = bit / 8 == 4;
          ASSERT_EQ(prefix.check(bytes, icrc, expected), masked) << n << " bit " << bit;
          bytes[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
        }
        for (int bit = 0; bit < 32; ++bit)
          ASSERT_FALSE(prefix.check(bytes, icrc ^ 1u << bit, expected));
      }
    }
}

TEST(Icrc, RandomIcrcsPassOnceInSixtyFiveThousandOnIpv4) {
  Random random(5);
  Bytes bytes = random_bytes(random, 28);
  IcrcPrefix v4(v4_path, 28), v6(v6_path, 28);
  unsigned passed = 0;
  for (int i = 0; i < 1 << 20; ++i) {
    auto icrc = static_cast<std::uint32_t>(random());
    passed += v4.check(bytes, icrc, 0);
    ASSERT_FALSE(v6.check(bytes, icrc, 0));
  }
  EXPECT_GT(passed, 4u);  // 16 on average: the price of not seeing 16 bits, no more
  EXPECT_LT(passed, 36u);
}

TEST(Icrc, Ipv6IsExact) {
  Random random(6);
  Bytes bytes = random_bytes(random, 40);
  IcrcPrefix prefix(v6_path, 40);
  std::uint32_t icrc = prefix.icrc(bytes);
  EXPECT_TRUE(prefix.check(bytes, icrc, 0));
  EXPECT_EQ(prefix.icrc(bytes, 77), icrc);  // no such field there
  EXPECT_TRUE(prefix.check(bytes, icrc, 77));
}

TEST(Icrc, CongestionBitsDoNotCountAndTheBytesStayAsTheyAre) {
  Random random(7);
  Bytes bytes = random_bytes(random, 28);
  IcrcPrefix prefix(v4_path, 28);
  std::uint32_t icrc = prefix.icrc(bytes);
  for (unsigned v = 0; v < 256; ++v) {
    bytes[4] = static_cast<std::uint8_t>(v);
    const Bytes before = bytes;
    EXPECT_EQ(prefix.icrc(bytes), icrc);
    EXPECT_EQ(bytes, before);
  }
}

TEST(Icrc, C60_AnotherPathOrLengthIsRefused) {
  Random random(8);
  Bytes bytes = random_bytes(random, 28);
  std::uint32_t icrc = IcrcPrefix(v4_path, 28).icrc(bytes, 9);
  auto changed = [&](auto change) {
    IcrcPath path = v4_path;
    change(path);
    return IcrcPrefix(path, 28).check(bytes, icrc, 9);
  };
  EXPECT_TRUE(changed([](IcrcPath&) {}));
  EXPECT_FALSE(changed([](IcrcPath& p) { p.source.bytes[15] ^= 1; }));
  EXPECT_FALSE(changed([](IcrcPath& p) { p.destination.bytes[12] ^= 1; }));
  EXPECT_FALSE(changed([](IcrcPath& p) { p.source_port ^= 1; }));
  EXPECT_FALSE(changed([](IcrcPath& p) { p.destination_port ^= 1; }));
  EXPECT_FALSE(IcrcPrefix(v4_path, 32).check(bytes, icrc, 9));
  for (std::size_t n = 0; n < 28; ++n)
    EXPECT_FALSE(IcrcPrefix(v4_path, n).check(Exact(std::span(bytes).first(n)), icrc, 9)) << n;
}

}  // namespace
}  // namespace adverb::wire
