// SPDX-License-Identifier: Apache-2.0
// What receive side scaling hashes in a frame: addresses and ports, those that were chosen when the
// queue pair was made (ibv_create_qp_ex(3), rx_hash_conf).  They are taken in Microsoft's order:
// source address, destination address, source port, destination port.
#pragma once

#include <cstdint>

#include "engine/toeplitz.hpp"
#include "wire/flow_key.hpp"

namespace adverb::engine {

// Numbered as ibv_rx_hash_fields.
enum RxHashField : std::uint32_t {
  rx_src_ipv4 = 1 << 0,
  rx_dst_ipv4 = 1 << 1,
  rx_src_ipv6 = 1 << 2,
  rx_dst_ipv6 = 1 << 3,
  rx_src_port_tcp = 1 << 4,
  rx_dst_port_tcp = 1 << 5,
  rx_src_port_udp = 1 << 6,
  rx_dst_port_udp = 1 << 7,
};
inline constexpr std::uint32_t rx_hash_fields = 0xff;

class RxHash {
 public:
  // False: of both IP versions, or of both TCP and UDP, which no frame has at a time.
  static bool can_combine(std::uint32_t fields);

  RxHash() = default;  // of no field
  RxHash(const ToeplitzKey& key, std::uint32_t fields) : key_(key), fields_(fields) {}

  // 0 for a frame that has not all of the fields; a fragment counts as one without ports, so that
  // all of a datagram have one hash.
  std::uint32_t of(const wire::FlowKey&) const;

 private:
  bool has_all(const wire::FlowKey&) const;
  ToeplitzKey key_{};
  std::uint32_t fields_ = 0;
};

}  // namespace adverb::engine
