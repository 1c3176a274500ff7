// SPDX-License-Identifier: Apache-2.0
#include "nic/neighbour.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>

#include "nic/netlink.hpp"
#include "port/address.hpp"

namespace adverb::nic {

using namespace std::chrono_literals;

namespace {

using Mac = std::array<std::uint8_t, 6>;

bool of_this_host(const Gid& gid) {
  const std::vector<Address> all = dump_addresses();
  return std::any_of(all.begin(), all.end(), [&](const Address& a) { return a.gid == gid; });
}

// RFC 4291, appendix A, the other way round.
bool from_interface_id(const Gid& gid, Mac& out) {
  const auto& b = gid.bytes;
  const bool link_local = b[0] == 0xfe && b[1] == 0x80;
  if (!link_local || b[11] != 0xff || b[12] != 0xfe) return false;
  out = {static_cast<std::uint8_t>(b[8] ^ 2), b[9], b[10], b[13], b[14], b[15]};
  return true;
}

// A datagram to the discard port makes the kernel ask for the address.  False: it may not leave.
bool make_kernel_ask(const Hop& hop) {
  constexpr std::uint16_t discard = 9;
  const int s = ::socket(port::family_of(hop.gid), SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (s < 0) return false;
  port::SocketAddress to;
  const socklen_t length = port::to_address(hop.gid, discard, hop.ifindex, to);
  // Where that is refused the routes lead there by themselves.
  port::set_option(s, SOL_SOCKET, SO_BINDTOIFINDEX, static_cast<int>(hop.ifindex));
  const bool left = ::sendto(s, nullptr, 0, MSG_DONTWAIT, &to.any, length) >= 0;
  ::close(s);
  return left;
}

// How long the kernel's RDMA core waits for an answer.
constexpr auto patience = 1s;

// Makes the kernel look for a neighbour that it does not know.  ETIMEDOUT if it finds nobody; 0 if
// it does, with the address in `mac` if there is one, or if it cannot be said.
int await_neighbour(const Hop& hop, std::optional<Mac>& mac) {
  const auto end = std::chrono::steady_clock::now() + patience;
  constexpr std::chrono::microseconds first_nap = 100us, longest_nap = 5ms;
  for (auto nap = first_nap;; nap = std::min(2 * nap, longest_nap)) {
    const std::optional<Neighbour> neighbour = find_neighbour(hop.ifindex, hop.gid);
    if (!neighbour) return 0;
    if (neighbour->known) return mac = neighbour->mac, 0;
    if (nap == first_nap) {
      const std::optional<Link> link = find_link(hop.ifindex);
      if (!link || !link->asks) return 0;
    }
    if (std::chrono::steady_clock::now() >= end) return ETIMEDOUT;
    // It may have given up since, from an earlier search.
    if (!neighbour->sought && !make_kernel_ask(hop)) return 0;
    std::this_thread::sleep_for(nap);
  }
}

bool is_of_one_link(const Gid& gid) {
  return gid.bytes[0] == 0xfe && (gid.bytes[1] & 0xc0) == 0x80;
}

}  // namespace

int resolve_mac(const DeviceInfo& info, const Gid& gid, Mac& out) {
  out = info.mac;
  if (info.loopback || of_this_host(gid) || from_interface_id(gid, out)) return 0;
  std::optional<Mac> found;
  await_neighbour({.ifindex = info.ifindex, .gid = gid, .neighbour = true}, found);
  if (!found) return ETIMEDOUT;
  out = *found;
  return 0;
}

// Connecting a datagram socket looks the route up and sends nothing.
int route_error(const DeviceInfo& info, const Gid& from, const Gid& to) {
  constexpr std::uint16_t discard = 9;
  const int s = ::socket(port::family_of(to), SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (s < 0) return 0;
  port::SocketAddress source, destination;
  const socklen_t source_length = port::to_address(from, 0, info.ifindex, source);
  const socklen_t length = port::to_address(to, discard, info.ifindex, destination);
  const bool unreachable = ::bind(s, &source.any, source_length) == 0 &&
                           ::connect(s, &destination.any, length) < 0 && errno == ENETUNREACH;
  ::close(s);
  return unreachable ? ENETUNREACH : 0;
}

int neighbour_error(const DeviceInfo& info, const Gid& from, const Gid& to) {
  if (info.loopback) return 0;
  const bool on_this_link = is_of_one_link(from) || is_of_one_link(to);
  const std::optional<Hop> hop = find_hop(from, to, on_this_link ? info.ifindex : 0);
  if (!hop || !hop->neighbour) return 0;
  std::optional<Mac> mac;
  return await_neighbour(*hop, mac);
}

}  // namespace adverb::nic
