// SPDX-License-Identifier: Apache-2.0
// The steered socket pool (design D5): one SO_REUSEPORT group per local address, a member per slot,
// and a classic BPF program that picks the member by the slot bits of the destination QPN in the
// BTH, or of the SRQ number that a request of XRC carries.
#pragma once

#include <expected>
#include <string>
#include <vector>

#include "base/types.hpp"

namespace adverb::port {

inline constexpr std::uint16_t roce_port = 4791;

struct PoolError {
  enum Kind { address_in_use, no_address, other } kind;
  int error;            // errno
  std::string message;  // one line for a person
};

struct Pool {
  std::vector<int> sockets;  // by slot; close-on-exec, non-blocking
  bool steered = true;       // false: the kernel refused the program; everything arrives at slot 0
};

// Creates the whole group at once for the address (ifindex: scope of link-local IPv6).  Fails with
// address_in_use when any socket of this namespace is bound there already (it never joins a group
// that it did not make).
std::expected<Pool, PoolError> create_pool(const Gid&, unsigned ifindex, unsigned slots);

}  // namespace adverb::port
