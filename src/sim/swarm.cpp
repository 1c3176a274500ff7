// SPDX-License-Identifier: Apache-2.0
// The scenario that a seed chooses.  A swarm: each seed turns on a random subset of faults and of
// extreme knobs, since all at once hide each other.
#include <fmt/core.h>

#include <algorithm>

#include "sim/random.hpp"
#include "sim/scenario.hpp"

namespace adverb::sim {

using engine::Mtu;
using engine::QpType;

namespace {

constexpr Nanoseconds us = 1'000, ms = 1'000'000;

std::uint8_t byte_between(Prng& r, std::uint64_t low, std::uint64_t high) {
  return static_cast<std::uint8_t>(r.between(low, high));
}

// Between low and high, each power of two as likely as another.
std::uint64_t scale(Prng& r, std::uint64_t low, std::uint64_t high) {
  std::uint64_t top = low;
  while (top < high && !r.chance(1, 8)) top = top * 2 + r.below(2);
  return r.between(low, std::clamp(top, low, high));
}

HostSpec draw_host(Prng& r) {
  HostSpec h;
  if (r.chance(1, 3)) h.window = h.max_window = scale(r, 1500, 64 << 10);
  if (r.chance(1, 3)) h.read_budget = scale(r, 1, 64 << 10);
  if (r.chance(1, 3)) h.read_chunk = static_cast<std::uint32_t>(r.between(1, 6));
  h.credits = r.chance(1, 2);
  if (r.chance(1, 8)) h.receive_buffer = static_cast<std::uint32_t>(r.between(8, 64));
  h.step = scale(r, 200, 20 * us);
  h.burst_frames = r.chance(1, 4) ? 1 : 64;
  h.srq_depth = static_cast<std::uint32_t>(r.between(1, 32));
  return h;
}

SideSpec draw_side(Prng& r, std::uint32_t operations) {
  SideSpec s;
  s.first_psn = r.chance(1, 2) ? 0x1000000 - static_cast<std::uint32_t>(r.below(200))
                               : static_cast<std::uint32_t>(r.below(0x1000000));
  s.operations = r.chance(1, 6) ? 0 : operations;
  return s;
}

PairSpec draw_pair(Prng& r, unsigned hosts, std::uint32_t operations, bool large) {
  PairSpec p;
  p.host[0] = static_cast<int>(r.below(hosts));
  p.host[1] = static_cast<int>((static_cast<unsigned>(p.host[0]) + 1 + r.below(hosts - 1)) % hosts);
  const std::uint64_t kind = r.below(10);
  p.type = kind < 8 ? QpType::rc : kind == 8 ? QpType::uc : QpType::ud;
  p.mtu = static_cast<Mtu>(r.between(1, 5));
  p.depth = static_cast<std::uint32_t>(r.chance(1, 3) ? r.between(1, 4) : r.between(5, 64));
  p.receive_depth = static_cast<std::uint32_t>(r.chance(1, 3) ? r.between(1, 3) : r.between(4, 32));
  p.max_sge = static_cast<std::uint32_t>(r.between(1, 4));
  p.max_inline = static_cast<std::uint32_t>(r.between(8, 256));
  p.rd_atomic = byte_between(r, 1, r.chance(1, 2) ? 2 : 16);
  p.timeout = r.chance(1, 4) ? byte_between(r, 1, 7) : byte_between(r, 8, 16);
  if (r.chance(1, 16)) p.timeout = 0;
  p.retry_cnt = r.chance(1, 3) ? byte_between(r, 0, 6) : std::uint8_t{7};
  p.rnr_retry = r.chance(1, 3) ? byte_between(r, 0, 6) : std::uint8_t{7};
  p.min_rnr_timer = byte_between(r, 1, 16);
  p.srq = r.chance(1, 4);
  p.max_size = static_cast<std::uint32_t>(scale(r, 64, large ? 1 << 20 : 16 << 10));
  if (large) p.depth = std::min(p.depth, 8u), p.receive_depth = std::min(p.receive_depth, 3u);
  if (r.chance(1, 3)) p.mix = static_cast<std::uint32_t>(r.next());
  p.unsignaled = static_cast<std::uint32_t>(r.below(1000));
  p.fence = r.chance(1, 2) ? static_cast<std::uint32_t>(r.below(500)) : 0;
  p.inlined = static_cast<std::uint32_t>(r.below(600));
  if (r.chance(1, 4)) p.wrong = static_cast<std::uint32_t>(scale(r, 1000, 50'000));
  if (r.chance(1, 3)) p.receive_lag = static_cast<std::uint32_t>(r.below(990));
  if (r.chance(1, 3)) p.think = scale(r, 100, 20 * us);
  for (SideSpec& side : p.side) side = draw_side(r, operations);
  return p;
}

// From one in a thousand to one in five.
std::string draw_chance(Prng& r) {
  return fmt::format(" prob {:.4f}%", static_cast<double>(scale(r, 1000, 200'000)) / 1e4);
}

Rule draw_rule(Prng& r, unsigned hosts, Nanoseconds heal) {
  constexpr const char* opcodes[] = {"",
                                     "",
                                     "",
                                     " ACK",
                                     " ACK",
                                     " RESPONSE",
                                     " REQUEST",
                                     " READ_RESPONSE",
                                     " READ_REQUEST",
                                     " ATOMIC_ACKNOWLEDGE",
                                     " FETCH_ADD",
                                     " SEND",
                                     " WRITE"};
  Rule rule;
  if (r.chance(1, 3)) rule.from = static_cast<int>(r.below(hosts));
  switch (r.below(5)) {
    case 0:
      rule.rule = "drop";
      break;
    case 1:
      rule.rule = fmt::format("duplicate {}", r.between(1, 3));
      rule.late = scale(r, us, r.chance(1, 3) ? 20 * ms : 300 * us);
      break;
    case 2:
      rule.rule = fmt::format("delay {}ns", scale(r, us, r.chance(1, 3) ? 20 * ms : 300 * us));
      if (r.chance(1, 2)) rule.late = scale(r, us, ms);
      break;
    case 3:
      rule.rule = fmt::format("reorder {}", r.between(1, 8));
      break;
    default:
      rule.rule = "corrupt";
  }
  rule.rule += opcodes[r.below(std::size(opcodes))];
  rule.rule += r.chance(1, 8) ? fmt::format(" every {}", r.between(2, 7)) : draw_chance(r);
  if (r.chance(1, 3)) {
    const Nanoseconds from = r.below(heal);
    rule.rule += fmt::format(" from {}ns until {}ns", from, from + scale(r, us, heal));
  }
  return rule;
}

Event draw_event(Prng& r, unsigned hosts, unsigned pairs, Nanoseconds heal) {
  Event e;
  constexpr Happening kinds[] = {Happening::partition, Happening::blackhole, Happening::clog,
                                 Happening::pause,     Happening::crash,     Happening::deregister,
                                 Happening::error,     Happening::destroy,   Happening::ghost,
                                 Happening::ghost};
  e.what = kinds[r.below(std::size(kinds))];
  e.at = scale(r, us, heal);
  e.duration = scale(r, us, heal);
  e.host = static_cast<int>(r.below(hosts));
  if (r.chance(1, 2)) e.peer = static_cast<int>((static_cast<unsigned>(e.host) + 1) % hosts);
  e.pair = static_cast<int>(r.below(pairs));
  e.side = static_cast<int>(r.below(2));
  return e;
}

}  // namespace

Scenario draw_scenario(std::uint64_t seed) {
  Prng r = stream(seed, Purpose::swarm, 0);
  Scenario s;
  s.name = "seed " + std::to_string(seed);
  s.seed = seed;
  const bool large = r.chance(1, 40);  // a heavier tail
  const auto hosts = static_cast<unsigned>(r.chance(1, 4) ? r.between(3, 4) : 2);
  s.hosts.clear();
  for (unsigned h = 0; h < hosts; ++h) s.hosts.push_back(draw_host(r));
  s.hosts[0].ipv6 = r.chance(1, 4);
  s.link.megabits = r.chance(1, 4) ? scale(r, 100, 1000) : scale(r, 1000, 100'000);
  s.link.delay = scale(r, 200, 100 * us);
  if (r.chance(1, 4)) s.link.queue_bytes = static_cast<std::uint32_t>(scale(r, 9'000, 128 << 10));
  const auto pairs = static_cast<unsigned>(r.chance(1, 4) ? r.between(4, 8) : r.between(1, 3));
  const auto operations =
      static_cast<std::uint32_t>(large ? r.between(4, 20) : scale(r, 20, 300) * 2 / pairs + 1);
  for (unsigned i = 0; i < pairs; ++i) s.pairs.push_back(draw_pair(r, hosts, operations, large));
  // A UC message that was cut short keeps its receive WQE until the next one: others that share the
  // queue need one more.
  for (const PairSpec& p : s.pairs)
    if (p.srq && p.type == QpType::uc)
      for (const int h : p.host) ++s.hosts[static_cast<std::size_t>(h)].srq_depth;
  s.heal = scale(r, 100 * us, 20 * ms);
  if (r.chance(1, 6)) return s;  // nothing goes wrong
  for (std::uint64_t n = r.below(4); n; --n) s.rules.push_back(draw_rule(r, hosts, s.heal));
  for (std::uint64_t n = r.below(4); n; --n)
    s.events.push_back(draw_event(r, hosts, pairs, s.heal));
  return s;
}

}  // namespace adverb::sim
