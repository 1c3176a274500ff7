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

// A datagram to the discard port makes the kernel ask for the address.
void make_kernel_ask(const DeviceInfo& info, const Gid& gid) {
  constexpr std::uint16_t discard = 9;
  const int s = ::socket(port::family_of(gid), SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (s < 0) return;
  port::SocketAddress to;
  const socklen_t length = port::to_address(gid, discard, info.ifindex, to);
  if (::sendto(s, nullptr, 0, MSG_DONTWAIT, &to.any, length) < 0) {
    // Then the table stays as it is, which is looked at next.
  }
  ::close(s);
}

}  // namespace

int resolve_mac(const DeviceInfo& info, const Gid& gid, Mac& out) {
  out = info.mac;
  if (info.loopback || of_this_host(gid) || from_interface_id(gid, out)) return 0;
  const auto end = std::chrono::steady_clock::now() + 1s;
  for (bool asked = false;; asked = true) {
    if (const auto found = find_neighbour(info.ifindex, gid)) return out = *found, 0;
    if (std::chrono::steady_clock::now() > end) return EHOSTUNREACH;
    if (!asked) make_kernel_ask(info, gid);
    std::this_thread::sleep_for(10ms);
  }
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

}  // namespace adverb::nic
