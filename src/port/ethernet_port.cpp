// SPDX-License-Identifier: Apache-2.0
#include "port/ethernet_port.hpp"

#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "port/address.hpp"
#include "port/uncancelled.hpp"
#include "wire/flow_key.hpp"

namespace adverb::port {

using engine::Protocol;

EthernetPort::EthernetPort(std::unique_ptr<Port> inner, const EthernetPortConfig& config)
    : inner_(std::move(inner)), config_(config), epoll_(::epoll_create1(EPOLL_CLOEXEC)) {}

EthernetPort::~EthernetPort() {
  for (const int fd : {epoll_, sender_, watcher_})
    if (fd >= 0) ::close(fd);
}

int EthernetPort::open_ethernet() {
  if (sender_ < 0) sender_ = open_packet_socket(config_.ifindex, 0);
  return sender_ < 0 ? errno : 0;
}

// Promiscuous, as rules may ask for any address.
int EthernetPort::watch_ethernet(bool on) {
  if (on == (watcher_ >= 0)) return 0;
  if (!on) return ::close(std::exchange(watcher_, -1)), 0;
  const int fd = open_packet_socket(config_.ifindex, ETH_P_ALL);
  if (fd < 0) return errno;
  const int buffer = static_cast<int>(config_.receive_buffer);
  if (!set_option(fd, SOL_SOCKET, SO_RCVBUFFORCE, buffer))
    set_option(fd, SOL_SOCKET, SO_RCVBUF, buffer);
  packet_mreq all{};
  all.mr_ifindex = static_cast<int>(config_.ifindex);
  all.mr_type = PACKET_MR_PROMISC;
  ::setsockopt(fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &all, sizeof all);
  epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
  if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) {
    const int error = errno;
    ::close(fd);
    return error;
  }
  if (!frames_) {
    frames_ = std::make_unique<engine::RxFrame[]>(frames_at_once);
    staging_ = std::make_unique<std::uint8_t[]>(staging_bytes);
  }
  watcher_ = fd;
  return 0;
}

std::span<const engine::RxFrame> EthernetPort::receive(bool& all_empty, Look look) {
  if (watcher_ < 0) return inner_->receive(all_empty, look);
  all_empty = false;
  const bool first = ++turn_ % 2 == 0;  // neither may starve the other
  if (first && receive_own()) return {frames_.get(), count_};
  const auto frames = inner_->receive(all_empty, look);
  if (!frames.empty() || first || !receive_own()) return frames;
  all_empty = false;
  return {frames_.get(), count_};
}

// False: the socket was empty.
bool EthernetPort::receive_own() {
  count_ = 0;
  bool found = false;
  std::size_t at = 0;
  ++own_.rx_calls;
  while (count_ < frames_at_once && at + most_bytes <= staging_bytes) {
    EthernetFrame frame;
    if (!receive_frame(watcher_, {staging_.get() + at, most_bytes}, frame)) break;
    found = true;
    const unsigned before = count_;
    accept(frame);
    if (count_ != before) at += wire::vlan_tag_bytes + frame.bytes.size();
  }
  return found;
}

void EthernetPort::accept(const EthernetFrame& frame) {
  if (frame.bytes.size() < wire::ethernet_header_bytes) return;
  if (frame.truncated) {
    ++own_.drop_truncated;
    return;
  }
  if (frame.outgoing && config_.loopback) return;
  ++own_.rx_datagrams;
  own_.rx_bytes += frame.bytes.size();
  const bool group = frame.bytes[0] & 1;
  const bool to_us = std::memcmp(frame.bytes.data(), config_.mac.data(), config_.mac.size()) == 0;
  engine::RxFrame& f = frames_[count_++];
  f = {};
  f.protocol = Protocol::ethernet;
  f.packet.payload = frame.bytes;
  f.outgoing = frame.outgoing && !group && !to_us;
}

void EthernetPort::send(engine::TxBurst& burst) {
  inner_->send(burst);
  if (sender_ < 0) return;
  for (const engine::TxFrame& f : burst.frames()) {
    if (f.protocol != Protocol::ethernet) continue;
    sockaddr_ll to{};
    to.sll_family = AF_PACKET;
    to.sll_ifindex = static_cast<int>(config_.ifindex);
    to.sll_halen = ETH_ALEN;
    std::memcpy(to.sll_addr, burst.bytes(f), ETH_ALEN);
    iovec iov{burst.bytes(f), f.size};
    msghdr m{};
    m.msg_name = &to, m.msg_namelen = sizeof to;
    m.msg_iov = &iov, m.msg_iovlen = 1;
    ++own_.tx_calls;
    if (uncancelled::sendmsg(sender_, &m, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) {
      ++own_.tx_datagrams;
      own_.tx_bytes += f.size;
    } else {
      ++(errno == EMSGSIZE ? own_.tx_too_big : own_.tx_errors);
    }
  }
}

std::vector<int> EthernetPort::wait_descriptors() const {
  auto all = inner_->wait_descriptors();
  if (epoll_ >= 0) all.push_back(epoll_);
  return all;
}

const PortCounters& EthernetPort::counters() const {
  merged_ = inner_->counters();
  merged_.rx_calls += own_.rx_calls, merged_.rx_datagrams += own_.rx_datagrams;
  merged_.rx_bytes += own_.rx_bytes, merged_.drop_truncated += own_.drop_truncated;
  merged_.tx_calls += own_.tx_calls, merged_.tx_datagrams += own_.tx_datagrams;
  merged_.tx_bytes += own_.tx_bytes, merged_.tx_errors += own_.tx_errors;
  merged_.tx_too_big += own_.tx_too_big;
  return merged_;
}

}  // namespace adverb::port
