// SPDX-License-Identifier: Apache-2.0
#include "nic/log.hpp"

#include <gtest/gtest.h>

#include <cerrno>

namespace adverb::nic {
namespace {

TEST(Log, OneLineWithItsLevel) {
  testing::internal::CaptureStderr();
  log(LogLevel::warn, "path_mtu {} > active_mtu {} on {}", 4096, 1024, "adverb0");
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "adverb: warn: path_mtu 4096 > active_mtu 1024 on adverb0\n");
}

TEST(Log, LineBreaksDoNotMakeLines) {
  testing::internal::CaptureStderr();
  log(LogLevel::error, "a\nb");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "adverb: error: a b\n");
}

TEST(Log, InfoIsOffByDefault) {
  EXPECT_TRUE(log_enabled(LogLevel::warn));
  testing::internal::CaptureStderr();
  log(LogLevel::info, "quiet");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(Log, KeepsErrno) {
  testing::internal::CaptureStderr();
  errno = EXDEV;
  log(LogLevel::warn, "x");
  EXPECT_EQ(errno, EXDEV);
  testing::internal::GetCapturedStderr();
}

}  // namespace
}  // namespace adverb::nic
