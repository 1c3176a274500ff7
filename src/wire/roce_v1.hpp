// SPDX-License-Identifier: Apache-2.0
// Frames of RoCE v1 (annex A16): Ethernet header of type 0x8915, GRH, and the transport packet with
// its ICRC.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "wire/headers.hpp"

namespace adverb::wire {

using Mac = std::array<std::uint8_t, 6>;

inline constexpr unsigned roce_v1_type = 0x8915;
inline constexpr std::size_t roce_v1_header_bytes = 14 + 40;  // what stands in front of the BTH

// Writes the headers of a packet of that many bytes, BTH to pad; the GRH's length is set here.
void encode_roce_v1(const Mac& to, const Mac& from, Grh, std::size_t transport_bytes,
                    std::uint8_t* out);

struct RoceV1Frame {
  Grh grh;
  std::span<const std::uint8_t> packet;  // BTH to pad
  std::uint32_t icrc;                    // as IcrcPrefix has it; for the caller to check
};
// Of a whole frame, padded by Ethernet or not.  Nothing: no such frame, or its lengths are wrong.
std::optional<RoceV1Frame> decode_roce_v1(std::span<const std::uint8_t> frame);

// The address that frames to an MGID go to (RFC 1112, 6.4; RFC 2464, 7).
Mac multicast_mac(const Gid& group);

}  // namespace adverb::wire
