// SPDX-License-Identifier: Apache-2.0
#include "engine/rx_hash.hpp"

#include <algorithm>

namespace adverb::engine {

namespace {

constexpr std::uint32_t of_ipv4 = rx_src_ipv4 | rx_dst_ipv4, of_ipv6 = rx_src_ipv6 | rx_dst_ipv6,
                        of_tcp = rx_src_port_tcp | rx_dst_port_tcp,
                        of_udp = rx_src_port_udp | rx_dst_port_udp;

}  // namespace

bool RxHash::can_combine(std::uint32_t fields) {
  return !(fields & of_ipv4 && fields & of_ipv6) && !(fields & of_tcp && fields & of_udp);
}

bool RxHash::has_all(const wire::FlowKey& k) const {
  const bool ports = k.ports && !(k.fragment & wire::FlowKey::more_fragments);
  if (fields_ & of_ipv4 && k.ip_version != 4) return false;
  if (fields_ & of_ipv6 && k.ip_version != 6) return false;
  if (fields_ & of_tcp && !(ports && k.next_header == wire::protocol_tcp)) return false;
  return !(fields_ & of_udp) || (ports && k.next_header == wire::protocol_udp);
}

std::uint32_t RxHash::of(const wire::FlowKey& k) const {
  if (!has_all(k)) return 0;
  const std::size_t address = fields_ & of_ipv4 ? 4 : 16;
  std::uint8_t input[toeplitz_most_input];
  std::uint8_t* end = input;
  const auto take = [&](std::uint32_t fields, const std::uint8_t* from, std::size_t n) {
    if (fields_ & fields) end = std::copy_n(from, n, end);
  };
  take(rx_src_ipv4 | rx_src_ipv6, k.src_ip.data(), address);
  take(rx_dst_ipv4 | rx_dst_ipv6, k.dst_ip.data(), address);
  take(rx_src_port_tcp | rx_src_port_udp, k.src_port.data(), k.src_port.size());
  take(rx_dst_port_tcp | rx_dst_port_udp, k.dst_port.data(), k.dst_port.size());
  return toeplitz_hash(key_, {input, end});
}

}  // namespace adverb::engine
