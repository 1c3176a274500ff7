// SPDX-License-Identifier: Apache-2.0
// What stands around a transport packet.  The first byte of the input chooses:
// - a native frame, whose two CRCs are made right, so that decode_native() goes all the way: what
// it
//   accepts, encoded again and decoded again, is the same frame;
// - a RoCEv2 packet: its ICRC is that of a plain bitwise CRC over the masked bytes, whatever its
//   size, and the IPv4 Identification is found again; with any bit wrong it is not accepted for the
//   expected one;
// - the same packet as a record of a capture file, which says what it holds, and holds it.
#include <algorithm>
#include <cstring>
#include <vector>

#include "script.hpp"
#include "wire/icrc.hpp"
#include "wire/native.hpp"
#include "wire/pcap.hpp"

using namespace adverb;
using Bytes = std::vector<std::uint8_t>;

namespace {

constexpr std::size_t least_transport = 12, lrh_bytes = 8, grh_bytes = 40;

void native(Bytes frame) {
  const std::size_t crcs = wire::icrc_bytes + wire::vcrc_bytes;
  if (frame.size() >= lrh_bytes + grh_bytes + least_transport + crcs) {
    const std::span<const std::uint8_t> all(frame);
    const std::size_t end = frame.size() - crcs;
    const std::uint32_t icrc = wire::native_icrc(all.first(end));
    for (int i = 0; i < 4; ++i)
      frame[end + static_cast<unsigned>(i)] = static_cast<std::uint8_t>(icrc >> 8 * i);
    const std::uint16_t vcrc = wire::vcrc(all.first(end + wire::icrc_bytes));
    frame[end + 4] = static_cast<std::uint8_t>(vcrc);
    frame[end + 5] = static_cast<std::uint8_t>(vcrc >> 8);
  }
  const auto first = wire::decode_native(frame);
  if (!first) return;
  Bytes again(wire::native_bytes(*first));
  REQUIRE(again.size() == frame.size());
  REQUIRE(wire::encode_native(*first, again.data()) == again.size());
  const auto second = wire::decode_native(again);
  REQUIRE(second);
  REQUIRE(second->lrh == first->lrh);
  REQUIRE(second->grh == first->grh);
  REQUIRE(std::ranges::equal(second->packet.payload, first->packet.payload));
  Bytes third(again.size());
  wire::encode_native(*second, third.data());
  REQUIRE(third == again);
}

std::uint32_t bitwise_crc32(const Bytes& bytes) {
  std::uint32_t r = ~0u;
  for (const std::uint8_t b : bytes)
    for (int i = 0; i < 8; ++i) r = r >> 1 ^ ((r ^ b >> i) & 1 ? 0xedb88320u : 0);
  return ~r;
}

// Annex A17.3.3: the IP and UDP headers as they are, and then ones where routers may write.
Bytes masked(const wire::IpPath& path, const Bytes& transport) {
  Bytes b(8, 0xff);
  const std::size_t header = wire::ip_udp_bytes(path);
  b.resize(8 + header);
  Bytes with_icrc = transport;
  with_icrc.resize(transport.size() + wire::icrc_bytes);
  wire::put_ip_udp(b.data() + 8, path, with_icrc);
  std::uint8_t* ip = b.data() + 8;
  if (path.source.is_v4()) {
    ip[1] = ip[8] = ip[10] = ip[11] = 0xff;  // TOS, TTL, checksum
  } else {
    ip[0] |= 0x0f, ip[1] = ip[2] = ip[3] = ip[7] = 0xff;  // class, flow label, hop limit
  }
  ip[header - 2] = ip[header - 1] = 0xff;  // UDP checksum
  b.insert(b.end(), transport.begin(), transport.end());
  b[8 + header + 4] = 0xff;
  return b;
}

wire::IpPath path_of(fuzz::Record& r) {
  wire::IpPath p;
  if (r.chance(128)) {
    p.source = Gid::from_v4(r.word());
    p.destination = Gid::from_v4(r.word());
    p.identification = static_cast<std::uint16_t>(r.word());
  } else {
    for (auto* gid : {&p.source, &p.destination}) gid->bytes[0] = 0xfd, gid->bytes[15] = r.byte();
    p.flow_label = r.word() & 0xfffff;
  }
  p.source_port = static_cast<std::uint16_t>(r.word());
  p.traffic_class = r.byte();
  p.hop_limit = r.byte();
  return p;
}

void routable(const wire::IpPath& path, const Bytes& transport, unsigned wrong) {
  if (transport.size() < least_transport) return;
  const wire::IcrcPrefix prefix({path.source, path.destination, path.source_port},
                                transport.size());
  const std::uint16_t id = path.source.is_v4() ? path.identification : 0;
  const std::uint32_t icrc = prefix.icrc(transport, id);
  REQUIRE(icrc == bitwise_crc32(masked(path, transport)));
  REQUIRE(prefix.identify(transport, icrc, 0) == id);
  REQUIRE(prefix.identify(transport, icrc, id) == id);
  Bytes damaged = transport;
  const std::size_t at = wrong / 8 % damaged.size();
  damaged[at] ^= static_cast<std::uint8_t>(1u << wrong % 8);
  if (at != 4) REQUIRE(prefix.icrc(damaged, id) != icrc);  // byte 4 of the BTH is not covered
}

void captured(const wire::IpPath& path, const Bytes& transport) {
  const std::size_t packet = wire::ip_udp_bytes(path) + transport.size();
  Bytes record(wire::pcap_record_header_bytes + packet);
  REQUIRE(wire::pcap_record(record.data(), 5'000'000'007, path, transport) == record.size());
  const auto be32 = [&](std::size_t at) {
    return static_cast<std::size_t>(record[at]) << 24 | record[at + 1] << 16 | record[at + 2] << 8 |
           record[at + 3];
  };
  REQUIRE(be32(0) == 5 && be32(4) == 7);
  REQUIRE(be32(8) == packet && be32(12) == packet);
  REQUIRE(std::equal(transport.begin(), transport.end(),
                     record.end() - static_cast<std::ptrdiff_t>(transport.size())));
  Bytes native_record(wire::pcap_record_header_bytes + wire::erf_header_bytes + transport.size());
  REQUIRE(wire::pcap_native_record(native_record.data(), 1, transport) == native_record.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1 || size > 8192) return 0;
  if (data[0] % 3 == 0) {
    native(Bytes(data + 1, data + size));
    return 0;
  }
  if (size < fuzz::record_bytes) return 0;
  fuzz::Record r({data + 1, fuzz::record_bytes - 1});
  const wire::IpPath path = path_of(r);
  const unsigned wrong = r.word();
  const Bytes transport(data + fuzz::record_bytes, data + size);
  if (data[0] % 3 == 1)
    routable(path, transport, wrong);
  else
    captured(path, transport);
  return 0;
}
