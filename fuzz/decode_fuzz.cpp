// SPDX-License-Identifier: Apache-2.0
// Any bytes as a transport packet: decode() reads nothing outside them, and what it accepts is the
// same after encoding and decoding again.
#include <cstring>

#include "wire/packet.hpp"

using namespace adverb;

namespace {

void require(bool x) {
  if (!x) __builtin_trap();
}

bool same(const wire::Packet& a, const wire::Packet& b) {
  const wire::OpcodeInfo& op = a.info();
  return a.bth == b.bth && (!op.has(wire::ext_reth) || a.reth == b.reth) &&
         (!op.has(wire::ext_atomic_eth) || a.atomic == b.atomic) &&
         (!op.has(wire::ext_atomic_ack_eth) || a.atomic_ack == b.atomic_ack) &&
         (!op.has(wire::ext_deth) || a.deth == b.deth) &&
         (!op.has(wire::ext_aeth) || a.aeth == b.aeth) &&
         (!op.has(wire::ext_imm_dt) || a.imm == b.imm) &&
         (!op.has(wire::ext_ieth) || a.ieth == b.ieth) &&
         (!op.has(wire::ext_xrceth) || a.xrc == b.xrc) &&
         (!op.has(wire::ext_feth) || a.feth == b.feth);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size > 8192) return 0;
  auto packet = wire::decode({data, size});
  if (!packet) return 0;
  require(packet->payload.size() + packet->bth.pad_count + packet->info().header_bytes == size);
  std::uint8_t again[8192 + wire::max_header_bytes];
  unsigned header = wire::encode_headers(*packet, again);
  require(header == packet->info().header_bytes);
  std::memcpy(again + header, data + header, size - header);
  auto second = wire::decode({again, size});
  require(second && same(*packet, *second));
  return 0;
}
