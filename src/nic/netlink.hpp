// SPDX-License-Identifier: Apache-2.0
// The part of rtnetlink(7) that a NIC needs: which interfaces and addresses this network namespace
// has, and when an interface goes up or down.
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

// The Ethernet address of a neighbour that is known there.
std::optional<std::array<std::uint8_t, 6>> find_neighbour(unsigned ifindex, const Gid&);

// A socket that reports changes of links and addresses: close-on-exec, non-blocking; -1 when the
// kernel has none.
int open_monitor();
// Reads what is there; calls f for each report about that interface (one that is gone is not up).
// True: addresses of this namespace may have changed.
bool read_monitor(int descriptor, unsigned ifindex, const std::function<void(const Link&)>& f);

}  // namespace adverb::nic
