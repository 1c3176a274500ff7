// SPDX-License-Identifier: Apache-2.0
// What must be so of reliable requesters on the wire, by the attributes and the specification
// alone: when a packet may be sent, how often, and by when an answer or an error is due.
#include <algorithm>

#include "engine/requester.hpp"
#include "sim/world.hpp"
#include "wire/aeth.hpp"

namespace adverb::sim {

using engine::QpState;
using engine::QpType;
using engine::Requester;
using engine::SendWqe;

namespace {

constexpr Duration slack = std::chrono::microseconds(50);

Duration timeout_of(const PairSpec& spec) { return Duration(std::int64_t{4096} << spec.timeout); }

}  // namespace

bool World::running(const End& e) const {
  const QpState s = e.qp->state.load();
  return s == QpState::rts || s == QpState::sqd;
}

// From the last progress on, by then an answer or an error is there: each try lasts one to four
// times the interval (IBTA 9.7.6.1.3).
Duration World::patience(const PairSpec& spec) const {
  if (spec.type != QpType::rc || spec.timeout == 0) return Duration::zero();
  return timeout_of(spec) * 4 * (spec.retry_cnt + 1) + slack +
         Duration((spec.retry_cnt + 1) * 4 * static_cast<std::int64_t>(s_.hosts[0].step + 2048));
}

// Returns the PSN of the first request of the exchange that the frame belongs to.
std::optional<Psn> World::watch_sent(Host& h, const engine::TxFrame& f, const std::uint8_t* bytes) {
  auto packet = wire::decode({bytes, f.size});
  if (!packet) violated("host {} sends a frame that does not decode", h.index);
  if (trace_.wants_lines())
    trace_.line(now_, "{} sends from qp {:#x}: {}", h.index, f.src_qp.raw(), describe(*packet));
  const Qpn qpn = f.src_qp;
  End* e = qpn.index() < h.by_index.size() ? h.by_index[qpn.index()] : nullptr;
  if (!e || e->qp->qpn != qpn) violated("host {} sends for a queue pair that is gone", h.index);
  const wire::Bth& b = packet->bth;  // C59
  if (!b.mig_req || b.tver || b.fecn || b.pkey != 0xffff)
    violated("{}: a BTH with wrong constant fields", name(*e));
  if (e->pair->spec->type != QpType::rc && b.ack_request)
    violated("{}: AckReq on an unreliable transport", name(*e));
  const bool response = wire::is_response(packet->info().verb);
  if (e->pair->spec->type == QpType::rc && !response) watch_request(*e, *packet);
  const bool sequence_nak =
      packet->info().verb == wire::Verb::ack &&
      wire::aeth_kind(packet->aeth.syndrome) == wire::AethKind::nak &&
      wire::nak_code(packet->aeth.syndrome) == wire::NakCode::psn_sequence_error;
  if (sequence_nak && !e->watch.ahead)
    violated("{}: {}, but nothing beyond the expected PSN came", name(*e), describe(*packet));
  return response ? e->peer->first_psn : e->first_psn;
}

void World::watch_request(End& e, const wire::Packet& p) {
  Watch& w = e.watch;
  engine::QueuePair& q = *e.qp;
  const Psn psn = p.bth.psn;
  if (instant() < w.rnr_until)
    violated("{}: {} sent {} ns before its RNR timer ends", name(e), describe(p),
             (w.rnr_until - instant()).count());
  if (psn - w.sent > 0)
    violated("{}: {} skips PSNs, {:#x} is next", name(e), describe(p), w.sent.raw());
  if (psn == w.una) {
    ++w.sends;
    w.resend = false;
  }
  if (psn != w.sent) return;
  std::uint32_t psns = 1;
  const std::uint32_t mtu = engine::bytes_of(e.pair->spec->mtu);
  if (p.info().verb == wire::Verb::read && p.reth.dma_length)
    psns = (p.reth.dma_length - 1) / mtu + 1;
  w.sent = w.sent + psns;
  const bool begins = p.info().starts() && w.begun < e.posted() && q.sq->at(w.begun).started &&
                      q.sq->at(w.begun).first_psn == psn;
  if (!begins) return;
  const std::uint32_t cursor = w.begun++;
  if (!(e.ops[cursor].flags & engine::send_fence)) return;
  //= IBTA 10.8.3.3: a fenced WQE waits for all prior READs and atomics
  for (std::uint32_t i = q.comp.acked; i < cursor; ++i)
    if (Requester::needs_response(e.ops[i].opcode))
      violated("{}: the fenced WQE {} is sent before the {} of WQE {} is complete", name(e), cursor,
               name_of(e.ops[i].opcode), i);
}

// An answer came, from the right address, while the queue pair ran.
void World::watch_received(End& e, const wire::Packet& p, Psn una_before, bool was_waiting) {
  Watch& w = e.watch;
  engine::QueuePair& q = *e.qp;
  const bool alive = running(e);
  const wire::AethKind kind = wire::aeth_kind(p.aeth.syndrome);
  const bool ack = p.info().verb == wire::Verb::ack;
  if (alive && q.comp.una != w.una) {
    w.una = q.comp.una;
    w.sends = w.una - w.sent < 0 ? 1 : 0;
    w.rnr_naks = 0;
    w.resend = false;
    w.progress = instant();
  }
  // While the timer of one runs, another says nothing new.
  if (ack && kind == wire::AethKind::rnr_nak && !was_waiting &&
      (alive ? p.bth.psn == q.comp.una && p.bth.psn - q.req.highest < 0
             : p.bth.psn - una_before >= 0)) {
    ++w.rnr_naks;
    w.progress = instant();
    if (alive) w.rnr_until = instant() + wire::rnr_timer(wire::aeth_value(p.aeth.syndrome));
    if (alive && e.pair->spec->rnr_retry != 7 && w.rnr_naks > e.pair->spec->rnr_retry)
      violated("{}: {} RNR NAKs without an error, with rnr_retry {}", name(e), w.rnr_naks,
               e.pair->spec->rnr_retry);
    return;
  }
  if (!alive || w.sends != 1 || q.comp.acked == q.sq->posted()) return;
  if (p.bth.psn - q.req.highest >= 0) return;
  //= IBTA 9.7.5.1.2: an answer beyond a READ whose response is missing is an implied NAK
  const SendWqe& oldest = q.sq->at(q.comp.acked);
  const Psn end = ack && kind == wire::AethKind::ack ? p.bth.psn + 1 : p.bth.psn;
  const bool hole =
      end - q.comp.una > 0 && oldest.started && Requester::needs_response(oldest.opcode);
  const bool sequence_nak = ack && kind == wire::AethKind::nak && p.bth.psn == q.comp.una &&
                            wire::nak_code(p.aeth.syndrome) == wire::NakCode::psn_sequence_error;
  if (hole || sequence_nak) w.resend = true;
}

// A request came, from the right address.
void World::watch_request_in(End& e, const wire::Packet& p, Psn expected_before) {
  if (e.qp->resp.expected != expected_before)
    e.watch.ahead = false;
  else if (p.bth.psn - expected_before > 0)
    e.watch.ahead = true;
}

void World::watch_step(Host& h) {
  for (End* e : h.ends)
    if (e->qp && e->pair->state == Pair::State::up && e->pair->spec->type == QpType::rc &&
        running(*e))
      watch_limits(*e);
}

void World::watch_limits(End& e) {
  Watch& w = e.watch;
  const engine::QueuePair& q = *e.qp;
  const PairSpec& spec = *e.pair->spec;
  if (q.comp.una != w.una) violated("{}: PSNs are acknowledged without an answer", name(e));
  if (w.resend && !q.req.waiting && !q.req.waiting_rnr)
    violated("{}: it knows that PSN {:#x} was lost and does not send it again", name(e),
             w.una.raw());
  const std::uint32_t posted = q.sq->posted();
  if (q.req.next - q.comp.acked > posted - q.comp.acked || posted - q.comp.acked > spec.depth)
    violated("{}: send queue cursors {} {} {}", name(e), q.comp.acked, q.req.next, posted);
  if (q.req.reads_outstanding > spec.rd_atomic)
    violated("{}: {} READs outstanding, max_rd_atomic {}", name(e), q.req.reads_outstanding,
             spec.rd_atomic);
  if (q.destination->in_flight > std::max(e.host->spec->window, e.host->spec->max_window) + 8192)
    violated("{}: {} bytes in flight, above every window", name(e), q.destination->in_flight);
  const bool outstanding = q.req.psn - q.comp.una > 0 || q.req.waiting_rnr;
  if (outstanding && !w.outstanding) w.progress = instant();
  w.outstanding = outstanding;
  if (q.req.waiting_rnr) w.progress = instant();
  if (!outstanding || spec.timeout == 0) return;
  const Instant resumed{Duration(e.host->paused_until / 1000)};
  const Instant since = std::max({w.progress, resumed, w.rnr_until});
  if (instant() - since > patience(spec))
    violated("{}: {} ns without progress or error; its attributes allow {}", name(e),
             (instant() - since).count(), patience(spec).count());
}

}  // namespace adverb::sim
