// SPDX-License-Identifier: Apache-2.0
// The Ethernet address of a GID, which frames of RoCE v1 are sent to (annex A16).
#pragma once

#include <array>

#include "nic/enumerate.hpp"

namespace adverb::nic {

// Of this host itself, from a link-local address that was made of one, or the kernel's neighbour
// table; the kernel is made to look for it, and waited for, a second at most.  0, or EHOSTUNREACH.
int resolve_mac(const DeviceInfo&, const Gid&, std::array<std::uint8_t, 6>& out);

}  // namespace adverb::nic
