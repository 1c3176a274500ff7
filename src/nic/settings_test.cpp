// SPDX-License-Identifier: Apache-2.0
// The settings of a device: what each word means, and what is said about words that mean nothing.
#include "nic/settings.hpp"

#include <gmock/gmock.h>

#include <cerrno>
#include <cstdlib>

namespace {

using namespace adverb::nic;
using testing::HasSubstr;

// The variables of one test.
struct With {
  const char* name;
  With(const char* n, const char* value) : name(n) { setenv(n, value, 1); }
  ~With() { unsetenv(name); }
};

std::string wrong(const char* name, const char* value) {
  With with(name, value);
  const auto s = read_settings();
  return s ? "accepted" : s.error();
}

TEST(Settings, NothingSet) {
  const auto s = read_settings();
  ASSERT_TRUE(s);
  EXPECT_EQ(s->profile, Profile::mlx5);
  EXPECT_EQ(s->device_name, "adverb");
  EXPECT_EQ(s->vendor_id, 0xadbeu);
  EXPECT_EQ(s->part_id, 1u);
  EXPECT_EQ(s->limits[Limit::max_qp], own_limit(Limit::max_qp));
}

TEST(Settings, EachVariable) {
  With a("ADVERB_PROFILE", "strict"), b("ADVERB_LIMITS", "max_qp=16,memlock=64k"),
      c("ADVERB_GID_LAYOUT", "mlx5"), d("ADVERB_DEVICE_NAME", "mlx5_"),
      e("ADVERB_VENDOR_ID", "0x15b3"), f("ADVERB_PART_ID", "4119");
  const auto s = read_settings();
  ASSERT_TRUE(s) << s.error();
  EXPECT_EQ(s->profile, Profile::strict);
  EXPECT_EQ(s->behaviour.get<Rounding>(Point::cq_size), Rounding::exact);
  EXPECT_EQ(s->limits[Limit::max_qp], 16u);
  EXPECT_EQ(s->limits[Limit::memlock], 65536u);
  EXPECT_EQ(s->limits[Limit::max_mr], own_limit(Limit::max_mr));
  EXPECT_EQ(s->gid_layout, GidLayout::mlx5);
  EXPECT_EQ(s->device_name, "mlx5_");
  EXPECT_EQ(s->vendor_id, 0x15b3u);
  EXPECT_EQ(s->part_id, 4119u);
}

TEST(Settings, PartNumbersAreMellanoxUnlessTheVendorIsNamed) {
  With part("ADVERB_PART_ID", "0x1017");
  EXPECT_EQ(read_settings()->vendor_id, 0x02c9u);
  EXPECT_EQ(read_settings()->part_id, 4119u);
}

TEST(Settings, WrongValuesAreNamed) {
  EXPECT_EQ(wrong("ADVERB_PROFILE", "mlx4"), "ADVERB_PROFILE: 'mlx4' is none of mlx5, rxe, strict");
  EXPECT_EQ(wrong("ADVERB_GID_LAYOUT", "v1"),
            "ADVERB_GID_LAYOUT: 'v1' is none of default, mlx5, rxe");
  EXPECT_THAT(
      wrong("ADVERB_LIMITS", "max_qps=4"),
      HasSubstr("ADVERB_LIMITS: no limit is called 'max_qps'; there are max_mr_size, max_qp"));
  EXPECT_EQ(wrong("ADVERB_LIMITS", "max_qp=99999"),
            "ADVERB_LIMITS: max_qp=99999: this device has 16383");
  EXPECT_THAT(wrong("ADVERB_LIMITS", "max_qp"), HasSubstr("expected max_qp=NUMBER"));
  EXPECT_THAT(wrong("ADVERB_LIMITS", "max_qp=4x"), HasSubstr("expected max_qp=NUMBER"));
  EXPECT_THAT(wrong("ADVERB_LIMITS", "memlock=99999999999g"), HasSubstr("expected memlock=NUMBER"));
  EXPECT_EQ(wrong("ADVERB_VENDOR_ID", "0x"), "ADVERB_VENDOR_ID: '0x' is no number of 32 bits");
  EXPECT_EQ(wrong("ADVERB_PART_ID", "4294967296"),
            "ADVERB_PART_ID: '4294967296' is no number of 32 bits");
  EXPECT_THAT(wrong("ADVERB_DEVICE_NAME", "a/b"), HasSubstr("ADVERB_DEVICE_NAME: 'a/b'"));
  EXPECT_THAT(wrong("ADVERB_DEVICE_NAME", std::string(49, 'a').c_str()), HasSubstr("up to 48"));
}

TEST(Settings, EveryPointHasAValueInEveryProfile) {
  for (const ProfileRow& row : profile_rows()) {
    EXPECT_FALSE(row.source.empty()) << row.what;
    for (unsigned p = 0; p < profile_names.size(); ++p) {
      EXPECT_EQ(Behaviour(static_cast<Profile>(p))[row.point], row.values[p].number) << row.what;
      EXPECT_FALSE(row.values[p].word.empty()) << row.what;
    }
  }
  EXPECT_EQ(Behaviour(Profile::mlx5).error(Point::inline_too_long), ENOMEM);
  EXPECT_EQ(Behaviour(Profile::rxe).error(Point::inline_too_long), EINVAL);
}

TEST(Settings, Rounding) {
  const auto pow2 = Rounding::power_of_two, less = Rounding::power_of_two_less_one;
  EXPECT_EQ(round_up(Rounding::exact, 5, 100), 5u);
  EXPECT_EQ(round_up(pow2, 5, 100), 8u);
  EXPECT_EQ(round_up(pow2, 8, 100), 8u);
  EXPECT_EQ(round_up(less, 7, 100), 7u);
  EXPECT_EQ(round_up(less, 8, 100), 15u);
  EXPECT_EQ(round_up(pow2, 65, 100), 100u);  // the limit
  EXPECT_EQ(round_up(pow2, 0, 100), 0u);
}

}  // namespace
