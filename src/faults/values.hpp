// SPDX-License-Identifier: Apache-2.0
// Numbers, times, probabilities and addresses of the rule language, from text and back.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/types.hpp"

namespace adverb::faults {

// Decimal, or hexadecimal with 0x; nothing when it is no number or above `most`.
std::optional<std::uint64_t> read_number(std::string_view, std::uint64_t most);
// A number with up to nine decimals and a unit: ns, us, ms, s.  At most about 30 years.
std::optional<Duration> read_time(std::string_view);
// 1%, 0.5% or 0.005, in thousand millionths; more than 0 and at most 1.
std::optional<std::uint32_t> read_chance(std::string_view);
// An IPv4 or IPv6 address.
std::optional<Gid> read_address(std::string_view);

}  // namespace adverb::faults
