// SPDX-License-Identifier: Apache-2.0
// Packets to and from bytes.  The opcode table says which headers are there and how long they are
// together, so one comparison guards all reads; the branches below only walk over what is present,
// in wire order.
#include "wire/packet.hpp"

#include <optional>

#include "wire/header_layouts.hpp"

namespace adverb::wire {
namespace {

constexpr std::size_t bth_bytes = size_of<Bth>;
constexpr std::size_t cnp_reserved_bytes = 16;

static_assert([] {
  for (auto& op : opcodes)
    if (op.header_bytes > max_header_bytes) return false;
  return true;
}());

template <class H>
const std::uint8_t* take(const std::uint8_t* at, H& h) {
  load(at, h);
  return at + size_of<H>;
}

template <class H>
std::uint8_t* give(const H& h, std::uint8_t* at) {
  store(h, at);
  return at + size_of<H>;
}

// The headers between BTH and payload.  Most packets are acknowledgements or bare SENDs and WRITEs,
// hence the early way out.
void decode_extensions(const OpcodeInfo& op, const std::uint8_t* at, Packet& p) {
  if (op.ext == 0) return;
  if (op.has(ext_xrceth)) at = take(at, p.xrc);
  if (op.has(ext_deth)) at = take(at, p.deth);
  if (op.has(ext_feth)) at = take(at, p.feth);
  if (op.has(ext_reth)) at = take(at, p.reth);
  if (op.has(ext_atomic_eth)) at = take(at, p.atomic);
  if (op.has(ext_aeth)) at = take(at, p.aeth);
  if (op.has(ext_atomic_ack_eth)) at = take(at, p.atomic_ack);
  if (op.has(ext_imm_dt)) at = take(at, p.imm);
  if (op.has(ext_ieth)) take(at, p.ieth);
}

unsigned pad_count(std::span<const std::uint8_t> bytes) { return bytes[1] >> 4 & 3; }

// Is `rest` (payload and pad) of a right size?  A CNP is followed by 16 reserved bytes and no pad.
bool good_rest(const OpcodeInfo& op, std::size_t rest, unsigned pad) {
  if (op.verb == Verb::cnp) return rest == cnp_reserved_bytes && pad == 0;
  if (!op.payload) return rest == 0 && pad == 0;
  return pad <= rest && rest % 4 == 0;
}

std::optional<DecodeError> validate(std::span<const std::uint8_t> bytes) {
  if (bytes.size() < bth_bytes) return DecodeError::too_short;
  const OpcodeInfo& op = info_of(Opcode{bytes[0]});
  if (!op) return DecodeError::unknown_opcode;
  if (bytes[1] & 15) return DecodeError::bad_version;
  if (bytes.size() < op.header_bytes) return DecodeError::too_short;
  if (!good_rest(op, bytes.size() - op.header_bytes, pad_count(bytes))) return DecodeError::bad_pad;
  return std::nullopt;
}

}  // namespace

// One object is returned by every path, so that it is built in place and never copied.
std::expected<Packet, DecodeError> decode(std::span<const std::uint8_t> bytes) {
  std::expected<Packet, DecodeError> result;
  if (auto error = validate(bytes)) {
    result = std::unexpected(*error);
    return result;
  }
  const OpcodeInfo& op = info_of(Opcode{bytes[0]});
  load(bytes.data(), result->bth);
  decode_extensions(op, bytes.data() + bth_bytes, *result);
  result->payload =
      bytes.subspan(op.header_bytes, bytes.size() - op.header_bytes - pad_count(bytes));
  return result;
}

unsigned encode_headers(const Packet& p, std::uint8_t* out) {
  const OpcodeInfo& op = p.info();
  std::uint8_t* at = give(p.bth, out);
  if (op.ext == 0) return bth_bytes;
  if (op.has(ext_xrceth)) at = give(p.xrc, at);
  if (op.has(ext_deth)) at = give(p.deth, at);
  if (op.has(ext_feth)) at = give(p.feth, at);
  if (op.has(ext_reth)) at = give(p.reth, at);
  if (op.has(ext_atomic_eth)) at = give(p.atomic, at);
  if (op.has(ext_aeth)) at = give(p.aeth, at);
  if (op.has(ext_atomic_ack_eth)) at = give(p.atomic_ack, at);
  if (op.has(ext_imm_dt)) at = give(p.imm, at);
  if (op.has(ext_ieth)) at = give(p.ieth, at);
  return static_cast<unsigned>(at - out);
}

}  // namespace adverb::wire
