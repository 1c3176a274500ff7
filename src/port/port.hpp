// SPDX-License-Identifier: Apache-2.0
// How frames leave and enter the process.  One virtual call per burst, none per packet.  A port
// owns the IP header's side of the wire: addresses, ECN, ICRC.  All members are called by whoever
// holds the engine.
#pragma once

#include <cerrno>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/burst.hpp"

namespace adverb::port {

// What a port dropped or did, by name; one writer, any reader.
struct PortCounters {
  std::uint64_t rx_calls = 0, rx_datagrams = 0, rx_bundles = 0, rx_bytes = 0;
  std::uint64_t tx_calls = 0, tx_datagrams = 0, tx_bundles = 0, tx_bytes = 0;
  std::uint64_t drop_decode_short = 0, drop_decode_opcode = 0, drop_decode_version = 0,
                drop_decode_pad = 0;
  std::uint64_t drop_icrc = 0, drop_truncated = 0;
  std::uint64_t relayed_out = 0, relayed_in = 0, drop_relay = 0;
  std::uint64_t tx_errors = 0, tx_too_big = 0, gso_refused = 0;
};

struct LocalAddress {
  unsigned gid_index{};
  Gid gid{};
  unsigned ifindex{};           // scope of link-local IPv6 addresses
  int receive_socket = -1;      // this slot's group member; the port owns it from now on
  engine::Protocol protocol{};  // roce_v1: without a receive socket
};

// The counter of frames whose bytes are no packet for that reason.
inline std::uint64_t& drops_for(PortCounters& c, wire::DecodeError error) {
  using enum wire::DecodeError;
  return error == too_short        ? c.drop_decode_short
         : error == unknown_opcode ? c.drop_decode_opcode
         : error == bad_version    ? c.drop_decode_version
                                   : c.drop_decode_pad;
}

class Port {
 public:
  virtual ~Port() = default;

  // One system call's worth of frames; empty when nothing was there.  `all_empty` becomes true when
  // every socket was found empty since the last frame.  The frames live until the next call.
  // `Look::once` spares a spinning poller system calls: it may look only where frames came from
  // last, and then says nothing of the other sockets, but comes round to them within a few calls.
  enum class Look { everywhere, once };
  virtual std::span<const engine::RxFrame> receive(bool& all_empty,
                                                   Look look = Look::everywhere) = 0;
  // Sends every frame (adding ICRCs in place), or counts it as lost.  Never blocks.
  virtual void send(engine::TxBurst&) = 0;
  // Descriptors that become readable when receive() would return something.
  virtual std::vector<int> wait_descriptors() const = 0;
  virtual const PortCounters& counters() const = 0;

  // The table of local addresses changes.  add_address() owns the receive socket, also when it
  // throws std::system_error.
  virtual void add_address(const LocalAddress&) = 0;
  virtual void remove_address(unsigned gid_index) = 0;

  // Frames that are sent to a multicast group come in between these two.  join() returns an errno;
  // it is called once for each group.
  virtual int join(const Gid& group) = 0;
  virtual void leave(const Gid& group) = 0;

  // Whole Ethernet frames come in and go out only while somebody wants them; both return an errno
  // (EPERM, or EOPNOTSUPP: this port has none).  To watch is to receive.
  virtual int open_ethernet() { return EOPNOTSUPP; }
  virtual int watch_ethernet(bool /*on*/) { return EOPNOTSUPP; }
};

}  // namespace adverb::port
