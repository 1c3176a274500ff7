// SPDX-License-Identifier: Apache-2.0
// The invariant CRC is CRC-32 as in Ethernet and gzip, so isa-l's routine sums the bulk.  All that
// depends on the IPv4 Identification uses that a CRC is linear: changing 16 bits at a known place
// changes the result by a value that depends on the place and the change alone.  In the register's
// bit order a value is a polynomial whose x^0 is the top bit, and a zero byte fed in multiplies it
// by x^8.
#include "wire/icrc.hpp"

#include <isa-l/crc.h>

#include <array>
#include <bit>
#include <cstring>

#include "base/assert.hpp"
#include "wire/layout.hpp"

namespace adverb::wire {
namespace {

constexpr std::uint32_t polynomial = 0xedb88320;  // 0x04c11db7 in the register's bit order
constexpr std::uint32_t one = 0x80000000;

constexpr std::uint32_t times_x(std::uint32_t a) { return a >> 1 ^ (a & 1 ? polynomial : 0); }
constexpr std::uint32_t over_x(std::uint32_t a) {
  return a & one ? (a ^ polynomial) << 1 | 1 : a << 1;
}
constexpr std::uint32_t product(std::uint32_t a, std::uint32_t b) {
  std::uint32_t r = 0;
  for (int i = 0; i < 32; ++i) {
    r ^= a & (0u - (b >> 31));
    b <<= 1;
    a = a >> 1 ^ (polynomial & (0u - (a & 1)));
  }
  return r;
}
constexpr std::uint32_t feed_zeros(std::uint32_t a, unsigned bytes) {
  for (unsigned i = 0; i < 8 * bytes; ++i) a = times_x(a);
  return a;
}

using Table = std::array<std::uint32_t, 256>;

// step[k][b]: what byte b contributes after k more bytes.
constexpr auto step = [] {
  std::array<Table, 4> t{};
  for (unsigned b = 0; b < 256; ++b) {
    t[0][b] = feed_zeros(b, 1);
    for (unsigned k = 1; k < 4; ++k) t[k][b] = feed_zeros(t[k - 1][b], 1);
  }
  return t;
}();

// The bytes of the pseudo header after the Identification: 14 of IPv4, 8 of UDP.
constexpr unsigned bytes_after_identification = 22;

// By nibble of the Identification: what it adds to the register at the end of the pseudo header.
constexpr auto identification_shift = [] {
  std::array<std::array<std::uint32_t, 16>, 4> t{};
  for (unsigned n = 0; n < 4; ++n)
    for (unsigned v = 0; v < 16; ++v) {
      unsigned id = v << 4 * n, wire = id >> 8 | (id & 255) << 8;
      t[n][v] = feed_zeros(wire, 2 + bytes_after_identification);
    }
  return t;
}();
constexpr std::uint32_t shift_of(std::uint16_t id) {
  auto& t = identification_shift;
  return t[0][id & 15] ^ t[1][id >> 4 & 15] ^ t[2][id >> 8 & 15] ^ t[3][id >> 12];
}

constexpr std::uint32_t power_over_x8(unsigned n) {
  std::uint32_t p = one;
  for (unsigned i = 0; i < 8 * n; ++i) p = over_x(p);
  return p;
}

// Takes the register at the end of n transport bytes back to where it held the Identification:
// x^-8m for m = i and the bytes from there to the BTH, and x^-8m for m = 256 i.  Their product
// undoes any datagram's length.
constexpr auto undo = [] {
  std::array<Table, 2> t{};
  constexpr std::uint32_t near = power_over_x8(1), far = power_over_x8(256);
  t[0][0] = power_over_x8(2 + bytes_after_identification);
  t[1][0] = one;
  for (unsigned i = 1; i < 256; ++i) {
    t[0][i] = product(t[0][i - 1], near);
    t[1][i] = product(t[1][i - 1], far);
  }
  return t;
}();
constexpr std::uint32_t undo_bytes(std::size_t n) {
  return product(undo[0][n & 255], undo[1][n >> 8 & 255]);
}
static_assert(feed_zeros(undo_bytes(1000), 1000 + 2 + bytes_after_identification) == one);

constexpr std::size_t bth_bytes = 12, icrc_bytes = 4, udp_bytes = 8, longest_datagram = 65535;
constexpr unsigned masked_byte = 4;  // of the BTH: FECN, BECN and reserved bits

std::uint8_t* put_udp(std::uint8_t* at, const IcrcPath& path, std::size_t datagram_bytes) {
  store_be16(at, path.source_port);
  store_be16(at + 2, path.destination_port);
  store_be16(at + 4, static_cast<std::uint16_t>(datagram_bytes));
  store_be16(at + 6, 0xffff);
  return at + udp_bytes;
}

std::uint8_t* put_ipv4(std::uint8_t* at, const IcrcPath& path, std::size_t datagram_bytes) {
  constexpr std::size_t header_bytes = 20;
  constexpr std::uint32_t dont_fragment = 0x4000, protocol_udp = 17;
  store_be32(at, 0x45ff0000 | static_cast<std::uint16_t>(header_bytes + datagram_bytes));
  store_be32(at + 4, dont_fragment);
  store_be32(at + 8, 0xff00ffff | protocol_udp << 16);
  std::memcpy(at + 12, &path.source.bytes[12], 4);
  std::memcpy(at + 16, &path.destination.bytes[12], 4);
  return at + header_bytes;
}

constexpr std::uint32_t next_header_udp = 17, next_header_ib = 0x1b;

std::uint8_t* put_ipv6(std::uint8_t* at, const IcrcPath& path, std::size_t datagram_bytes) {
  const std::uint32_t next_header = path.grh ? next_header_ib : next_header_udp;
  store_be32(at, 0x6fffffff);
  store_be32(at + 4, static_cast<std::uint32_t>(datagram_bytes) << 16 | next_header << 8 | 0xff);
  std::memcpy(at + 8, path.source.bytes.data(), 16);
  std::memcpy(at + 24, path.destination.bytes.data(), 16);
  return at + 40;
}

// isa-l's wide routines leave the upper halves of the vector registers dirty, and every SSE
// instruction after them, the application's too, then depends on old values: a burst took three
// times as long to receive.
void clean_vector_registers() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx"))
    asm volatile("vzeroupper" ::
                     : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",
                       "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
#endif
}

}  // namespace

IcrcPrefix::IcrcPrefix(const IcrcPath& path, std::size_t transport_bytes)
    : transport_bytes_(static_cast<std::uint32_t>(transport_bytes)),
      v4_(path.source.is_v4() && !path.grh) {
  std::uint8_t pseudo[8 + 40 + udp_bytes];
  const std::size_t datagram_bytes = (path.grh ? 0 : udp_bytes) + transport_bytes + icrc_bytes;
  std::memset(pseudo, 0xff, 8);
  auto put_ip = v4_ ? put_ipv4 : put_ipv6;
  auto* end = put_ip(pseudo + 8, path, datagram_bytes);
  if (!path.grh) end = put_udp(end, path, datagram_bytes);
  state_ = ~crc32_gzip_refl(0, pseudo, static_cast<std::uint64_t>(end - pseudo));
}

// The register after the packet, starting from the register `state`.  The first word and the masked
// byte are taken by table, so that no copy of the BTH is needed.
std::uint32_t IcrcPrefix::sum(std::span<const std::uint8_t> bytes, std::uint32_t state) const {
  const std::uint8_t* p = bytes.data();
  std::uint32_t w = state ^ __builtin_bswap32(load_be32(p));
  w = step[3][w & 255] ^ step[2][w >> 8 & 255] ^ step[1][w >> 16 & 255] ^ step[0][w >> 24];
  w = w >> 8 ^ step[0][(w ^ 0xff) & 255];
  std::uint32_t r = ~crc32_gzip_refl(~w, p + masked_byte + 1, bytes.size() - masked_byte - 1);
  clean_vector_registers();
  return r;
}

std::uint32_t IcrcPrefix::icrc(std::span<const std::uint8_t> bytes,
                               std::uint16_t identification) const {
  ASSERT(bytes.size() == transport_bytes_ && bytes.size() >= bth_bytes);
  return ~sum(bytes, v4_ ? state_ ^ shift_of(identification) : state_);
}

std::optional<std::uint16_t> IcrcPrefix::identify(std::span<const std::uint8_t> bytes,
                                                  std::uint32_t received,
                                                  std::uint16_t expected) const {
  if (bytes.size() != transport_bytes_ || bytes.size() < bth_bytes) return std::nullopt;
  std::uint32_t difference = icrc(bytes, expected) ^ received;
  if (difference == 0) return expected;
  if (!v4_ || bytes.size() > longest_datagram) return std::nullopt;
  // The two bytes of the Identification as they stand on the wire, if the difference is theirs: in
  // the lower half.
  std::uint32_t wire = product(difference, undo_bytes(bytes.size()));
  if (wire >> 16) return std::nullopt;
  return static_cast<std::uint16_t>(expected ^ (wire >> 8 | (wire & 255) << 8));
}

}  // namespace adverb::wire
