// SPDX-License-Identifier: Apache-2.0
#include "port/udp_receiver.hpp"

#include <fmt/format.h>
#include <netinet/udp.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <system_error>
#include <utility>

#include "engine/multicast.hpp"
#include "port/address.hpp"
#include "port/group_socket.hpp"
#include "port/relay.hpp"
#include "port/uncancelled.hpp"

namespace adverb::port {
namespace {

constexpr std::size_t icrc_bytes = engine::TxBurst::icrc_bytes;

struct ControlBuffer {
  alignas(cmsghdr) char bytes[256];
};

[[noreturn]] void fail(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

void require(bool ok, const char* what) {
  if (!ok) fail(what);
}

std::uint64_t ask_for_buffer(int fd, std::uint64_t wanted) {
  int size = static_cast<int>(std::min<std::uint64_t>(wanted, 1u << 30));
  if (!set_option(fd, SOL_SOCKET, SO_RCVBUFFORCE, size))
    set_option(fd, SOL_SOCKET, SO_RCVBUF, size);
  socklen_t length = sizeof size;
  require(::getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, &length) == 0, "SO_RCVBUF");
  return static_cast<std::uint64_t>(size);
}

void ask_for_headers(int fd, bool v4, bool gro) {
  // Without GRO the kernel hands bundles over as datagrams: slower, but right.
  if (gro) set_option(fd, SOL_UDP, UDP_GRO, 1);
  if (v4) {
    require(set_option(fd, IPPROTO_IP, IP_RECVTOS, 1), "IP_RECVTOS");
    require(set_option(fd, IPPROTO_IP, IP_RECVTTL, 1), "IP_RECVTTL");
  } else {
    require(set_option(fd, IPPROTO_IPV6, IPV6_RECVTCLASS, 1), "IPV6_RECVTCLASS");
    require(set_option(fd, IPPROTO_IPV6, IPV6_RECVHOPLIMIT, 1), "IPV6_RECVHOPLIMIT");
    constexpr int ipv6_flowinfo = 11;  // linux/in6.h, which cannot be included beside netinet/in.h
    set_option(fd, IPPROTO_IPV6, ipv6_flowinfo, 1);
  }
}

void drain(int fd) {
  constexpr unsigned most = 1 << 18;  // more than any buffer holds
  for (unsigned i = 0; i < most && ::recv(fd, nullptr, 0, MSG_DONTWAIT | MSG_TRUNC) >= 0; ++i) {
  }
}

int int_of(const cmsghdr* c) {
  int v = 0;
  std::memcpy(&v, CMSG_DATA(c), std::min<std::size_t>(sizeof v, c->cmsg_len - CMSG_LEN(0)));
  return v;
}

}  // namespace

UdpReceiver::UdpReceiver(const UdpPortConfig& config, PortCounters& counters)
    : counters_(counters),
      slot_(config.slot),
      ifindex_(config.ifindex),
      relay_prefix_(config.relay_name_prefix),
      relay_socket_(config.relay_socket),
      gro_(config.gro),
      wanted_buffer_(config.receive_buffer),
      frames_(new engine::RxFrame[max_segments]),
      staging_(new std::uint8_t[staging_bytes]) {
  for (auto& a : config.addresses)
    if (a.receive_socket >= 0) sources_.push_back({a.receive_socket, a.gid_index, a.gid});
  if (relay_socket_ >= 0) sources_.push_back({relay_socket_, no_gid, {}});
  try {
    open();
  } catch (...) {
    close_all();
    throw;
  }
}

UdpReceiver::~UdpReceiver() { close_all(); }

void UdpReceiver::close_all() {
  for (int fd : {epoll_, relay_sender_})
    if (fd >= 0) ::close(fd);
  for (auto& s : sources_)
    if (s.fd >= 0) ::close(s.fd);
}

void UdpReceiver::open() {
  epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
  require(epoll_ >= 0, "epoll_create1");
  relay_sender_ = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  require(relay_sender_ >= 0, "relay socket");
  set_option(relay_sender_, SOL_SOCKET, SO_SNDBUF, 1 << 20);
  if (relay_socket_ >= 0)
    require(set_option(relay_socket_, SOL_SOCKET, SO_PASSCRED, 1), "SO_PASSCRED");
  for (std::size_t i = 0; i < sources_.size(); ++i) listen(i);
}

void UdpReceiver::listen(std::size_t which) {
  const Source& s = sources_[which];
  if (s.gid_index != no_gid) {
    ask_for_headers(s.fd, s.gid.is_v4(), gro_);
    auto got = ask_for_buffer(s.fd, wanted_buffer_);
    if (s.gid_index != group)  // which knows no windows
      receive_buffer_ = receive_buffer_ ? std::min(receive_buffer_, got) : got;
  }
  drain(s.fd);
  epoll_event event{.events = EPOLLIN, .data = {.u64 = which}};
  require(::epoll_ctl(epoll_, EPOLL_CTL_ADD, s.fd, &event) == 0, "epoll_ctl");
}

void UdpReceiver::add(const LocalAddress& a) { place({a.receive_socket, a.gid_index, a.gid}); }

void UdpReceiver::place(const Source& source) {
  auto free = std::ranges::find(sources_, -1, &Source::fd);
  if (free == sources_.end()) free = sources_.insert(free, Source{});
  *free = source;
  try {
    listen(static_cast<std::size_t>(free - sources_.begin()));
  } catch (...) {
    ::close(std::exchange(free->fd, -1));
    throw;
  }
}

void UdpReceiver::remove(unsigned gid_index) {
  for (Source& s : sources_) {
    if (s.fd < 0 || s.gid_index != gid_index) continue;
    ::epoll_ctl(epoll_, EPOLL_CTL_DEL, s.fd, nullptr);  // the daemon keeps the socket open
    ::close(std::exchange(s.fd, -1));
  }
  hot_ = last_ = -1;
}

int UdpReceiver::join(const Gid& gid) {
  const int fd = open_group_socket(gid, ifindex_);
  if (fd < 0) return errno;
  try {
    place({fd, group, gid});
  } catch (const std::system_error& e) {
    return e.code().value();
  }
  return 0;
}

void UdpReceiver::leave(const Gid& gid) {
  for (Source& s : sources_)
    if (s.fd >= 0 && s.gid_index == group && s.gid == gid) ::close(std::exchange(s.fd, -1));
  hot_ = last_ = -1;
}

std::span<const engine::RxFrame> UdpReceiver::receive(bool& all_empty, Port::Look look) {
  all_empty = false;
  count_ = 0;
  const bool turn = ++streak_ % calls_per_turn == 0;  // the others'
  if (look == Port::Look::once && last_ >= 0 && !turn) {
    if (read(last_)) hot_ = last_;
    return {frames_.get(), count_};
  }
  if (hot_ >= 0 && !turn && read(hot_)) return {frames_.get(), count_};
  hot_ = next_readable();
  if (hot_ < 0)
    all_empty = true;
  else if (!read(hot_))
    hot_ = -1;  // readable, yet empty: its checksum was wrong
  else
    last_ = hot_;
  return {frames_.get(), count_};
}

// By number as in uncancelled.hpp.  One event a call: the kernel moves a level-triggered one that
// it reports to the end of its list.
int UdpReceiver::next_readable() {
  epoll_event event;
  return ::syscall(SYS_epoll_pwait, epoll_, &event, 1, 0, nullptr, 0) == 1
             ? static_cast<int>(event.data.u64)
             : -1;
}

bool UdpReceiver::read(int which) {
  Datagram d;
  ++counters_.rx_calls;
  bool relayed = sources_[which].fd == relay_socket_;
  if (!(relayed ? read_relay(d) : read_udp(which, d))) return false;
  segments(d);
  return true;
}

// False: the socket was empty.  True with size 0: something came that is nothing.
bool UdpReceiver::read_udp(int which, Datagram& d) {
  SocketAddress from{};
  ControlBuffer control;
  iovec iov{staging_.get(), staging_bytes};
  msghdr m{};
  m.msg_name = &from, m.msg_namelen = sizeof from;
  m.msg_iov = &iov, m.msg_iovlen = 1;
  m.msg_control = control.bytes, m.msg_controllen = sizeof control.bytes;
  ssize_t n = uncancelled::recvmsg(sources_[which].fd, &m, MSG_DONTWAIT);
  if (n < 0) return false;
  if (m.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) return ++counters_.drop_truncated, true;
  d.size = d.segment = static_cast<std::size_t>(n);
  for (cmsghdr* c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
    constexpr int ipv6_flowinfo = 11;
    int v = int_of(c);
    if (c->cmsg_level == SOL_UDP && c->cmsg_type == UDP_GRO && v > 0)
      d.segment = static_cast<std::size_t>(v);
    else if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TOS)
      d.traffic_class = static_cast<std::uint8_t>(v);
    else if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TTL)
      d.hop_limit = static_cast<std::uint8_t>(v);
    else if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_TCLASS)
      d.traffic_class = static_cast<std::uint8_t>(v);
    else if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_HOPLIMIT)
      d.hop_limit = static_cast<std::uint8_t>(v);
    else if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == ipv6_flowinfo)
      d.flow_label = ntohl(static_cast<std::uint32_t>(v)) & 0xfffff;
  }
  d.source = to_gid(from), d.source_port = port_of(from);
  d.destination = sources_[which].gid;
  d.to_group = sources_[which].gid_index == group;
  if (d.to_group && !came_by(m, ifindex_)) d.size = 0;
  if (n == 0) ++counters_.drop_decode_short;
  return true;
}

bool UdpReceiver::read_relay(Datagram& d) {
  RelayHeader h;
  ControlBuffer control;
  iovec iov[2] = {{&h, sizeof h}, {staging_.get(), staging_bytes}};
  msghdr m{};
  m.msg_iov = iov, m.msg_iovlen = 2;
  m.msg_control = control.bytes, m.msg_controllen = sizeof control.bytes;
  ssize_t n = uncancelled::recvmsg(relay_socket_, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (n < 0) return false;
  bool ours = false;
  for (cmsghdr* c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
    if (c->cmsg_level != SOL_SOCKET) continue;
    ucred who;
    if (c->cmsg_type == SCM_CREDENTIALS) {
      std::memcpy(&who, CMSG_DATA(c), sizeof who);
      ours = who.uid == ::geteuid();
    } else if (c->cmsg_type == SCM_RIGHTS) {  // a stranger's: nothing of ours sends descriptors
      for (std::size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
        int fd;
        std::memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
        ::close(fd);
      }
    }
  }
  auto size = static_cast<std::size_t>(n);
  if (ours && size == sizeof h && h.magic == RelayHeader::magic_of_this_version) return true;
  if (!ours || m.msg_flags & MSG_TRUNC || size <= sizeof h ||
      h.magic != RelayHeader::magic_of_this_version || !h.icrc_verified || h.segment == 0)
    return ++counters_.drop_relay, true;
  d = {h.source, h.destination, h.flow_label,    0,        h.traffic_class, h.hop_limit,
       true,     false,         size - sizeof h, h.segment};
  return true;
}

void UdpReceiver::segments(const Datagram& d) {
  if (d.size == 0) return;
  IdentificationGuess guess;
  bool bundle = d.size > d.segment;
  if (bundle)
    ++counters_.rx_bundles;
  else
    guess.next = single_id_;
  unsigned k = 0;
  for (std::size_t at = 0; at < d.size; at += d.segment, ++k) {
    if (k == max_segments) {
      ++counters_.drop_truncated;
      break;
    }
    accept(d, at, std::min(d.segment, d.size - at), guess);
  }
  counters_.rx_datagrams += k;
  counters_.rx_bytes += d.size;
  // A peer whose single packets are counted by its kernel: the next one has the next number.
  if (!bundle && guess.seen)
    single_id_ = guess.last ? static_cast<std::uint16_t>(guess.last + 1) : 0;
  flush_relay(d);
}

void UdpReceiver::accept(const Datagram& d, std::size_t offset, std::size_t size,
                         IdentificationGuess& guess) {
  if (size < icrc_bytes) {
    ++counters_.drop_decode_short;
    return;
  }
  std::span<const std::uint8_t> bytes(staging_.get() + offset, size - icrc_bytes);
  auto packet = wire::decode(bytes);
  if (!packet) {
    ++drops_for(counters_, packet.error());
    return;
  }
  if (!d.verified && !icrc_right(d, bytes, guess)) {
    ++counters_.drop_icrc;
    return;
  }
  if (!d.to_group && !is_ours(d, *packet)) return relay(d, *packet, offset, size);
  if (d.verified) ++counters_.relayed_in;
  auto& f = frames_[count_++];
  f.packet = *packet;
  f.source = d.source, f.destination = d.destination;
  f.flow_label = d.flow_label, f.traffic_class = d.traffic_class, f.hop_limit = d.hop_limit;
}

bool UdpReceiver::is_ours(const Datagram& d, const wire::Packet& p) const {
  const Qpn dest = p.bth.dest_qp, number = wire::steering_number(p);
  if (dest.raw() <= 1 || dest == engine::multicast_qpn) return true;
  if (number.slot() == slot_) return number == dest || slot_ != 0;
  // XRC: nobody has that SRQ, which the queue pair's own process is to say.
  return d.verified && dest.slot() == slot_;
}

bool UdpReceiver::icrc_right(const Datagram& d, std::span<const std::uint8_t> bytes,
                             IdentificationGuess& guess) {
  auto& prefix = prefixes_.of({d.source, d.destination, d.source_port}, bytes.size());
  const std::uint8_t* p = bytes.data() + bytes.size();
  std::uint32_t received = p[0] | p[1] << 8 | p[2] << 16 | std::uint32_t{p[3]} << 24;
  auto id = prefix.identify(bytes, received, guess.next);
  if (!id) return guess.next += guess.step, false;
  if (guess.seen) guess.step = static_cast<std::uint16_t>(*id - guess.last);
  guess.seen = true;
  guess.last = *id;
  guess.next = static_cast<std::uint16_t>(*id + guess.step);
  return true;
}

// Frames that were relayed once and still are not ours go nowhere: no loops.
void UdpReceiver::relay(const Datagram& d, const wire::Packet& p, std::size_t offset,
                        std::size_t size) {
  const unsigned slot = wire::steering_number(p).slot(), queue_pair = p.bth.dest_qp.slot();
  if (d.verified) {
    ++counters_.drop_relay;
    return;
  }
  const bool another = run_.slot != slot || run_.queue_pair != queue_pair || run_.end != offset;
  if (run_.frames && another) flush_relay(d);
  if (!run_.frames) run_ = {slot, queue_pair, offset, offset, 0};
  run_.end = offset + size;
  ++run_.frames;
}

void UdpReceiver::flush_relay(const Datagram& d) {
  if (!run_.frames) return;
  auto run = std::exchange(run_, RelayRun{});
  RelayHeader h;
  h.flow_label = d.flow_label, h.segment = static_cast<std::uint32_t>(d.segment);
  h.traffic_class = d.traffic_class, h.hop_limit = d.hop_limit, h.icrc_verified = 1;
  h.source = d.source, h.destination = d.destination;
  iovec iov[2] = {{&h, sizeof h}, {staging_.get() + run.begin, run.end - run.begin}};
  // Without a process that may have the SRQ of an XRC request, its queue pair's answers.
  bool sent = send_relay(run.slot, iov) || (run.queue_pair != run.slot && errno == ECONNREFUSED &&
                                            send_relay(run.queue_pair, iov));
  (sent ? counters_.relayed_out : counters_.drop_relay) += run.frames;
}

// False leaves errno.
bool UdpReceiver::send_relay(unsigned slot, std::span<iovec, 2> iov) {
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  std::size_t room = sizeof to.sun_path - 1;
  auto name = fmt::format_to_n(to.sun_path + 1, room, "{}{}", relay_prefix_, slot);
  errno = ECONNREFUSED;
  if (relay_prefix_.empty() || name.size > room || slot == slot_) return false;
  msghdr m{};
  m.msg_name = &to;
  m.msg_namelen = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size);
  m.msg_iov = iov.data(), m.msg_iovlen = iov.size();
  return uncancelled::sendmsg(relay_sender_, &m, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
}

}  // namespace adverb::port
