// SPDX-License-Identifier: Apache-2.0
// Which devices this network namespace has: one per interface that is up (design, and README):
// adverb0, adverb1, ... in order of interface index, the loopback interface last, so that it is
// adverb0 only when it is alone.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/types.hpp"

namespace adverb::nic {

inline constexpr unsigned gid_table_length = 16;
using GidTable = std::array<Gid, gid_table_length>;

struct DeviceInfo {
  std::string name;    // "adverb0"
  std::string netdev;  // "eth0"
  unsigned ifindex{};
  std::array<std::uint8_t, 8> guid{};  // EUI-64 of the interface, unique per device (big endian)
  std::array<std::uint8_t, 6> mac{};   // zero: it has none
  bool loopback{};
  bool roce_v1{};  // it is spoken: known of an open device, where CAP_NET_RAW allows
  std::uint32_t netdev_mtu{};
  engine::Mtu active_mtu{},
      max_mtu{};  // active: the largest IB MTU that fits netdev_mtu less the headers
  bool up{};
  std::uint32_t speed_mbps{};  // of the netdev; 0 unknown
  // In the order of settings().gid_layout.  The last entry is always empty.
  GidTable gids{};
};

// An entry of the table, if it is not empty, is RoCE v1's: layout mlx5 shows them, in front of the
// same address for RoCE v2.
bool is_roce_v1(unsigned gid_index);
inline engine::Protocol protocol_of(unsigned gid_index) {
  return is_roce_v1(gid_index) ? engine::Protocol::roce_v1 : engine::Protocol::roce_v2;
}

// Honours ADVERB_DEVICE (comma-separated device or interface names) and ADVERB_DEVICE_NAME (prefix;
// default "adverb").
std::vector<DeviceInfo> enumerate();

// Header, VLAN tag and payload of an Ethernet frame.
constexpr std::uint32_t longest_frame(std::uint32_t netdev_mtu) { return netdev_mtu + 14 + 4; }
// The largest IB MTU that fits (and ADVERB_MTU allows).  False: not even the smallest one does.
bool fit_mtu(std::uint32_t netdev_mtu, engine::Mtu& out);
// The table of an interface with these addresses, as a device starts with it.
struct Address;
GidTable gids_of(const std::vector<Address>&, unsigned ifindex);
// `old` after a change to what `wanted` holds: who stays keeps his index, who goes leaves an empty
// entry, who comes takes the first one.
GidTable follow(const GidTable& old, const GidTable& wanted);

}  // namespace adverb::nic
