// SPDX-License-Identifier: Apache-2.0
#include "wire/pcap.hpp"

#include <cstring>

#include "wire/layout.hpp"

namespace adverb::wire {
namespace {

constexpr std::uint64_t nanoseconds = 1'000'000'000;
constexpr std::uint8_t protocol_udp = 17;
constexpr std::size_t ipv4_bytes = 20, ipv6_bytes = 40, udp_bytes = 8;

// The internet checksum before its complement; `bytes` padded with a zero to an even number.
std::uint32_t sum16(std::span<const std::uint8_t> bytes, std::uint32_t sum) {
  for (std::size_t i = 0; i < bytes.size(); ++i)
    sum += i % 2 ? bytes[i] : std::uint32_t{bytes[i]} << 8;
  while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
  return sum;
}

void put_ipv4(std::uint8_t* out, const IpPath& path, std::size_t datagram_bytes) {
  constexpr std::uint32_t dont_fragment = 0x4000;
  store_be32(out, 0x45000000u | std::uint32_t{path.traffic_class} << 16 |
                      static_cast<std::uint16_t>(ipv4_bytes + datagram_bytes));
  store_be32(out + 4, std::uint32_t{path.identification} << 16 | dont_fragment);
  store_be32(out + 8, std::uint32_t{path.hop_limit} << 24 | protocol_udp << 16);
  std::memcpy(out + 12, &path.source.bytes[12], 4);
  std::memcpy(out + 16, &path.destination.bytes[12], 4);
  store_be16(out + 10, static_cast<std::uint16_t>(~sum16({out, ipv4_bytes}, 0)));
}

void put_ipv6(std::uint8_t* out, const IpPath& path, std::size_t datagram_bytes) {
  store_be32(out,
             0x60000000u | std::uint32_t{path.traffic_class} << 20 | (path.flow_label & 0xfffff));
  store_be32(out + 4,
             static_cast<std::uint32_t>(datagram_bytes) << 16 | protocol_udp << 8 | path.hop_limit);
  std::memcpy(out + 8, path.source.bytes.data(), 16);
  std::memcpy(out + 24, path.destination.bytes.data(), 16);
}

// IPv4 leaves it zero, as annex A17 allows; IPv6 must not.
std::uint16_t udp_checksum(const std::uint8_t* ipv6, const std::uint8_t* udp,
                           std::size_t datagram_bytes, std::span<const std::uint8_t> transport) {
  auto sum = protocol_udp + static_cast<std::uint32_t>(datagram_bytes);
  sum = sum16({ipv6 + 8, 32}, sum);
  sum = sum16({udp, udp_bytes}, sum);
  sum = sum16(transport, sum);
  return sum == 0xffff ? 0xffff : static_cast<std::uint16_t>(~sum);
}

}  // namespace

std::size_t pcap_header(std::uint8_t* out, LinkType link) {
  store_be32(out, 0xa1b23c4d);  // nanosecond time
  store_be16(out + 4, 2);
  store_be16(out + 6, 4);
  store_be32(out + 8, 0);
  store_be32(out + 12, 0);
  store_be32(out + 16, 0x40000);  // longest record
  store_be32(out + 20, static_cast<std::uint32_t>(link));
  return pcap_file_header_bytes;
}

std::size_t pcap_record_header(std::uint8_t* out, std::uint64_t time, std::size_t frame_bytes) {
  store_be32(out, static_cast<std::uint32_t>(time / nanoseconds));
  store_be32(out + 4, static_cast<std::uint32_t>(time % nanoseconds));
  store_be32(out + 8, static_cast<std::uint32_t>(frame_bytes));
  store_be32(out + 12, static_cast<std::uint32_t>(frame_bytes));
  return pcap_record_header_bytes;
}

std::size_t put_ip_udp(std::uint8_t* out, const IpPath& path,
                       std::span<const std::uint8_t> transport) {
  bool v4 = path.source.is_v4();
  std::size_t datagram_bytes = udp_bytes + transport.size();
  if (v4)
    put_ipv4(out, path, datagram_bytes);
  else
    put_ipv6(out, path, datagram_bytes);
  std::uint8_t* udp = out + (v4 ? ipv4_bytes : ipv6_bytes);
  store_be16(udp, path.source_port);
  store_be16(udp + 2, path.destination_port);
  store_be16(udp + 4, static_cast<std::uint16_t>(datagram_bytes));
  store_be16(udp + 6, 0);
  if (!v4) store_be16(udp + 6, udp_checksum(out, udp, datagram_bytes, transport));
  return ip_udp_bytes(path);
}

std::size_t pcap_record(std::uint8_t* out, std::uint64_t time, const IpPath& path,
                        std::span<const std::uint8_t> transport) {
  std::uint8_t* at = out + pcap_record_header(out, time, ip_udp_bytes(path) + transport.size());
  at += put_ip_udp(at, path, transport);
  if (!transport.empty()) std::memcpy(at, transport.data(), transport.size());
  return static_cast<std::size_t>(at - out) + transport.size();
}

std::size_t pcap_native_record(std::uint8_t* out, std::uint64_t time,
                               std::span<const std::uint8_t> frame) {
  constexpr std::uint8_t type_infiniband = 21, varying_length = 4;
  std::size_t record_bytes = erf_header_bytes + frame.size();
  std::uint8_t* at = out + pcap_record_header(out, time, record_bytes);
  // Seconds with a binary fraction, little-endian; all else is big-endian.
  std::uint64_t stamp = time / nanoseconds << 32 | (time % nanoseconds << 32) / nanoseconds;
  for (int i = 0; i < 8; ++i) at[i] = static_cast<std::uint8_t>(stamp >> 8 * i);
  at[8] = type_infiniband;
  at[9] = varying_length;
  store_be16(at + 10, static_cast<std::uint16_t>(record_bytes));
  store_be16(at + 12, 0);  // losses
  store_be16(at + 14, static_cast<std::uint16_t>(frame.size()));
  if (!frame.empty()) std::memcpy(at + erf_header_bytes, frame.data(), frame.size());
  return pcap_record_header_bytes + record_bytes;
}

}  // namespace adverb::wire
