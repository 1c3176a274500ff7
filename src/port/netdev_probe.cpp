// SPDX-License-Identifier: Apache-2.0
#include "port/netdev_probe.hpp"

#include <fmt/format.h>
#include <ifaddrs.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <netinet/udp.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <random>
#include <span>

#include "port/address.hpp"
#include "wire/layout.hpp"

namespace adverb::port {
namespace {

constexpr unsigned segments = 4;
constexpr std::size_t segment_bytes = 64;
constexpr std::uint16_t discard_port = 9;
constexpr auto patience = std::chrono::milliseconds(250);

struct Descriptor {
  int fd;
  explicit Descriptor(int fd) : fd(fd) {}
  Descriptor(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

struct Device {
  unsigned ifindex = 0;
  bool loopback = false;
};

Device device_of(const Gid& gid, unsigned ifindex) {
  Device d{ifindex, false};
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return d;
  for (auto* a = all; a; a = a->ifa_next) {
    if (!a->ifa_addr || a->ifa_addr->sa_family != family_of(gid)) continue;
    SocketAddress s{};
    std::memcpy(&s, a->ifa_addr, gid.is_v4() ? sizeof s.v4 : sizeof s.v6);
    unsigned index = ::if_nametoindex(a->ifa_name);
    if (to_gid(s) != gid || (ifindex && index != ifindex)) continue;
    d = {index, (a->ifa_flags & IFF_LOOPBACK) != 0};
    break;
  }
  ::freeifaddrs(all);
  return d;
}

// Sees what the device is given, from the IP header on.
int open_capture(unsigned ifindex) {
  int fd = ::socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return fd;
  sockaddr_ll at{};
  at.sll_family = AF_PACKET;
  at.sll_protocol = htons(ETH_P_ALL);  // any less does not see what goes out
  at.sll_ifindex = static_cast<int>(ifindex);
  if (::bind(fd, reinterpret_cast<sockaddr*>(&at), sizeof at) == 0) return fd;
  ::close(fd);
  return -1;
}

// As the send sockets of source_ports.cpp.
bool configure(int fd, const Gid& gid, unsigned ifindex) {
  SocketAddress local;
  socklen_t length = to_address(gid, 0, ifindex, local);
  if (::bind(fd, &local.any, length) != 0) return false;
  if (gid.is_v4()) {
    ip_mreqn group{};
    group.imr_ifindex = static_cast<int>(ifindex);
    return set_option(fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE) &&
           set_option(fd, IPPROTO_IP, IP_MULTICAST_LOOP, 0) &&
           ::setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &group, sizeof group) == 0;
  }
  return set_option(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_PROBE) &&
         set_option(fd, IPPROTO_IPV6, IPV6_MULTICAST_LOOP, 0) &&
         set_option(fd, IPPROTO_IPV6, IPV6_MULTICAST_IF, static_cast<int>(ifindex));
}

// The groups that RFC 4727 sets aside for experiments; they never leave the link.
Gid destination(const Gid& local, bool loopback) {
  if (loopback) return local;
  if (local.is_v4()) return Gid::from_v4(htonl(0xe00000fe));  // 224.0.0.254
  Gid g;                                                      // ff02::114
  g.bytes[0] = 0xff, g.bytes[1] = 0x02, g.bytes[14] = 0x01, g.bytes[15] = 0x14;
  return g;
}

bool send_bundle(int fd, const Gid& to, unsigned ifindex, std::span<std::uint8_t> payload) {
  if (!set_option(fd, SOL_UDP, UDP_SEGMENT, segment_bytes)) return false;
  SocketAddress address;
  socklen_t length = to_address(to, discard_port, ifindex, address);
  return ::sendto(fd, payload.data(), payload.size(), MSG_NOSIGNAL, &address.any, length) >= 0;
}

struct Captured {
  unsigned segment;
  bool whole, right;
};

// One of our packets, told by the random word that each segment starts with.
std::optional<Captured> parse(std::span<const std::uint8_t> ip, bool v4, std::uint32_t mark) {
  std::size_t header = v4 ? 20 : 40;
  std::size_t payload = header + 8;
  if (ip.size() < payload + 5 || ip[0] >> 4 != (v4 ? 4 : 6) || ip[v4 ? 9 : 6] != IPPROTO_UDP ||
      wire::load_be32(&ip[payload]) != mark)
    return std::nullopt;
  unsigned k = ip[payload + 4];
  bool whole = ip.size() > payload + segment_bytes;
  constexpr std::uint32_t dont_fragment = 0x4000;
  bool right = !v4 || wire::load_be32(&ip[4]) == (k << 16 | dont_fragment);
  return Captured{k, whole, right};
}

GsoReport watch(int capture, bool v4, std::uint32_t mark) {
  auto deadline = std::chrono::steady_clock::now() + patience;
  unsigned seen = 0;
  while (seen != (1u << segments) - 1) {
    std::uint8_t ip[2048];
    ssize_t n = ::recv(capture, ip, sizeof ip, 0);
    if (n < 0) {
      auto left = deadline - std::chrono::steady_clock::now();
      auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
      pollfd p{capture, POLLIN, 0};
      if (ms <= 0 || ::poll(&p, 1, static_cast<int>(ms)) <= 0)
        return {GsoProof::unproved, "the bundle was not seen leaving"};
      continue;
    }
    auto c = parse({ip, static_cast<std::size_t>(n)}, v4, mark);
    if (!c) continue;
    if (c->whole)
      return {GsoProof::whole, "bundles leave the kernel whole: who segments them is out of sight"};
    if (!c->right)
      return {
          GsoProof::wrong,
          fmt::format("segment {} left with another Identification, or without DF", c->segment)};
    seen |= 1u << (c->segment % segments);
  }
  return {GsoProof::proved,
          v4 ? "segment k leaves with Identification k and DF" : "bundles leave as segments"};
}

}  // namespace

GsoReport prove_gso(const Gid& gid, unsigned ifindex) {
  auto failed = [](const char* what) {
    return GsoReport{GsoProof::unproved, fmt::format("{}: {}", what, std::strerror(errno))};
  };
  Device device = device_of(gid, ifindex);
  if (!device.ifindex) return {GsoProof::unproved, "no device has that address"};
  Descriptor capture(open_capture(device.ifindex));
  if (capture.fd < 0) return failed("cannot capture (that needs CAP_NET_RAW)");
  Descriptor sender(::socket(family_of(gid), SOCK_DGRAM | SOCK_CLOEXEC, IPPROTO_UDP));
  if (sender.fd < 0 || !configure(sender.fd, gid, device.ifindex))
    return failed("cannot make a socket");

  std::uint8_t payload[segments * segment_bytes]{};
  std::uint32_t mark = std::random_device{}();
  for (unsigned k = 0; k < segments; ++k) {
    wire::store_be32(payload + k * segment_bytes, mark);
    payload[k * segment_bytes + 4] = static_cast<std::uint8_t>(k);
  }
  if (!send_bundle(sender.fd, destination(gid, device.loopback), device.ifindex, payload)) {
    if (errno == EIO || errno == EINVAL || errno == ENOPROTOOPT)
      return {GsoProof::refused,
              fmt::format("the device takes no bundles: {}", std::strerror(errno))};
    return failed("cannot send");
  }
  return watch(capture.fd, gid.is_v4(), mark);
}

}  // namespace adverb::port
