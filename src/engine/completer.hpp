// SPDX-License-Identifier: Apache-2.0
// The completer: turns acknowledgements, NAKs, responses and time into completions and retries
// (IBTA 9.7.6, 9.9.2).  It owns the `acked` cursor.
#pragma once

#include "engine/engine.hpp"

namespace adverb::engine {

class Completer {
 public:
  Completer(Engine& engine, QueuePair& qp) : e_(engine), q_(qp) {}

  // ACKNOWLEDGE, READ RESPONSE or ATOMIC ACKNOWLEDGE from the peer.
  void receive(Instant now, const RxFrame&);
  void ack_timer_fired(Instant now);
  void rnr_timer_fired();

  // Completes the WQE at `acked`, and after a success what finish_executed() may; a failure also
  // takes the QP to the error state (RC) or SQE (UC, UD).
  void finish(WcStatus);
  // Completes what was executed without a packet, if nothing before it is on its way.
  void finish_executed();
  // The WQE at `next` failed locally: reported as soon as all before it are complete.
  void report_local_error();
  // (Re)starts or stops the ACK timer according to what is outstanding.
  void set_timer(Instant now);

 private:
  void acknowledge(Instant now, const wire::Packet&);
  void response(Instant now, const wire::Packet&);
  bool place_response(SendWqe&, const wire::Packet&);
  enum class Covered : std::uint8_t { all, hole, stopped };
  Covered advance(Instant now, Psn end);
  bool running() const;  // RTS or SQD
  bool advance_to(Psn end);
  void account(const SendWqe&, Psn from, Psn to);
  void progress(Instant now);
  void update_credits(const wire::Packet&);
  void hole(Instant now);
  void rnr_nak(Instant now, unsigned timer_code);
  void nak(Instant now, unsigned code);
  void retry(Instant now, WcStatus when_exhausted);
  void fail_oldest(WcStatus);
  void retire(WcStatus);

  Engine& e_;
  QueuePair& q_;
};

}  // namespace adverb::engine
