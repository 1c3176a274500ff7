// SPDX-License-Identifier: Apache-2.0
#include "port/packet_socket.hpp"

#include <arpa/inet.h>
#include <linux/filter.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iterator>

#include "port/address.hpp"
#include "port/uncancelled.hpp"
#include "wire/flow_key.hpp"
#include "wire/roce_v1.hpp"

namespace adverb::port {

int open_packet_socket(unsigned ifindex, unsigned protocol) {
  // Protocol 0 until it is bound: nothing comes in from other interfaces.
  const int fd = ::socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  sockaddr_ll address{};
  address.sll_family = AF_PACKET;
  address.sll_protocol = htons(static_cast<std::uint16_t>(protocol));
  address.sll_ifindex = static_cast<int>(ifindex);
  if (set_option(fd, SOL_PACKET, PACKET_AUXDATA, 1) &&
      ::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0)
    return fd;
  const int error = errno;
  ::close(fd);
  errno = error;
  return -1;
}

bool packet_sockets_permitted() {
  const int fd = ::socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
  if (fd >= 0) ::close(fd);
  return fd >= 0;
}

bool attach_slot_filter(int socket, unsigned slot, const std::array<std::uint8_t, 6>& mac) {
  const std::uint32_t high = std::uint32_t{mac[0]} << 24 | mac[1] << 16 | mac[2] << 8 | mac[3];
  const std::uint32_t low = mac[4] << 8 | mac[5];
  constexpr std::uint32_t dest_qp = wire::roce_v1_header_bytes + 4;  // behind eight reserved bits
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 0),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, 1, 4, 0),  // to a group
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, high, 0, 8),
      BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 4),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, low, 0, 6),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, dest_qp),
      BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0xffffff),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0xffffff, 2, 0),
      BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, Qpn::index_bits),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, slot, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, 0x40000),
      BPF_STMT(BPF_RET | BPF_K, 0),
  };
  const sock_fprog filter{static_cast<unsigned short>(std::size(program)), program};
  return ::setsockopt(socket, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter) == 0;
}

int send_frame(int socket, unsigned ifindex, std::span<const std::uint8_t> header,
               std::span<const std::uint8_t> body) {
  sockaddr_ll to{};
  to.sll_family = AF_PACKET;
  to.sll_ifindex = static_cast<int>(ifindex);
  to.sll_halen = ETH_ALEN;
  std::memcpy(to.sll_addr, header.empty() ? body.data() : header.data(), ETH_ALEN);
  iovec iov[2] = {{const_cast<std::uint8_t*>(header.data()), header.size()},
                  {const_cast<std::uint8_t*>(body.data()), body.size()}};
  msghdr m{};
  m.msg_name = &to, m.msg_namelen = sizeof to;
  m.msg_iov = iov, m.msg_iovlen = 2;
  return uncancelled::sendmsg(socket, &m, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0 ? 0 : errno;
}

namespace {

// The tag goes back behind the addresses; four bytes in front of the frame are free for it.
void insert_tag(std::uint8_t* frame, const tpacket_auxdata& aux) {
  constexpr std::size_t addresses = 12;
  std::memmove(frame - wire::vlan_tag_bytes, frame, addresses);
  const std::uint16_t tpid = aux.tp_status & TP_STATUS_VLAN_TPID_VALID ? aux.tp_vlan_tpid : 0x8100;
  const std::uint16_t words[2] = {htons(tpid), htons(aux.tp_vlan_tci)};
  std::memcpy(frame - wire::vlan_tag_bytes + addresses, words, sizeof words);
}

}  // namespace

bool receive_frame(int socket, std::span<std::uint8_t> buffer, EthernetFrame& out) {
  sockaddr_ll from{};
  alignas(cmsghdr) char control[128];
  std::uint8_t* frame = buffer.data() + wire::vlan_tag_bytes;
  iovec iov{frame, buffer.size() - wire::vlan_tag_bytes};
  msghdr m{};
  m.msg_name = &from, m.msg_namelen = sizeof from;
  m.msg_iov = &iov, m.msg_iovlen = 1;
  m.msg_control = control, m.msg_controllen = sizeof control;
  const ssize_t n = uncancelled::recvmsg(socket, &m, MSG_DONTWAIT);
  if (n < 0) return false;
  auto size = static_cast<std::size_t>(n);
  for (cmsghdr* c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
    if (c->cmsg_level != SOL_PACKET || c->cmsg_type != PACKET_AUXDATA) continue;
    tpacket_auxdata aux;
    std::memcpy(&aux, CMSG_DATA(c), sizeof aux);
    if (!(aux.tp_status & TP_STATUS_VLAN_VALID) || size < wire::ethernet_header_bytes) continue;
    insert_tag(frame, aux);
    frame -= wire::vlan_tag_bytes;
    size += wire::vlan_tag_bytes;
  }
  out = {{frame, size}, from.sll_pkttype == PACKET_OUTGOING, (m.msg_flags & MSG_TRUNC) != 0};
  return true;
}

}  // namespace adverb::port
