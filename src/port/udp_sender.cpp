// SPDX-License-Identifier: Apache-2.0
#include "port/udp_sender.hpp"

#include <netinet/udp.h>

#include <algorithm>
#include <cerrno>

#include "port/steering.hpp"
#include "port/uncancelled.hpp"

namespace adverb::port {
namespace {

constexpr std::size_t icrc_bytes = engine::TxBurst::icrc_bytes;
constexpr int default_hop_limit = 64;  // as the send sockets are made

void store_le32(std::uint8_t* p, std::uint32_t v) {
  for (int i = 0; i < 4; ++i) p[i] = static_cast<std::uint8_t>(v >> 8 * i);
}

}  // namespace

UdpSender::UdpSender(const UdpPortConfig& config, PortCounters& counters)
    : counters_(counters),
      max_segments_(std::clamp(config.max_segments, 1u, most_segments)),
      ports_per_peer_(std::min(config.source_ports_per_peer, 8u)),
      gso_(config.gso) {
  for (auto& a : config.addresses) add(a);
}

void UdpSender::add(const LocalAddress& a) {
  auto& local = *locals_.emplace_back(std::make_unique<Local>());
  local.gid = a.gid, local.ifindex = a.ifindex, local.gso = gso_;
  local.ports.open(a.gid, a.ifindex, ports_per_peer_);
  if (a.gid_index < by_index_.size()) by_index_[a.gid_index] = &local;
}

void UdpSender::remove(unsigned gid_index) {
  Local* local = by_index_[gid_index];
  by_index_[gid_index] = nullptr;
  std::erase_if(locals_, [&](const auto& l) { return l.get() == local; });
}

void UdpSender::send(engine::TxBurst& burst) {
  auto frames = burst.frames();
  while (!frames.empty()) {
    if (frames[0].protocol != engine::Protocol::roce_v2) {  // another port's
      frames = frames.subspan(1);
      continue;
    }
    Local* local = local_of(frames[0].av);
    std::size_t n = local ? bundle_length(*local, frames) : 1;
    if (local)
      send_bundle(*local, burst, frames.first(n));
    else
      lost(1, EADDRNOTAVAIL);
    frames = frames.subspan(n);
  }
}

UdpSender::Local* UdpSender::local_of(const engine::AddressVector& av) {
  Local* local = by_index_[av.sgid_index];
  return local && local->gid.is_v4() == av.dgid.is_v4() ? local : nullptr;
}

// Between processes of one host there are no paths to spread over: one port, larger bundles.
std::uint16_t UdpSender::wanted_port(const Local& local, const engine::TxFrame& f) const {
  std::uint16_t port = roce_source_port(f.av.flow_label, f.src_qp, f.dest_qp);
  for (auto& l : locals_)
    if (l->gid == f.av.dgid) return port - static_cast<std::uint16_t>(local.ports.bucket(port));
  return port;
}

// How many frames from the first on go as one send: adjacent, one path, one slot, one size (the
// last may be shorter).
std::size_t UdpSender::bundle_length(const Local& local, Frames frames) const {
  auto& first = frames[0];
  std::size_t limit = std::min<std::size_t>(max_segments_, most_bytes / (first.size + icrc_bytes));
  limit = std::min(limit, frames.size());
  unsigned bucket = local.ports.bucket(wanted_port(local, first));
  std::size_t n = 1;
  while (n < limit) {
    auto& last = frames[n - 1];
    auto& f = frames[n];
    if (f.size > first.size || f.offset != last.offset + last.size + icrc_bytes) break;
    if (f.protocol != first.protocol || f.av != first.av || f.slot != first.slot) break;
    bool same_pair = f.dest_qp == last.dest_qp && f.src_qp == last.src_qp;
    if (!same_pair && local.ports.bucket(wanted_port(local, f)) != bucket) break;
    ++n;
    if (f.size < first.size) break;
  }
  return n;
}

void UdpSender::send_bundle(Local& local, engine::TxBurst& burst, Frames frames) {
  auto& first = frames[0];
  auto* socket = local.ports.find(first.av.dgid, first.slot, wanted_port(local, first));
  if (!socket) return lost(frames.size(), errno);
  bool bundle = frames.size() > 1;
  stamp(local, socket->port, burst, frames, bundle && local.gso);
  Envelope envelope;
  envelope.address(local, first.av);
  if (bundle && !local.gso) return send_singles(*socket, burst, frames, envelope);

  auto before = envelope.control_length;
  std::uint16_t segment = static_cast<std::uint16_t>(first.size + icrc_bytes);
  if (bundle) envelope.add(SOL_UDP, UDP_SEGMENT, &segment, sizeof segment);
  iovec iov{burst.bytes(first),
            frames.back().offset + frames.back().size + icrc_bytes - first.offset};
  msghdr m = envelope.message(iov);
  ++counters_.tx_calls;
  if (uncancelled::sendmsg(socket->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) {
    counters_.tx_bundles += bundle;
    return sent(frames);
  }
  if (!bundle || (errno != EIO && errno != EINVAL)) return lost(frames.size(), errno);

  // The device cannot do it (no checksum offload, a tunnel), or the segments are too big.  If they
  // are not, then it is the device.
  auto accepted = counters_.tx_datagrams;
  stamp(local, socket->port, burst, frames, false);
  envelope.control_length = before;
  send_singles(*socket, burst, frames, envelope);
  if (counters_.tx_datagrams != accepted) local.gso = false, ++counters_.gso_refused;
}

void UdpSender::send_singles(const SourcePorts::Socket& socket, engine::TxBurst& burst,
                             Frames frames, Envelope& envelope) {
  for (std::size_t i = 0; i < frames.size(); ++i) {
    iovs_[i] = {burst.bytes(frames[i]), frames[i].size + icrc_bytes};
    messages_[i] = {envelope.message(iovs_[i]), 0};
  }
  std::size_t at = 0;
  while (at < frames.size()) {
    ++counters_.tx_calls;
    int n =
        uncancelled::sendmmsg(socket.fd, &messages_[at], static_cast<unsigned>(frames.size() - at),
                              MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n > 0) {
      sent(frames.subspan(at, static_cast<std::size_t>(n)));
      at += static_cast<std::size_t>(n);
      continue;
    }
    if (errno == EAGAIN || errno == ENOBUFS) return lost(frames.size() - at, errno);
    lost(1, errno);
    ++at;
  }
}

void UdpSender::stamp(const Local& local, std::uint16_t port, engine::TxBurst& burst, Frames frames,
                      bool as_segments) {
  std::uint16_t identification = 0;
  for (auto& f : frames) {
    std::uint8_t* bytes = burst.bytes(f);
    auto& prefix = prefixes_.of({local.gid, f.av.dgid, port, roce_port}, f.size);
    store_le32(bytes + f.size, prefix.icrc({bytes, f.size}, identification) ^ f.icrc_error);
    if (as_segments) ++identification;
  }
}

void UdpSender::sent(Frames frames) {
  counters_.tx_datagrams += frames.size();
  for (auto& f : frames) counters_.tx_bytes += f.size + icrc_bytes;
}

void UdpSender::lost(std::size_t frames, int error) {
  (error == EMSGSIZE ? counters_.tx_too_big : counters_.tx_errors) += frames;
}

void UdpSender::Envelope::add(int level, int type, const void* value, std::size_t size) {
  auto* c = reinterpret_cast<cmsghdr*>(control + control_length);
  std::memset(c, 0, CMSG_SPACE(size));
  c->cmsg_level = level, c->cmsg_type = type;
  c->cmsg_len = CMSG_LEN(size);
  std::memcpy(CMSG_DATA(c), value, size);
  control_length += CMSG_SPACE(size);
}

// The traffic class goes out as the address vector has it, ECN bits included.  A hop limit of 0 is
// one that nobody set.
void UdpSender::Envelope::address(const Local& local, const engine::AddressVector& av) {
  to_length = to_address(av.dgid, roce_port, local.ifindex, to);
  bool v4 = av.dgid.is_v4();
  if (int tos = av.traffic_class)
    add(v4 ? IPPROTO_IP : IPPROTO_IPV6, v4 ? IP_TOS : IPV6_TCLASS, &tos, sizeof tos);
  if (int ttl = av.hop_limit; ttl != 0 && ttl != default_hop_limit)
    add(v4 ? IPPROTO_IP : IPPROTO_IPV6, v4 ? IP_TTL : IPV6_HOPLIMIT, &ttl, sizeof ttl);
}

msghdr UdpSender::Envelope::message(iovec& iov) {
  msghdr m{};
  m.msg_name = &to, m.msg_namelen = to_length;
  m.msg_iov = &iov, m.msg_iovlen = 1;
  if (control_length) m.msg_control = control, m.msg_controllen = control_length;
  return m;
}

}  // namespace adverb::port
