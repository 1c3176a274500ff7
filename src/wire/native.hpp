// SPDX-License-Identifier: Apache-2.0
// Frames of native InfiniBand: LRH [GRH] BTH ... payload pad ICRC VCRC (IBTA vol. 1, 7.7 and 7.8).
// Raw packets (LNH 0 and 1) are none of ours.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <optional>
#include <span>

#include "wire/packet.hpp"

namespace adverb::wire {

struct NativeFrame {
  Lrh lrh;
  std::optional<Grh> grh;
  Packet packet;
};

enum class NativeError : std::uint8_t {
  too_short,   // no room for the headers and both CRCs
  bad_header,  // LRH or GRH: version, next header
  bad_length,  // LRH or GRH: length is not the frame's
  bad_vcrc,
  bad_icrc,
  bad_packet,  // decode() refuses what is between the routing headers and the ICRC
};

inline constexpr std::uint8_t lnh_local = 2, lnh_global = 3;
inline constexpr std::size_t icrc_bytes = 4, vcrc_bytes = 2;

// Over the whole frame from the LRH to the ICRC.
std::uint16_t vcrc(std::span<const std::uint8_t> bytes);
// Over the frame from the LRH to the pad; LNH says whether there is a GRH.  What routers may change
// counts as ones: with a GRH all of the LRH, traffic class, flow label and hop limit; without one
// the VL only; the BTH's byte 4 always.
std::uint32_t native_icrc(std::span<const std::uint8_t> bytes);

std::size_t native_bytes(const NativeFrame&);
// Writes the frame, native_bytes() long, and returns its size.  LNH, the lengths, the pad count,
// the pad and both CRCs are set here.
std::size_t encode_native(const NativeFrame&, std::uint8_t* out);
// The frame with its VCRC.  The payload span points into `bytes`.
std::expected<NativeFrame, NativeError> decode_native(std::span<const std::uint8_t> bytes);

}  // namespace adverb::wire
