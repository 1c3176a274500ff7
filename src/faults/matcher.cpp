// SPDX-License-Identifier: Apache-2.0
#include "faults/matcher.hpp"

#include <algorithm>

namespace adverb::faults {

PacketFields fields_of(Direction direction, const wire::Packet& p, Qpn local, const Gid& peer,
                       std::uint32_t size, const QpFacts* facts) {
  PacketFields f{.opcode = p.bth.opcode,
                 .psn = p.bth.psn,
                 .qp = local,
                 .peer_qp = direction == Direction::tx ? p.bth.dest_qp : p.deth.src_qp,
                 .peer = peer,
                 .first = std::nullopt,
                 .size = size};
  if (!facts) return f;
  // A response has the PSN of the request that it answers.
  const bool ours = (direction == Direction::tx) != wire::is_response(p.info().verb);
  f.first = ours ? facts->first_sent : facts->first_received;
  if (direction == Direction::rx && !p.info().has(wire::ext_deth)) f.peer_qp = facts->peer_qp;
  return f;
}

bool Decision::harmless() const {
  return !drop && !copies && delay == Duration{} && !hold && !damages && !syndrome && !events &&
         !port_down && !port_up;
}

Matcher::Matcher(std::span<const Rule> rules, Instant opened, std::span<SharedCount> total)
    : rules_(rules), total_(total), opened_(opened), counts_(rules.size()) {
  for (std::uint32_t i = 0; i < rules.size(); ++i) {
    const Rule& r = rules[i];
    random_.emplace_back(r.seed ^ SplitMix::mix(i));
    (r.of_calls() ? call_rules_ : r.timed() ? timed_rules_ : packet_rules_).push_back(i);
  }
  std::ranges::stable_sort(timed_rules_,
                           [&](auto a, auto b) { return *rules_[a].at > *rules_[b].at; });
}

bool Matcher::matches(const Rule& r, Direction direction, const PacketFields& f) const {
  if (!(static_cast<unsigned>(r.direction) & static_cast<unsigned>(direction))) return false;
  if (!r.opcodes.test(static_cast<std::size_t>(f.opcode))) return false;
  const wire::OpcodeInfo& info = wire::info_of(f.opcode);
  if (r.transport && info.transport != *r.transport) return false;
  if (r.qp && f.qp != *r.qp) return false;
  if (r.peer_qp && f.peer_qp != *r.peer_qp) return false;
  if (r.peer && f.peer != *r.peer) return false;
  if (r.psn.kind != PsnRange::all) {
    const bool relative = r.psn.kind == PsnRange::relative;
    if (relative && !f.first) return false;
    const std::uint32_t psn = relative ? (f.psn.raw() - f.first->raw()) & 0xffffff : f.psn.raw();
    const auto [first, last] = std::pair(r.psn.first, r.psn.last);
    // An absolute range may go over the end of the circle.
    if (first <= last ? psn < first || psn > last : psn < first && psn > last) return false;
  }
  if (r.action == Action::answer)
    return !wire::is_response(info.verb) &&
           (info.transport == wire::Transport::rc || info.transport == wire::Transport::xrc);
  if (r.action == Action::corrupt && r.bit)  // is there such a byte?  The ICRC's count on the wire
    return *r.bit / 8 < f.size + (r.sealed ? 0 : 4);
  return true;
}

// Counts a match, and says whether it is one of those that the rule acts on.
bool Matcher::acts(std::size_t i, Instant now) {
  const Rule& r = rules_[i];
  RuleCount& c = counts_[i];
  const Duration age = now - opened_;
  if (age < r.from || age >= r.until) return false;
  ++c.matched;
  if (!total_.empty()) total_[i].matched.fetch_add(1, std::memory_order_relaxed);
  if (c.matched <= r.after || c.hits >= r.times) return false;
  const std::uint64_t k = c.matched - r.after;
  if ((r.nth && k != r.nth) || (r.every && k % r.every) || k > r.first) return false;
  if (r.chance != Rule::certain && !random_[i].chance(r.chance, Rule::certain)) return false;
  hit(i);
  return true;
}

void Matcher::hit(std::size_t i) {
  ++counts_[i].hits;
  if (!total_.empty()) total_[i].hits.fetch_add(1, std::memory_order_relaxed);
}

void Matcher::take_back(std::uint32_t i) {
  --counts_[i].hits;
  if (!total_.empty()) total_[i].hits.fetch_sub(1, std::memory_order_relaxed);
}

void Matcher::apply(std::size_t i, const PacketFields& f, Decision& d) {
  const Rule& r = rules_[i];
  switch (r.action) {
    case Action::drop:
      d.drop = true;
      break;
    case Action::duplicate:
      d.copies += r.count;
      break;
    case Action::delay:
      d.delay += r.time;
      break;
    case Action::reorder:
      d.hold += r.count;
      break;
    case Action::corrupt: {
      if (d.damages == d.damage.size()) break;
      const std::uint32_t bit =
          r.bit ? *r.bit
                : static_cast<std::uint32_t>(random_[i].below((f.size + (r.sealed ? 0 : 4)) * 8));
      const auto mask = static_cast<std::uint8_t>(r.whole_byte ? 0xff : 0x80 >> bit % 8);
      d.damage[d.damages++] = {bit / 8, mask, r.sealed};
      break;
    }
    case Action::answer:
      if (!d.syndrome) d.syndrome = r.syndrome;
      break;
    case Action::event:
      d.events |= 1u << r.event;
      d.event_rule[r.event] = static_cast<std::uint32_t>(i);
      break;
    case Action::port_down:
      d.port_down = true;
      d.down_time = r.time;
      break;
    case Action::port_up:
      d.port_up = true;
      break;
    case Action::fail:
      break;
  }
}

Decision Matcher::decide(Instant now, Direction direction, const PacketFields& f) {
  Decision d;
  for (const std::uint32_t i : packet_rules_) {
    if (!matches(rules_[i], direction, f) || !acts(i, now)) continue;
    apply(i, f, d);
    if (d.drop) break;
  }
  return d;
}

int Matcher::decide(Instant now, Call call) {
  int error = 0;
  for (const std::uint32_t i : call_rules_)
    if (rules_[i].call == call && acts(i, now) && !error) error = rules_[i].error;
  return error;
}

Instant Matcher::next_deadline() const {
  return timed_rules_.empty() ? never : opened_ + *rules_[timed_rules_.back()].at;
}

std::optional<TimedAction> Matcher::take_due(Instant now) {
  if (next_deadline() > now) return std::nullopt;
  const std::uint32_t i = timed_rules_.back();
  timed_rules_.pop_back();
  ++counts_[i].matched;
  if (!total_.empty()) total_[i].matched.fetch_add(1, std::memory_order_relaxed);
  hit(i);
  const Rule& r = rules_[i];
  return TimedAction{r.action, r.event, r.qp, r.transport, r.time, i};
}

}  // namespace adverb::faults
