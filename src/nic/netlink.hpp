// SPDX-License-Identifier: Apache-2.0
// The part of rtnetlink(7) that a NIC needs: which interfaces and addresses this network namespace
// has, when an interface goes up or down, and where packets to an address go next.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/types.hpp"

namespace adverb::nic {

struct Link {
  unsigned ifindex{};
  std::string name;
  std::uint32_t mtu{};
  bool up{}, running{}, loopback{};
  bool asks{};  // neighbours are looked for by ARP or neighbour solicitation
  bool has_mac{};
  std::array<std::uint8_t, 6> mac{};
};

struct Address {
  unsigned ifindex{};
  Gid gid{};
  bool usable{};      // not tentative, deprecated or a failed duplicate
  bool link_local{};  // IPv6 fe80::/10
};

// Empty when the kernel does not answer.
std::vector<Link> dump_links();
std::vector<Address> dump_addresses();

// Nothing when there is no such interface, or the kernel does not answer.
std::optional<Link> find_link(unsigned ifindex);

// Where a packet goes next: the router, or the destination itself.
struct Hop {
  unsigned ifindex{};
  Gid gid{};
  bool neighbour{};  // not this host itself, nor a broadcast address
};

// The route from an address of this host to another one of its family.  `ifindex`, unless it is 0,
// is the interface that the packet must leave by.  Nothing when there is none, when the packet is
// wrapped into another one on its way, or when the kernel does not answer.
std::optional<Hop> find_hop(const Gid& from, const Gid& to, unsigned ifindex);

struct Neighbour {
  bool known{};                                    // it has answered, or need not
  bool sought{};                                   // the kernel is asking for it
  std::optional<std::array<std::uint8_t, 6>> mac;  // only of one that is known
};

// As the kernel's table has it; nothing when the kernel does not say.
std::optional<Neighbour> find_neighbour(unsigned ifindex, const Gid&);

// A socket that reports changes of links and addresses: close-on-exec, non-blocking; -1 when the
// kernel has none.
int open_monitor();
// Reads what is there; calls f for each report about that interface (one that is gone is not up).
// True: addresses of this namespace may have changed.
bool read_monitor(int descriptor, unsigned ifindex, const std::function<void(const Link&)>& f);

}  // namespace adverb::nic
