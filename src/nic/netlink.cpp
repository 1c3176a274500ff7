// SPDX-License-Identifier: Apache-2.0
#include "nic/netlink.hpp"

#include <linux/if.h>
#include <linux/if_addr.h>
#include <linux/if_arp.h>
#include <linux/neighbour.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <span>

#include "port/address.hpp"

namespace adverb::nic {
namespace {

using Handler = std::function<void(const nlmsghdr&)>;
// NLM_F_DUMP answers come in parts of at most this size (the kernel's NLMSG_GOODSIZE is smaller).
constexpr std::size_t buffer_size = 64 << 10;

int open_socket(std::uint32_t groups, int flags) {
  const int s = ::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | flags, NETLINK_ROUTE);
  if (s < 0) return -1;
  sockaddr_nl self{};
  self.nl_family = AF_NETLINK;
  self.nl_groups = groups;
  if (::bind(s, reinterpret_cast<sockaddr*>(&self), sizeof self) == 0) return s;
  ::close(s);
  return -1;
}

// Calls `handler` for each message of one datagram.  False: that was the end of a dump.
bool walk(const void* data, std::size_t size, const Handler& handler) {
  int left = static_cast<int>(size);
  for (auto* h = static_cast<const nlmsghdr*>(data); NLMSG_OK(h, static_cast<unsigned>(left));
       h = NLMSG_NEXT(h, left)) {
    if (h->nlmsg_type == NLMSG_DONE || h->nlmsg_type == NLMSG_ERROR) return false;
    handler(*h);
  }
  return true;
}

// For questions; -1 when the kernel has none.
int open_asking() {
  const int s = open_socket(0, 0);
  if (s < 0) return -1;
  const timeval limit{2, 0};  // a kernel that never answers must not hang the application
  ::setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  return s;
}

void dump(std::uint16_t type, const Handler& handler) {
  const int s = open_asking();
  if (s < 0) return;
  struct {
    nlmsghdr header;
    rtgenmsg body;
  } request{};
  request.header.nlmsg_len = sizeof request;
  request.header.nlmsg_type = type;
  request.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
  request.body.rtgen_family = AF_UNSPEC;
  if (::send(s, &request, sizeof request, 0) >= 0) {
    std::vector<char> buffer(buffer_size);
    for (;;) {
      const ssize_t n = ::recv(s, buffer.data(), buffer.size(), 0);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0 || !walk(buffer.data(), static_cast<std::size_t>(n), handler)) break;
    }
  }
  ::close(s);
}

// A question about one object: its kind's header, and what names the object.
template <class Body>
struct Request {
  nlmsghdr header{};
  Body body{};
  std::array<char, 64> attributes{};

  explicit Request(std::uint16_t type) {
    header.nlmsg_len = NLMSG_LENGTH(sizeof body);
    header.nlmsg_type = type;
    header.nlmsg_flags = NLM_F_REQUEST;
  }
  void add(std::uint16_t type, std::span<const std::uint8_t> value) {
    const std::size_t at = header.nlmsg_len - NLMSG_LENGTH(sizeof body);
    const rtattr head{static_cast<unsigned short>(RTA_LENGTH(value.size())), type};
    std::memcpy(attributes.data() + at, &head, sizeof head);
    std::memcpy(attributes.data() + at + RTA_LENGTH(0), value.data(), value.size());
    header.nlmsg_len += static_cast<std::uint32_t>(RTA_SPACE(value.size()));
  }
  void add(std::uint16_t type, std::uint32_t value) {
    std::array<std::uint8_t, sizeof value> bytes;
    std::memcpy(bytes.data(), &value, sizeof value);
    add(type, bytes);
  }
};

// 0 after `handler` has got the answer; the kernel's errno, or EIO when it does not answer.
int ask(const nlmsghdr& request, const Handler& handler) {
  const int s = open_asking();
  if (s < 0) return EIO;
  alignas(nlmsghdr) char buffer[8 << 10];
  ssize_t n = -1;
  if (::send(s, &request, request.nlmsg_len, 0) >= 0) {
    do {
      n = ::recv(s, buffer, sizeof buffer, 0);
    } while (n < 0 && errno == EINTR);
  }
  ::close(s);
  const auto* h = reinterpret_cast<const nlmsghdr*>(buffer);
  if (n <= 0 || !NLMSG_OK(h, static_cast<unsigned>(n))) return EIO;
  if (h->nlmsg_type != NLMSG_ERROR) return handler(*h), 0;
  if (h->nlmsg_len < NLMSG_LENGTH(sizeof(nlmsgerr))) return EIO;
  const int error = -static_cast<const nlmsgerr*>(NLMSG_DATA(h))->error;
  return error ? error : EIO;
}

std::span<const std::uint8_t> address_in(const Gid& gid) {
  return gid.is_v4() ? std::span(gid.bytes).subspan(12) : std::span(gid.bytes);
}

template <class F>
void each_attribute(const rtattr* a, int left, F&& f) {
  for (; RTA_OK(a, left); a = RTA_NEXT(a, left)) f(*a);
}

Link parse_link(const nlmsghdr& h) {
  auto* info = static_cast<const ifinfomsg*>(NLMSG_DATA(&h));
  Link link;
  link.ifindex = static_cast<unsigned>(info->ifi_index);
  link.up = info->ifi_flags & IFF_UP;
  link.running = info->ifi_flags & IFF_RUNNING;
  link.loopback = info->ifi_flags & IFF_LOOPBACK;
  link.asks = !(info->ifi_flags & (IFF_LOOPBACK | IFF_NOARP | IFF_POINTOPOINT));
  each_attribute(IFLA_RTA(info), static_cast<int>(IFLA_PAYLOAD(&h)), [&](const rtattr& a) {
    const void* data = RTA_DATA(&a);
    if (a.rta_type == IFLA_IFNAME) link.name = static_cast<const char*>(data);
    if (a.rta_type == IFLA_MTU) std::memcpy(&link.mtu, data, sizeof link.mtu);
    // The flag follows the carrier up to a second later, either way.
    if (a.rta_type == IFLA_CARRIER) link.running = *static_cast<const std::uint8_t*>(data) != 0;
    if (a.rta_type != IFLA_ADDRESS || RTA_PAYLOAD(&a) != link.mac.size()) return;
    std::memcpy(link.mac.data(), data, link.mac.size());
    link.has_mac = link.mac != std::array<std::uint8_t, 6>{};
  });
  return link;
}

Gid gid_of(int family, const void* address) {
  Gid gid;
  if (family == AF_INET6) {
    std::memcpy(gid.bytes.data(), address, 16);
    return gid;
  }
  std::uint32_t v4;
  std::memcpy(&v4, address, 4);
  return Gid::from_v4(v4);
}

Hop parse_route(const nlmsghdr& h, const Gid& to, bool& wrapped) {
  auto* route = static_cast<const rtmsg*>(NLMSG_DATA(&h));
  Hop hop{0, to, route->rtm_type == RTN_UNICAST};
  each_attribute(RTM_RTA(route), static_cast<int>(RTM_PAYLOAD(&h)), [&](const rtattr& a) {
    const auto* data = static_cast<const std::uint8_t*>(RTA_DATA(&a));
    const std::size_t size = RTA_PAYLOAD(&a);
    if (a.rta_type == RTA_OIF && size == sizeof hop.ifindex)
      std::memcpy(&hop.ifindex, data, sizeof hop.ifindex);
    if (a.rta_type == RTA_GATEWAY && size == (route->rtm_family == AF_INET6 ? 16 : 4))
      hop.gid = gid_of(route->rtm_family, data);
    // A router of the other family: behind the family's number stands its address.
    constexpr std::size_t number = sizeof(rtvia::rtvia_family);
    if (a.rta_type == RTA_VIA && size == number + 16) hop.gid = gid_of(AF_INET6, data + number);
    if (a.rta_type == RTA_ENCAP || a.rta_type == RTA_ENCAP_TYPE) wrapped = true;
  });
  return hop;
}

Neighbour parse_neighbour(const nlmsghdr& h) {
  auto* n = static_cast<const ndmsg*>(NLMSG_DATA(&h));
  constexpr unsigned known =
      NUD_REACHABLE | NUD_STALE | NUD_DELAY | NUD_PROBE | NUD_PERMANENT | NUD_NOARP;
  Neighbour out;
  out.known = n->ndm_state & known;
  out.sought = n->ndm_state & NUD_INCOMPLETE;
  const auto* first = reinterpret_cast<const rtattr*>(n + 1);
  const auto left = static_cast<int>(h.nlmsg_len - NLMSG_LENGTH(sizeof *n));
  each_attribute(first, left, [&](const rtattr& a) {
    std::array<std::uint8_t, 6> mac;
    if (!out.known || a.rta_type != NDA_LLADDR || RTA_PAYLOAD(&a) != mac.size()) return;
    std::memcpy(mac.data(), RTA_DATA(&a), mac.size());
    out.mac = mac;
  });
  return out;
}

// IFA_LOCAL is the interface's own address; IFA_ADDRESS is that of the peer on a point-to-point
// link.
Address parse_address(const nlmsghdr& h) {
  auto* info = static_cast<const ifaddrmsg*>(NLMSG_DATA(&h));
  Address address;
  address.ifindex = info->ifa_index;
  std::uint32_t flags = info->ifa_flags;
  Gid plain, local;
  const unsigned size = info->ifa_family == AF_INET6 ? 16 : 4;
  each_attribute(IFA_RTA(info), static_cast<int>(IFA_PAYLOAD(&h)), [&](const rtattr& a) {
    if (a.rta_type == IFA_FLAGS) std::memcpy(&flags, RTA_DATA(&a), sizeof flags);
    if (RTA_PAYLOAD(&a) != size) return;
    if (a.rta_type == IFA_ADDRESS) plain = gid_of(info->ifa_family, RTA_DATA(&a));
    if (a.rta_type == IFA_LOCAL) local = gid_of(info->ifa_family, RTA_DATA(&a));
  });
  address.gid = local.is_zero() ? plain : local;
  address.link_local = info->ifa_family == AF_INET6 && address.gid.bytes[0] == 0xfe &&
                       (address.gid.bytes[1] & 0xc0) == 0x80;
  const std::uint32_t bad = IFA_F_TENTATIVE | IFA_F_DADFAILED | IFA_F_DEPRECATED;
  address.usable = !(info->ifa_family == AF_INET6 && (flags & bad));
  return address;
}

}  // namespace

std::vector<Link> dump_links() {
  std::vector<Link> links;
  dump(RTM_GETLINK, [&](const nlmsghdr& h) {
    if (h.nlmsg_type == RTM_NEWLINK) links.push_back(parse_link(h));
  });
  return links;
}

std::vector<Address> dump_addresses() {
  std::vector<Address> addresses;
  dump(RTM_GETADDR, [&](const nlmsghdr& h) {
    if (h.nlmsg_type != RTM_NEWADDR) return;
    const int family = static_cast<const ifaddrmsg*>(NLMSG_DATA(&h))->ifa_family;
    if (family == AF_INET || family == AF_INET6) addresses.push_back(parse_address(h));
  });
  return addresses;
}

std::optional<Link> find_link(unsigned ifindex) {
  Request<ifinfomsg> request(RTM_GETLINK);
  request.body.ifi_index = static_cast<int>(ifindex);
  std::optional<Link> found;
  ask(request.header, [&](const nlmsghdr& h) {
    if (h.nlmsg_type == RTM_NEWLINK) found = parse_link(h);
  });
  return found;
}

std::optional<Hop> find_hop(const Gid& from, const Gid& to, unsigned ifindex) {
  Request<rtmsg> request(RTM_GETROUTE);
  request.body.rtm_family = static_cast<unsigned char>(port::family_of(to));
  request.body.rtm_src_len = request.body.rtm_dst_len = to.is_v4() ? 32 : 128;
  request.add(RTA_SRC, address_in(from));
  request.add(RTA_DST, address_in(to));
  if (ifindex) request.add(RTA_OIF, ifindex);
  Hop hop;
  bool wrapped = false;
  const int error = ask(request.header, [&](const nlmsghdr& h) {
    if (h.nlmsg_type == RTM_NEWROUTE) hop = parse_route(h, to, wrapped);
  });
  if (error || wrapped || !hop.ifindex) return {};
  return hop;
}

std::optional<Neighbour> find_neighbour(unsigned ifindex, const Gid& gid) {
  Request<ndmsg> request(RTM_GETNEIGH);
  request.body.ndm_family = static_cast<unsigned char>(port::family_of(gid));
  request.body.ndm_ifindex = static_cast<int>(ifindex);
  request.add(NDA_DST, address_in(gid));
  std::optional<Neighbour> found;
  const int error = ask(request.header, [&](const nlmsghdr& h) {
    if (h.nlmsg_type == RTM_NEWNEIGH) found = parse_neighbour(h);
  });
  if (error == ENOENT) return Neighbour{};
  return found;
}

int open_monitor() {
  return open_socket(RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR, SOCK_NONBLOCK);
}

bool read_monitor(int descriptor, unsigned ifindex, const std::function<void(const Link&)>& f) {
  std::vector<char> buffer(buffer_size);
  bool addresses = false;
  for (int i = 0; i < 64; ++i) {
    const ssize_t n = ::recv(descriptor, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == ENOBUFS) {  // reports were lost
      addresses = true;
      continue;
    }
    if (n <= 0) break;
    walk(buffer.data(), static_cast<std::size_t>(n), [&](const nlmsghdr& h) {
      if (h.nlmsg_type == RTM_NEWADDR || h.nlmsg_type == RTM_DELADDR) addresses = true;
      if (h.nlmsg_type != RTM_NEWLINK && h.nlmsg_type != RTM_DELLINK) return;
      Link link = parse_link(h);
      if (link.ifindex != ifindex) return;
      if (h.nlmsg_type == RTM_DELLINK) link.up = false;
      f(link);
    });
  }
  return addresses;
}

}  // namespace adverb::nic
