// SPDX-License-Identifier: Apache-2.0
// The deterministic world: engines, links and applications in virtual time, driven by one queue of
// events, with oracles that know what must be so.  The engine is the product's own, bit for bit.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "sim/network.hpp"
#include "sim/node.hpp"

namespace adverb::sim {

struct Result {
  std::string violation;  // empty: everything held
  std::uint64_t hash = 0;
  Picoseconds end = 0;
  std::uint64_t events = 0, frames = 0, operations = 0;
  std::uint64_t completions_in_error = 0, generations = 0;
  bool ok() const { return violation.empty(); }
};

class World {
 public:
  World(const Scenario&, Trace&);
  World(const World&) = delete;
  Result run();

 private:
  // world.cpp: the loop
  void dispatch(const Item&);
  void happen(const Event&);
  void arrive(Host&, std::uint32_t frame);
  void step(Host&);
  void receive(Host&, std::uint32_t frame);
  void transmit(Host&);
  void plan_step(Host&, Picoseconds at);
  void plan_next(Host&);
  bool done();
  bool rescue();
  Instant instant() const { return Instant(Duration(now_ / 1000)); }

  // hosts.cpp: processes and queue pairs come and go
  void boot(Host&);
  void crash(Host&, Nanoseconds duration);
  void register_memory(End&);
  void build(Pair&);
  void connect(End&);
  void break_pair(Pair&);
  void pair_due(Pair&);
  void tear_down(Pair&);
  void forget(End&);
  void settle(End&);
  void reclaim(ReceivePool&, const engine::QueuePair*);
  void deregister(End&);
  void ghost(End&);
  void heal();

  // work.cpp: what applications do
  void work(Host&);
  void post_receives(End&);
  void post_slots(ReceivePool&, std::uint32_t lag, Prng&, unsigned max_sge);
  bool post_sends(End&);
  bool post_one(End&);
  bool draw(End&, Op&);
  bool from_work(End&, Op&);
  bool shape(End&, Op&, Prng&);
  bool place_sink(End&, Op&);
  void fill(End&, const Op&, engine::SendWqe&, Prng&);
  void fill_list(End&, const Op&, engine::SendWqe&, Prng&);
  void remember(End&, Op&);

  // oracle.cpp: what must be so of completions and memory
  bool collect(Host&);
  void check_send(End&, const engine::Cqe&);
  void check_failure(End&, const Op&, engine::WcStatus);
  void know(End&, std::uint32_t cursor);
  void check_returned(End&, const Op&);
  void check_target(End&, std::uint32_t cursor);
  std::uint32_t explained(const End&, std::uint32_t from, std::uint32_t at,
                          const std::uint8_t* bytes, std::uint32_t most) const;
  const std::uint8_t* content(const End&, const Op&) const;
  bool writes(const Op&) const;
  void check_receive(End&, const engine::Cqe&);
  void check_payload(End&, const Op&, ReceivePool&, std::uint32_t slot, const engine::Cqe&);
  void check_invalidated(End&, const engine::Cqe&);
  void check_receive_failure(End&, const engine::Cqe&);
  void check_delivered(End&);
  void check_unreliable_area(End&);
  const Op* find_sent(const End&, std::uint32_t id) const;
  bool clean(const End&) const;
  void check_quiet(End&);
  void check_expectation();
  void finish();

  // monitor.cpp: what must be so of the wire and of the engine's state
  std::optional<Psn> watch_sent(Host&, const engine::TxFrame&, const std::uint8_t* bytes);
  void watch_request(End&, const wire::Packet&);
  void watch_received(End&, const wire::Packet&, Psn una_before, bool was_waiting);
  void watch_request_in(End&, const wire::Packet&, Psn expected_before);
  void watch_step(Host&);
  void watch_limits(End&);
  Duration patience(const PairSpec&) const;
  bool running(const End&) const;

  std::string name(const End&) const;
  std::string undone() const;

  Scenario s_;
  Trace& trace_;
  EventQueue queue_;
  Network network_;
  std::vector<std::unique_ptr<Host>> hosts_;
  std::vector<std::unique_ptr<Pair>> pairs_;
  std::vector<std::uint8_t> arena_;
  std::unique_ptr<engine::TxBurst> burst_;
  Picoseconds now_ = 0;
  bool healed_ = false;
  Picoseconds deadline_ = 0;
  Result result_;
};

}  // namespace adverb::sim
