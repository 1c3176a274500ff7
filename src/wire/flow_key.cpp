// SPDX-License-Identifier: Apache-2.0
#include "wire/flow_key.hpp"

#include <algorithm>

namespace adverb::wire {
namespace {

using Bytes = std::span<const std::uint8_t>;

unsigned word_at(Bytes b, std::size_t at) { return b[at] << 8u | b[at + 1]; }

constexpr unsigned type_ipv4 = 0x0800, type_ipv6 = 0x86dd, type_vlan = 0x8100, type_qinq = 0x88a8;
constexpr std::size_t type_at = ethernet_header_bytes - 2;

template <std::size_t N>
void take(Bytes from, std::size_t at, std::array<std::uint8_t, N>& to, std::size_t n = N) {
  std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(at), n, to.begin());
}

void transport(Bytes b, FlowKey& k) {
  if (k.next_header != protocol_tcp && k.next_header != protocol_udp) return;
  if (b.size() < 4) return;
  k.ports = 1;
  take(b, 0, k.src_port);
  take(b, 2, k.dst_port);
}

void ipv4(Bytes b, FlowKey& k) {
  if (b.size() < 20 || b[0] >> 4 != 4) return;
  k.ip_version = 4;
  k.traffic_class = b[1];
  k.hop_limit = b[8];
  k.next_header = b[9];
  k.fragment = static_cast<std::uint8_t>((b[6] & 0x40 ? FlowKey::dont_fragment : 0) |
                                         (b[6] & 0x20 ? FlowKey::more_fragments : 0));
  take(b, 12, k.src_ip, 4);
  take(b, 16, k.dst_ip, 4);
  const std::size_t header = (b[0] & 15u) * 4u;
  const bool first = ((b[6] & 0x1f) | b[7]) == 0;
  if (first && header >= 20 && header <= b.size()) transport(b.subspan(header), k);
}

// Hop-by-hop options, routing, fragment, destination options (RFC 8200, 4).
bool is_extension(unsigned next) { return next == 0 || next == 43 || next == 44 || next == 60; }

void ipv6(Bytes b, FlowKey& k) {
  if (b.size() < 40 || b[0] >> 4 != 6) return;
  k.ip_version = 6;
  k.traffic_class = static_cast<std::uint8_t>(b[0] << 4 | b[1] >> 4);
  k.flow_label = {0, static_cast<std::uint8_t>(b[1] & 15), b[2], b[3]};
  k.hop_limit = b[7];
  take(b, 8, k.src_ip);
  take(b, 24, k.dst_ip);
  unsigned next = b[6];
  b = b.subspan(40);
  bool first = true;
  for (unsigned n = 0; n < 8 && is_extension(next) && b.size() >= 8; ++n) {
    constexpr unsigned fragment_header = 44;
    if (next == fragment_header) {
      if (b[2] | (b[3] & 0xf8)) first = false;
      if (b[3] & 1) k.fragment = FlowKey::more_fragments;
    }
    const std::size_t size = next == fragment_header ? 8 : (b[1] + 1u) * 8u;
    next = b[0];
    if (size > b.size()) {
      first = false;
      break;
    }
    b = b.subspan(size);
  }
  k.next_header = static_cast<std::uint8_t>(next);
  if (first) transport(b, k);
}

}  // namespace

FlowKey flow_key_of(Bytes frame) {
  FlowKey k;
  if (frame.size() < ethernet_header_bytes) return k;
  take(frame, 0, k.dst_mac);
  take(frame, 6, k.src_mac);
  std::size_t at = type_at;
  for (unsigned tags = 0; tags < 2 && frame.size() >= at + 2 + vlan_tag_bytes; ++tags) {
    const unsigned type = word_at(frame, at);
    if (type != type_vlan && type != type_qinq) break;
    if (tags == 0) take(frame, at + 2, k.vlan_tag);
    k.tagged = 1;
    at += vlan_tag_bytes;
  }
  take(frame, at, k.ether_type);
  const unsigned type = word_at(frame, at);
  const Bytes rest = frame.subspan(at + 2);
  if (type == type_ipv4) ipv4(rest, k);
  if (type == type_ipv6) ipv6(rest, k);
  return k;
}

UntaggedFrame without_vlan_tag(Bytes frame) {
  constexpr std::size_t end = type_at + vlan_tag_bytes;
  if (frame.size() < end + 2 || word_at(frame, type_at) != type_vlan) return {.rest = frame};
  return {.front = frame.first(type_at),
          .rest = frame.subspan(end),
          .cvlan = static_cast<std::uint16_t>(word_at(frame, type_at + 2))};
}

}  // namespace adverb::wire
