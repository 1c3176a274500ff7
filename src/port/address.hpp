// SPDX-License-Identifier: Apache-2.0
// Between GIDs and socket addresses, and the few socket options that every file here needs.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>

#include "base/types.hpp"

namespace adverb::port {

// Room for either family; what a sendmsg or bind takes.
union SocketAddress {
  sockaddr any;
  sockaddr_in v4;
  sockaddr_in6 v6;
};

inline int family_of(const Gid& g) { return g.is_v4() ? AF_INET : AF_INET6; }

// Writes the address and returns its length.  `ifindex` is the scope of an IPv6 address of one
// link or interface.
inline socklen_t to_address(const Gid& g, std::uint16_t port, unsigned ifindex,
                            SocketAddress& out) {
  if (g.is_v4()) {
    out.v4 = sockaddr_in{};
    out.v4.sin_family = AF_INET;
    out.v4.sin_port = htons(port);
    out.v4.sin_addr.s_addr = g.v4();
    return sizeof out.v4;
  }
  out.v6 = sockaddr_in6{};
  out.v6.sin6_family = AF_INET6;
  out.v6.sin6_port = htons(port);
  std::memcpy(&out.v6.sin6_addr, g.bytes.data(), 16);
  const in6_addr& a = out.v6.sin6_addr;
  if (IN6_IS_ADDR_LINKLOCAL(&a) || IN6_IS_ADDR_MC_LINKLOCAL(&a) || IN6_IS_ADDR_MC_NODELOCAL(&a))
    out.v6.sin6_scope_id = ifindex;
  return sizeof out.v6;
}

inline Gid to_gid(const SocketAddress& a) {
  if (a.any.sa_family == AF_INET) return Gid::from_v4(a.v4.sin_addr.s_addr);
  Gid g;
  std::memcpy(g.bytes.data(), &a.v6.sin6_addr, 16);
  return g;
}

inline std::uint16_t port_of(const SocketAddress& a) {
  return ntohs(a.any.sa_family == AF_INET ? a.v4.sin_port : a.v6.sin6_port);
}

inline bool set_option(int fd, int level, int name, int value) {
  return ::setsockopt(fd, level, name, &value, sizeof value) == 0;
}

}  // namespace adverb::port
