// SPDX-License-Identifier: Apache-2.0
#include "wire/aeth.hpp"

#include <gtest/gtest.h>

namespace adverb::wire {
namespace {

using std::chrono::microseconds;

TEST(Aeth, SyndromesAreTheOnesOfTheTable) {
  EXPECT_EQ(make_ack(no_credit_limit), 0x1f);
  EXPECT_EQ(make_ack(0), 0x00);
  EXPECT_EQ(make_ack(1), 0x01);
  EXPECT_EQ(make_ack(32768), 0x1e);
  EXPECT_EQ(make_rnr_nak(0), 0x20);
  EXPECT_EQ(make_rnr_nak(12), 0x2c);
  EXPECT_EQ(make_rnr_nak(31), 0x3f);
  EXPECT_EQ(make_nak(NakCode::psn_sequence_error), 0x60);
  EXPECT_EQ(make_nak(NakCode::invalid_request), 0x61);
  EXPECT_EQ(make_nak(NakCode::remote_access_error), 0x62);
  EXPECT_EQ(make_nak(NakCode::remote_operational_error), 0x63);
  EXPECT_EQ(make_nak(NakCode::invalid_rd_request), 0x64);
}

TEST(Aeth, KindAndValueOfEveryByte) {
  for (unsigned s = 0; s < 256; ++s) {
    auto syndrome = static_cast<std::uint8_t>(s);
    AethKind kinds[] = {AethKind::ack, AethKind::rnr_nak, AethKind::reserved, AethKind::nak};
    EXPECT_EQ(aeth_kind(syndrome), kinds[s % 128 / 32]) << s;  // bit 7 is ignored
    EXPECT_EQ(aeth_value(syndrome), s % 32) << s;
  }
}

TEST(Aeth, RnrTimersRunFromTenMicrosecondsToMoreThanHalfASecond) {
  EXPECT_EQ(rnr_timer(0), microseconds(655'360));
  EXPECT_EQ(rnr_timer(1), microseconds(10));
  EXPECT_EQ(rnr_timer(2), microseconds(20));
  EXPECT_EQ(rnr_timer(12), microseconds(640));
  EXPECT_EQ(rnr_timer(20), microseconds(10'240));
  EXPECT_EQ(rnr_timer(31), microseconds(491'520));
  for (unsigned c = 2; c < 32; ++c) EXPECT_LT(rnr_timer(c - 1), rnr_timer(c)) << c;
  for (unsigned c = 5; c < 32; ++c) EXPECT_EQ(rnr_timer(c), 2 * rnr_timer(c - 2)) << c;
}

TEST(Aeth, CreditCodeNeverPromisesMoreThanThereIs) {
  for (std::uint32_t n = 0; n < 70'000; ++n) {
    unsigned code = credit_code(n);
    ASSERT_LT(code, no_credit_limit_code) << n;
    ASSERT_LE(credits_of(code), n);
    if (code + 1 < no_credit_limit_code) {
      ASSERT_GT(credits_of(code + 1), n);
    }
  }
  EXPECT_EQ(credits_of(31), no_credit_limit);
  EXPECT_EQ(credit_code(no_credit_limit), 31u);
  EXPECT_EQ(credit_code(no_credit_limit - 1), 30u);
  for (unsigned code = 0; code < 32; ++code) EXPECT_EQ(credit_code(credits_of(code)), code);
}

}  // namespace
}  // namespace adverb::wire
