// SPDX-License-Identifier: Apache-2.0
// Sockets of Ethernet frames on one interface (packet(7)); they need CAP_NET_RAW.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace adverb::port {

// Non-blocking, close-on-exec; -1 with errno (EPERM without the privilege).  `protocol`: an
// EtherType, ETH_P_ALL, or 0 for a socket that only sends.
int open_packet_socket(unsigned ifindex, unsigned protocol);
bool packet_sockets_permitted();
// Lets only RoCE v1 frames in that are for this slot (design D5) or for a group, to that Ethernet
// address or to a group's.
bool attach_slot_filter(int socket, unsigned slot, const std::array<std::uint8_t, 6>& mac);
// Sends header and body as one frame.  An errno.
int send_frame(int socket, unsigned ifindex, std::span<const std::uint8_t> header,
               std::span<const std::uint8_t> body);

// A received frame as it was on the wire, with the VLAN tag that the kernel takes out.
struct EthernetFrame {
  std::span<const std::uint8_t> bytes;  // in the caller's buffer
  bool outgoing = false;                // this host sent it
  bool truncated = false;
};
// False: nothing was there.
bool receive_frame(int socket, std::span<std::uint8_t> buffer, EthernetFrame&);

}  // namespace adverb::port
