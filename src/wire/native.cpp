// SPDX-License-Identifier: Apache-2.0
#include "wire/native.hpp"

#include <isa-l/crc.h>

#include <array>
#include <cstring>

#include "base/assert.hpp"
#include "wire/header_layouts.hpp"

namespace adverb::wire {
namespace {

constexpr std::size_t lrh_bytes = size_of<Lrh>, grh_bytes = size_of<Grh>, bth_bytes = size_of<Bth>;
constexpr std::uint8_t next_header_iba = 0x1b;

// x^16 + x^12 + x^3 + x + 1, least significant bit first.
constexpr auto vcrc_table = [] {
  std::array<std::uint16_t, 256> t{};
  for (unsigned b = 0; b < 256; ++b) {
    unsigned r = b;
    for (int i = 0; i < 8; ++i) r = r >> 1 ^ (r & 1 ? 0xd008 : 0);
    t[b] = static_cast<std::uint16_t>(r);
  }
  return t;
}();

void store_le(std::uint8_t* out, std::uint32_t value, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) out[i] = static_cast<std::uint8_t>(value >> 8 * i);
}
std::uint32_t load_le(const std::uint8_t* p, std::size_t bytes) {
  std::uint32_t v = 0;
  for (std::size_t i = 0; i < bytes; ++i) v |= std::uint32_t{p[i]} << 8 * i;
  return v;
}

std::size_t routing_bytes(bool global) { return global ? lrh_bytes + grh_bytes : lrh_bytes; }

}  // namespace

std::uint16_t vcrc(std::span<const std::uint8_t> bytes) {
  std::uint16_t r = 0xffff;
  for (std::uint8_t b : bytes) r = static_cast<std::uint16_t>(r >> 8 ^ vcrc_table[(r ^ b) & 255]);
  return static_cast<std::uint16_t>(~r);
}

std::uint32_t native_icrc(std::span<const std::uint8_t> bytes) {
  bool global = (bytes[1] & 3) == lnh_global;
  std::size_t routing = routing_bytes(global), head_bytes = routing + bth_bytes;
  ASSERT(bytes.size() >= head_bytes);
  std::uint8_t head[lrh_bytes + grh_bytes + bth_bytes];
  std::memcpy(head, bytes.data(), head_bytes);
  if (global) {
    std::memset(head, 0xff, lrh_bytes);
    std::uint8_t* grh = head + lrh_bytes;
    grh[0] |= 0x0f;
    std::memset(grh + 1, 0xff, 3);
    grh[7] = 0xff;
  } else {
    head[0] |= 0xf0;
  }
  head[routing + 4] = 0xff;
  std::uint32_t sum = crc32_gzip_refl(0, head, head_bytes);
  return crc32_gzip_refl(sum, bytes.data() + head_bytes, bytes.size() - head_bytes);
}

std::size_t native_bytes(const NativeFrame& f) {
  std::size_t payload = f.packet.payload.size();
  return routing_bytes(f.grh.has_value()) + f.packet.info().header_bytes + payload +
         pad_of(payload) + icrc_bytes + vcrc_bytes;
}

std::size_t encode_native(const NativeFrame& f, std::uint8_t* out) {
  std::size_t size = native_bytes(f), iba_bytes = size - vcrc_bytes;
  Lrh lrh = f.lrh;
  lrh.lnh = f.grh ? lnh_global : lnh_local;
  lrh.length = static_cast<std::uint16_t>(iba_bytes / 4);
  store(lrh, out);
  std::uint8_t* at = out + lrh_bytes;
  if (f.grh) {
    Grh grh = *f.grh;
    grh.payload_length = static_cast<std::uint16_t>(iba_bytes - lrh_bytes - grh_bytes);
    store(grh, at);
    at += grh_bytes;
  }
  Packet packet = f.packet;
  packet.bth.pad_count = static_cast<std::uint8_t>(pad_of(packet.payload.size()));
  at += encode_headers(packet, at);
  if (!packet.payload.empty()) std::memcpy(at, packet.payload.data(), packet.payload.size());
  at += packet.payload.size();
  std::memset(at, 0, packet.bth.pad_count);
  at += packet.bth.pad_count;
  store_le(at, native_icrc({out, at}), icrc_bytes);
  at += icrc_bytes;
  store_le(at, vcrc({out, at}), vcrc_bytes);
  return size;
}

std::expected<NativeFrame, NativeError> decode_native(std::span<const std::uint8_t> bytes) {
  constexpr std::size_t crcs = icrc_bytes + vcrc_bytes;
  if (bytes.size() < lrh_bytes + bth_bytes + crcs) return std::unexpected(NativeError::too_short);
  std::size_t iba_bytes = bytes.size() - vcrc_bytes, icrc_at = iba_bytes - icrc_bytes;
  if (vcrc(bytes.first(iba_bytes)) != load_le(bytes.data() + iba_bytes, vcrc_bytes))
    return std::unexpected(NativeError::bad_vcrc);

  NativeFrame f{};
  load(bytes.data(), f.lrh);
  if (f.lrh.lver != 0 || f.lrh.lnh < lnh_local) return std::unexpected(NativeError::bad_header);
  if (std::size_t{f.lrh.length} * 4 != iba_bytes) return std::unexpected(NativeError::bad_length);
  std::size_t routing = routing_bytes(f.lrh.lnh == lnh_global);
  if (icrc_at < routing + bth_bytes) return std::unexpected(NativeError::too_short);
  if (f.lrh.lnh == lnh_global) {
    load(bytes.data() + lrh_bytes, f.grh.emplace());
    if (f.grh->ip_version != 6 || f.grh->next_header != next_header_iba)
      return std::unexpected(NativeError::bad_header);
    if (f.grh->payload_length != iba_bytes - routing)
      return std::unexpected(NativeError::bad_length);
  }
  if (native_icrc(bytes.first(icrc_at)) != load_le(bytes.data() + icrc_at, icrc_bytes))
    return std::unexpected(NativeError::bad_icrc);
  auto packet = decode(bytes.subspan(routing, icrc_at - routing));
  if (!packet) return std::unexpected(NativeError::bad_packet);
  f.packet = *packet;
  return f;
}

}  // namespace adverb::wire
