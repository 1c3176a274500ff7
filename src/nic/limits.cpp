// SPDX-License-Identifier: Apache-2.0
#include "nic/limits.hpp"

#include <fmt/format.h>

#include <charconv>

namespace adverb::nic {
namespace {

struct Row {
  std::string_view name;
  std::uint64_t own;
};
constexpr Row rows[] = {
#define ADVERB_LIMIT(name, value) {#name, value},
    ADVERB_LIMITS(ADVERB_LIMIT)
#undef ADVERB_LIMIT
};

std::string known_names() {
  std::string list;
  for (const Row& row : rows) list += fmt::format("{}{}", list.empty() ? "" : ", ", row.name);
  return list;
}

// A number, with k, m or g behind it for 2^10, 2^20, 2^30.
bool read_number(std::string_view text, std::uint64_t& out) {
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, out);
  if (error != std::errc{} || text.empty()) return false;
  if (rest == end) return true;
  const unsigned shift = *rest == 'k' ? 10 : *rest == 'm' ? 20 : *rest == 'g' ? 30 : 0;
  if (!shift || rest + 1 != end || out > ~std::uint64_t{0} >> shift) return false;
  out <<= shift;
  return true;
}

}  // namespace

std::string_view name_of(Limit l) { return rows[static_cast<unsigned>(l)].name; }
std::uint64_t own_limit(Limit l) { return rows[static_cast<unsigned>(l)].own; }

Limits::Limits() {
  for (unsigned i = 0; i < limits; ++i) values_[i] = rows[i].own;
}

std::expected<Limits, std::string> Limits::parse(std::string_view text) {
  Limits out;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), word.size() + 1));
    const std::size_t equals = word.find('=');
    const std::string_view name = word.substr(0, equals);
    unsigned i = 0;
    while (i < limits && rows[i].name != name) ++i;
    if (i == limits)
      return std::unexpected(
          fmt::format("no limit is called '{}'; there are {}", name, known_names()));
    std::uint64_t value = 0;
    if (equals == word.npos || !read_number(word.substr(equals + 1), value))
      return std::unexpected(fmt::format(
          "'{}': expected {}=NUMBER (k, m, g behind it: times 1024, 1024^2, 1024^3)", word, name));
    if (value > rows[i].own)
      return std::unexpected(fmt::format("{}={}: this device has {}", name, value, rows[i].own));
    out.values_[i] = value;
  }
  return out;
}

}  // namespace adverb::nic
