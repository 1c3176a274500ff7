// SPDX-License-Identifier: Apache-2.0
// The order of calls makes the pool exclusive: the first member is bound without SO_REUSEPORT, so
// of two processes that try at once bind() lets one win, and only then opens the group.  Closing
// any member later moves the last one into its place (see steering.hpp for who keeps them open).
#include "port/steering.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "port/address.hpp"
#include "wire/opcode.hpp"

namespace adverb::port {
namespace {

std::string text_of(const Gid& gid) {
  char text[INET6_ADDRSTRLEN]{};
  if (gid.is_v4())
    ::inet_ntop(AF_INET, &gid.bytes[12], text, sizeof text);
  else
    ::inet_ntop(AF_INET6, gid.bytes.data(), text, sizeof text);
  return text;
}

PoolError error_of(int error, const Gid& gid, const char* what) {
  auto address = text_of(gid);
  if (error == EADDRINUSE)
    return {PoolError::address_in_use, error,
            fmt::format("UDP port {} of {} is taken by another user's Adverb, by the kernel's rxe "
                        "or by another program",
                        roce_port, address)};
  if (error == EADDRNOTAVAIL)
    return {PoolError::no_address, error,
            fmt::format("{} is not an address of this host", address)};
  return {PoolError::other, error,
          fmt::format("cannot {} for {}: {}", what, address, std::strerror(error))};
}

// Owns the sockets until the pool is whole.
struct Sockets {
  std::vector<int> fds;
  ~Sockets() {
    for (int fd : fds) ::close(fd);
  }
};

int open_socket(const Gid& gid) {
  int fd = ::socket(family_of(gid), SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_UDP);
  if (fd >= 0 && !gid.is_v4()) {
    set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1);
    // RoCE senders may leave the UDP checksum 0 (the ICRC covers more; the kernel's rxe does), and
    // over IPv6 a socket drops such datagrams unless it says otherwise (RFC 6936).
    set_option(fd, SOL_UDP, UDP_NO_CHECK6_RX, 1);
  }
  return fd;
}

// Picks the member by the upper ten bits of the destination QPN: bytes 5 to 7 of the BTH, which
// is where the UDP payload starts; or of the SRQ number, for requests of XRC (the opcodes from
// first_xrc on, except for the responses among them).  A load past the end returns 0 by itself, and
// so does a slot that the pool does not have: slot 0 looks after strays.
bool steer(int fd, unsigned slots) {
  constexpr auto opcode = [](wire::Operation o) {
    return static_cast<unsigned>(wire::opcode_of(wire::Transport::xrc, o));
  };
  constexpr unsigned first_xrc = opcode(wire::Operation::send_first), past_xrc = first_xrc + 32,
                     first_response = opcode(wire::Operation::read_response_first),
                     last_response = opcode(wire::Operation::atomic_acknowledge);
  constexpr unsigned dest_qp_offset = 5, srqn_offset = 13, bits_below_slot = 16 - Qpn::slot_bits;
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 0),
      BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, first_xrc, 0, 5),
      BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, past_xrc, 4, 0),
      BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, first_response, 0, 1),
      BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, last_response, 0, 2),
      BPF_STMT(BPF_LD | BPF_H | BPF_ABS, srqn_offset),
      BPF_JUMP(BPF_JMP | BPF_JA, 1, 0, 0),
      BPF_STMT(BPF_LD | BPF_H | BPF_ABS, dest_qp_offset),
      BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, bits_below_slot),
      BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, slots, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, 0),
      BPF_STMT(BPF_RET | BPF_A, 0),
  };
  sock_fprog prog{static_cast<unsigned short>(std::size(program)), program};
  return ::setsockopt(fd, SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &prog, sizeof prog) == 0;
}

}  // namespace

std::expected<Pool, PoolError> create_pool(const Gid& gid, unsigned ifindex, unsigned slots) {
  auto fail = [&](const char* what) { return std::unexpected(error_of(errno, gid, what)); };
  SocketAddress address;
  socklen_t length = to_address(gid, roce_port, ifindex, address);
  Sockets made;
  made.fds.reserve(slots);
  for (unsigned slot = 0; slot < slots; ++slot) {
    int fd = open_socket(gid);
    if (fd < 0) return fail("open a socket");
    made.fds.push_back(fd);
    if (slot > 0 && !set_option(fd, SOL_SOCKET, SO_REUSEPORT, 1)) return fail("share the port");
    if (::bind(fd, &address.any, length) != 0) return fail("bind a socket");
    if (slot == 0 && !set_option(fd, SOL_SOCKET, SO_REUSEPORT, 1)) return fail("share the port");
  }
  // One member is no group, and needs none.
  bool steered = slots <= 1 || steer(made.fds[0], slots);
  return Pool{std::exchange(made.fds, {}), steered};
}

}  // namespace adverb::port
