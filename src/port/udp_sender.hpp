// SPDX-License-Identifier: Apache-2.0
// The sending half of a UdpPort: ICRCs, and runs of equal-sized frames for one peer as one
// UDP_SEGMENT send.  A bundle's segment k is summed with IPv4 Identification k, every other frame
// with 0 (design D7). Whatever the kernel refuses is a lost packet, and counted.
#pragma once

#include <sys/socket.h>

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/burst.hpp"
#include "port/address.hpp"
#include "port/source_ports.hpp"
#include "port/udp_port.hpp"
#include "wire/icrc_prefixes.hpp"

namespace adverb::port {

class UdpSender {
 public:
  UdpSender(const UdpPortConfig&, PortCounters&);
  void send(engine::TxBurst&);
  void add(const LocalAddress&);
  void remove(unsigned gid_index);

 private:
  using Frames = std::span<const engine::TxFrame>;
  static constexpr unsigned most_segments = 128;  // UDP_MAX_SEGMENTS of the newest kernels
  static constexpr std::size_t most_bytes = 65507;

  struct Local {
    Gid gid{};
    unsigned ifindex{};
    bool gso = true;
    SourcePorts ports;
  };
  // One destination's sendmsg, all but the bytes.
  struct Envelope {
    SocketAddress to;
    socklen_t to_length;
    alignas(cmsghdr) char control[128];
    std::size_t control_length = 0;
    void add(int level, int type, const void* value, std::size_t size);
    void address(const Local&, const engine::AddressVector&);
    msghdr message(iovec&);
  };

  Local* local_of(const engine::AddressVector&);
  std::uint16_t wanted_port(const Local&, const engine::TxFrame&) const;
  std::size_t bundle_length(const Local&, Frames) const;
  void send_bundle(Local&, engine::TxBurst&, Frames);
  void send_singles(const SourcePorts::Socket&, engine::TxBurst&, Frames, Envelope&);
  void stamp(const Local&, std::uint16_t port, engine::TxBurst&, Frames, bool as_segments);
  void sent(Frames);
  void lost(std::size_t frames, int error);

  PortCounters& counters_;
  unsigned max_segments_, ports_per_peer_;
  bool gso_;
  std::vector<std::unique_ptr<Local>> locals_;
  std::array<Local*, 256> by_index_{};

  wire::IcrcPrefixes prefixes_;
  std::array<mmsghdr, most_segments> messages_;
  std::array<iovec, most_segments> iovs_;
};

}  // namespace adverb::port
