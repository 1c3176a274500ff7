// SPDX-License-Identifier: Apache-2.0
// The applications: receives are posted, operations drawn and posted.
#include <algorithm>
#include <bit>

#include "engine/requester.hpp"
#include "sim/random.hpp"
#include "sim/world.hpp"

namespace adverb::sim {

using engine::QpType;
using engine::Requester;
using engine::SendWqe;
using engine::Sge;
using engine::WrOpcode;

namespace {

constexpr std::uint64_t library_iova = 0x1000'0000, shared_iova = 0x2000'0000,
                        foreign_iova = 0x3000'0000;
constexpr Picoseconds lag_pause = picoseconds(3000);
constexpr unsigned posts_per_step = 8;

constexpr WrOpcode all_opcodes[] = {
    WrOpcode::rdma_write,           WrOpcode::rdma_write_with_imm, WrOpcode::send,
    WrOpcode::send_with_imm,        WrOpcode::rdma_read,           WrOpcode::atomic_cmp_and_swp,
    WrOpcode::atomic_fetch_and_add, WrOpcode::send_with_inv,       WrOpcode::flush,
    WrOpcode::atomic_write,
};

bool allowed(QpType type, WrOpcode o) {
  if (type == QpType::rc) return true;
  // Each message of an unreliable stream carries its number as immediate data.
  if (o == WrOpcode::send_with_imm) return true;
  return type == QpType::uc && (o == WrOpcode::rdma_write_with_imm || o == WrOpcode::rdma_write);
}

bool is_word(WrOpcode o) {
  return o == WrOpcode::atomic_cmp_and_swp || o == WrOpcode::atomic_fetch_and_add ||
         o == WrOpcode::atomic_write;
}

// Sizes that are awkward more often than chance would have them.
std::uint32_t draw_length(Prng& r, std::uint32_t mtu, std::uint32_t most) {
  const auto packets = mtu * static_cast<std::uint32_t>(1 + r.below(4));
  std::uint64_t n = 0;
  switch (r.below(12)) {
    case 0:
      n = 0;
      break;
    case 1:
      n = 1 + r.below(7);
      break;
    case 2:
    case 3:
      n = r.below(64);
      break;
    case 4:
      n = packets;
      break;
    case 5:
      n = packets + 1;
      break;
    case 6:
      n = packets - 1;
      break;
    case 7:
    case 8:
      n = r.below(mtu + 1);
      break;
    case 9:
      n = most;
      break;
    default:
      n = r.below(std::min<std::uint64_t>(most, 8 * mtu) + 1);
  }
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(n, most));
}

}  // namespace

void World::work(Host& h) {
  for (End* e : h.ends) {
    if (e->pair->state != Pair::State::up || !e->qp) continue;
    post_receives(*e);
    if (post_sends(*e)) plan_step(h, now_ + picoseconds(1));
  }
}

void World::post_receives(End& e) {
  const PairSpec& spec = *e.pair->spec;
  if (now_ < picoseconds(spec.first_receive))
    return plan_step(*e.host, picoseconds(spec.first_receive));
  post_slots(*e.pool, healed_ ? 0 : spec.receive_lag, e.host->random, 4);
  if (!e.pool->free.empty()) plan_step(*e.host, now_ + lag_pause);
  // As a verbs library has it: what is posted in the error state is to be flushed.
  if (e.qp->state.load() == engine::QpState::error) e.host->engine->ring_doorbell(*e.qp);
}

void World::post_slots(ReceivePool& pool, std::uint32_t lag, Prng& random, unsigned max_sge) {
  for (std::size_t i = 0; i < pool.free.size();) {
    if (lag && random.chance(lag, 1000)) {
      ++i;
      continue;
    }
    const std::uint32_t slot = pool.free[i];
    Sge list[4];
    unsigned n = 0;
    std::uint64_t at = pool.iova + std::uint64_t{slot} * pool.stride();
    std::uint32_t left = pool.slot_bytes;
    const auto pieces = 1 + static_cast<unsigned>(random.below(max_sge));
    while (n + 1 < pieces && left) {
      const auto piece = static_cast<std::uint32_t>(random.below(left + 1));
      list[n++] = {at, piece, pool.region->key};
      at += piece;
      left -= piece;
    }
    list[n++] = {at, left, pool.region->key};
    if (!pool.queue->post(slot, {list, n})) return;
    pool.posted[slot] = true;
    pool.free[i] = pool.free.back();
    pool.free.pop_back();
  }
}

// True: it would go on, but for now it is another's turn.
bool World::post_sends(End& e) {
  for (unsigned i = 0; i < posts_per_step; ++i) {
    if (!e.remaining) return false;
    if (now_ < e.next_post) return plan_step(*e.host, e.next_post), false;
    if (!post_one(e)) return false;
    if (const Nanoseconds think = e.pair->spec->think; think && !healed_)
      e.next_post = now_ + picoseconds(e.host->random.below(2 * think));
  }
  return e.remaining != 0;
}

bool World::post_one(End& e) {
  if (e.qp->sq->free_slots() == 0) return false;
  Op op;
  Prng r = stream(s_.seed, Purpose::operation, std::uint64_t{e.index} << 32 | e.drawn);
  const bool scripted = e.work_item < e.pair->spec->side[e.side].work.size();
  if (!(scripted ? from_work(e, op) : draw(e, op))) return false;
  if (!shape(e, op, r)) return false;
  ++e.drawn;
  --e.remaining;
  if (scripted && ++e.work_done == e.pair->spec->side[e.side].work[e.work_item].repeat)
    e.work_done = 0, ++e.work_item;
  const bool last = e.remaining == 0;
  if (last || ++e.unsignaled >= e.pair->spec->depth) op.flags |= engine::send_signaled;
  if (op.flags & engine::send_signaled) e.unsignaled = 0;
  op.posted = now_;
  op.id = e.pair->next_id++;
  SendWqe* wqe = e.qp->sq->reserve();
  wqe->wr_id = std::uint64_t{e.index} << 32 | e.posted();
  fill(e, op, *wqe, r);
  remember(e, op);
  e.qp->sq->publish();
  e.host->engine->ring_doorbell(*e.qp);
  ++result_.operations;
  trace_.line(now_, "{}: posts {} {} of {} bytes{}", name(e), e.posted() - 1, name_of(op.opcode),
              op.length, op.wrong == Wrong::none ? "" : ", which must be refused");
  return true;
}

bool World::from_work(End& e, Op& op) {
  const Work& w = e.pair->spec->side[e.side].work[e.work_item];
  op.opcode = w.opcode;
  op.length = w.length;
  op.flags = w.flags;
  op.wrong = w.wrong;
  return true;
}

bool World::draw(End& e, Op& op) {
  const PairSpec& spec = *e.pair->spec;
  Prng r = stream(s_.seed, Purpose::operation, ~(std::uint64_t{e.index} << 32 | e.drawn));
  WrOpcode candidates[std::size(all_opcodes)];
  std::size_t n = 0;
  for (WrOpcode o : all_opcodes)
    if (allowed(spec.type, o) && (spec.mix >> static_cast<unsigned>(o) & 1)) candidates[n++] = o;
  if (!n) candidates[n++] = WrOpcode::send_with_imm;
  op.opcode = candidates[r.below(n)];
  const std::uint32_t mtu = spec.type == QpType::ud ? 4096 : engine::bytes_of(spec.mtu);
  op.length = draw_length(r, mtu, std::min(spec.max_size, spec.type == QpType::ud ? 4096 : ~0u));
  op.flags = r.chance(spec.unsignaled, 1000) ? 0 : engine::send_signaled;
  if (spec.type == QpType::rc && r.chance(spec.fence, 1000)) op.flags |= engine::send_fence;
  if (r.chance(spec.solicited, 1000)) op.flags |= engine::send_solicited;
  if (r.chance(spec.inlined, 1000)) op.flags |= engine::send_inline;
  if (spec.type == QpType::rc && !e.pair->fresh && r.chance(spec.wrong, 1'000'000))
    op.wrong = static_cast<Wrong>(1 + r.below(7));
  return true;
}

// Makes a possible operation of what was drawn, and chooses its places.  False: not now.
bool World::shape(End& e, Op& op, Prng& r) {
  const PairSpec& spec = *e.pair->spec;
  if (op.opcode == WrOpcode::send_with_inv) {
    if (e.peer->invalidating || !e.peer->invalidatable || op.wrong != Wrong::none)
      op.opcode = WrOpcode::send;
    else
      op.key = e.peer->invalidatable->key;
  }
  const bool word = is_word(op.opcode);
  if (word) op.length = 8;
  if (op.opcode == WrOpcode::flush) op.length = std::min(op.length, e.peer->target_bytes);
  const bool message = Requester::consumes_receive(op.opcode);
  const bool remote = !message || op.opcode == WrOpcode::rdma_write_with_imm;
  const bool payload = !Requester::needs_response(op.opcode) || op.opcode == WrOpcode::atomic_write;
  if (op.wrong == Wrong::alignment && !word) op.wrong = Wrong::key;
  if (op.wrong == Wrong::long_send && (!message || remote || spec.srq)) op.wrong = Wrong::local_key;
  // A bad place for its answer does not keep an atomic from being done.
  if (op.wrong == Wrong::local_key && (op.opcode == WrOpcode::flush || word)) op.wrong = Wrong::key;
  if (!remote && op.wrong != Wrong::none && op.wrong != Wrong::long_send)
    op.wrong = Wrong::local_key;
  if (op.wrong != Wrong::none && op.length == 0) op.length = 8;
  if (op.opcode == WrOpcode::flush && op.wrong == Wrong::rights) op.wrong = Wrong::domain;
  if (op.wrong == Wrong::long_send) op.length = e.peer->pool->slot_bytes + 1;
  const bool inlines = payload && op.length <= spec.max_inline && op.wrong == Wrong::none;
  if (!inlines) op.flags &= static_cast<std::uint8_t>(~engine::send_inline);
  if (op.wrong != Wrong::none) op.flags |= engine::send_signaled;

  op.source = static_cast<std::uint32_t>(r.below(e.host->library.size() - op.length + 1));
  op.target = e.peer->target +
              static_cast<std::uint32_t>(
                  r.below(e.peer->target_bytes - std::min(op.length, e.peer->target_bytes) + 1));
  if (op.opcode == WrOpcode::rdma_read) {
    op.read_back = r.chance(1, 3) && spec.type == QpType::rc;
    if (!op.read_back)
      op.target = static_cast<std::uint32_t>(r.below(e.peer->host->library.size() - op.length + 1));
  }
  const bool returns = Requester::needs_response(op.opcode) && op.opcode != WrOpcode::flush &&
                       op.opcode != WrOpcode::atomic_write;
  if (returns && !place_sink(e, op)) {
    // No room for what would come back until something completes, which this one will.
    if (e.unsignaled == 0) return false;
    op = {.opcode = WrOpcode::flush, .flags = engine::send_signaled, .target = e.peer->target};
    return true;
  }
  if (!word) return true;

  op.shared =
      op.opcode == WrOpcode::atomic_fetch_and_add && op.wrong == Wrong::none && r.chance(1, 3);
  const auto w = static_cast<std::uint32_t>(r.below(End::word_count));
  op.target = e.peer->words + 8 * w;
  op.before = e.word_values[w];
  const bool wins = r.chance(2, 3);
  op.after = op.opcode == WrOpcode::atomic_fetch_and_add ? op.before + 1 + r.below(1u << 20)
             : op.opcode == WrOpcode::atomic_cmp_and_swp && !wins ? op.before
                                                                  : r.next();
  return true;
}

// A place for what comes back, in a ring: freed in the order in which it was taken.
bool World::place_sink(End& e, Op& op) {
  if (op.length > e.sink_bytes) op.length = e.sink_bytes;
  const std::uint64_t size = e.sink_bytes;
  std::uint64_t at = (e.sink_head + 7) / 8 * 8;
  if (at % size + op.length > size) at = (at / size + 1) * size;
  if (at + op.length - e.sink_tail > size) return false;
  op.sink = e.sink + static_cast<std::uint32_t>(at % size);
  e.sink_head = at + op.length;
  return true;
}

void World::remember(End& e, Op& op) {
  if (Requester::consumes_receive(op.opcode)) e.messages.push_back(e.posted());
  if (is_word(op.opcode) && !op.shared && op.wrong == Wrong::none)
    e.word_values[(op.target - e.peer->words) / 8] = op.after;
  if (op.shared) ++e.peer->host->adds_posted;
  if (op.opcode == WrOpcode::send_with_inv) e.peer->invalidating = true;
  e.sink_ends.push_back(e.sink_head);
  if (e.pair->spec->type != QpType::rc) e.pair->sent[e.side].push_back(op);
  e.ops.push_back(op);
}

void World::fill(End& e, const Op& op, SendWqe& wqe, Prng& r) {
  wqe.opcode = op.opcode;
  wqe.flags = op.flags;
  wqe.length = op.length;
  wqe.imm_or_rkey = op.opcode == WrOpcode::send_with_inv ? op.key : op.id;
  const bool library = op.opcode == WrOpcode::rdma_read && !op.read_back;
  wqe.remote_addr = library ? library_iova + op.target : e.peer->iova + op.target;
  // A crashed peer's keys are stale; it is found out like everything else.
  wqe.rkey = library ? (e.peer->host->library_region ? e.peer->host->library_region->key : 1)
                     : e.peer->target_key;
  if (op.shared) {
    wqe.remote_addr = shared_iova;
    wqe.rkey = e.peer->host->shared_region ? e.peer->host->shared_region->key : 1;
  }
  if (op.opcode == WrOpcode::atomic_fetch_and_add)
    wqe.compare_add = op.shared ? 1 : op.after - op.before;
  if (op.opcode == WrOpcode::atomic_cmp_and_swp) {
    // One that must not swap compares with what cannot be there.
    wqe.compare_add = op.after == op.before ? ~op.before : op.before;
    wqe.swap = op.after == op.before ? r.next() : op.after;
  }
  if (op.opcode == WrOpcode::flush) wqe.flush_type = 1;
  if (e.pair->spec->type == QpType::ud) {
    wqe.av = {.dgid = e.peer->host->gid};
    wqe.remote_qpn = e.peer->qp ? e.peer->qp->qpn : Qpn(0x123);
    wqe.remote_qkey = 0x11111111;
    wqe.pd_of_ah = 1;
  }
  switch (op.wrong) {
    case Wrong::key:
      wqe.rkey ^= 0x100 << r.below(20);
      break;
    case Wrong::domain:
      wqe.remote_addr = foreign_iova;
      wqe.rkey = e.peer->host->foreign_region ? e.peer->host->foreign_region->key : 1;
      if (op.length > 2048) wqe.length = 2048;
      break;
    case Wrong::range:
      if (library)
        wqe.remote_addr = library_iova + e.peer->host->library.size() - op.length + 1 + r.below(9);
      else
        wqe.remote_addr = e.peer->iova + e.peer->words + 8 * End::word_count - op.length / 8 * 8;
      if (!library && op.length % 8 == 0) wqe.remote_addr += 8;
      break;
    case Wrong::rights:
      wqe.remote_addr = library_iova;
      wqe.rkey = e.peer->host->library_region ? e.peer->host->library_region->key : 1;
      if (op.opcode == WrOpcode::rdma_read && e.peer->sink_region) {
        wqe.remote_addr = e.peer->iova + e.peer->sink;
        wqe.rkey = e.peer->sink_region->key;
      }
      break;
    case Wrong::alignment:
      wqe.remote_addr += 1 + r.below(7);
      break;
    default:
      break;
  }
  if (op.opcode != WrOpcode::flush) fill_list(e, op, wqe, r);
}

void World::fill_list(End& e, const Op& op, SendWqe& wqe, Prng& r) {
  const bool result = Requester::needs_response(op.opcode) && op.opcode != WrOpcode::atomic_write;
  if (op.opcode == WrOpcode::atomic_write) {  // its payload is no part of the library
    std::memcpy(e.qp->sq->inline_of_reserved(), &op.after, 8);
    wqe.flags |= engine::send_inline;
    return;
  }
  if (op.flags & engine::send_inline) {
    std::memcpy(e.qp->sq->inline_of_reserved(), e.host->library.bytes() + op.source, op.length);
    return;
  }
  auto list = e.qp->sq->sges_of_reserved();
  std::uint64_t at = result ? e.iova + op.sink : library_iova + op.source;
  const std::uint32_t key = result ? e.sink_region->key : e.host->library_region->key;
  std::uint32_t left = wqe.length;
  const auto pieces = 1 + static_cast<unsigned>(r.below(e.pair->spec->max_sge));
  unsigned n = 0;
  while (n + 1 < pieces && left) {
    const auto piece = static_cast<std::uint32_t>(r.below(left + 1));
    list[n++] = {at, piece, key};
    at += piece;
    left -= piece;
  }
  list[n++] = {at, left, key};
  if (op.wrong == Wrong::local_key)
    list[0].lkey ^= 0x3300, list[0].length = std::max(1u, list[0].length);
  wqe.num_sge = static_cast<std::uint8_t>(n);
}

}  // namespace adverb::sim
