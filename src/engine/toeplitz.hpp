// SPDX-License-Identifier: Apache-2.0
// The Toeplitz hash of receive side scaling, as Microsoft defines it ("RSS hashing functions", with
// a verification suite): for every bit of the input that is set, the 32 bits of the key that begin
// at the same place are added without carry.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace adverb::engine {

inline constexpr std::size_t toeplitz_key_bytes = 40;
// Two IPv6 addresses and two ports: with the 32 bits behind the last place, what the key reaches
// for.
inline constexpr std::size_t toeplitz_most_input = toeplitz_key_bytes - 4;
using ToeplitzKey = std::array<std::uint8_t, toeplitz_key_bytes>;

// Of at most toeplitz_most_input bytes; of none it is 0.
std::uint32_t toeplitz_hash(const ToeplitzKey&, std::span<const std::uint8_t> input);

}  // namespace adverb::engine
