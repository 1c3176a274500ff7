// SPDX-License-Identifier: Apache-2.0
// Any bytes as a transport packet: decode() reads nothing outside them (libFuzzer and the replay
// hand over memory of exactly that size), and what it accepts gives the same bytes when it is
// encoded again, but for the reserved bits, which a sender sets to zero and a receiver ignores
// (IBTA 9.2).
#include <cstring>

#include "script.hpp"
#include "wire/packet.hpp"

using namespace adverb;

namespace {

struct Reserved {
  unsigned offset;
  std::uint8_t bits;
};
constexpr Reserved in_bth[] = {{4, 0x3f}, {8, 0x7f}};
constexpr Reserved in_deth[] = {{4, 0xff}};
constexpr Reserved in_xrceth[] = {{0, 0xff}};
constexpr Reserved in_feth[] = {{0, 0xff}, {1, 0xff}, {2, 0xff}, {3, 0xc0}};

void clear(std::uint8_t* header, std::span<const Reserved> fields) {
  for (const Reserved& f : fields) header[f.offset] &= static_cast<std::uint8_t>(~f.bits);
}

// The headers as a sender would have written them.
void clear_reserved(const wire::OpcodeInfo& op, std::uint8_t* bytes) {
  clear(bytes, in_bth);
  if (op.has(wire::ext_deth)) clear(bytes + wire::offset_of(op, wire::ext_deth), in_deth);
  if (op.has(wire::ext_xrceth)) clear(bytes + wire::offset_of(op, wire::ext_xrceth), in_xrceth);
  if (op.has(wire::ext_feth)) clear(bytes + wire::offset_of(op, wire::ext_feth), in_feth);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size > 8192) return 0;
  auto packet = wire::decode({data, size});
  if (!packet) return 0;
  const wire::OpcodeInfo& op = packet->info();
  const std::size_t header = op.header_bytes;
  REQUIRE(packet->payload.data() == data + header);
  REQUIRE(header + packet->payload.size() + packet->bth.pad_count == size);
  std::uint8_t encoded[wire::max_header_bytes], sent[wire::max_header_bytes];
  REQUIRE(wire::encode_headers(*packet, encoded) == header);
  std::memcpy(sent, data, header);
  clear_reserved(op, sent);
  REQUIRE(std::memcmp(encoded, sent, header) == 0);
  return 0;
}
