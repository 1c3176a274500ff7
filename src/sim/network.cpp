// SPDX-License-Identifier: Apache-2.0
#include "sim/network.hpp"

#include <algorithm>
#include <cstring>

#include "sim/random.hpp"
#include "sim/violation.hpp"
#include "wire/opcode.hpp"
#include "wire/packet.hpp"

namespace adverb::sim {

namespace {

constexpr std::uint32_t icrc_bytes = engine::TxBurst::icrc_bytes;
constexpr std::uint32_t ethernet_bytes = 14 + 24;  // header; preamble, FCS and gap

std::uint32_t load_icrc(const std::uint8_t* p) {
  return p[0] | std::uint32_t{p[1]} << 8 | std::uint32_t{p[2]} << 16 | std::uint32_t{p[3]} << 24;
}
void store_icrc(std::uint8_t* p, std::uint32_t v) {
  for (unsigned i = 0; i < icrc_bytes; ++i) p[i] = static_cast<std::uint8_t>(v >> 8 * i);
}

// A frame that was held for those behind it goes on its own after this.
constexpr Picoseconds most_held = picoseconds(1'000'000);

}  // namespace

std::uint32_t FramePool::take(std::uint32_t size) {
  const bool large = size > small_bytes;
  auto& free = free_[large];
  if (free.empty()) {
    memory_.push_back(std::make_unique_for_overwrite<std::uint8_t[]>(
        large ? engine::TxBurst::max_frame : small_bytes));
    frames_.push_back({.large = large, .bytes = memory_.back().get()});
    free.push_back(static_cast<std::uint32_t>(frames_.size() - 1));
  }
  const std::uint32_t frame = free.back();
  free.pop_back();
  frames_[frame].size = size;
  ++used_;
  return frame;
}

std::uint32_t FramePool::copy(std::uint32_t frame) {
  const std::uint32_t other = take(at(frame).size);
  std::uint8_t* bytes = at(other).bytes;
  at(other) = at(frame);
  at(other).bytes = bytes;
  std::memcpy(bytes, at(frame).bytes, at(frame).size);
  return other;
}

void FramePool::give(std::uint32_t frame) {
  --used_;
  free_[at(frame).large].push_back(frame);
}

Network::Network(const Scenario& s, EventQueue& queue, Trace& trace)
    : s_(s),
      queue_(queue),
      trace_(trace),
      hosts_(static_cast<unsigned>(s.hosts.size())),
      links_(std::size_t{hosts_} * hosts_),
      gids_(hosts_) {
  read_rules();
}

void Network::read_rules() {
  for (std::uint32_t i = 0; i < s_.rules.size(); ++i) {
    const Rule& r = s_.rules[i];
    const faults::Parsed parsed = faults::parse(r.rule, "rule");
    if (!parsed.errors.empty()) violated("{}: {}", r.rule, parsed.errors[0].text());
    for (unsigned from = 0; from < hosts_; ++from)
      for (unsigned to = 0; to < hosts_; ++to) {
        if (r.from != anybody && r.from != static_cast<int>(from)) continue;
        if (r.to != anybody && r.to != static_cast<int>(to)) continue;
        for (faults::Rule rule : parsed.rules) {
          const std::uint64_t entity = (std::uint64_t{i} << 32) + from * hosts_ + to;
          rule.seed = derive(s_.seed + rule.seed, Purpose::rule, entity);
          link(from, to).rules.push_back(std::move(rule));
          link(from, to).late.push_back(r.late);
        }
      }
  }
  for (std::size_t i = 0; i < links_.size(); ++i) {
    Link& l = links_[i];
    if (l.rules.empty()) continue;
    l.matcher = std::make_unique<faults::Matcher>(l.rules, Instant{});
    l.random = stream(s_.seed, Purpose::rule, ~i);
  }
}

int Network::host_of(const Gid& gid) const {
  const unsigned h = gid.bytes[15] - 1u;  // as the world hands them out
  return h < hosts_ && gids_[h] == gid ? static_cast<int>(h) : anybody;
}

const wire::IcrcPrefix& Network::prefix(const Frame& f) {
  return prefixes_.of({gids_[f.from], f.av.dgid, f.source_port}, f.size - icrc_bytes);
}

void Network::send(Picoseconds now, unsigned from, const engine::TxFrame& tx,
                   const std::uint8_t* bytes, std::optional<Psn> first) {
  const int to = host_of(tx.av.dgid);
  if (to == anybody) violated("host {} sends to an address that nobody has", from);
  const std::uint32_t n = pool_.take(tx.size + icrc_bytes);
  Frame& f = pool_.at(n);
  f.from = static_cast<std::uint16_t>(from);
  f.to = static_cast<std::uint16_t>(to);
  f.av = tx.av;
  f.source_port = static_cast<std::uint16_t>(
      0xc000 | (SplitMix::mix(tx.src_qp.raw() << 24 | tx.dest_qp.raw()) & 0x3fff));
  std::memcpy(f.bytes, bytes, tx.size);
  const std::uint32_t icrc = prefix(f).icrc({f.bytes, tx.size});
  store_icrc(f.bytes + tx.size, icrc);
  trace_.note(now, std::uint64_t{icrc} << 32 | tx.size);
  const wire::IpPath path{.source = gids_[from],
                          .destination = f.av.dgid,
                          .source_port = f.source_port,
                          .traffic_class = f.av.traffic_class,
                          .hop_limit = f.av.hop_limit,
                          .flow_label = f.av.flow_label};
  if (trace_.pcap) trace_.capture(now, path, {f.bytes, f.size});
  Link& l = link(from, static_cast<unsigned>(to));
  ++l.counts.sent;
  ++sent_;

  const std::uint64_t ip_bytes = wire::ip_udp_bytes(path) + f.size;
  if (now < l.down_until) return lose(now, l, n, "partition");
  if (ip_bytes > s_.link.mtu) return lose(now, l, n, "above the MTU");
  const Picoseconds start = std::max(now, l.free_at);
  const Picoseconds per_byte = 8'000'000 / s_.link.megabits;  // ps
  const bool full =
      (start - now) / std::max<Picoseconds>(per_byte, 1) + ip_bytes > s_.link.queue_bytes;
  if (full && !healed_) return lose(now, l, n, "queue full");
  l.free_at = start + (ip_bytes + ethernet_bytes) * per_byte;
  if (healed_ || !l.matcher || !disturb(now, l, n, tx, first)) pass(now, l, n, 0);
  if (!l.held.empty()) went_by(now, l, tx.src_qp);
}

void Network::pass(Picoseconds now, Link& l, std::uint32_t frame, Picoseconds extra) {
  const Picoseconds at = std::max({now, l.free_at}) + picoseconds(s_.link.delay);
  deliver(std::max(at, l.clogged_until) + extra, l, frame);
}

// True: the frame's way is decided.
bool Network::disturb(Picoseconds now, Link& l, std::uint32_t frame, const engine::TxFrame& tx,
                      std::optional<Psn> first) {
  Frame& f = pool_.at(frame);
  const Instant instant{Duration(now / 1000)};
  auto packet = wire::decode({f.bytes, tx.size});
  if (!packet) return false;
  faults::PacketFields fields =
      faults::fields_of(faults::Direction::tx, *packet, tx.src_qp, f.av.dgid, tx.size, nullptr);
  fields.first = first;
  const faults::Decision d = l.matcher->decide(instant, faults::Direction::tx, fields);
  if (d.harmless()) return false;
  ++l.counts.disturbed;
  if (d.drop) return lose(now, l, frame, "rule"), true;
  damage(f, d);
  const auto delay = static_cast<Picoseconds>(d.delay.count()) * 1000;
  for (std::uint32_t i = 0; i < d.copies; ++i) {
    const std::uint32_t again = pool_.copy(frame);
    ++l.counts.duplicated;
    trace_.line(now, "duplicated");
    pass(now, l, again, delay + some_late(l));
  }
  if (d.hold) {
    trace_.line(now, "held until {} have gone by", d.hold);
    l.held.push_back({frame, d.hold + 1, tx.src_qp});
    queue_.add(now + most_held, Due::release, pool_.at(frame).to, frame);
    return true;
  }
  if (delay) trace_.line(now, "late by {} ns or more", delay / 1000);
  pass(now, l, frame, delay ? delay + some_late(l) : 0);
  return true;
}

// Up to the longest that one of the link's rules allows.
Picoseconds Network::some_late(Link& l) {
  const Nanoseconds most = *std::max_element(l.late.begin(), l.late.end());
  return picoseconds(l.random.below(most + 1));
}

// A frame of `qp` was sent: those that wait for it have one less to wait for.
void Network::went_by(Picoseconds now, Link& l, Qpn qp) {
  for (std::size_t i = 0; i < l.held.size();) {
    Held& h = l.held[i];
    if (h.qp != qp || --h.left) {
      ++i;
      continue;
    }
    const std::uint32_t frame = h.frame;
    l.held.erase(l.held.begin() + static_cast<std::ptrdiff_t>(i));
    pass(now, l, frame, 0);
  }
}

void Network::release(Picoseconds now, std::uint32_t frame) {
  Link& l = link(pool_.at(frame).from, pool_.at(frame).to);
  for (std::size_t i = 0; i < l.held.size(); ++i) {
    if (l.held[i].frame != frame) continue;
    l.held.erase(l.held.begin() + static_cast<std::ptrdiff_t>(i));
    return pass(now, l, frame, 0);
  }
}

// At most three bits, or bursts of eight: what the CRC always sees.
void Network::damage(Frame& f, const faults::Decision& d) {
  for (unsigned i = 0; i < d.damages && i < 3; ++i) f.bytes[d.damage[i].byte] ^= d.damage[i].mask;
}

void Network::lose(Picoseconds now, Link& l, std::uint32_t frame, const char* why) {
  ++l.counts.lost;
  ++l.counts.disturbed;
  if (trace_.wants_lines()) {
    const Frame& f = pool_.at(frame);
    auto packet = wire::decode({f.bytes, f.size - icrc_bytes});
    trace_.line(now, "{} -> {} LOST ({}): {}", f.from, f.to, why,
                packet ? describe(*packet) : "no packet");
  }
  pool_.give(frame);
}

void Network::deliver(Picoseconds at, Link&, std::uint32_t frame) {
  latest_arrival_ = std::max(latest_arrival_, at);
  queue_.add(at, Due::arrival, pool_.at(frame).to, frame);
}

// A simulated wire has Identification 0 and DF, so the ICRC has its whole strength.
bool Network::valid(const Frame& f) {
  const std::uint32_t n = f.size - icrc_bytes;
  return prefix(f).icrc({f.bytes, n}) == load_icrc(f.bytes + n);
}

void Network::arrived(const Frame& f, bool delivered) {
  LinkCounts& c = link(f.from, f.to).counts;
  ++(delivered ? c.delivered : c.lost);
  if (!delivered) ++c.disturbed;
}

void Network::inject(Picoseconds now, unsigned from, unsigned to,
                     std::span<const std::uint8_t> bytes) {
  const std::uint32_t n = pool_.take(static_cast<std::uint32_t>(bytes.size()) + icrc_bytes);
  Frame& f = pool_.at(n);
  f.from = static_cast<std::uint16_t>(from);
  f.to = static_cast<std::uint16_t>(to);
  f.av = {.dgid = gids_[to]};
  f.source_port = 0xc000;
  std::memcpy(f.bytes, bytes.data(), bytes.size());
  store_icrc(f.bytes + bytes.size(), prefix(f).icrc(bytes));
  ++link(from, to).counts.sent;
  ++sent_;
  deliver(now, link(from, to), n);
}

void Network::partition(unsigned host, int peer, Picoseconds until, bool both_ways) {
  for (unsigned other = 0; other < hosts_; ++other) {
    if (other == host || (peer != anybody && other != static_cast<unsigned>(peer))) continue;
    link(host, other).down_until = std::max(link(host, other).down_until, until);
    if (both_ways) link(other, host).down_until = std::max(link(other, host).down_until, until);
  }
}

void Network::clog(unsigned host, int peer, Picoseconds until) {
  for (unsigned other = 0; other < hosts_; ++other) {
    if (other == host || (peer != anybody && other != static_cast<unsigned>(peer))) continue;
    Link& l = link(host, other);
    l.clogged_until = std::max(l.clogged_until, until);
    ++l.counts.disturbed;
  }
}

void Network::heal() {
  healed_ = true;
  for (Link& l : links_) l.down_until = l.clogged_until = 0;
}

void Network::check_conservation() const {
  if (pool_.in_use()) violated("{} frames are still under way at the end", pool_.in_use());
  for (unsigned from = 0; from < hosts_; ++from)
    for (unsigned to = 0; to < hosts_; ++to) {
      const LinkCounts& c = link(from, to).counts;
      if (c.sent + c.duplicated != c.delivered + c.lost)
        violated("link {} -> {}: {} sent, {} duplicated, but {} delivered, {} lost", from, to,
                 c.sent, c.duplicated, c.delivered, c.lost);
    }
}

}  // namespace adverb::sim
