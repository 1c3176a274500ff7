// SPDX-License-Identifier: Apache-2.0
// RoCEv2 over UDP sockets (annex A17): GSO and GRO, ECN both ways, the ICRC, source ports for ECMP.
//
//   - Receive sockets are handed in: this slot's member of the reuseport group of each local
//   address.
//   - Send sockets are made here: unconnected, DF set (so that the IPv4 Identification is 0, or k
//   for
//     segment k of a bundle, which the ICRC covers), bound to the local address and a port in
//     0xC000..0xFFFF that is chosen by a hash of both QPNs; one source port never serves two
//     destination slots.
#pragma once

#include <memory>
#include <string>

#include "port/port.hpp"

namespace adverb::port {

struct UdpPortConfig {
  unsigned slot = 1;
  std::vector<LocalAddress> addresses;
  unsigned ifindex = 0;  // where multicast groups are joined; 0: where the kernel thinks fit
  int relay_socket =
      -1;  // unix datagram socket on which other slots hand us frames that are ours; owned
  std::string
      relay_name_prefix;  // abstract name of slot N's relay socket is this prefix and N in decimal
  bool gso = true, gro = true;
  unsigned max_segments = 64;
  std::uint64_t receive_buffer = 32 << 20;  // asked for; SO_RCVBUFFORCE is tried first
  // Source ports that the queue pairs to one peer process are spread over (a power of two, at most
  // 8); a peer on this host gets one.  A queue pair keeps its port, so fewer ports make larger
  // bundles.
  unsigned source_ports_per_peer = 4;
};

class UdpPort final : public Port {
 public:
  // Throws std::system_error when a socket cannot be made.  What waits in the sockets from before
  // is thrown away: it was for the slot's last owner.
  explicit UdpPort(UdpPortConfig);
  ~UdpPort() override;

  std::span<const engine::RxFrame> receive(bool& all_empty, Look look = Look::everywhere) override;
  void send(engine::TxBurst&) override;
  std::vector<int> wait_descriptors() const override;
  const PortCounters& counters() const override;
  void add_address(const LocalAddress&) override;
  void remove_address(unsigned gid_index) override;
  int join(const Gid& group) override;
  void leave(const Gid& group) override;

  // The smallest SO_RCVBUF that the receive sockets really got, as the kernel accounts it.
  std::uint64_t receive_buffer() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace adverb::port
