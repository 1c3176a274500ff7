// SPDX-License-Identifier: Apache-2.0
#include "engine/completer.hpp"

#include <algorithm>
#include <bit>

#include "base/assert.hpp"
#include "engine/requester.hpp"
#include "wire/aeth.hpp"

namespace adverb::engine {

using wire::Verb;

namespace {

constexpr unsigned infinite_rnr_retry = 7;

WcOpcode wc_opcode_of(WrOpcode o) {
  switch (o) {
    case WrOpcode::rdma_write:
    case WrOpcode::rdma_write_with_imm:
      return WcOpcode::rdma_write;
    case WrOpcode::rdma_read:
      return WcOpcode::rdma_read;
    case WrOpcode::atomic_cmp_and_swp:
      return WcOpcode::comp_swap;
    case WrOpcode::atomic_fetch_and_add:
      return WcOpcode::fetch_add;
    case WrOpcode::local_inv:
      return WcOpcode::local_inv;
    case WrOpcode::bind_mw:
      return WcOpcode::bind_mw;
    case WrOpcode::flush:
      return WcOpcode::flush;
    case WrOpcode::atomic_write:
      return WcOpcode::atomic_write;
    default:
      return WcOpcode::send;
  }
}

// Where the response's bytes are counted in a completion (ibv_poll_cq(3): byte_len of READs and
// atomics).
std::uint32_t byte_len_of(const SendWqe& wqe) {
  switch (wqe.opcode) {
    case WrOpcode::atomic_cmp_and_swp:
    case WrOpcode::atomic_fetch_and_add:
    case WrOpcode::atomic_write:
      return 8;
    default:
      return wqe.length;
  }
}

// The response verb and whether it belongs to a WQE.
bool answers(Verb response, WrOpcode request) {
  bool atomic =
      request == WrOpcode::atomic_cmp_and_swp || request == WrOpcode::atomic_fetch_and_add;
  return atomic ? response == Verb::atomic_ack : response == Verb::read_response;
}

// 4.096 us * 2^timeout (IBTA 9.7.6.1.3); 0 means no timeout.
Duration ack_timeout(unsigned code) { return Duration(std::int64_t{4096} << code); }

}  // namespace

void Completer::receive(Instant now, const RxFrame& f) {
  if (!running()) {
    ++e_.counters_.drop_qp_state;
    return;
  }
  const wire::Packet& p = f.packet;
  if (p.bth.psn - q_.comp.una < 0) {  // a ghost of something complete (IBTA 9.7.5.1.1)
    ++(p.info().verb == Verb::ack ? e_.counters_.stale_acks
                                  : e_.counters_.duplicated_read_responses);
    return;
  }
  if (p.bth.psn - q_.req.highest >= 0) {  // never sent
    ++e_.counters_.drop_unseen_psn;
    return;
  }
  if (p.info().verb == Verb::ack)
    acknowledge(now, p);
  else
    response(now, p);
  if (q_.req.blocked_on_error) report_local_error();
  e_.check_drained(q_);
  e_.make_ready(q_);
}

void Completer::acknowledge(Instant now, const wire::Packet& p) {
  ++e_.counters_.rcvd_acks;
  unsigned value = wire::aeth_value(p.aeth.syndrome);
  wire::AethKind kind = wire::aeth_kind(p.aeth.syndrome);
  if (kind == wire::AethKind::reserved) return void(++e_.counters_.drop_unexpected);
  if (kind == wire::AethKind::ack) update_credits(p);
  Covered covered = advance(now, kind == wire::AethKind::ack ? p.bth.psn + 1 : p.bth.psn);
  //= IBTA 9.7.5.1.2: an answer beyond a READ whose response is missing is an implied NAK
  if (covered == Covered::hole) return hole(now);
  if (covered == Covered::stopped) return;
  if (kind == wire::AethKind::rnr_nak) rnr_nak(now, value);
  if (kind == wire::AethKind::nak) nak(now, value);
}

// A READ response packet, an ATOMIC ACKNOWLEDGE, or the empty response of FLUSH and ATOMIC WRITE.
void Completer::response(Instant now, const wire::Packet& p) {
  Covered covered = advance(now, p.bth.psn);
  if (covered == Covered::hole) return hole(now);
  if (covered == Covered::stopped) return;
  ASSERT(q_.comp.acked != q_.sq->posted());
  SendWqe& wqe = q_.sq->at(q_.comp.acked);
  bool expected = wqe.started && Requester::needs_response(wqe.opcode) &&
                  p.bth.psn == wqe.first_psn + wqe.received && answers(p.info().verb, wqe.opcode);
  if (!expected) return void(++e_.counters_.drop_unexpected);
  if (!place_response(wqe, p)) return;

  std::uint32_t k = wqe.received++;
  bool read = wqe.opcode == WrOpcode::rdma_read;
  if (read && q_.req.psn - p.bth.psn > 0) {  // asked for since the last rewind, hence counted
    ASSERT(q_.req.read_bytes >= p.payload.size() && e_.read_bytes_ >= p.payload.size());
    q_.req.read_bytes -= p.payload.size();
    e_.read_bytes_ -= p.payload.size();
  }
  e_.room_freed_ = true;
  q_.comp.una = p.bth.psn + 1;
  if (!read || wqe.received == Requester(e_, q_).chunk_end(wqe, k)) --q_.req.reads_outstanding;
  if (wqe.received == wqe.packets) finish(WcStatus::success);
  if (!running()) return;
  Requester(e_, q_).skip_acknowledged();
  progress(now);
}

// Stores what a response carries; false: the WQE failed (IBTA 9.9.2, requester errors on
// responses).
bool Completer::place_response(SendWqe& wqe, const wire::Packet& p) {
  const wire::OpcodeInfo& info = p.info();
  auto list = q_.sq->sges(q_.comp.acked);
  SgStatus placed = SgStatus::ok;
  if (wqe.opcode == WrOpcode::rdma_read) {
    Requester r(e_, q_);
    std::uint32_t end = r.chunk_end(wqe, wqe.received);
    bool last = wqe.received + 1 == end;
    bool right = p.payload.size() == r.response_bytes(wqe, wqe.received, wqe.received + 1) &&
                 info.ends() == last;
    if (!right) return fail_oldest(WcStatus::bad_resp_err), false;
    placed = scatter(e_.keys_, q_.pd, list, std::uint64_t{wqe.received} * q_.mtu, p.payload.data(),
                     p.payload.size());
  } else if (info.verb == Verb::atomic_ack) {
    std::uint64_t original = p.atomic_ack.original;  // to host order in the application's memory
    placed = scatter(e_.keys_, q_.pd, list, 0, &original, sizeof original);
  } else if (!p.payload.empty() || info.place != wire::Place::only) {
    return fail_oldest(WcStatus::bad_resp_err), false;
  }
  if (placed == SgStatus::ok) return true;
  if (placed == SgStatus::fault) ++e_.counters_.memory_faults;
  fail_oldest(placed == SgStatus::too_short ? WcStatus::loc_len_err : WcStatus::loc_prot_err);
  return false;
}

// advance_to, and what new acknowledgements mean for the retry budgets.
Completer::Covered Completer::advance(Instant now, Psn end) {
  Psn before = q_.comp.una;
  bool all = advance_to(end);
  if (!running()) return Covered::stopped;
  if (q_.comp.una != before) progress(now);
  return all ? Covered::all : Covered::hole;
}

// A completion that overruns its CQ takes the QP to the error state and flushes the queue under our
// feet.
bool Completer::running() const {
  QpState state = q_.state.load(std::memory_order_relaxed);
  return state == QpState::rts || state == QpState::sqd;
}

// Everything before `end` is acknowledged; completes what that covers.  False: it covers a READ or
// atomic whose response has not arrived; then una is the first missing packet.
bool Completer::advance_to(Psn end) {
  bool all = true;
  while (end - q_.comp.una > 0) {
    ASSERT(q_.comp.acked != q_.sq->posted());
    SendWqe& wqe = q_.sq->at(q_.comp.acked);
    ASSERT(wqe.started);
    if (Requester::needs_response(wqe.opcode)) {
      all = false;
      break;
    }
    Psn wqe_end = wqe.first_psn + wqe.packets;
    Psn to = end - wqe_end >= 0 ? wqe_end : end;
    account(wqe, q_.comp.una, to);
    q_.comp.una = to;
    if (to == wqe_end) finish(WcStatus::success);
  }
  Requester(e_, q_).skip_acknowledged();
  return all;
}

// Gives back the window share of the acknowledged packets that count as in flight (those sent since
// a rewind).
void Completer::account(const SendWqe& wqe, Psn from, Psn to) {
  Psn sent = q_.req.psn - to < 0 ? q_.req.psn : to;
  std::int32_t packets = sent - from;
  Requester r(e_, q_);
  if (packets > 0) r.acknowledged(static_cast<std::uint64_t>(packets) * r.cost_of(wqe));
}

// Something new was acknowledged: the retry budgets are whole again (IBTA 9.7.6.1.3).
void Completer::progress(Instant now) {
  q_.comp.retries_left = q_.attr.retry_cnt;
  q_.comp.rnr_retries_left = q_.attr.rnr_retry;
  q_.comp.rewound = false;
  q_.comp.ack_deadline = never;
  set_timer(now);
}

void Completer::update_credits(const wire::Packet& p) {
  std::uint32_t credits = wire::credits_of(wire::aeth_value(p.aeth.syndrome));
  q_.comp.credits_valid = e_.config_.end_to_end_credits && credits != wire::no_credit_limit;
  if (q_.comp.credits_valid) q_.comp.limit_ssn = (p.aeth.msn + credits) & 0xffffff;
}

// A response is missing, as a later packet shows: asks again from the first that is missing, once
// until something new arrives.
void Completer::hole(Instant now) {
  if (q_.comp.rewound) return;
  ++e_.counters_.implied_nak_seq_err;
  retry(now, WcStatus::retry_exc_err);
}

void Completer::rnr_nak(Instant now, unsigned timer_code) {
  ++e_.counters_.rnr_nak_retry_err;
  if (q_.req.waiting_rnr) return;
  if (q_.attr.rnr_retry != infinite_rnr_retry) {
    if (q_.comp.rnr_retries_left == 0) {
      ++e_.counters_.rnr_retry_exceeded_err;
      return fail_oldest(WcStatus::rnr_retry_exc_err);
    }
    --q_.comp.rnr_retries_left;
  }
  q_.comp.retries_left = q_.attr.retry_cnt;  // the peer is alive
  Requester(e_, q_).rewind();
  q_.req.waiting_rnr = true;
  q_.comp.ack_deadline = never;
  e_.wheel_.arm(q_.rnr_timer, now + wire::rnr_timer(timer_code));
}

void Completer::nak(Instant now, unsigned code) {
  switch (static_cast<wire::NakCode>(code)) {
    case wire::NakCode::psn_sequence_error:
      ++e_.counters_.packet_seq_err;
      if (!q_.comp.rewound) retry(now, WcStatus::retry_exc_err);
      break;
    case wire::NakCode::invalid_request:
      ++e_.counters_.req_remote_invalid_request;
      fail_oldest(WcStatus::rem_inv_req_err);
      break;
    case wire::NakCode::remote_access_error:
      ++e_.counters_.req_remote_access_errors;
      fail_oldest(WcStatus::rem_access_err);
      break;
    case wire::NakCode::remote_operational_error:
      fail_oldest(WcStatus::rem_op_err);
      break;
    default:
      ++e_.counters_.drop_unexpected;
  }
}

// Go-back-N, if the budget allows.
void Completer::retry(Instant now, WcStatus when_exhausted) {
  if (q_.comp.retries_left == 0) {
    ++e_.counters_.retry_exceeded_err;
    return fail_oldest(when_exhausted);
  }
  --q_.comp.retries_left;
  q_.comp.rewound = true;
  Requester r(e_, q_);
  r.note_loss();
  r.rewind();
  q_.comp.ack_deadline = never;
  set_timer(now);
  e_.make_ready(q_);
}

void Completer::ack_timer_fired(Instant now) {
  if (q_.comp.ack_deadline == never) return;
  if (now < q_.comp.ack_deadline) return e_.wheel_.arm(q_.ack_timer, q_.comp.ack_deadline);
  q_.comp.ack_deadline = never;
  bool outstanding = q_.req.psn - q_.comp.una > 0;
  if (!outstanding || !running()) return;
  ++e_.counters_.local_ack_timeout_err;
  retry(now, WcStatus::retry_exc_err);
}

void Completer::rnr_timer_fired() {
  q_.req.waiting_rnr = false;
  e_.make_ready(q_);
}

void Completer::set_timer(Instant now) {
  bool outstanding = q_.req.psn - q_.comp.una > 0;
  if (!outstanding || q_.attr.timeout == 0 || q_.req.waiting_rnr) {
    q_.comp.ack_deadline = never;
    return;
  }
  if (q_.comp.ack_deadline != never) return;
  Duration t = std::max(ack_timeout(q_.attr.timeout), e_.config_.min_ack_timeout);
  //= IBTA 9.7.6.1.3: a timeout is seen after one to four times the interval
  // The first tries are for lost packets; the later ones give a peer that is kept from running as
  // long as they may.
  if (q_.attr.retry_cnt >= q_.comp.retries_left + 4) t *= 4;
  q_.comp.ack_deadline = now + t;
  // An armed timer fires no later than this and is then armed anew: no wheel operation per packet.
  if (!q_.ack_timer.armed || q_.ack_timer.deadline > q_.comp.ack_deadline)
    e_.wheel_.arm(q_.ack_timer, q_.comp.ack_deadline);
}

// The oldest WQE is complete, and with it what was executed behind it without a packet.
void Completer::finish(WcStatus status) {
  retire(status);
  if (status == WcStatus::success) finish_executed();
}

void Completer::finish_executed() {
  while (q_.comp.acked != q_.sq->posted() && q_.sq->at(q_.comp.acked).executed)
    retire(WcStatus::success);
}

void Completer::retire(WcStatus status) {
  ASSERT(q_.comp.acked != q_.sq->posted());
  SendWqe& wqe = q_.sq->at(q_.comp.acked);
  ++q_.comp.acked;
  if (status == WcStatus::success) {
    switch (wc_opcode_of(wqe.opcode)) {
      case WcOpcode::rdma_write:
        ++e_.counters_.writes;
        break;
      case WcOpcode::rdma_read:
        ++e_.counters_.reads;
        break;
      case WcOpcode::comp_swap:
      case WcOpcode::fetch_add:
        ++e_.counters_.atomics;
        break;
      case WcOpcode::bind_mw:
      case WcOpcode::local_inv:
        break;
      default:
        ++e_.counters_.sends;
    }
  } else {
    ++(status == WcStatus::wr_flush_err ? e_.counters_.req_cqe_flush_error
                                        : e_.counters_.req_cqe_error);
  }
  //= ibv_post_send(3): a failed work request completes whether it was signaled or not
  if (status == WcStatus::success && !q_.sq_sig_all && !(wqe.flags & send_signaled)) return;
  Cqe c;
  c.wr_id = wqe.wr_id;
  c.status = status;
  c.opcode = wc_opcode_of(wqe.opcode);
  c.byte_len = byte_len_of(wqe);
  c.sq_advance = q_.comp.acked - q_.comp.reported;
  q_.comp.reported = q_.comp.acked;
  e_.complete(q_, *q_.send_cq, c, status != WcStatus::success);
}

void Completer::report_local_error() {
  if (!q_.req.blocked_on_error || q_.comp.acked != q_.req.next) return;
  fail_oldest(q_.req.local_error);
}

void Completer::fail_oldest(WcStatus status) {
  finish(status);
  if (!running()) return;  // already in the error state, for the CQ's sake
  if (is_reliable(q_.type))
    e_.to_error(q_, AsyncEvent::qp_fatal, false);
  else
    e_.to_sqe(q_);
}

}  // namespace adverb::engine
