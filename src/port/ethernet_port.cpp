// SPDX-License-Identifier: Apache-2.0
#include "port/ethernet_port.hpp"

#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <system_error>
#include <utility>

#include "engine/multicast.hpp"
#include "port/address.hpp"
#include "wire/flow_key.hpp"

namespace adverb::port {

using engine::Protocol;

namespace {

constexpr unsigned loopback_ifindex = 1;  // in every network namespace
constexpr std::size_t icrc_bytes = engine::TxBurst::icrc_bytes;

}  // namespace

EthernetPort::EthernetPort(std::unique_ptr<Port> inner, const EthernetPortConfig& config)
    : inner_(std::move(inner)), config_(config), epoll_(::epoll_create1(EPOLL_CLOEXEC)) {}

EthernetPort::~EthernetPort() {
  for (const int fd : {epoll_, sender_, watcher_, v1_, v1_local_})
    if (fd >= 0) ::close(fd);
}

int EthernetPort::open_ethernet() {
  if (sender_ < 0) sender_ = open_packet_socket(config_.ifindex, 0);
  return sender_ < 0 ? errno : 0;
}

int EthernetPort::open_receiver(unsigned ifindex, unsigned ether_type) {
  const int fd = open_packet_socket(ifindex, ether_type);
  if (fd < 0) return -1;
  const int buffer = static_cast<int>(config_.receive_buffer);
  if (!set_option(fd, SOL_SOCKET, SO_RCVBUFFORCE, buffer))
    set_option(fd, SOL_SOCKET, SO_RCVBUF, buffer);
  epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
  const bool filtered =
      ether_type == ETH_P_ALL || attach_slot_filter(fd, config_.slot, config_.mac);
  if (!filtered || ::epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) {
    const int error = errno;
    ::close(fd);
    errno = error;
    return -1;
  }
  if (!frames_) {
    frames_ = std::make_unique<engine::RxFrame[]>(frames_at_once);
    staging_ = std::make_unique<std::uint8_t[]>(staging_bytes);
  }
  return fd;
}

void EthernetPort::close_receiver(int& fd) {
  if (fd >= 0) ::close(std::exchange(fd, -1));
}

// Promiscuous, as rules may ask for any address.
int EthernetPort::watch_ethernet(bool on) {
  if (on == (watcher_ >= 0)) return 0;
  if (!on) return close_receiver(watcher_), 0;
  watcher_ = open_receiver(config_.ifindex, ETH_P_ALL);
  if (watcher_ < 0) return errno;
  packet_mreq all{};
  all.mr_ifindex = static_cast<int>(config_.ifindex);
  all.mr_type = PACKET_MR_PROMISC;
  ::setsockopt(watcher_, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &all, sizeof all);
  return 0;
}

// --- RoCE v1 addresses and groups

bool EthernetPort::serves_v1() const {
  return std::any_of(v1_gids_.begin(), v1_gids_.end(), [](const Gid& g) { return !g.is_zero(); });
}

void EthernetPort::add_address(const LocalAddress& a) {
  if (a.protocol != Protocol::roce_v1) return inner_->add_address(a);
  int error = a.gid_index < most_gids ? open_ethernet() : EINVAL;
  if (!error && v1_ < 0) {
    v1_ = open_receiver(config_.ifindex, wire::roce_v1_type);
    if (v1_ < 0) error = errno;
    if (!error && !config_.loopback && v1_local_ < 0)
      v1_local_ = open_receiver(loopback_ifindex, wire::roce_v1_type);
  }
  if (error) throw std::system_error(error, std::generic_category(), "RoCE v1");
  v1_gids_[a.gid_index] = a.gid;
}

void EthernetPort::remove_address(unsigned gid_index) {
  if (gid_index >= most_gids || v1_gids_[gid_index].is_zero())
    return inner_->remove_address(gid_index);
  v1_gids_[gid_index] = Gid{};
  if (serves_v1()) return;
  close_receiver(v1_);
  close_receiver(v1_local_);
}

void EthernetPort::change_membership(int option, const Gid& group) {
  if (v1_ < 0) return;
  const wire::Mac mac = wire::multicast_mac(group);
  packet_mreq request{};
  request.mr_ifindex = static_cast<int>(config_.ifindex);
  request.mr_type = PACKET_MR_MULTICAST;
  request.mr_alen = ETH_ALEN;
  std::copy(mac.begin(), mac.end(), request.mr_address);
  ::setsockopt(v1_, SOL_PACKET, option, &request, sizeof request);
}

int EthernetPort::join(const Gid& group) {
  if (const int error = inner_->join(group)) return error;
  change_membership(PACKET_ADD_MEMBERSHIP, group);
  return 0;
}

void EthernetPort::leave(const Gid& group) {
  inner_->leave(group);
  change_membership(PACKET_DROP_MEMBERSHIP, group);
}

// --- receiving

std::span<const engine::RxFrame> EthernetPort::receive(bool& all_empty, Look look) {
  if (watcher_ < 0 && v1_ < 0) return inner_->receive(all_empty, look);
  all_empty = false;
  const bool first = ++turn_ % 2 == 0;  // neither may starve the other
  if (first && receive_own()) return {frames_.get(), count_};
  const auto frames = inner_->receive(all_empty, look);
  if (!frames.empty() || first || !receive_own()) return frames;
  all_empty = false;
  return {frames_.get(), count_};
}

// False: all sockets were empty.
bool EthernetPort::receive_own() {
  count_ = 0;
  std::size_t at = 0;
  bool found = false;
  ++own_.rx_calls;
  for (const int fd : {v1_, v1_local_, watcher_})
    if (fd >= 0) found = drain(fd, at) || found;
  return found;
}

bool EthernetPort::drain(int fd, std::size_t& at) {
  bool found = false;
  while (count_ < frames_at_once && at + most_bytes <= staging_bytes) {
    EthernetFrame frame;
    if (!receive_frame(fd, {staging_.get() + at, most_bytes}, frame)) break;
    found = true;
    if (frame.truncated) {
      ++own_.drop_truncated;
      continue;
    }
    if (!(fd == watcher_ ? accept_raw(frame) : accept_v1(frame))) continue;
    ++own_.rx_datagrams;
    own_.rx_bytes += frame.bytes.size();
    at += wire::vlan_tag_bytes + frame.bytes.size();
  }
  return found;
}

bool EthernetPort::accept_raw(const EthernetFrame& frame) {
  if (frame.bytes.size() < wire::ethernet_header_bytes) return false;
  if (frame.outgoing && config_.loopback) return false;
  const bool group = frame.bytes[0] & 1;
  const bool to_us = std::equal(config_.mac.begin(), config_.mac.end(), frame.bytes.begin());
  engine::RxFrame& f = frames_[count_++] = {};
  f.protocol = Protocol::ethernet;
  f.packet.payload = frame.bytes;
  f.outgoing = frame.outgoing && !group && !to_us;
  return true;
}

bool EthernetPort::accept_v1(const EthernetFrame& frame) {
  const auto v1 = wire::decode_roce_v1(frame.bytes);
  if (!v1) return ++own_.drop_decode_short, false;
  const auto packet = wire::decode(v1->packet);
  if (!packet) return ++drops_for(own_, packet.error()), false;
  const wire::IcrcPath path{.source = v1->grh.sgid, .destination = v1->grh.dgid, .grh = true};
  if (prefixes_.of(path, v1->packet.size()).icrc(v1->packet) != v1->icrc)
    return ++own_.drop_icrc, false;
  engine::RxFrame& f = frames_[count_++] = {};
  f.protocol = Protocol::roce_v1;
  f.packet = *packet;
  f.source = v1->grh.sgid, f.destination = v1->grh.dgid;
  f.flow_label = v1->grh.flow_label;
  f.traffic_class = v1->grh.traffic_class, f.hop_limit = v1->grh.hop_limit;
  return true;
}

// --- sending

void EthernetPort::send(engine::TxBurst& burst) {
  inner_->send(burst);
  if (sender_ < 0) return;
  for (const engine::TxFrame& f : burst.frames()) {
    if (f.protocol == Protocol::roce_v2) continue;
    ++own_.tx_calls;
    const int error = f.protocol == Protocol::roce_v1
                          ? send_v1(burst, f)
                          : send_frame(sender_, config_.ifindex, {}, {burst.bytes(f), f.size});
    if (!error) {
      ++own_.tx_datagrams;
      own_.tx_bytes += f.size;
    } else {
      ++(error == EMSGSIZE ? own_.tx_too_big : own_.tx_errors);
    }
  }
}

int EthernetPort::send_v1(engine::TxBurst& burst, const engine::TxFrame& f) {
  const Gid& source = v1_gids_[f.av.sgid_index % most_gids];
  std::uint8_t* packet = burst.bytes(f);
  const wire::IcrcPath path{.source = source, .destination = f.av.dgid, .grh = true};
  const std::uint32_t icrc = prefixes_.of(path, f.size).icrc({packet, f.size}) ^ f.icrc_error;
  for (unsigned i = 0; i < icrc_bytes; ++i)
    packet[f.size + i] = static_cast<std::uint8_t>(icrc >> 8 * i);
  const bool group = f.av.dgid.is_multicast();
  const wire::Mac to = group ? wire::multicast_mac(f.av.dgid) : f.av.dmac;
  std::uint8_t header[wire::roce_v1_header_bytes];
  wire::encode_roce_v1(to, config_.mac,
                       {.traffic_class = f.av.traffic_class,
                        .flow_label = f.av.flow_label,
                        .hop_limit = f.av.hop_limit ? f.av.hop_limit : std::uint8_t{64},
                        .sgid = source,
                        .dgid = f.av.dgid},
                       f.size, header);
  const bool local = to == config_.mac;
  const std::span<const std::uint8_t> body{packet, f.size + icrc_bytes};
  if (local || (group && !config_.loopback)) {  // members on this host, by the loopback interface
    const int error = send_frame(sender_, loopback_ifindex, header, body);
    if (local) return error;
  }
  return send_frame(sender_, config_.ifindex, header, body);
}

std::vector<int> EthernetPort::wait_descriptors() const {
  auto all = inner_->wait_descriptors();
  if (epoll_ >= 0) all.push_back(epoll_);
  return all;
}

const PortCounters& EthernetPort::counters() const {
  merged_ = inner_->counters();
  const auto add = [&](std::uint64_t PortCounters::* c) { merged_.*c += own_.*c; };
  for (const auto c :
       {&PortCounters::rx_calls, &PortCounters::rx_datagrams, &PortCounters::rx_bytes,
        &PortCounters::tx_calls, &PortCounters::tx_datagrams, &PortCounters::tx_bytes,
        &PortCounters::tx_errors, &PortCounters::tx_too_big, &PortCounters::drop_truncated,
        &PortCounters::drop_icrc, &PortCounters::drop_decode_short,
        &PortCounters::drop_decode_opcode, &PortCounters::drop_decode_version,
        &PortCounters::drop_decode_pad})
    add(c);
  return merged_;
}

}  // namespace adverb::port
