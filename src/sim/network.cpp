// SPDX-License-Identifier: Apache-2.0
#include "sim/network.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>

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

// Every opcode whose operation's name begins with `prefix`; of response kinds also by these words.
std::bitset<256> opcodes_of(const std::string& prefix) {
  std::bitset<256> set;
  for (unsigned b = 0; b < 256; ++b) {
    const wire::OpcodeInfo& info = wire::info_of(wire::Opcode{static_cast<std::uint8_t>(b)});
    if (!info) continue;
    const bool response = wire::is_response(info.verb);
    bool in = info.name.starts_with(prefix);
    if (prefix == "request") in = !response;
    if (prefix == "response") in = response;
    set[b] = in;
  }
  return set;
}

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
  for (const Rule& r : s.rules) opcodes_.push_back(opcodes_of(r.opcode));
  for (unsigned from = 0; from < hosts_; ++from)
    for (unsigned to = 0; to < hosts_; ++to)
      for (std::uint32_t i = 0; i < s.rules.size(); ++i) {
        const Rule& r = s.rules[i];
        if (r.from != anybody && r.from != static_cast<int>(from)) continue;
        if (r.to != anybody && r.to != static_cast<int>(to)) continue;
        const std::uint64_t entity = (std::uint64_t{i} << 32) + from * hosts_ + to;
        link(from, to).rules.push_back({stream(s.seed, Purpose::rule, entity), i});
      }
}

int Network::host_of(const Gid& gid) const {
  for (unsigned h = 0; h < hosts_; ++h)
    if (gids_[h] == gid) return static_cast<int>(h);
  return anybody;
}

const wire::IcrcPrefix& Network::prefix(const Frame& f) {
  return prefixes_.of({gids_[f.from], f.av.dgid, f.source_port}, f.size - icrc_bytes);
}

void Network::send(Picoseconds now, unsigned from, const engine::TxFrame& tx,
                   const std::uint8_t* bytes) {
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
  Picoseconds extra = 0;
  if (!healed_ && disturb(now, l, n, extra)) return;
  deliver(std::max(l.free_at + picoseconds(s_.link.delay), l.clogged_until) + extra, l, n);
}

bool Network::applies(const Rule& r, RuleState& state, Picoseconds now, std::uint8_t opcode) {
  if (now < picoseconds(r.after) || now >= picoseconds(r.until)) return false;
  if (!opcodes_[state.rule][opcode]) return false;
  ++state.matched;
  if (r.nth && state.matched != r.nth) return false;
  if (r.every && state.matched % r.every) return false;
  if (r.count && state.done == r.count) return false;
  if (r.probability < 1'000'000 && !state.random.chance(r.probability, 1'000'000)) return false;
  ++state.done;
  return true;
}

// True: the frame is gone.
bool Network::disturb(Picoseconds now, Link& l, std::uint32_t frame, Picoseconds& extra) {
  for (RuleState& state : l.rules) {
    const Rule& r = s_.rules[state.rule];
    if (!applies(r, state, now, pool_.at(frame).bytes[0])) continue;
    ++l.counts.disturbed;
    const Picoseconds delay =
        picoseconds(state.random.between(r.delay_min, std::max(r.delay_min, r.delay_max)));
    switch (r.action) {
      case Action::drop:
        lose(now, l, frame, "rule");
        return true;
      case Action::duplicate: {
        const std::uint32_t again = pool_.copy(frame);
        ++l.counts.duplicated;
        trace_.line(now, "duplicate, {} ns later", delay / 1000);
        deliver(l.free_at + picoseconds(s_.link.delay) + delay, l, again);
        break;
      }
      case Action::delay:
      case Action::reorder:
        trace_.line(now, "late by {} ns", delay / 1000);
        extra += delay;
        break;
      case Action::corrupt:
        corrupt(pool_.at(frame), state.random);
        break;
    }
  }
  return false;
}

// One to three bits: what a CRC of this length always sees (its Hamming distance is 4).
void Network::corrupt(Frame& f, Prng& random) {
  const std::uint64_t bits = f.size * 8;
  std::uint64_t flipped[3];
  const unsigned n = 1 + static_cast<unsigned>(random.below(3));
  for (unsigned i = 0; i < n; ++i) {
    flipped[i] = random.below(bits);
    if (std::find(flipped, flipped + i, flipped[i]) != flipped + i) continue;
    f.bytes[flipped[i] / 8] ^= static_cast<std::uint8_t>(1u << flipped[i] % 8);
  }
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
