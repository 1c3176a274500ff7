// SPDX-License-Identifier: Apache-2.0
// The send sockets of one local address (design D5): a bounded set of unconnected sockets with DF
// set, on source ports chosen as the kernel's RoCE drivers choose them, so that ECMP spreads flows.
//   - A queue pair's packets keep one source port: they never overtake each other on the fabric.
//   - One source port never serves two destination slots of one destination address: a receiving
//   kernel's
//     GRO merges by addresses and ports, not by QPN.
// Sockets are made at the first packet for a destination and live in a fixed table: no allocation.
#pragma once

#include <cstdint>

#include "base/types.hpp"

namespace adverb::port {

// As rdma_get_udp_sport() of the kernel: 0xC000 to 0xFFFF, from the flow label or else both QPNs.
std::uint16_t roce_source_port(std::uint32_t flow_label, Qpn src, Qpn dest);

class SourcePorts {
 public:
  static constexpr unsigned max_sockets = 64;

  SourcePorts() = default;
  SourcePorts(const SourcePorts&) = delete;
  SourcePorts& operator=(const SourcePorts&) = delete;
  ~SourcePorts();

  // `per_peer`: how many source ports the queue pairs to one (address, slot) are spread over; a
  // power of two.
  void open(const Gid& local, unsigned ifindex, unsigned per_peer);

  struct Socket {
    int fd = -1;
    std::uint16_t port{};
  };
  // Two queue pairs share a source port when these are equal (for the same destination and slot).
  unsigned bucket(std::uint16_t wanted_port) const { return wanted_port & (per_peer_ - 1); }
  // The socket for that destination; null when none could be made (errno says why).
  const Socket* find(const Gid& dgid, unsigned slot, std::uint16_t wanted_port);

 private:
  // Which socket serves a bucket of a destination's slot.
  struct Path {
    Gid dgid{};
    std::uint64_t used = 0;  // 0: free
    std::uint16_t slot{};
    std::uint8_t bucket{}, socket{};
  };
  static constexpr unsigned ways = 4, sets = 128;

  Path* set_of(const Gid&, unsigned slot, unsigned bucket);
  int choose(const Gid&, unsigned slot, std::uint16_t wanted);
  int take_over(std::uint16_t wanted);
  bool make(Socket&, std::uint16_t wanted);

  Gid local_{};
  unsigned ifindex_ = 0, per_peer_ = 1, made_ = 0;
  std::uint64_t clock_ = 0;  // of uses, for the least recently used
  Path* last_ = nullptr;
  Socket sockets_[max_sockets];
  Path paths_[sets * ways];
};

}  // namespace adverb::port
