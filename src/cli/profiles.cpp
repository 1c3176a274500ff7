// SPDX-License-Identifier: Apache-2.0
#include "cli/profiles.hpp"

#include <fmt/core.h>

#include "nic/limits.hpp"
#include "nic/profile.hpp"

namespace adverb::cli {

int profiles() {
  const auto line = [](auto&&... column) { fmt::print("{:<46} {:<20} {:<20} {}\n", column...); };
  fmt::print("Profiles (adverb run --profile NAME): what a device does where devices differ\n\n");
  line("", nic::profile_names[0], nic::profile_names[1], nic::profile_names[2]);
  for (const nic::ProfileRow& row : nic::profile_rows()) {
    line(row.what, row.values[0].word, row.values[1].word, row.values[2].word);
    fmt::print("  by: {}\n", row.source);
  }
  fmt::print("\nLimits (adverb run --limits NAME=VALUE,...) and the most that each can be\n\n");
  for (unsigned i = 0; i < nic::limits; ++i) {
    const auto l = static_cast<nic::Limit>(i);
    const std::uint64_t most = nic::own_limit(l);
    fmt::print("{:<20} {}\n", nic::name_of(l), ~most ? fmt::format("{}", most) : "no limit");
  }
  return 0;
}

}  // namespace adverb::cli
