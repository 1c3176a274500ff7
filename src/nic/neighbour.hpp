// SPDX-License-Identifier: Apache-2.0
// The way to a GID: whether there is a route, whether somebody answers at its next hop, and the
// Ethernet address that frames of RoCE v1 are sent to (annex A16).
#pragma once

#include <array>

#include "nic/enumerate.hpp"

namespace adverb::nic {

// Of this host itself, from a link-local address that was made of one, or the kernel's neighbour
// table; the kernel is made to look for it, and waited for, a second at most.  0, or ETIMEDOUT.
int resolve_mac(const DeviceInfo&, const Gid&, std::array<std::uint8_t, 6>& out);

// ENETUNREACH if this host has no route from the one to the other, which are unicast and of one
// address family; 0 if it has, or nobody can say.
int route_error(const DeviceInfo&, const Gid& from, const Gid& to);

// ETIMEDOUT if the next hop on the route from the one to the other answers no ARP or neighbour
// solicitation within a second, in which the kernel is made to ask; 0 if it does, is known already,
// need not, or nobody can say.  GIDs as for route_error.
int neighbour_error(const DeviceInfo&, const Gid& from, const Gid& to);

}  // namespace adverb::nic
