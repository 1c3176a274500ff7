// SPDX-License-Identifier: Apache-2.0
// A transport packet, decoded once: everything after this edge is in host byte order and
// length-checked.
#pragma once

#include <cstdint>
#include <expected>
#include <span>

#include "wire/headers.hpp"

namespace adverb::wire {

// BTH, its extension headers and the payload without pad.  Of the extension headers only those are
// meaningful that info().ext names.
struct Packet {
  Bth bth;
  Reth reth;
  AtomicEth atomic;
  AtomicAckEth atomic_ack;
  Deth deth;
  Aeth aeth;
  ImmDt imm;
  Ieth ieth;
  XrcEth xrc;
  Feth feth;
  std::span<const std::uint8_t> payload;
  const OpcodeInfo& info() const { return info_of(bth.opcode); }
};

// The number whose slot is that of the process which a packet is for: of the SRQ in a request of
// XRC, else of the queue pair.
inline Qpn steering_number(const Packet& p) {
  return p.info().has(ext_xrceth) ? Qpn(p.xrc.srqn) : p.bth.dest_qp;
}

// Why bytes are no packet.  Each is counted by its name.
enum class DecodeError : std::uint8_t {
  too_short,       // shorter than the BTH, or than the headers its opcode needs
  unknown_opcode,  // reserved, or RD
  bad_version,     // TVer is not zero
  bad_pad,  // more pad than payload, or payload and pad no multiple of four, or payload where none
            // may be
};

// Decodes the bytes from the BTH up to and without the ICRC.  Never reads outside `bytes`; the
// payload span points into it.  The ICRC is the caller's to check (icrc.hpp): what fails here never
// gets that far.
std::expected<Packet, DecodeError> decode(std::span<const std::uint8_t> bytes);

// Writes BTH and extension headers of packet.info() and returns their size (at most
// max_header_bytes). bth.pad_count must already be right; payload, pad and ICRC are the caller's.
inline constexpr unsigned max_header_bytes = 12 + 4 + 8 + 28 + 16;
unsigned encode_headers(const Packet& packet, std::uint8_t* out);

// Zero bytes that follow n payload bytes to make them a multiple of four (IBTA 9.2.4, PadCnt).
constexpr unsigned pad_of(std::size_t payload_bytes) { return (4 - payload_bytes % 4) % 4; }

}  // namespace adverb::wire
