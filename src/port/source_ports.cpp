// SPDX-License-Identifier: Apache-2.0
#include "port/source_ports.hpp"

#include <unistd.h>

#include <bit>
#include <cerrno>

#include "port/address.hpp"

namespace adverb::port {
namespace {

constexpr std::uint16_t first_port = 0xC000;
constexpr int send_buffer = 8 << 20;

// DF set and the kernel's path MTU cache ignored: Identification 0 (or k in a bundle), and a frame
// that is too big is lost instead of fragmented.
bool configure(int fd, bool v4, unsigned ifindex) {
  if (!set_option(fd, SOL_SOCKET, SO_SNDBUFFORCE, send_buffer))
    set_option(fd, SOL_SOCKET, SO_SNDBUF, send_buffer);
  set_option(fd, SOL_SOCKET, SO_RCVBUF, 0);  // nobody reads here: as small as the kernel allows
  if (v4) {
    ip_mreqn leaves_by{};
    leaves_by.imr_ifindex = static_cast<int>(ifindex);
    return set_option(fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE) &&
           set_option(fd, IPPROTO_IP, IP_TTL, 64) &&
           set_option(fd, IPPROTO_IP, IP_MULTICAST_TTL, 64) &&
           ::setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &leaves_by, sizeof leaves_by) == 0;
  }
  return set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1) &&
         set_option(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_PROBE) &&
         set_option(fd, IPPROTO_IPV6, IPV6_DONTFRAG, 1) &&
         set_option(fd, IPPROTO_IPV6, IPV6_UNICAST_HOPS, 64) &&
         set_option(fd, IPPROTO_IPV6, IPV6_MULTICAST_HOPS, 64) &&
         set_option(fd, IPPROTO_IPV6, IPV6_MULTICAST_IF, static_cast<int>(ifindex));
}

}  // namespace

std::uint16_t roce_source_port(std::uint32_t flow_label, Qpn src, Qpn dest) {
  if (flow_label == 0) {
    std::uint64_t v = std::uint64_t{src.raw()} * dest.raw();
    v ^= v >> 20;
    v ^= v >> 40;
    flow_label = v & 0xfffff;
  }
  return static_cast<std::uint16_t>(((flow_label & 0x3fff) ^ (flow_label >> 14 & 0x3f)) |
                                    first_port);
}

SourcePorts::~SourcePorts() {
  for (auto& s : sockets_)
    if (s.fd >= 0) ::close(s.fd);
}

void SourcePorts::open(const Gid& local, unsigned ifindex, unsigned per_peer) {
  local_ = local, ifindex_ = ifindex;
  per_peer_ = std::bit_floor(per_peer ? per_peer : 1u);
}

const SourcePorts::Socket* SourcePorts::find(const Gid& dgid, unsigned slot, std::uint16_t wanted) {
  unsigned b = bucket(wanted);
  auto is = [&](const Path& p) {
    return p.used && p.slot == slot && p.bucket == b && p.dgid == dgid;
  };
  if (last_ && is(*last_)) return last_->used = ++clock_, &sockets_[last_->socket];
  Path* set = set_of(dgid, slot, b);
  Path* oldest = set;
  for (Path* p = set; p < set + ways; ++p) {
    if (is(*p)) return p->used = ++clock_, last_ = p, &sockets_[p->socket];
    if (p->used < oldest->used) oldest = p;
  }
  int socket = choose(dgid, slot, wanted);
  if (socket < 0) return nullptr;
  *oldest = Path{dgid, ++clock_, static_cast<std::uint16_t>(slot), static_cast<std::uint8_t>(b),
                 static_cast<std::uint8_t>(socket)};
  last_ = oldest;
  return &sockets_[socket];
}

SourcePorts::Path* SourcePorts::set_of(const Gid& dgid, unsigned slot, unsigned bucket) {
  std::uint64_t high, low;
  std::memcpy(&high, dgid.bytes.data(), 8);
  std::memcpy(&low, dgid.bytes.data() + 8, 8);
  std::uint64_t h = (high * 3 ^ low) + (slot << 3 | bucket);
  h *= 0x9e3779b97f4a7c15;
  return &paths_[(h >> 32) % sets * ways];
}

// Best first: the socket that has the wanted port already, a new one on it, one that serves this
// slot or only other destinations, the least recently used.  (A path that fell out of the table
// long ago no longer counts as a use: nothing of it can be in a receiver's GRO any more.)
int SourcePorts::choose(const Gid& dgid, unsigned slot, std::uint16_t wanted) {
  std::uint64_t taken = 0;
  for (auto& p : paths_)
    if (p.used && p.slot != slot && p.dgid == dgid) taken |= std::uint64_t{1} << p.socket;
  int possible[max_sockets];
  unsigned n = 0;
  for (unsigned i = 0; i < made_; ++i) {
    if (taken >> i & 1 || sockets_[i].fd < 0) continue;
    if (sockets_[i].port == wanted) return static_cast<int>(i);
    possible[n++] = static_cast<int>(i);
  }
  if (made_ < max_sockets && make(sockets_[made_], wanted)) return static_cast<int>(made_++);
  if (n) return possible[wanted % n];
  return take_over(wanted);
}

// Every socket serves another slot of this destination: the one unused for longest gets a new port.
int SourcePorts::take_over(std::uint16_t wanted) {
  std::uint64_t used[max_sockets]{};
  for (auto& p : paths_)
    if (p.used > used[p.socket]) used[p.socket] = p.used;
  int oldest = -1;
  for (unsigned i = 0; i < made_; ++i)
    if (oldest < 0 || used[i] < used[oldest]) oldest = static_cast<int>(i);
  if (oldest < 0) return -1;
  for (auto& p : paths_)
    if (p.socket == oldest) p = Path{};
  auto& s = sockets_[oldest];
  if (s.fd >= 0) ::close(s.fd);
  s = Socket{};
  return make(s, wanted) ? oldest : -1;
}

bool SourcePorts::make(Socket& s, std::uint16_t wanted) {
  int fd = ::socket(family_of(local_), SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_UDP);
  if (fd < 0) return false;
  constexpr unsigned tries =
      256;  // other processes' sockets may hold neighbours, but not that many
  if (configure(fd, local_.is_v4(), ifindex_))
    for (unsigned i = 0; i < tries; ++i) {
      auto port = static_cast<std::uint16_t>(first_port | ((wanted + i) & 0x3fff));
      SocketAddress address;
      socklen_t length = to_address(local_, port, ifindex_, address);
      if (::bind(fd, &address.any, length) == 0) return s = Socket{fd, port}, true;
      if (errno != EADDRINUSE) break;
    }
  int error = errno;
  ::close(fd);
  errno = error;
  return false;
}

}  // namespace adverb::port
