// SPDX-License-Identifier: Apache-2.0
// Applies rules to packets, calls and times.  Sans-I/O: what time it is comes in as an argument,
// and a rule's random numbers come from its own seed, so the same packets at the same times meet
// the same fate on every machine.  Used by the port of a live device and by the links of a
// simulation:
//
//   Matcher matcher(rules, now);
//   Decision d = matcher.decide(now, Direction::tx, fields_of(Direction::tx, packet, ...));
//
// Rules act in the order in which they stand.  Each counts the packets that meet its conditions; a
// packet that an earlier rule has dropped is not seen by later ones.
#pragma once

#include <array>
#include <atomic>
#include <optional>
#include <span>
#include <vector>

#include "base/prng.hpp"
#include "faults/rule.hpp"
#include "wire/packet.hpp"

namespace adverb::faults {

// What rules can ask of a packet.
struct PacketFields {
  wire::Opcode opcode{};
  Psn psn{};
  Qpn qp{}, peer_qp{};  // the queue pair of the side that the matcher stands for, and the other
  Gid peer{};
  std::optional<Psn> first;  // PSN of the first request of that queue pair in that direction
  std::uint32_t size = 0;    // bytes from the BTH to the pad
};

// What is known of a queue pair beside its packets.
struct QpFacts {
  Qpn peer_qp{};
  Psn first_sent{}, first_received{};  // of requests
};
PacketFields fields_of(Direction, const wire::Packet&, Qpn local, const Gid& peer,
                       std::uint32_t size, const QpFacts*);

// Bits to flip in one byte.
struct Damage {
  std::uint32_t byte = 0;
  std::uint8_t mask = 0;
  bool sealed = false;
};

// What becomes of one packet.  All of it together, unless `drop`.
struct Decision {
  bool drop = false;
  std::uint32_t copies = 0;  // more of it
  Duration delay{};
  std::uint32_t hold = 0;  // packets of the same queue pair that go first
  std::uint8_t damages = 0;
  std::array<Damage, 4> damage{};
  std::uint8_t syndrome = 0;  // answer with this AETH syndrome; 0: with none
  std::uint32_t events = 0;   // bits of ibv_event_type, for the packet's queue pair
  std::array<std::uint32_t, 32> event_rule{};  // for each of these bits, the rule that set it
  bool port_down = false, port_up = false;
  Duration down_time{};   // zero: for ever
  bool harmless() const;  // nothing of all this
};

// What a rule with `at` wants done now.
struct TimedAction {
  Action action{};
  std::uint8_t event = 0;
  std::optional<Qpn> qp;  // of which queue pairs; none: of all
  std::optional<wire::Transport> transport;
  Duration down_time{};
  std::uint32_t rule = 0;
};

// How often a rule's conditions were met, and how often it acted.
struct RuleCount {
  std::uint64_t matched = 0, hits = 0;
};
// The same over several processes, in shared memory.
struct SharedCount {
  std::atomic<std::uint64_t> matched{0}, hits{0};
};

class Matcher {
 public:
  // `rules` outlive the matcher.  `total`: one for each rule, counted up as well; or empty.
  Matcher(std::span<const Rule> rules, Instant opened, std::span<SharedCount> total = {});

  Decision decide(Instant now, Direction, const PacketFields&);
  // The errno with which this call fails; 0: it does not.
  int decide(Instant now, Call);

  bool has_packet_rules() const { return !packet_rules_.empty(); }
  Instant next_deadline() const;  // of rules with `at`
  std::optional<TimedAction> take_due(Instant now);
  // An event of this rule found nothing to be raised for: then it has not acted.
  void take_back(std::uint32_t rule);

  std::span<const RuleCount> counts() const { return counts_; }
  std::span<const Rule> rules() const { return rules_; }

 private:
  bool matches(const Rule&, Direction, const PacketFields&) const;
  bool acts(std::size_t rule, Instant now);
  void hit(std::size_t rule);
  void apply(std::size_t rule, const PacketFields&, Decision&);

  std::span<const Rule> rules_;
  std::span<SharedCount> total_;
  Instant opened_;
  std::vector<RuleCount> counts_;
  std::vector<Prng> random_;
  std::vector<std::uint32_t> packet_rules_, call_rules_;
  std::vector<std::uint32_t> timed_rules_;  // by time, the next one last
};

}  // namespace adverb::faults
