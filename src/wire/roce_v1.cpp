// SPDX-License-Identifier: Apache-2.0
#include "wire/roce_v1.hpp"

#include <algorithm>

#include "wire/header_layouts.hpp"

namespace adverb::wire {
namespace {

constexpr std::size_t ethernet_bytes = 14, icrc_size = 4, least_packet = 12;
constexpr std::uint8_t next_header_ib = 0x1b;

}  // namespace

void encode_roce_v1(const Mac& to, const Mac& from, Grh grh, std::size_t transport_bytes,
                    std::uint8_t* out) {
  std::copy(to.begin(), to.end(), out);
  std::copy(from.begin(), from.end(), out + 6);
  store_be16(out + 12, roce_v1_type);
  grh.payload_length = static_cast<std::uint16_t>(transport_bytes + icrc_size);
  store(grh, out + ethernet_bytes);
}

std::optional<RoceV1Frame> decode_roce_v1(std::span<const std::uint8_t> frame) {
  if (frame.size() < roce_v1_header_bytes || (frame[12] << 8u | frame[13]) != roce_v1_type)
    return std::nullopt;
  RoceV1Frame f;
  f.grh = load<Grh>(frame.data() + ethernet_bytes);
  const std::size_t length = f.grh.payload_length;
  if (f.grh.ip_version != 6 || f.grh.next_header != next_header_ib) return std::nullopt;
  if (length < least_packet + icrc_size || length > frame.size() - roce_v1_header_bytes)
    return std::nullopt;
  f.packet = frame.subspan(roce_v1_header_bytes, length - icrc_size);
  const std::uint8_t* p = f.packet.data() + f.packet.size();
  f.icrc = p[0] | p[1] << 8 | p[2] << 16 | std::uint32_t{p[3]} << 24;
  return f;
}

Mac multicast_mac(const Gid& g) {
  const auto& b = g.bytes;
  if (g.is_v4()) return {0x01, 0x00, 0x5e, static_cast<std::uint8_t>(b[13] & 0x7f), b[14], b[15]};
  return {0x33, 0x33, b[12], b[13], b[14], b[15]};
}

}  // namespace adverb::wire
