// SPDX-License-Identifier: Apache-2.0
// Processes start, die and start again; queue pairs are made, broken, torn down and made anew.
#include <algorithm>

#include "sim/random.hpp"
#include "sim/world.hpp"
#include "wire/aeth.hpp"

namespace adverb::sim {

using engine::MemoryRegion;
using engine::QpAttributes;
using engine::QpState;
using engine::QpType;

namespace {

constexpr engine::PdId domain = 1, foreign_domain = 2;
constexpr std::uint32_t max_qp = 512, cq_entries = 1 << 13;
constexpr std::uint32_t max_generations = 12;
constexpr std::uint64_t library_iova = 0x1000'0000, shared_iova = 0x2000'0000,
                        foreign_iova = 0x3000'0000;
constexpr std::uint32_t written = engine::access_local_write | engine::access_remote_write |
                                  engine::access_remote_read | engine::access_remote_atomic |
                                  engine::access_flush_global;

MemoryRegion* add(Host& h, std::uint8_t* base, std::uint64_t length, std::uint64_t iova,
                  std::uint32_t access, engine::PdId pd = domain) {
  MemoryRegion m;
  m.base = reinterpret_cast<std::byte*>(base);
  m.length = length;
  m.iova = iova;
  m.access = access;
  m.pd = pd;
  return h.engine->keys().add(m);
}

void make_pool(ReceivePool& pool, std::uint32_t slots, std::uint32_t slot_bytes) {
  if (pool.area.size()) return;
  pool.slot_bytes = slot_bytes;
  pool.area.make(std::size_t{slots} * pool.stride());
  pool.posted.assign(slots, false);
  for (std::uint32_t i = 0; i < slots; ++i) pool.free.push_back(i);
}

}  // namespace

// --- processes

void World::boot(Host& h) {
  h.down = false;
  ++h.generation;
  h.frames_in = 0;
  const std::uint64_t seed =
      derive(s_.seed, Purpose::engine, std::uint64_t{h.generation} << 32 | h.index);
  h.engine = std::make_unique<engine::Engine>(
      engine::EngineConfig{.slot = h.index + 1,
                           .max_qp = max_qp,
                           .max_mr = 2048,
                           .seed = seed,
                           .active_mtu = engine::Mtu::mtu_4096,
                           .initial_window = h.spec->window,
                           .max_window = h.spec->max_window,
                           .read_chunk_packets = h.spec->read_chunk,
                           .read_budget = h.spec->read_budget,
                           .end_to_end_credits = h.spec->credits});
  h.engine->set_gid(0, h.gid);
  h.send_cq = h.engine->create_cq(cq_entries, nullptr);
  h.recv_cq = h.engine->create_cq(cq_entries, nullptr);
  h.by_index.assign(max_qp, nullptr);
  h.library_region =
      add(h, h.library.bytes(), h.library.size(), library_iova, engine::access_remote_read);
  h.shared_region = add(h, h.shared.bytes(), 8, shared_iova, written);
  h.foreign_region = add(h, h.shared.bytes() + 2048, 2048, foreign_iova, written, foreign_domain);
  h.srq = nullptr;
  std::uint32_t largest = 0;
  bool datagrams = false;
  for (End* e : h.ends) {
    largest = std::max(largest, e->pair->spec->srq ? e->pair->spec->max_size : 0);
    datagrams |= e->pair->spec->srq && e->pair->spec->type == QpType::ud;
  }
  if (!largest) return;
  h.srq = h.engine->create_srq(h.spec->srq_depth, 4, domain, nullptr);
  make_pool(h.srq_pool, h.spec->srq_depth, largest + (datagrams ? 40 : 0));
  ReceivePool& pool = h.srq_pool;
  pool.queue = &h.srq->queue;
  pool.iova = 0x4000'0000;
  pool.region = add(h, pool.area.bytes(), pool.area.size(), pool.iova, engine::access_local_write);
}

void World::crash(Host& h, Nanoseconds duration) {
  if (h.down) return;
  trace_.line(now_, "host {} crashes", h.index);
  h.down = true;
  while (!h.receive_buffer.empty()) {
    network_.arrived(network_.frames().at(h.receive_buffer.front()), false);
    network_.frames().give(h.receive_buffer.front());
    h.receive_buffer.pop_front();
  }
  for (End* e : h.ends) {
    e->qp = nullptr;
    e->target_region = e->sink_region = e->invalidatable = nullptr;
    reclaim(e->own_pool, nullptr);
    if (e->pair->state == Pair::State::up) break_pair(*e->pair);
  }
  // Receives of an SRQ die with it.
  for (std::uint32_t i = 0; i < h.srq_pool.posted.size(); ++i) {
    if (!h.srq_pool.posted[i]) continue;
    h.srq_pool.posted[i] = false;
    h.srq_pool.area.adopt(std::size_t{i} * h.srq_pool.stride(), h.srq_pool.slot_bytes);
    h.srq_pool.free.push_back(i);
  }
  h.engine.reset();
  h.library_region = h.shared_region = h.foreign_region = nullptr;
  queue_.add(now_ + picoseconds(duration), Due::boot, h.index);
}

// --- pairs

void World::register_memory(End& e) {
  const PairSpec& spec = *e.pair->spec;
  if (!e.area.size()) {
    e.target = End::guard;
    e.target_bytes = (spec.max_size + 1024) / 8 * 8;
    e.words = e.target + e.target_bytes;
    e.sink = e.words + 8 * End::word_count + 64 + End::guard;
    e.sink_bytes = (2 * spec.max_size + 1024) / 8 * 8;
    e.area.make(e.sink + e.sink_bytes + End::guard);
    e.iova = (std::uint64_t{e.index} + 16) << 32;
    std::memset(e.area.bytes() + e.words, 0, 8 * End::word_count);
    e.area.adopt(e.words, 8 * End::word_count);
  }
  Host& h = *e.host;
  auto at = [&](std::uint32_t offset) { return e.area.bytes() + offset; };
  e.target_region =
      add(h, at(e.target), e.words + 8 * End::word_count - e.target, e.iova + e.target, written);
  e.target_key = e.target_region->key;
  e.sink_region = add(h, at(e.sink), e.sink_bytes, e.iova + e.sink, engine::access_local_write);
  e.invalidatable = add(h, at(e.words + 8 * End::word_count), 64,
                        e.iova + e.words + 8 * End::word_count, written);
  e.invalidatable->invalidatable = true;
  const bool ud = spec.type == QpType::ud;
  e.pool = spec.srq ? &h.srq_pool : &e.own_pool;
  if (spec.srq) return;
  make_pool(e.own_pool, spec.receive_depth, spec.max_size + (ud ? 40 : 0));
  e.own_pool.iova = e.iova + 0x8000'0000;
  e.own_pool.region = add(h, e.own_pool.area.bytes(), e.own_pool.area.size(), e.own_pool.iova,
                          engine::access_local_write);
}

void World::build(Pair& p) {
  ++p.generation;
  p.state = Pair::State::up;
  const PairSpec& spec = *p.spec;
  const auto rtt = 2 * s_.link.delay + 8 * (s_.hosts[0].step + s_.hosts.back().step) + 20'000;
  const Nanoseconds bytes = (4u << 20) + 2 * spec.max_size;  // what may stand before an answer
  p.tight = spec.timeout && (std::uint64_t{4096} << spec.timeout) <
                                4 * rtt + 4 * bytes * 8 * 1000 / s_.link.megabits;
  for (End& e : p.end) {
    const bool srq = spec.srq && e.host->srq;
    register_memory(e);
    e.qp = e.host->engine->create_qp({.type = spec.type,
                                      .pd = domain,
                                      .send_cq = e.host->send_cq,
                                      .recv_cq = e.host->recv_cq,
                                      .srq = srq ? e.host->srq : nullptr,
                                      .max_send_wr = spec.depth,
                                      .max_recv_wr = spec.receive_depth,
                                      .max_send_sge = spec.max_sge,
                                      .max_recv_sge = 4,
                                      .max_inline = spec.max_inline,
                                      .user = &e});
    if (!e.qp) violated("{}: no queue pair left", name(e));
    e.host->by_index[e.qp->qpn.index()] = &e;
    if (!srq) e.own_pool.queue = e.qp->rq;
    e.ops.clear();
    e.messages.clear();
    e.sink_ends.clear();
    e.completed = e.known = e.verified = e.received = e.unsignaled = 0;
    e.last_id = 0;
    e.sink_head = e.sink_tail = 0;
    e.failed = e.invalidating = false;
    e.frozen.clear();
    e.watch = {};
  }
  for (End& e : p.end)
    for (unsigned w = 0; w < End::word_count; ++w)
      e.word_values[w] = e.peer->area.word(e.peer->words + 8 * w);
  for (End& e : p.end) connect(e);
  for (End& e : p.end) plan_step(*e.host, now_);
}

// First PSNs: what the scenario says; for later generations random, and far from those before, as a
// connection manager's random choice is but for one in thousands.
void World::connect(End& e) {
  const PairSpec& spec = *e.pair->spec;
  auto psn_of = [&](unsigned side) {
    const std::uint32_t first = spec.side[side].first_psn;
    if (e.pair->generation == 1) return Psn(first);
    return Psn(
        first + e.pair->generation * 0x120000 +
        static_cast<std::uint32_t>(
            derive(s_.seed, Purpose::pair, e.pair->index * 64 + e.pair->generation) % 0x40000));
  };
  QpAttributes x;
  x.access_flags =
      engine::access_remote_write | engine::access_remote_read | engine::access_remote_atomic;
  x.path_mtu = spec.mtu;
  x.dest_qpn = e.peer->qp->qpn;
  x.rq_psn = psn_of(1 - e.side);
  x.sq_psn = psn_of(e.side);
  x.av.dgid = e.peer->host->gid;
  x.max_rd_atomic = x.max_dest_rd_atomic = spec.rd_atomic;
  x.timeout = spec.timeout;
  x.retry_cnt = spec.retry_cnt;
  x.rnr_retry = spec.rnr_retry;
  x.min_rnr_timer = spec.min_rnr_timer;
  x.qkey = 0x11111111;
  for (const QpState state : {QpState::init, QpState::rtr, QpState::rts}) {
    x.state = state;
    const std::uint32_t mask = engine::required_attributes(spec.type, e.qp->state, state);
    const auto result = e.host->engine->modify_qp(instant(), *e.qp, x, mask);
    if (!result.ok())
      violated("{}: modify_qp refused: {}", name(e), result.what ? result.what : "");
  }
  e.first_psn = e.watch.una = e.watch.sent = x.sq_psn;
}

// One side is in error or gone; the application finds out a little later and tears both down.
void World::break_pair(Pair& p) {
  if (p.state != Pair::State::up) return;
  p.state = Pair::State::breaking;
  queue_.add(now_ + picoseconds(1000 + p.random.below(300'000)), Due::pair, p.index);
}

void World::pair_due(Pair& p) {
  const bool able = std::all_of(std::begin(p.end), std::end(p.end), [&](End& e) {
    return e.host->paused_until <= now_ && (!e.host->down || p.state == Pair::State::breaking);
  });
  if (!able) return queue_.add(now_ + picoseconds(50'000), Due::pair, p.index);
  if (p.state == Pair::State::breaking) {
    tear_down(p);
    p.state = Pair::State::down;
    if (p.generation < max_generations)
      return queue_.add(now_ + picoseconds(p.random.below(400'000)), Due::pair, p.index);
  }
  if (p.generation >= max_generations) {
    p.state = Pair::State::over;
    p.finished = now_;
    return;
  }
  if (p.state == Pair::State::down) build(p);
}

// Both to the error state, so that everything is flushed; then they go.
void World::tear_down(Pair& p) {
  for (End& e : p.end) {
    if (!e.qp) continue;
    collect(*e.host);
    if (e.qp->state.load() != QpState::error) {
      QpAttributes a;
      a.state = QpState::error;
      e.host->engine->modify_qp(instant(), *e.qp, a, engine::attr_state);
      e.failed = true;
    }
    collect(*e.host);
    // Those that were done and asked for no completion have none.
    for (std::uint32_t i = e.completed; i < e.posted(); ++i)
      if ((e.ops[i].flags & engine::send_signaled) || e.known != e.completed)
        violated("{}: in the error state, but WQE {} of {} was not flushed", name(e), i,
                 e.posted());
    if (!p.spec->srq)
      for (std::uint32_t i = 0; i < e.own_pool.posted.size(); ++i)
        if (e.own_pool.posted[i])
          violated("{}: in the error state, but receive WQE {} was not flushed", name(e), i);
  }
  for (End& e : p.end) check_delivered(e);
  for (End& e : p.end)
    if (e.qp) forget(e);
  for (End& e : p.end) settle(e);
}

// The queue pair goes, whatever is in flight.
void World::forget(End& e) {
  trace_.line(now_, "{} is destroyed", name(e));
  if (e.pool->queue) reclaim(*e.pool, e.qp);
  e.host->by_index[e.qp->qpn.index()] = nullptr;
  e.host->engine->destroy_qp(e.qp);
  e.qp = nullptr;
  engine::KeyTable& keys = e.host->engine->keys();
  for (MemoryRegion** r : {&e.target_region, &e.sink_region, &e.invalidatable}) {
    if (*r) keys.remove(**r);
    *r = nullptr;
  }
  if (!e.pair->spec->srq) keys.remove(*e.own_pool.region);
}

// Receive WQEs that will never complete: all of an own queue; of an SRQ the one that is open.
void World::reclaim(ReceivePool& pool, const engine::QueuePair* qp) {
  for (std::uint32_t i = 0; i < pool.posted.size(); ++i) {
    if (!pool.posted[i]) continue;
    const bool open = qp && qp->resp.recv_open && qp->resp.recv.wr_id == i;
    if (qp && qp->srq && !open) continue;
    pool.posted[i] = false;
    pool.area.adopt(std::size_t{i} * pool.stride(), pool.slot_bytes);
    pool.free.push_back(i);
  }
}

void World::deregister(End& e) {
  if (!e.target_region) return;
  trace_.line(now_, "{}: its target is deregistered", name(e));
  e.host->engine->keys().remove(*e.target_region);
  e.target_region = nullptr;
  e.deregistered = now_;
  e.frozen.assign(e.area.bytes() + e.target, e.area.bytes() + e.words + 8 * End::word_count);
}

// Answers to nothing: an ACK beyond all that was sent, from the right address.  A stale one looks
// so to the queue pair that came after.
void World::ghost(End& e) {
  if (e.qp->type != QpType::rc) return;
  wire::Packet p;
  p.bth.opcode = wire::opcode_of(wire::Transport::rc, wire::Operation::acknowledge);
  p.bth.dest_qp = e.qp->qpn;
  p.bth.psn = e.qp->req.highest + static_cast<std::uint32_t>(e.pair->random.below(64));
  p.aeth = {wire::make_ack(wire::no_credit_limit), 0};
  std::uint8_t bytes[wire::max_header_bytes];
  const unsigned n = wire::encode_headers(p, bytes);
  trace_.line(now_, "ghost: {}", describe(p));
  network_.inject(now_, e.peer->host->index, e.host->index, {bytes, n});
}

void World::heal() {
  healed_ = true;
  trace_.line(now_, "HEALED");
  network_.heal();
  Nanoseconds longest = 1'000'000'000;
  for (auto& p : pairs_) {
    const auto patient = static_cast<std::uint64_t>(patience(*p->spec).count());
    longest = std::max({longest, patient, p->spec->first_receive});
    // Without a timer nobody asks again for what was lost.
    if (p->spec->type == QpType::rc && p->spec->timeout == 0) break_pair(*p);
  }
  deadline_ = now_ + picoseconds(20 * longest);
  for (auto& h : hosts_) {
    h->paused_until = std::min(h->paused_until, now_);
    if (!h->down) plan_step(*h, now_);
  }
}

}  // namespace adverb::sim
