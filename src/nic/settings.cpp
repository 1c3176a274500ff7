// SPDX-License-Identifier: Apache-2.0
#include "nic/settings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>

namespace adverb::nic {
namespace {

constexpr std::uint32_t own_vendor_id = 0xadbe, own_part_id = 1;
constexpr std::size_t longest_name = 48;  // ibv_device has room for 64 with the number

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

using Refused = std::unexpected<std::string>;

// A decimal or 0x number of 32 bits; 0 when the variable is not set.
std::expected<std::uint32_t, std::string> read_id(const char* name) {
  const std::string_view text = variable(name);
  if (text.empty()) return 0;
  const bool hex = text.starts_with("0x") || text.starts_with("0X");
  const char *begin = text.data() + (hex ? 2 : 0), *end = text.data() + text.size();
  std::uint32_t id = 0;
  const auto [rest, error] = std::from_chars(begin, end, id, hex ? 16 : 10);
  if (begin == end || error != std::errc{} || rest != end)
    return Refused(fmt::format("{}: '{}' is no number of 32 bits", name, text));
  return id;
}

std::expected<GidLayout, std::string> read_layout() {
  const std::string_view text = variable("ADVERB_GID_LAYOUT");
  if (text.empty() || text == "default") return GidLayout::standard;
  if (text == "mlx5") return GidLayout::mlx5;
  if (text == "rxe") return GidLayout::rxe;
  return Refused(fmt::format("ADVERB_GID_LAYOUT: '{}' is none of default, mlx5, rxe", text));
}

std::expected<std::string, std::string> read_name() {
  const std::string_view text = variable("ADVERB_DEVICE_NAME");
  if (text.empty()) return "adverb";
  const bool good = text.size() <= longest_name && std::ranges::all_of(text, [](char c) {
                      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                             (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';
                    });
  if (good && text[0] != '.') return std::string(text);
  return Refused(fmt::format(
      "ADVERB_DEVICE_NAME: '{}': up to {} letters, digits, '_', '-' and '.', as a file's name",
      text, longest_name));
}

}  // namespace

std::expected<Settings, std::string> read_settings() {
  Settings s;
  if (const std::string_view text = variable("ADVERB_PROFILE"); !text.empty()) {
    const auto profile = find_profile(text);
    if (!profile)
      return Refused(fmt::format("ADVERB_PROFILE: '{}' is none of {}", text,
                                 fmt::join(profile_names.begin(), profile_names.end(), ", ")));
    s.profile = *profile;
    s.behaviour = Behaviour(*profile);
  }
  const auto limits = Limits::parse(variable("ADVERB_LIMITS"));
  if (!limits) return Refused("ADVERB_LIMITS: " + limits.error());
  s.limits = *limits;
  const auto layout = read_layout();
  const auto name = read_name();
  const auto vendor = read_id("ADVERB_VENDOR_ID"), part = read_id("ADVERB_PART_ID");
  if (!layout) return Refused(layout.error());
  if (!name) return Refused(name.error());
  if (!vendor) return Refused(vendor.error());
  if (!part) return Refused(part.error());
  s.gid_layout = *layout;
  s.device_name = *name;
  s.part_id = *part ? *part : own_part_id;
  // Programs know part numbers of one vendor.
  s.vendor_id = *vendor ? *vendor : s.part_id == own_part_id ? own_vendor_id : mellanox_vendor_id;
  return s;
}

const Settings& settings() {
  static const Settings& once = *new Settings(
      read_settings().value_or(Settings{.vendor_id = own_vendor_id, .part_id = own_part_id}));
  return once;
}

}  // namespace adverb::nic
