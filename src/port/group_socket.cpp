// SPDX-License-Identifier: Apache-2.0
#include "port/group_socket.hpp"

#include <unistd.h>

#include <cerrno>

#include "port/address.hpp"
#include "port/steering.hpp"

namespace adverb::port {
namespace {

bool join_v4(int fd, const Gid& group, unsigned ifindex) {
  ip_mreqn request{};
  request.imr_multiaddr.s_addr = group.v4();
  request.imr_ifindex = static_cast<int>(ifindex);
  return set_option(fd, IPPROTO_IP, IP_MULTICAST_ALL, 0) &&
         set_option(fd, IPPROTO_IP, IP_PKTINFO, 1) &&
         ::setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &request, sizeof request) == 0;
}

bool join_v6(int fd, const Gid& group, unsigned ifindex) {
  constexpr int ipv6_multicast_all = 29;  // linux/in6.h, which netinet/in.h cannot stand beside
  ipv6_mreq request{};
  std::memcpy(&request.ipv6mr_multiaddr, group.bytes.data(), 16);
  request.ipv6mr_interface = ifindex;
  set_option(fd, IPPROTO_IPV6, ipv6_multicast_all, 0);
  return set_option(fd, IPPROTO_IPV6, IPV6_RECVPKTINFO, 1) &&
         ::setsockopt(fd, IPPROTO_IPV6, IPV6_JOIN_GROUP, &request, sizeof request) == 0;
}

}  // namespace

int open_group_socket(const Gid& group, unsigned ifindex) {
  const int fd = ::socket(family_of(group), SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_UDP);
  if (fd < 0) return -1;
  SocketAddress address;
  const socklen_t length = to_address(group, roce_port, ifindex, address);
  const bool v4 = group.is_v4();
  if (set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1) &&
      (v4 || set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1)) &&
      ::bind(fd, &address.any, length) == 0 && (v4 ? join_v4 : join_v6)(fd, group, ifindex))
    return fd;
  const int error = errno;
  ::close(fd);
  errno = error;
  return -1;
}

int send_error(const Gid& group, const Gid& source, unsigned ifindex) {
  const int fd = ::socket(family_of(group), SOCK_DGRAM | SOCK_CLOEXEC, IPPROTO_UDP);
  if (fd < 0) return errno;
  SocketAddress from, to;
  const socklen_t from_length = to_address(source, 0, ifindex, from);
  const socklen_t to_length = to_address(group, roce_port, ifindex, to);
  ip_mreqn leaves_by{};
  leaves_by.imr_ifindex = static_cast<int>(ifindex);
  const bool leaves =
      group.is_v4()
          ? ::setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &leaves_by, sizeof leaves_by) == 0
          : set_option(fd, IPPROTO_IPV6, IPV6_MULTICAST_IF, static_cast<int>(ifindex));
  const bool possible =
      leaves && ::bind(fd, &from.any, from_length) == 0 && ::connect(fd, &to.any, to_length) == 0;
  const int error = possible ? 0 : errno;
  ::close(fd);
  return error;
}

bool came_by(const msghdr& m, unsigned ifindex) {
  if (ifindex == 0) return true;
  for (cmsghdr* c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(const_cast<msghdr*>(&m), c)) {
    if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_PKTINFO) {
      in_pktinfo info;
      std::memcpy(&info, CMSG_DATA(c), sizeof info);
      return static_cast<unsigned>(info.ipi_ifindex) == ifindex;
    }
    if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_PKTINFO) {
      in6_pktinfo info;
      std::memcpy(&info, CMSG_DATA(c), sizeof info);
      return info.ipi6_ifindex == ifindex;
    }
  }
  return false;
}

}  // namespace adverb::port
