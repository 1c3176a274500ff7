// SPDX-License-Identifier: Apache-2.0
// The invariant CRC of RoCEv2 (annex A17.3.3; CRC of IBTA vol. 1, 7.8.1): over a pseudo LRH of
// ones, the IP and UDP headers with all that routers may change set to ones, and the transport
// packet from BTH to pad.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/types.hpp"

namespace adverb::wire {

// The fields of the IP and UDP headers that the ICRC covers and that a sender or receiver knows.
// TOS/traffic class, TTL/hop limit, IPv6 flow label, both checksums are masked.
struct IcrcPath {
  Gid source, destination;  // both v4-mapped, or both not
  std::uint16_t source_port{}, destination_port{4791};
  bool grh = false;  // RoCE v1: a GRH, neither IP nor UDP (annex A16)
};

// The state after the pseudo header, which depends on the path and on the packet's size only:
// compute once per bundle.  `transport_bytes`: BTH to pad, without the ICRC.  `identification`:
// IPv4 only, with DF set.
class IcrcPrefix {
 public:
  IcrcPrefix(const IcrcPath&, std::size_t transport_bytes);
  // The four ICRC bytes as a little-endian integer; `bytes` from BTH to pad.
  std::uint32_t icrc(std::span<const std::uint8_t> bytes, std::uint16_t identification = 0) const;
  // Is `received` the right ICRC for some IPv4 Identification?  (A UDP socket does not see that
  // field, and rxe and NICs fill it.)  Tries `expected_identification` first, which costs one pass;
  // a mismatch is then checked by linearity of the CRC, which costs no second pass.  IPv6: plain
  // equality.
  bool check(std::span<const std::uint8_t> bytes, std::uint32_t received,
             std::uint16_t expected_identification) const {
    return identify(bytes, received, expected_identification).has_value();
  }
  // As check(), and tells the Identification that `received` was computed with (IPv6: the expected
  // one), so that a receiver can follow a peer that counts.
  std::optional<std::uint16_t> identify(std::span<const std::uint8_t> bytes, std::uint32_t received,
                                        std::uint16_t expected_identification) const;

 private:
  std::uint32_t sum(std::span<const std::uint8_t> bytes, std::uint32_t state) const;

  std::uint32_t state_;  // of the CRC after the pseudo header with Identification 0
  std::uint32_t transport_bytes_;
  bool v4_;
};

}  // namespace adverb::wire
