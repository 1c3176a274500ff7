// SPDX-License-Identifier: Apache-2.0
// Whether a network device segments bundles as the ICRC assumes (design D7): segment k with IPv4
// Identification k and DF.  One bundle of four is sent to a link-local multicast group (to itself
// on the loopback device) and captured as it leaves; that needs CAP_NET_RAW.
#pragma once

#include <string>

#include "base/types.hpp"

namespace adverb::port {

enum class GsoProof {
  proved,    // segments were seen, with the right Identifications
  whole,     // the bundle left the kernel in one piece: loopback, a virtual device, or a NIC that
             // segments by itself
  wrong,     // segments were seen with other Identifications or without DF: no bundles here
  refused,   // the device takes no bundles
  unproved,  // not permitted to look, or nothing was seen
};
struct GsoReport {
  GsoProof proof;
  std::string detail;  // for a person
};

// For the device that has the address (ifindex 0: look it up).  Takes some milliseconds, at most a
// quarter second.
GsoReport prove_gso(const Gid& address, unsigned ifindex = 0);

}  // namespace adverb::port
