// SPDX-License-Identifier: Apache-2.0
#include "faults/values.hpp"

#include <algorithm>
#include <charconv>
#include <string>

#include "faults/rule.hpp"

namespace adverb::faults {
namespace {

constexpr unsigned most_decimals = 9;
constexpr std::uint64_t decimal_unit = 1'000'000'000;

// Thousand millionths of a decimal number below 1e9; takes what it read off `text`.
std::optional<std::uint64_t> take_decimal(std::string_view& text) {
  std::uint64_t whole = 0, part = 0, unit = decimal_unit;
  unsigned digits = 0, decimals = 0;
  const auto digit = [&] { return !text.empty() && text[0] >= '0' && text[0] <= '9'; };
  for (; digit(); text.remove_prefix(1), ++digits) {
    whole = whole * 10 + static_cast<std::uint64_t>(text[0] - '0');
    if (whole >= decimal_unit) return std::nullopt;
  }
  if (!text.empty() && text[0] == '.') {
    for (text.remove_prefix(1); digit(); text.remove_prefix(1), ++decimals) {
      if (decimals == most_decimals) return std::nullopt;
      part += static_cast<std::uint64_t>(text[0] - '0') * (unit /= 10);
    }
    if (!decimals) return std::nullopt;
  }
  if (!digits) return std::nullopt;
  return whole * decimal_unit + part;
}

struct Unit {
  std::string_view name;
  std::int64_t ns;
};
constexpr Unit units[] = {{"s", 1'000'000'000}, {"ms", 1'000'000}, {"us", 1'000}, {"ns", 1}};

std::optional<Gid> read_v4(std::string_view text) {
  std::uint8_t bytes[4];
  for (int i = 0; i < 4; ++i) {
    const std::size_t end = i < 3 ? text.find('.') : text.size();
    if (end == std::string_view::npos || end == 0 || end > 3) return std::nullopt;
    std::uint32_t value = 0;
    const auto r = std::from_chars(text.data(), text.data() + end, value);
    if (r.ec != std::errc() || r.ptr != text.data() + end || value > 255) return std::nullopt;
    bytes[i] = static_cast<std::uint8_t>(value);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  std::uint32_t network_order;
  std::memcpy(&network_order, bytes, 4);
  return Gid::from_v4(network_order);
}

// Appends the groups of a:b:c to `out`; returns how many bytes, or nothing.
std::optional<std::size_t> read_groups(std::string_view text, std::uint8_t* out) {
  std::size_t n = 0;
  while (!text.empty()) {
    if (n >= 16) return std::nullopt;
    const std::size_t end = std::min(text.find(':'), text.size());
    std::uint32_t value = 0;
    const auto r = std::from_chars(text.data(), text.data() + end, value, 16);
    if (end == 0 || end > 4 || r.ec != std::errc() || r.ptr != text.data() + end)
      return std::nullopt;
    out[n++] = static_cast<std::uint8_t>(value >> 8);
    out[n++] = static_cast<std::uint8_t>(value);
    if (end + 1 == text.size()) return std::nullopt;  // ends with a colon
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return n;
}

std::optional<Gid> read_v6(std::string_view text) {
  Gid g;
  const std::size_t gap = text.find("::");
  if (gap == std::string_view::npos) {
    const auto n = read_groups(text, g.bytes.data());
    return n == 16 ? std::optional(g) : std::nullopt;
  }
  std::uint8_t tail[16];
  const auto head = read_groups(text.substr(0, gap), g.bytes.data());
  const auto rest = read_groups(text.substr(gap + 2), tail);
  if (!head || !rest || *head + *rest > 14) return std::nullopt;
  std::copy_n(tail, *rest, g.bytes.data() + 16 - *rest);
  return g;
}

}  // namespace

std::optional<std::uint64_t> read_number(std::string_view text, std::uint64_t most) {
  int base = 10;
  if (text.size() > 2 && text[0] == '0' && (text[1] == 'x' || text[1] == 'X')) {
    base = 16;
    text.remove_prefix(2);
  }
  std::uint64_t value = 0;
  const auto r = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (text.empty() || r.ec != std::errc() || r.ptr != text.data() + text.size() || value > most)
    return std::nullopt;
  return value;
}

std::optional<Duration> read_time(std::string_view text) {
  const auto value = take_decimal(text);
  if (!value) return std::nullopt;
  for (const Unit& u : units) {
    if (text != u.name) continue;
    const auto unit = static_cast<std::uint64_t>(u.ns);
    const std::uint64_t ns =
        *value / decimal_unit * unit + *value % decimal_unit * unit / decimal_unit;
    return Duration(static_cast<std::int64_t>(ns));
  }
  return std::nullopt;
}

std::optional<std::uint32_t> read_chance(std::string_view text) {
  auto value = take_decimal(text);
  if (!value) return std::nullopt;
  if (text == "%") {
    value = *value / 100;
  } else if (!text.empty()) {
    return std::nullopt;
  }
  if (*value == 0 || *value > Rule::certain) return std::nullopt;
  return static_cast<std::uint32_t>(*value);
}

std::optional<Gid> read_address(std::string_view text) {
  return text.find(':') == std::string_view::npos ? read_v4(text) : read_v6(text);
}

std::string to_text(Duration d) {
  for (const Unit& u : units) {
    const std::int64_t ns = d.count();
    if (ns < u.ns && u.ns != 1) continue;
    std::string text = std::to_string(ns / u.ns);
    if (std::int64_t rest = ns % u.ns) {
      text += '.';
      for (std::int64_t unit = u.ns / 10; rest; unit /= 10) {
        text += static_cast<char>('0' + rest / unit);
        rest %= unit;
      }
    }
    return text.append(u.name);
  }
  return {};
}

std::string to_text(const Gid& g) {
  std::string text;
  if (g.is_v4()) {
    for (int i = 12; i < 16; ++i) (text += std::to_string(g.bytes[i])) += i < 15 ? "." : "";
    return text;
  }
  for (int i = 0; i < 16; i += 2) {
    char digits[4];
    const auto end = std::to_chars(digits, digits + 4, g.bytes[i] << 8 | g.bytes[i + 1], 16).ptr;
    text.append(digits, static_cast<std::size_t>(end - digits)) += i < 14 ? ":" : "";
  }
  return text;
}

}  // namespace adverb::faults
