// SPDX-License-Identifier: Apache-2.0
// What must be so of completions and of memory: every WQE completes once and in order; what
// completed with success was done, once, and its data is in place; what was refused or failed left
// nothing that it may not leave; no other byte changed.
#include <algorithm>

#include "engine/requester.hpp"
#include "sim/world.hpp"

namespace adverb::sim {

using engine::Cqe;
using engine::QpState;
using engine::QpType;
using engine::Requester;
using engine::WcOpcode;
using engine::WcStatus;
using engine::WrOpcode;

namespace {

bool is_word(WrOpcode o) {
  return o == WrOpcode::atomic_cmp_and_swp || o == WrOpcode::atomic_fetch_and_add ||
         o == WrOpcode::atomic_write;
}

// Not the engine's function: an oracle that asked the engine could not find it wrong.
WcOpcode completed_as(WrOpcode o) {
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
    case WrOpcode::flush:
      return WcOpcode::flush;
    case WrOpcode::atomic_write:
      return WcOpcode::atomic_write;
    default:
      return WcOpcode::send;
  }
}

bool covers(const Op& op, std::uint32_t at) {
  return at >= op.target && at - op.target < op.length;
}

}  // namespace

// Takes all completions; false when there were none.
bool World::collect(Host& h) {
  if (h.down) return false;
  Cqe c[32];
  bool any = false;
  for (unsigned n; (n = h.send_cq->poll(std::size(c), c)) != 0;)
    for (unsigned i = 0; i < n; ++i) {
      End& e = pairs_[(c[i].wr_id >> 33)]->end[c[i].wr_id >> 32 & 1];
      any = true;
      trace_.note(c[i].wr_id ^ now_, static_cast<std::uint64_t>(c[i].status) << 32 | c[i].byte_len);
      if (e.qp != c[i].qp) violated("{}: a completion of another queue pair", name(e));
      check_send(e, c[i]);
    }
  for (unsigned n; (n = h.recv_cq->poll(std::size(c), c)) != 0;)
    for (unsigned i = 0; i < n; ++i) {
      End& e = *static_cast<End*>(c[i].qp->user);
      any = true;
      trace_.note(~c[i].wr_id ^ now_,
                  static_cast<std::uint64_t>(c[i].status) << 32 | c[i].byte_len);
      if (e.qp != c[i].qp) violated("{}: a completion of another queue pair", name(e));
      check_receive(e, c[i]);
    }
  return any;
}

// --- the requester's side

void World::check_send(End& e, const Cqe& c) {
  const auto cursor = static_cast<std::uint32_t>(c.wr_id);
  if (trace_.wants_lines())
    trace_.line(now_, "{}: send WQE {} completes: {}", name(e), cursor, name_of(c.status));
  if (cursor >= e.posted()) violated("{}: completion of WQE {}, never posted", name(e), cursor);
  if (cursor < e.completed) violated("{}: WQE {} completes for the second time", name(e), cursor);
  const Op& op = e.ops[cursor];
  for (std::uint32_t i = e.completed; i < cursor; ++i) {
    if (e.ops[i].flags & engine::send_signaled)
      violated("{}: WQE {} completes, but the signaled WQE {} before it did not", name(e), cursor,
               i);
    if (e.failed && e.known != i)
      violated("{}: WQE {} was not flushed, though a later one was", name(e), i);
    know(e, i);
  }
  e.completed = cursor + 1;
  if (!e.pair->fresh) e.last_completion = now_;
  if (c.opcode != completed_as(op.opcode))
    violated("{}: WQE {} ({}) completes with opcode {}", name(e), cursor, name_of(op.opcode),
             static_cast<int>(c.opcode));
  if (c.status == WcStatus::success) {
    if (e.known != cursor) violated("{}: WQE {} succeeds after a failed one", name(e), cursor);
    if (!(op.flags & engine::send_signaled))
      violated("{}: WQE {} completes, but is not signaled", name(e), cursor);
    if (op.wrong != Wrong::none)
      violated("{}: WQE {} ({}, wrong {}) succeeds, but must be refused", name(e), cursor,
               name_of(op.opcode), static_cast<int>(op.wrong));
    if (c.byte_len != op.length)
      violated("{}: WQE {}: byte_len {}, not {}", name(e), cursor, c.byte_len, op.length);
    know(e, cursor);
    return;
  }
  ++result_.completions_in_error;
  check_failure(e, op, c.status);
  if (e.first_error == WcStatus::success && c.status != WcStatus::wr_flush_err)
    e.first_error = c.status, e.first_error_at = now_;
  e.failed = true;
  break_pair(*e.pair);
}

// Is this a failure that the operation, its peer and the network gave cause for?
void World::check_failure(End& e, const Op& op, WcStatus status) {
  const PairSpec& spec = *e.pair->spec;
  const bool target_gone = !e.peer->target_region || e.peer->host->down;
  bool due = false;
  switch (status) {
    case WcStatus::wr_flush_err:
      due = e.qp->state.load() == QpState::error;
      break;
    case WcStatus::retry_exc_err:
      due = !e.failed && spec.type == QpType::rc && !clean(e);
      if (due && e.watch.sends < spec.retry_cnt + 1u)
        violated("{}: RETRY_EXC_ERR after the packet was sent {} times, with retry_cnt {}", name(e),
                 e.watch.sends, spec.retry_cnt);
      break;
    case WcStatus::rnr_retry_exc_err:
      due = !e.failed && spec.rnr_retry != 7 && e.watch.rnr_naks > spec.rnr_retry;
      break;
    case WcStatus::rem_access_err:
      due = op.wrong == Wrong::key || op.wrong == Wrong::domain || op.wrong == Wrong::range ||
            op.wrong == Wrong::rights ||
            (target_gone && !(op.opcode == WrOpcode::send || op.opcode == WrOpcode::send_with_imm));
      break;
    case WcStatus::rem_inv_req_err:
      due = op.wrong == Wrong::alignment || op.wrong == Wrong::long_send;
      break;
    case WcStatus::loc_prot_err:
      due = op.wrong == Wrong::local_key;
      break;
    default:
      break;
  }
  if (status != WcStatus::wr_flush_err && e.failed) due = false;  // only the first says why
  if (!due)
    violated("{}: {} of {} bytes (wrong: {}) fails without cause: {}", name(e), name_of(op.opcode),
             op.length, static_cast<int>(op.wrong), name_of(status));
  if (e.pair->fresh && status != WcStatus::wr_flush_err && op.wrong == Wrong::none &&
      !target_gone && !e.pair->tight && spec.rnr_retry == 7 &&
      e.pair->lost_before_fresh == network_.losses(e.host->index, e.peer->host->index))
    violated("{}: {} after everything was healed", name(e), name_of(status));
}

// Nothing that happened here may cost an answer.
bool World::clean(const End& e) const {
  const unsigned a = e.host->index, b = e.peer->host->index;
  return !e.pair->tight && !network_.disturbed(a, b) && !network_.disturbed(b, a) &&
         !e.host->was_paused && !e.peer->host->was_paused && !e.peer->host->down && e.peer->qp &&
         e.peer->qp->state.load() == QpState::rts;
}

bool World::writes(const Op& op) const {
  if (op.wrong != Wrong::none || op.shared || !op.length) return false;
  return op.opcode == WrOpcode::rdma_write || op.opcode == WrOpcode::rdma_write_with_imm ||
         is_word(op.opcode);
}

const std::uint8_t* World::content(const End& e, const Op& op) const {
  if (is_word(op.opcode)) return reinterpret_cast<const std::uint8_t*>(&op.after);
  return e.host->library.bytes() + op.source;
}

// How many of the `most` bytes at `at` of the peer's area, which read `bytes`, did one operation of
// the stream put there, of those from number `from` on?
std::uint32_t World::explained(const End& e, std::uint32_t from, std::uint32_t at,
                               const std::uint8_t* bytes, std::uint32_t most) const {
  for (std::uint32_t i = from; i < e.posted(); ++i) {
    const Op& op = e.ops[i];
    if (!writes(op) || !covers(op, at)) continue;
    const std::uint32_t begin = at - op.target;
    const std::uint8_t* wrote = content(e, op) + begin;
    const auto same = Area::difference(bytes, wrote, 0, std::min(most, op.length - begin));
    if (same) return static_cast<std::uint32_t>(same);
  }
  return 0;
}

// Operation `cursor` was done.  Its data is where it belongs, unless a later one overwrote it.
void World::check_target(End& e, std::uint32_t cursor) {
  const Op& op = e.ops[cursor];
  if (!writes(op)) return;
  const std::uint8_t* there = e.peer->area.bytes() + op.target;
  const std::uint8_t* wanted = content(e, op);
  for (std::uint32_t i = 0;;) {
    i = static_cast<std::uint32_t>(Area::difference(there, wanted, i, op.length));
    if (i >= op.length) return;
    const std::uint32_t n = explained(e, cursor + 1, op.target + i, there + i, op.length - i);
    if (!n)
      violated("{}: WQE {} ({} of {} bytes) was done, but byte {} is {:#04x}, not {:#04x}", name(e),
               cursor, name_of(op.opcode), op.length, i, there[i], wanted[i]);
    i += n;
  }
}

void World::know(End& e, std::uint32_t cursor) {
  const Op& op = e.ops[cursor];
  if (e.known != cursor) return;  // a failed one stands before
  e.known = cursor + 1;
  e.sink_tail = e.sink_ends[cursor];
  if (e.pair->spec->type != QpType::rc) return;
  if (writes(op)) {
    if (e.peer->deregistered && !e.peer->frozen.empty() && op.posted > e.peer->deregistered)
      violated("{}: WQE {} ({}) succeeds on a region that was deregistered before", name(e), cursor,
               name_of(op.opcode));
    e.peer->area.set(op.target, content(e, op), op.length);
    check_target(e, cursor);
  }
  check_returned(e, op);
}

void World::check_returned(End& e, const Op& op) {
  if (!Requester::needs_response(op.opcode) || op.opcode == WrOpcode::flush ||
      op.opcode == WrOpcode::atomic_write)
    return;
  const std::uint8_t* got = e.area.bytes() + op.sink;
  if (op.shared) {
    const std::uint64_t v = e.area.word(op.sink);
    Host& h = *e.peer->host;
    if (v >= h.adds_posted) violated("{}: FETCH_ADD returns {}, too much", name(e), v);
    h.returned.resize(h.adds_posted);
    if (h.returned[v]) violated("{}: FETCH_ADD returns {} for the second time", name(e), v);
    h.returned[v] = true;
    ++h.adds_known;
  } else if (op.opcode != WrOpcode::rdma_read) {
    if (e.area.word(op.sink) != op.before)
      violated("{}: {} returns {:#x}, not {:#x}", name(e), name_of(op.opcode), e.area.word(op.sink),
               op.before);
  } else {
    const std::uint8_t* wanted = op.read_back ? e.peer->area.shadow() + op.target
                                              : e.peer->host->library.bytes() + op.target;
    for (std::uint32_t i = 0;;) {
      i = static_cast<std::uint32_t>(Area::difference(got, wanted, i, op.length));
      if (i >= op.length) break;
      // A READ that was asked again may return what later operations wrote.
      const std::uint32_t n =
          op.read_back ? explained(e, e.known, op.target + i, got + i, op.length - i) : 0;
      if (!n)
        violated("{}: READ of {} bytes: byte {} is {:#04x}, not {:#04x}", name(e), op.length, i,
                 got[i], wanted[i]);
      i += n;
    }
  }
  e.area.adopt(op.sink, op.length);
}

// --- the responder's side

const Op* World::find_sent(const End& from, std::uint32_t id) const {
  const auto& sent = from.pair->sent[from.side];
  auto at = std::lower_bound(sent.begin(), sent.end(), id,
                             [](const Op& op, std::uint32_t x) { return op.id < x; });
  return at != sent.end() && at->id == id ? &*at : nullptr;
}

void World::check_receive(End& e, const Cqe& c) {
  ReceivePool& pool = *e.pool;
  const auto slot = static_cast<std::uint32_t>(c.wr_id);
  if (trace_.wants_lines())
    trace_.line(now_, "{}: receive WQE {} completes: {}, {} bytes", name(e), slot,
                name_of(c.status), c.byte_len);
  if (slot >= pool.posted.size() || !pool.posted[slot])
    violated("{}: receive WQE {} completes, but is not posted", name(e), slot);
  pool.posted[slot] = false;
  pool.free.push_back(slot);
  if (c.status != WcStatus::success) return check_receive_failure(e, c);
  const bool rc = e.pair->spec->type == QpType::rc;
  const Op* op = nullptr;
  if (rc) {
    if (e.received >= e.peer->messages.size())
      violated("{}: a message more than was sent arrives", name(e));
    const std::uint32_t cursor = e.peer->messages[e.received++];
    op = &e.peer->ops[cursor];
    // All before it was done before it.
    for (std::uint32_t i = std::max(e.peer->known, e.peer->verified); i <= cursor; ++i)
      check_target(*e.peer, i);
    e.peer->verified = std::max(e.peer->verified, cursor + 1);
    if (op->wrong != Wrong::none) violated("{}: a SEND that must be refused arrives", name(e));
  } else {
    op = find_sent(*e.peer, c.imm_or_rkey);
    if (!op) violated("{}: a message arrives that nobody sent, {:#x}", name(e), c.imm_or_rkey);
    if (op->id <= e.last_id && !network_.disturbed(e.peer->host->index, e.host->index))
      violated("{}: message {} arrives after {}", name(e), op->id, e.last_id);
    e.last_id = op->id;
  }
  check_payload(e, *op, pool, slot, c);
  if (op->opcode == WrOpcode::send_with_inv) check_invalidated(e, c);
}

void World::check_payload(End& e, const Op& op, ReceivePool& pool, std::uint32_t slot,
                          const Cqe& c) {
  const bool ud = e.pair->spec->type == QpType::ud;
  const bool write = op.opcode == WrOpcode::rdma_write_with_imm;
  const bool imm = write || op.opcode == WrOpcode::send_with_imm;
  const std::uint32_t grh = ud ? 40 : 0;
  if (c.opcode != (write ? WcOpcode::recv_rdma_with_imm : WcOpcode::recv))
    violated("{}: {} arrives as opcode {}", name(e), name_of(op.opcode),
             static_cast<int>(c.opcode));
  if (c.byte_len != op.length + grh)
    violated("{}: {} of {} bytes arrives with byte_len {}", name(e), name_of(op.opcode), op.length,
             c.byte_len);
  if (imm != ((c.wc_flags & engine::wc_with_imm) != 0) || (imm && c.imm_or_rkey != op.id))
    violated("{}: {} arrives with immediate data {:#x}, not {:#x}", name(e), name_of(op.opcode),
             c.imm_or_rkey, op.id);
  const std::size_t at = std::size_t{slot} * pool.stride();
  if (write) {
    if (e.pair->spec->type == QpType::uc) check_unreliable_area(e);
  } else {
    if (ud) pool.area.adopt(at, grh);
    pool.area.set(at + grh, e.peer->host->library.bytes() + op.source, op.length);
  }
  // An unreliable message that was cut short left its bytes behind.
  const std::uint32_t placed = write ? 0 : op.length;
  if (e.pair->spec->type == QpType::uc) pool.area.adopt(at + placed, pool.slot_bytes - placed);
  const std::size_t wrong =
      Area::difference(pool.area.bytes(), pool.area.shadow(), at, at + pool.stride());
  if (wrong != at + pool.stride())
    violated("{}: {} of {} bytes: byte {} of the receive buffer is {:#04x}, not {:#04x}", name(e),
             name_of(op.opcode), op.length, wrong - at, pool.area.bytes()[wrong],
             pool.area.shadow()[wrong]);
}

void World::check_invalidated(End& e, const Cqe& c) {
  if (!(c.wc_flags & engine::wc_with_inv) || !e.invalidatable)
    violated("{}: SEND_WITH_INV arrives without the flag", name(e));
  engine::KeyTable& keys = e.host->engine->keys();
  if (keys.find(c.imm_or_rkey)) violated("{}: key {:#x} still works", name(e), c.imm_or_rkey);
  engine::MemoryRegion again = *e.invalidatable;
  keys.remove(*e.invalidatable);
  e.invalidatable = keys.add(again);
  e.invalidating = false;
}

void World::check_receive_failure(End& e, const Cqe& c) {
  const bool error = e.qp->state.load() == QpState::error;
  const std::uint32_t next = e.received;
  const Op* op = e.pair->spec->type == QpType::rc && next < e.peer->messages.size()
                     ? &e.peer->ops[e.peer->messages[next]]
                     : nullptr;
  bool due = false;
  if (c.status == WcStatus::wr_flush_err) due = error;
  if (c.status == WcStatus::loc_len_err) due = error && op && op->wrong == Wrong::long_send;
  if (c.status == WcStatus::loc_access_err)  // of a WRITE with immediate data
    due = error && (!e.target_region || (op && op->wrong != Wrong::none));
  if (!due)
    violated("{}: receive WQE {} fails without cause: {}", name(e), c.wr_id, name_of(c.status));
  ReceivePool& pool = *e.pool;
  pool.area.adopt(static_cast<std::size_t>(c.wr_id) * pool.stride(), pool.slot_bytes);
  break_pair(*e.pair);
}

// --- memory, when nothing moves

// Every byte that differs from the shadow belongs to an operation that may have been done; the
// shadow then learns what is there.  Both queue pairs are gone.
void World::settle(End& e) {
  if (e.pair->spec->type != QpType::rc) return check_unreliable_area(e);
  const std::size_t frozen_bytes = e.frozen.size();
  if (frozen_bytes && std::memcmp(e.frozen.data(), e.area.bytes() + e.target, frozen_bytes) != 0)
    violated("{}: a region was written to after it had been deregistered", name(e));
  for (std::size_t at = 0; (at = e.area.first_difference(at)) != e.area.size(); ++at) {
    const auto place = static_cast<std::uint32_t>(at);
    bool due = explained(*e.peer, e.peer->known, place, e.area.bytes() + at, 1) != 0;
    for (std::uint32_t i = e.known; i < e.posted() && !due; ++i) {
      const Op& op = e.ops[i];
      due = Requester::needs_response(op.opcode) && op.opcode != WrOpcode::flush &&
            op.opcode != WrOpcode::atomic_write && place >= op.sink && place - op.sink < op.length;
    }
    if (!due)
      violated("{}: byte {} of its memory changed to {:#04x}, and nothing may have done that",
               name(e), at, e.area.bytes()[at]);
  }
  e.area.adopt(0, e.area.size());
}

void World::check_unreliable_area(End& e) {
  const auto& sent = e.pair->sent[e.peer->side];
  for (std::size_t at = 0; (at = e.area.first_difference(at)) != e.area.size(); ++at) {
    const auto place = static_cast<std::uint32_t>(at);
    const bool due = std::any_of(sent.begin(), sent.end(), [&](const Op& op) {
      return writes(op) && covers(op, place) &&
             content(*e.peer, op)[place - op.target] == e.area.bytes()[at];
    });
    if (!due)
      violated("{}: byte {} of its memory is {:#04x}, which nobody wrote", name(e), at,
               e.area.bytes()[at]);
    e.area.adopt(at, 1);
  }
}

// What completed with success arrived.
void World::check_delivered(End& e) {
  if (e.pair->spec->type != QpType::rc || !e.peer->qp) return;
  std::uint32_t due = 0;
  while (due < e.messages.size() && e.messages[due] < e.known) ++due;
  if (due > e.peer->received)
    violated("{}: {} messages were completed, but only {} arrived", name(e), due, e.peer->received);
}

void World::check_quiet(End& e) {
  if (e.pair->state != Pair::State::up) return;
  collect(*e.host);
  check_delivered(e);
  if (e.pair->spec->type != QpType::rc) return check_unreliable_area(e);
  if (e.received != e.peer->messages.size())
    violated("{}: {} messages were sent to it, {} arrived", name(e), e.peer->messages.size(),
             e.received);
  const std::size_t at = e.area.first_difference();
  if (at != e.area.size() && !e.failed && e.frozen.empty())
    violated("{}: byte {} of its memory is {:#04x}, not {:#04x}", name(e), at, e.area.bytes()[at],
             e.area.shadow()[at]);
  const engine::RequesterState& r = e.qp->req;
  if (r.in_flight || r.read_bytes || r.reads_outstanding)
    violated("{}: idle, but {} bytes in flight, {} READ bytes asked for, {} READs outstanding",
             name(e), r.in_flight, r.read_bytes, r.reads_outstanding);
  std::uint64_t sum = 0;
  for (const End* other : e.host->ends)
    if (other->qp && other->qp->destination == e.qp->destination) sum += other->qp->req.in_flight;
  if (sum != e.qp->destination->in_flight)
    violated("{}: {} bytes in flight to its destination, {} by its queue pairs", name(e),
             e.qp->destination->in_flight, sum);
}

// What the scenario's author said.
void World::check_expectation() {
  const Expectation& x = s_.expect;
  if (x == Expectation{}) return;
  for (const End& e : pairs_[0]->end) {
    if (x.says_error && e.first_error != x.error[e.side])
      violated("{}: expected {}, but the first error is {}", name(e), name_of(x.error[e.side]),
               name_of(e.first_error));
    const Picoseconds at = e.first_error_at;
    if (at && (at < picoseconds(x.error_after) || at > picoseconds(x.error_before)))
      violated("{}: its error came at {} ns, expected {} to {}", name(e), at / 1000, x.error_after,
               x.error_before);
  }
  const Picoseconds done =
      std::max(pairs_[0]->end[0].last_completion, pairs_[0]->end[1].last_completion);
  if (done < picoseconds(x.finish_after) || done > picoseconds(x.finish_before))
    violated("pair 0 was done at {} ns, expected {} to {}", done / 1000, x.finish_after,
             x.finish_before);
}

void World::finish() {
  check_expectation();
  for (auto& p : pairs_)
    for (End& e : p->end) check_quiet(e);
  network_.check_conservation();
  for (auto& h : hosts_) {
    if (h->library.first_difference() != h->library.size())
      violated("host {}: memory that may only be read was written to", h->index);
    const std::uint64_t sum = h->shared.word(0);
    if (sum < h->adds_known || sum > h->adds_posted)
      violated("host {}: the shared word is {}; {} FETCH_ADDs succeeded, {} were posted", h->index,
               sum, h->adds_known, h->adds_posted);
    h->shared.adopt(0, 8);
    if (h->shared.first_difference() != h->shared.size())
      violated("host {}: memory of another protection domain was written to", h->index);
    if (!h->down && h->engine->counters().rcvd_pkts != h->frames_in)
      violated("host {}: {} frames went in, {} were counted", h->index, h->frames_in,
               h->engine->counters().rcvd_pkts);
  }
}

}  // namespace adverb::sim
