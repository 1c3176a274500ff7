// SPDX-License-Identifier: Apache-2.0
// What a device is to look like, as the environment says: the variables that `adverb run` sets from
// its options.  Read once by a process, when it first asks for devices.
#pragma once

#include <cstdint>
#include <expected>
#include <string>

#include "nic/limits.hpp"
#include "nic/profile.hpp"

namespace adverb::nic {

inline constexpr std::uint32_t mellanox_vendor_id = 0x02c9;  // its OUI, as its NICs have it

// Which GIDs stand where in the table.
//   standard  those that work, IPv4 first, so that index 0 is usable
//   mlx5      pairs of RoCE v1 and v2: link-local or other IPv6, IPv4 (so that 3 is v2 over IPv4),
//   ... rxe       RoCE v2 only, in the same order, so that 1 is IPv4
enum class GidLayout : std::uint8_t { standard, mlx5, rxe };

struct Settings {
  Profile profile = Profile::mlx5;           // ADVERB_PROFILE
  Behaviour behaviour{Profile::mlx5};        // of the profile
  Limits limits;                             // ADVERB_LIMITS
  GidLayout gid_layout{};                    // ADVERB_GID_LAYOUT: default, mlx5, rxe
  std::string device_name = "adverb";        // ADVERB_DEVICE_NAME: in front of a number
  std::uint32_t vendor_id = 0, part_id = 0;  // ADVERB_VENDOR_ID, ADVERB_PART_ID
};

// From the environment; or what is wrong with it, in a line that begins with the variable's name.
std::expected<Settings, std::string> read_settings();

// The process's, as they were when this was first called.  Wrong ones count as not set: whoever
// hands out devices looks at read_settings() before.
const Settings& settings();

}  // namespace adverb::nic
