// SPDX-License-Identifier: Apache-2.0
// The data path of the engine and what it reports; object life cycles are in lifecycle.cpp.
#include "engine/engine.hpp"

#include <algorithm>
#include <utility>

#include "base/assert.hpp"
#include "engine/completer.hpp"
#include "engine/requester.hpp"
#include "engine/responder.hpp"

namespace adverb::engine {

using wire::Transport;
using wire::Verb;

namespace {

constexpr std::uint16_t default_pkey_base = 0x7fff;
constexpr unsigned frames_per_turn = 64;  // then the next ready QP has its turn
constexpr unsigned frames_before_answer = 4;
constexpr Duration credit_poll = std::chrono::microseconds(20);
constexpr Duration settle_delay = std::chrono::milliseconds(10);
constexpr Duration credit_patience = std::chrono::milliseconds(100);
constexpr Duration pace_burst = std::chrono::microseconds(200);  // of wire time
// Preamble, Ethernet, IPv4, UDP, FCS and the gap between frames.
constexpr std::uint64_t wire_overhead = 8 + 14 + 20 + 8 + 4 + 12;

}  // namespace

// --- receive

void Engine::receive(Instant now, const RxFrame& f) {
  now_ = now;
  if (f.protocol == Protocol::ethernet) return receive_ethernet(f);
  const wire::Packet& p = f.packet;
  const wire::OpcodeInfo& info = p.info();
  ++counters_.rcvd_pkts;
  counters_.rcvd_bytes += info.header_bytes + p.payload.size() + p.bth.pad_count;
  if (p.bth.dest_qp == multicast_qpn) return receive_multicast(f);
  account_credit(f);
  QueuePair* q = f.destination.is_multicast() ? nullptr : find(p.bth.dest_qp);
  if (!q && info.has(wire::ext_xrceth)) q = target_of(p);
  if (!q) {
    ++counters_.drop_no_qp;
  } else if (q->shared) {
    receive_shared(*q, f);
  } else {
    give(now, *q, f);
  }
}

void Engine::receive_shared(QueuePair& q, const RxFrame& f) {
  bool gone = false;
  {
    TargetTurn turn(*this, q);
    if (turn) return give(now_, q, f);
    gone = turn.gone();
  }
  ++(gone ? counters_.drop_no_qp : counters_.drop_target_busy);
  if (gone && !q.shared->held) drop_qp(q);
}

// Every attached queue pair gets it, but for the one that sent it (IBTA 10.5.2).  Nobody gave
// credit for it.
void Engine::receive_multicast(const RxFrame& f) {
  const auto members = multicast_.members(f.destination);
  if (members.empty()) ++counters_.drop_no_qp;
  const bool ours = std::find(gids_.begin(), gids_.end(), f.source) != gids_.end();
  for (QueuePair* q : members)
    if (!ours || f.packet.deth.src_qp != q->qpn) give(now_, *q, f);
}

// A frame that no rule asks for is nobody's, and costs nobody a counter.
void Engine::receive_ethernet(const RxFrame& f) {
  const auto key = wire::flow_key_of(f.packet.payload);
  bool wanted = false;
  flows_.deliver(key, f.outgoing, [&](QueuePair& q) {
    wanted = true;
    if (!q.scaling) return Responder(*this, q).receive(f);
    receive_into(q.scaling->table->pick(q.scaling->hash.of(key)), f.packet.payload);
  });
  if (!wanted) return;
  ++counters_.rcvd_pkts;
  counters_.rcvd_bytes += f.packet.payload.size();
}

void Engine::give(Instant now, QueuePair& q, const RxFrame& f) {
  const Verb verb = f.packet.info().verb;
  if (!admit_frame(q, f)) return;
  if (f.congestion_experienced()) Responder(*this, q).note_congestion(now);
  if (verb == Verb::cnp) {
    ++counters_.rp_cnp_handled;
  } else if (wire::is_response(verb)) {
    Completer(*this, q).receive(now, f);
  } else {
    Responder(*this, q).receive(f);
  }
}

// The checks that come before any of the QP's parts look at a packet (IBTA 9.6.1, transport header
// validation).  None of them can change the QP: a stranger's packet costs a counter.
bool Engine::admit_frame(const QueuePair& q, const RxFrame& f) {
  const wire::Packet& p = f.packet;
  QpState state = q.state.load(std::memory_order_relaxed);
  if (state == QpState::reset || state == QpState::init || state == QpState::error)
    return ++counters_.drop_qp_state, false;
  bool cnp = p.info().transport == Transport::cnp;
  if (cnp ? q.type == QpType::ud : !carries(q.type, p.info()))
    return ++counters_.drop_transport, false;
  //= IBTA 9.6.1.2.3 and 10.9.3: the low 15 bits must match; we are a full member of the default
  // partition
  if ((p.bth.pkey & 0x7fff) != default_pkey_base) return ++counters_.drop_pkey, false;
  const unsigned index = q.attr.av.sgid_index;
  bool ours =
      q.type == QpType::ud || (f.destination == gids_[index] && f.protocol == protocols_[index]);
  bool theirs = q.type == QpType::ud || f.source == q.attr.av.dgid;
  if (!ours || !theirs) return ++counters_.drop_source, false;
  if (q.type != QpType::ud && p.payload.size() > q.mtu && wire::is_response(p.info().verb))
    return ++counters_.drop_length, false;
  return true;
}

void Engine::account_credit(const RxFrame& f) {
  if (config_.slot >= lines_.size() || !is_local(f.source)) return;
  const wire::Packet& p = f.packet;
  std::uint64_t size =
      p.info().header_bytes + p.payload.size() + p.bth.pad_count + TxBurst::icrc_bytes;
  // One writer: whoever holds this engine.
  lines_[config_.slot].consumed.fetch_add(frame_cost(size), std::memory_order_relaxed);
}

// --- transmit

bool Engine::transmit(Instant now, TxBurst& tx) {
  now_ = now;
  fire_timers(now);
  if (!stores_.empty()) hear_news();
  retry_waiting();  // before the doorbells: who waited goes first
  drain_doorbells();
  while (ready_head_ && tx.has_room()) {
    QueuePair& q = *ready_head_;
    ready_head_ = q.next_ready;
    if (!ready_head_) ready_tail_ = nullptr;
    q.ready = false;
    // A few packets of its own go before the answer: an ACK, shorter than they are, then leaves in
    // the same bundle, and a ping-pong costs one send call a side.
    bool owes = Responder(*this, q).owes();
    bool more = Requester(*this, q).send(now, tx, owes ? frames_before_answer : frames_per_turn);
    if (owes) more = answer(q, tx) || more;
    if (more) make_ready(q);
  }
  return ready_head_ != nullptr;
}

bool Engine::answer(QueuePair& q, TxBurst& tx) {
  TargetTurn turn(*this, q);
  if (turn) return Responder(*this, q).respond(tx);
  forget_owed(q);  // as if it were lost on the way
  return false;
}

Instant Engine::next_deadline() const {
  Instant deadline = std::min(wheel_.next_deadline(), settle_wake_);
  for (const QueuePair* q = waiting_; q; q = q->next_waiting) {
    // Same-host credit comes back without a packet: look again soon.
    if (q->type == QpType::ud || (q->destination && q->destination->line))
      return std::min(deadline, now_ + credit_poll);
    if (q->type == QpType::uc || q->type == QpType::raw_packet)
      deadline = std::min(deadline, pace_open_);
  }
  return deadline;
}

void Engine::fire_timers(Instant now) {
  while (Timer* t = wheel_.expire(now)) {
    if (t->kind == timer_of_cq) {
      raise_completion(*static_cast<CompletionQueue*>(t->owner));
      continue;
    }
    auto& q = *static_cast<QueuePair*>(t->owner);
    if (t == &q.ack_timer)
      Completer(*this, q).ack_timer_fired(now);
    else
      Completer(*this, q).rnr_timer_fired();
  }
}

void Engine::make_ready(QueuePair& q) {
  if (q.ready) return;
  q.ready = true;
  q.next_ready = nullptr;
  (ready_tail_ ? ready_tail_->next_ready : ready_head_) = &q;
  ready_tail_ = &q;
}

void Engine::wait_for_room(QueuePair& q) {
  if (q.req.waiting) return;
  q.req.waiting = true;
  q.next_waiting = waiting_;
  waiting_ = &q;
}

// Without a packet that says so: as same-host credit, or as time that has passed.
bool Engine::room_may_have_come(const QueuePair& q) const {
  if (q.type == QpType::ud || (q.destination && q.destination->line)) return true;
  return !is_reliable(q.type) && now_ >= pace_open_;
}

void Engine::retry_waiting() {
  if (!waiting_) return;
  bool look = room_freed_;
  for (QueuePair* q = waiting_; q && !look; q = q->next_waiting) look = room_may_have_come(*q);
  if (!look) return;
  room_freed_ = false;
  // The list is last in, first out: turn it round, so that the QP that has waited longest is first.
  QueuePair* oldest_first = nullptr;
  while (QueuePair* q = waiting_) {
    waiting_ = q->next_waiting;
    q->next_waiting = oldest_first;
    oldest_first = q;
  }
  while (QueuePair* q = oldest_first) {
    oldest_first = q->next_waiting;
    q->req.waiting = false;
    make_ready(*q);
  }
}

// --- doorbells: a lock-free stack that any thread pushes to and the engine takes whole

void Engine::ring_doorbell(QueuePair& q) {
  if (q.doorbell.exchange(true, std::memory_order_seq_cst)) return;
  QueuePair* head = doorbells_.load(std::memory_order_relaxed);
  do {
    q.next_doorbell.store(head, std::memory_order_relaxed);
  } while (!doorbells_.compare_exchange_weak(head, &q, std::memory_order_seq_cst));
}

void Engine::drain_doorbells() {
  QueuePair* taken = doorbells_.exchange(nullptr, std::memory_order_seq_cst);
  QueuePair* in_order = nullptr;
  while (taken) {
    QueuePair* next = taken->next_doorbell.load(std::memory_order_relaxed);
    taken->next_doorbell.store(in_order, std::memory_order_relaxed);
    in_order = taken;
    taken = next;
  }
  while (QueuePair* q = in_order) {
    in_order = q->next_doorbell.load(std::memory_order_relaxed);
    q->doorbell.store(false, std::memory_order_seq_cst);  // before the cursors are read
    QpState state = q->state.load(std::memory_order_seq_cst);
    if (state == QpState::error) flush_receives(*q);
    if (state == QpState::error || state == QpState::sqe) flush_sends(*q);
    make_ready(*q);
  }
}

// --- same-host credit

bool Engine::is_local(const Gid& gid) const {
  return std::find(host_gids_.begin(), host_gids_.end(), gid) != host_gids_.end();
}

CreditLine* Engine::line_of(const Gid& gid, Qpn qpn) {
  return qpn.slot() < lines_.size() && is_local(gid) ? &lines_[qpn.slot()] : nullptr;
}

bool Engine::credit_exhausted(const CreditLine& line, std::uint64_t& seen,
                              std::uint64_t cost) const {
  const std::uint64_t put = line.enqueued.load(std::memory_order_relaxed);
  const auto over = [&] {
    const auto used = static_cast<std::int64_t>(put - seen);
    return used > 0 && static_cast<std::uint64_t>(used) + cost > credit_limit_;
  };
  if (!over()) return false;
  seen = line.consumed.load(std::memory_order_relaxed);  // the receiver's cache line: only now
  return over();
}

// A receiver that is stopped or hangs: hardware would send, and the receiver drop.  The time counts
// from when the credit was first found exhausted, and anew whenever some comes back.
bool Engine::credit_stalled(const CreditLine& line) {
  Stall& stall = stall_of(line);
  const std::uint64_t consumed = line.consumed.load(std::memory_order_relaxed);
  if (stall.since == never || stall.consumed != consumed) stall = {consumed, now_};
  return now_ - stall.since >= credit_patience;
}

// --- the pace of what nobody acknowledges

// A NIC sends at the speed of its link, and receivers are made for that.  Software has no link: a
// sender outruns a receiver whose process is kept from running, and overflows its socket.  So UC
// and UD keep to the link's speed by the clock, half a burst at a time for the bundles' sake.
void Engine::pace(std::uint64_t bytes) {
  if (config_.link_rate == 0) return;
  const std::uint64_t ns = (bytes + wire_overhead) * 1'000'000'000 / config_.link_rate;
  wire_free_ = std::max(wire_free_, now_) + Duration(static_cast<Duration::rep>(ns));
  if (wire_free_ - now_ > pace_burst) pace_open_ = wire_free_ - pace_burst / 2;
}

// --- the credit of this host's receivers, as they settle it

std::uint64_t Engine::credit_mark() const {
  return config_.slot < lines_.size()
             ? lines_[config_.slot].enqueued.load(std::memory_order_acquire)
             : 0;
}

// Every socket was empty after `mark` was read.  A sender adds before it sends: what was put in and
// has not come out may still be on its way, and counts as lost only after a while.  If a sender was
// held up for longer, more comes out than was put in, which is set right here too.
void Engine::credit_settle(std::uint64_t mark) {
  if (config_.slot >= lines_.size()) return;
  CreditLine& line = lines_[config_.slot];
  const std::uint64_t consumed = line.consumed.load(std::memory_order_relaxed);
  const auto missing = [&](std::uint64_t put) { return static_cast<std::int64_t>(put - consumed); };
  if (missing(mark) <= 0) {
    settle_at_ = never;
    const std::uint64_t put = line.enqueued.load(std::memory_order_acquire);
    if (missing(put) < 0) line.consumed.store(put, std::memory_order_relaxed);
  } else if (settle_at_ == never || missing(settle_mark_) <= 0) {
    settle_at_ = now_ + settle_delay;
    settle_mark_ = mark;
  } else if (now_ >= settle_at_) {
    settle_at_ = never;
    line.consumed.store(settle_mark_, std::memory_order_relaxed);
  }
  // The deadline that others see outlives its reason, as timers do: a ping-pong would set and take
  // back one per message, and wake a sleeper for each.
  if (settle_wake_ == never || settle_wake_ <= now_) settle_wake_ = settle_at_;
}

// --- completions and events

void Engine::complete(QueuePair& q, CompletionQueue& cq, Cqe c, bool solicited) {
  if (cq.overrun) return;
  // What came by XRC is the SRQ's, and stays when the target goes.
  c.qp = q.type == QpType::xrc_recv ? nullptr : &q;
  c.qp_num = q.qpn;
  if (add_entry(cq, c, solicited)) return;
  if (cq.ignore_overrun) {
    if (c.sq_advance) q.sq->reap(c.sq_advance);  // nobody will poll it
    return;
  }
  raise_cq_error(cq);
  to_error(q, AsyncEvent::qp_fatal, true);  // an XRC target uses no CQ but for this
}

// False: there was no room, which is counted.
bool Engine::add_entry(CompletionQueue& cq, Cqe& c, bool solicited) {
  c.completed_at = static_cast<std::uint64_t>(now_.time_since_epoch().count());
  c.vendor_err = c.status == WcStatus::success ? 0 : 0x100u | static_cast<unsigned>(c.status);
  if (!cq.push(c)) return ++counters_.cq_overruns, false;
  note_entry(cq, solicited);
  return true;
}

void Engine::note_entry(CompletionQueue& cq, bool solicited) {
  if (cq.moderation_count <= 1) {
    if (cq.disarm_for(solicited)) raise_completion(cq);
    return;
  }
  if (!cq.armed_for(solicited)) return;
  if (++cq.moderated >= cq.moderation_count) return raise_completion(cq);
  if (cq.moderated == 1) wheel_.arm(cq.moderation_timer, now_ + cq.moderation_period);
}

void Engine::raise_completion(CompletionQueue& cq) {
  if (std::exchange(cq.moderated, 0)) {
    wheel_.cancel(cq.moderation_timer);
    cq.disarm_for(true);
  }
  cq.event_pending = true;
  list_cq(cq);
}

//= IBTA 10.2.6.3 and 11.6.3.3: a CQ that overflowed takes the QPs that use it to the error state
void Engine::raise_cq_error(CompletionQueue& cq) {
  cq.overrun = cq.error_pending = true;
  list_cq(cq);
  for (std::uint32_t i = 0; i < config_.max_qp; ++i) {
    QueuePair* q = qps_[i].get();
    if (q && q->type != QpType::xrc_recv && (q->send_cq == &cq || q->recv_cq == &cq))
      to_error(*q, AsyncEvent::qp_fatal, true);
  }
  for (auto& wq : wqs_)
    if (wq->cq == &cq) to_error(*wq, true);
}

void Engine::list_cq(CompletionQueue& cq) {
  if (cq.listed) return;
  cq.listed = true;
  cq.next_event = cq_events_;
  cq_events_ = &cq;
}

void Engine::list_qp(QueuePair& q) {
  if (q.listed) return;
  q.listed = true;
  q.next_event = qp_events_;
  qp_events_ = &q;
}

void Engine::list_srq(SharedReceiveQueue& srq) {
  if (srq.listed) return;
  srq.listed = true;
  srq.next_event = srq_events_;
  srq_events_ = &srq;
}

void Engine::raise(QueuePair& q, AsyncEvent event) {
  if (q.shared) q.shared->events[q.shared->event_count++ % TargetShare::events_kept] = event;
  raise_here(q, event);
}

void Engine::raise_here(QueuePair& q, AsyncEvent event) {
  if (q.shared && !q.shared->held) return;
  q.pending_events |= 1u << static_cast<unsigned>(event);
  list_qp(q);
}

//= IBTA 11.6.3.1: once, when fewer WQEs than the limit are left
void Engine::check_srq_limit(SharedReceiveQueue& srq) {
  std::uint32_t limit = srq.limit.load(std::memory_order_relaxed);
  if (!limit || srq.queue.available() >= limit) return;
  srq.limit.store(0, std::memory_order_relaxed);
  srq.limit_pending = true;
  list_srq(srq);
}

unsigned Engine::take_events(std::span<EventRecord> out) {
  unsigned n = 0;
  while (cq_events_ && n + 2 <= out.size()) {
    CompletionQueue& cq = *cq_events_;
    cq_events_ = cq.next_event;
    cq.listed = false;
    if (std::exchange(cq.event_pending, false)) out[n++] = {EventRecord::completion, {}, cq.user};
    if (std::exchange(cq.error_pending, false))
      out[n++] = {EventRecord::cq, AsyncEvent::cq_err, cq.user};
  }
  while (qp_events_ && n < out.size()) {
    QueuePair& q = *qp_events_;
    auto event = static_cast<unsigned>(__builtin_ctz(q.pending_events));
    q.pending_events &= q.pending_events - 1;
    out[n++] = {EventRecord::qp, static_cast<AsyncEvent>(event), q.user};
    if (q.pending_events) continue;
    qp_events_ = q.next_event;
    q.listed = false;
  }
  while (srq_events_ && n + 2 <= out.size()) {
    SharedReceiveQueue& srq = *srq_events_;
    srq_events_ = srq.next_event;
    srq.listed = false;
    if (std::exchange(srq.limit_pending, false))
      out[n++] = {EventRecord::srq, AsyncEvent::srq_limit_reached, srq.user};
    if (std::exchange(srq.error_pending, false))
      out[n++] = {EventRecord::srq, AsyncEvent::srq_err, srq.user};
  }
  while (wq_events_ && n < out.size()) {
    ReceiveWorkQueue& wq = *wq_events_;
    wq_events_ = wq.next_event;
    wq.listed = false;
    out[n++] = {EventRecord::wq, AsyncEvent::wq_fatal, wq.user};
  }
  return n;
}

}  // namespace adverb::engine
