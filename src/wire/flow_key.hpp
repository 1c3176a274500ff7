// SPDX-License-Identifier: Apache-2.0
// What flow rules look at in an Ethernet frame: the fields of its Ethernet, IP and transport
// headers at fixed places, in network order, so that a rule is a value and a mask of the same
// bytes.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace adverb::wire {

inline constexpr std::size_t ethernet_header_bytes = 14, vlan_tag_bytes = 4;
inline constexpr std::uint8_t protocol_tcp = 6, protocol_udp = 17;  // of next_header

struct FlowKey {
  static constexpr std::uint8_t dont_fragment = 2, more_fragments = 4;
  std::array<std::uint8_t, 6> dst_mac{}, src_mac{};
  std::array<std::uint8_t, 2> ether_type{};  // behind the last VLAN tag
  std::array<std::uint8_t, 2> vlan_tag{};    // of the first one
  std::uint8_t tagged{};                     // 1: there is a VLAN tag
  std::uint8_t ip_version{};                 // 4, 6, or 0: no such header
  std::uint8_t next_header{};                // behind IPv6 extension headers
  std::uint8_t traffic_class{}, hop_limit{};
  std::uint8_t fragment{};                          // IPv6: more_fragments only
  std::array<std::uint8_t, 16> src_ip{}, dst_ip{};  // IPv4: the first four bytes
  std::array<std::uint8_t, 4> flow_label{};
  std::uint8_t ports{};  // 1: TCP or UDP, and the ports are there
  std::array<std::uint8_t, 2> src_port{}, dst_port{};

  bool multicast() const { return dst_mac[0] & 1; }
  friend bool operator==(const FlowKey&, const FlowKey&) = default;
};
static_assert(sizeof(FlowKey) == 63 && alignof(FlowKey) == 1);  // no byte without a meaning

// Fields that the frame does not have stay zero.
FlowKey flow_key_of(std::span<const std::uint8_t> frame);

// A frame without its outer VLAN tag, if that is one of 802.1Q; else `rest` is all of it.
struct UntaggedFrame {
  std::span<const std::uint8_t> front, rest;
  std::uint16_t cvlan = 0;  // the tag that is not in the pieces: priority, DEI, VLAN id
};
UntaggedFrame without_vlan_tag(std::span<const std::uint8_t> frame);

}  // namespace adverb::wire
