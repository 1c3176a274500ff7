// SPDX-License-Identifier: Apache-2.0
// Capture files for tcpdump and Wireshark, as bytes into the caller's buffer: the classic format
// with nanosecond time, in big-endian order.  A transport packet gets the IP and UDP headers that
// it had or would have on the wire.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/types.hpp"

namespace adverb::wire {

enum class LinkType : std::uint32_t {
  ethernet = 1,
  raw_ip = 101,
  erf = 197,  // of native InfiniBand: tshark 4.0 does not know LINKTYPE_INFINIBAND (247)
};

// What stands around a transport packet.  Both GIDs v4-mapped: IPv4 (DF set); both not: IPv6.
struct IpPath {
  Gid source, destination;
  std::uint16_t source_port{}, destination_port{4791};
  std::uint16_t identification{};  // IPv4 only
  std::uint8_t traffic_class{};    // IPv4: TOS.  The low two bits are ECN
  std::uint8_t hop_limit{64};
  std::uint32_t flow_label{};  // IPv6 only
};

inline constexpr std::size_t pcap_file_header_bytes = 24, pcap_record_header_bytes = 16;
constexpr std::size_t ip_udp_bytes(const IpPath& path) { return path.source.is_v4() ? 28 : 48; }

// Each writes at `out` and returns how many bytes it wrote.
std::size_t pcap_header(std::uint8_t* out, LinkType = LinkType::raw_ip);
// The header of one record of `frame_bytes`, which the caller writes after it.  `time`: nanoseconds
// since 1970.
std::size_t pcap_record_header(std::uint8_t* out, std::uint64_t time, std::size_t frame_bytes);
// IP and UDP headers in front of `transport` (from the BTH to the ICRC, which the checksum of IPv6
// needs).
std::size_t put_ip_udp(std::uint8_t* out, const IpPath&, std::span<const std::uint8_t> transport);
// A whole record: pcap_record_header_bytes + ip_udp_bytes(path) + transport.size() bytes.
std::size_t pcap_record(std::uint8_t* out, std::uint64_t time, const IpPath&,
                        std::span<const std::uint8_t> transport);

// A whole record of LinkType::erf around a native frame (native.hpp, with its VCRC):
// pcap_record_header_bytes + erf_header_bytes + frame.size() bytes.
inline constexpr std::size_t erf_header_bytes = 16;
std::size_t pcap_native_record(std::uint8_t* out, std::uint64_t time,
                               std::span<const std::uint8_t> frame);

}  // namespace adverb::wire
