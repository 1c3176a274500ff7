// SPDX-License-Identifier: Apache-2.0
// For tests: several hosts, each with some reliable queue pairs, and a network that loses, doubles
// and reorders by a seed, in virtual time.  Every queue pair posts random operations of every kind,
// and every completion is checked against what the operation was to do.  Once built, nothing here
// allocates.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "engine/engine.hpp"

namespace adverb::engine::network {

struct Options {
  std::uint64_t seed = 1;
  unsigned hosts = 2, qps = 3;                    // QPs of each host, spread over the others
  unsigned loss = 0, duplicate = 0, reorder = 0;  // per mille
  Mtu mtu = Mtu::mtu_1024;
  unsigned depth = 8, recv_depth = 8;  // at most `slots`
  bool srq = false, credits = true;
  std::uint64_t window = 256 << 10, read_budget = 1 << 20;
  std::uint32_t chunk = 64;
  std::uint8_t rd_atomic = 4, timeout = 8, min_rnr_timer = 1;
  unsigned receive_lag = 0;  // per mille: how often a receive WQE is not posted in a step
  std::uint32_t first_psn = 0xffffe0;
  std::uint32_t max_length = 6000;
  std::size_t arena = 1 << 17;
};

class Network {
 public:
  static constexpr unsigned slots = 8;
  static constexpr std::uint32_t slot_bytes = 6016;

  explicit Network(const Options& options)
      : o(options), random_(o.seed), arena_(o.arena), wire_(2048), order_(wire_.size()) {
    for (unsigned h = 0; h < o.hosts; ++h) hosts_.push_back(std::make_unique<Host>(h, o));
    for (unsigned h = 0; h < o.hosts; ++h)
      for (unsigned i = 0; i < o.qps; ++i) add_pair(h, (h + 1 + i % (o.hosts - 1)) % o.hosts);
    for (auto& e : ends_) connect(*e);
    for (auto& e : ends_)
      for (unsigned i = 0; i < o.recv_depth; ++i) e->free_receives[e->free_count++] = i;
  }

  // Until every queue pair has completed `operations`; false when it takes too long.
  bool run(std::uint64_t operations) {
    Instant end = now + std::chrono::minutes(20);
    while (!::testing::Test::HasFailure()) {
      bool done = true;
      for (auto& e : ends_) {
        post(*e, operations);
        done = done && e->completed == operations && e->received == e->peer->messages;
      }
      if (done) return settle();
      step();
      if (now > end) break;
    }
    return false;
  }
  std::uint64_t sum(std::uint64_t Counters::* counter) const {
    std::uint64_t n = 0;
    for (auto& h : hosts_) n += h->engine.counters().*counter;
    return n;
  }

  Options o;
  Instant now{};

 private:
  struct Operation {
    WrOpcode opcode{};
    bool signaled{};
    std::uint32_t length{};
    std::uint64_t value{};
    std::uint8_t salt{};
  };
  struct Message {
    WrOpcode opcode{};
    std::uint32_t length{}, imm{};
    std::uint8_t salt{};
  };
  struct Host {
    Host(unsigned n, const Options& o)
        : gid(Gid::from_v4(0x0100000a + (n << 24))),
          engine({.slot = n + 1,
                  .max_qp = 32,
                  .max_mr = 64,
                  .seed = o.seed + n,
                  .active_mtu = Mtu::mtu_4096,
                  .initial_window = o.window,
                  .max_window = 4 * o.window,
                  .read_chunk_packets = o.chunk,
                  .read_budget = o.read_budget,
                  .end_to_end_credits = o.credits}) {
      engine.set_gid(0, gid);
      cq = engine.create_cq(4096, nullptr);
      if (o.srq) srq = engine.create_srq(slots * o.qps * 2, 2, 1, nullptr);
    }
    Gid gid;
    Engine engine;
    CompletionQueue* cq;
    SharedReceiveQueue* srq = nullptr;
  };
  // Memory of one end: eight slots each to send from (and read into), to be written by the peer,
  // and to receive into; then what the peer reads, and three words.
  struct End {
    static constexpr std::uint64_t source = 0, target = slots * slot_bytes, inbox = 2 * target,
                                   library = 3 * target, words = library + 8192;
    Host* host{};
    QueuePair* qp{};
    End* peer{};
    unsigned index{};
    MemoryRegion* mr{};
    std::unique_ptr<std::byte[]> memory;
    std::uint64_t posted = 0, completed = 0, adds = 0, swaps = 0, messages = 0, received = 0;
    std::array<Operation, 64> operations{};
    std::array<Message, 64> sent{};
    std::array<unsigned, slots> free_receives{};
    unsigned free_count = 0;

    std::uint64_t at(std::uint64_t offset) const { return mr->iova + offset; }
    std::uint8_t* bytes(std::uint64_t offset) {
      return reinterpret_cast<std::uint8_t*>(memory.get()) + offset;
    }
    std::uint64_t word(std::uint64_t offset) {
      std::uint64_t v;
      std::memcpy(&v, memory.get() + offset, 8);
      return v;
    }
  };
  struct Frame {
    std::uint32_t size = 0, from = 0;
    AddressVector av{};
    std::uint8_t bytes[TxBurst::max_frame];
  };

  static std::uint8_t value_at(std::uint32_t i, std::uint8_t salt) {
    return static_cast<std::uint8_t>(i * 7 + (i >> 8) * 13 + salt);
  }
  static void fill(std::uint8_t* p, std::uint32_t n, std::uint8_t salt) {
    for (std::uint32_t i = 0; i < n; ++i) p[i] = value_at(i, salt);
  }
  static bool holds(const std::uint8_t* p, std::uint32_t n, std::uint8_t salt) {
    for (std::uint32_t i = 0; i < n; ++i)
      if (p[i] != value_at(i, salt)) return false;
    return true;
  }

  std::unique_ptr<End> make_end(unsigned h) {
    auto e = std::make_unique<End>();
    e->host = hosts_[h].get();
    e->index = static_cast<unsigned>(ends_.size());
    std::size_t n = End::words + 64;
    e->memory = std::make_unique<std::byte[]>(n);
    fill(e->bytes(End::library), 8192, 77);
    MemoryRegion m;
    m.base = e->memory.get();
    m.iova = reinterpret_cast<std::uintptr_t>(m.base);
    m.length = n;
    m.pd = 1;
    m.access = 0xf | access_flush_global;
    e->mr = e->host->engine.keys().add(m);
    e->qp = e->host->engine.create_qp({.type = QpType::rc,
                                       .pd = 1,
                                       .send_cq = e->host->cq,
                                       .recv_cq = e->host->cq,
                                       .srq = e->host->srq,
                                       .max_send_wr = o.depth,
                                       .max_recv_wr = o.recv_depth,
                                       .max_send_sge = 2,
                                       .max_recv_sge = 2,
                                       .max_inline = 64,
                                       .user = e.get()});
    return e;
  }
  void add_pair(unsigned a, unsigned b) {
    ends_.push_back(make_end(a));
    End* x = ends_.back().get();
    ends_.push_back(make_end(b));
    x->peer = ends_.back().get();
    x->peer->peer = x;
  }
  void connect(End& e) {
    QpAttributes x;
    x.access_flags = access_remote_write | access_remote_read | access_remote_atomic;
    x.path_mtu = o.mtu;
    x.dest_qpn = e.peer->qp->qpn;
    x.rq_psn = Psn(o.first_psn + e.peer->index);
    x.sq_psn = Psn(o.first_psn + e.index);
    x.av.dgid = e.peer->host->gid;
    x.max_rd_atomic = x.max_dest_rd_atomic = o.rd_atomic;
    x.timeout = o.timeout;
    x.retry_cnt = 7;
    x.rnr_retry = 7;
    x.min_rnr_timer = o.min_rnr_timer;
    for (const QpState state : {QpState::init, QpState::rtr, QpState::rts}) {
      x.state = state;
      const std::uint32_t mask = required_attributes(QpType::rc, e.qp->state, state);
      ASSERT_TRUE(e.host->engine.modify_qp(now, *e.qp, x, mask).ok());
    }
  }

  // --- posting

  void post(End& e, std::uint64_t limit) {
    for (unsigned i = 0; i < e.free_count;) {
      if (random_.chance(o.receive_lag, 1000)) {
        ++i;
        continue;
      }
      unsigned slot = e.free_receives[i];
      Sge list[2] = {{e.at(End::inbox + slot * slot_bytes), 100, e.mr->key},
                     {e.at(End::inbox + slot * slot_bytes) + 100, slot_bytes - 100, e.mr->key}};
      ASSERT_TRUE(e.qp->rq->post(e.index * slots + slot, list));
      e.free_receives[i] = e.free_receives[--e.free_count];
    }
    while (e.posted < limit && e.messages - e.peer->received < e.sent.size() &&
           random_.chance(3, 4))
      if (!post_one(e, e.posted + 1 == limit)) return;
  }

  bool post_one(End& e, bool last) {
    SendWqe* w = e.qp->sq->reserve();
    if (!w) return false;
    constexpr WrOpcode all[] = {WrOpcode::send,
                                WrOpcode::send_with_imm,
                                WrOpcode::rdma_write,
                                WrOpcode::rdma_write_with_imm,
                                WrOpcode::rdma_read,
                                WrOpcode::atomic_fetch_and_add,
                                WrOpcode::atomic_cmp_and_swp,
                                WrOpcode::atomic_write,
                                WrOpcode::flush};
    std::uint64_t n = e.posted++;
    Operation& op = e.operations[n % e.operations.size()];
    op = {.opcode = all[random_.below(std::size(all))],
          .signaled = last || n % o.depth == o.depth - 1 || random_.chance(1, 2),
          .length = static_cast<std::uint32_t>(random_.below(o.max_length + 1)),
          .salt = static_cast<std::uint8_t>(random_.next())};
    if (random_.chance(1, 4)) op.length = static_cast<std::uint32_t>(random_.below(64));
    std::uint64_t local = End::source + n % slots * slot_bytes;
    std::uint64_t remote = End::target + n % slots * slot_bytes;
    bool message = op.opcode == WrOpcode::send || op.opcode == WrOpcode::send_with_imm ||
                   op.opcode == WrOpcode::rdma_write_with_imm;
    switch (op.opcode) {
      case WrOpcode::rdma_read:
        remote = End::library;
        break;
      case WrOpcode::atomic_fetch_and_add:
        remote = End::words, op.length = 8, op.value = e.adds++, w->compare_add = 1;
        break;
      case WrOpcode::atomic_cmp_and_swp:
        remote = End::words + 8, op.length = 8, op.value = e.swaps;
        w->compare_add = e.swaps, w->swap = ++e.swaps;
        break;
      case WrOpcode::atomic_write:
        remote = End::words + 16, op.length = 8, op.value = n;
        std::memcpy(e.bytes(local), &n, 8);
        break;
      case WrOpcode::flush:
        w->flush_type = 1;
        break;
      default:
        fill(e.bytes(local), op.length, op.salt);
    }
    w->wr_id = n;
    w->opcode = op.opcode;
    w->flags = op.signaled ? send_signaled : 0;
    if (random_.chance(1, 10)) w->flags |= send_fence;
    w->length = op.length;
    w->imm_or_rkey = static_cast<std::uint32_t>(n);
    w->remote_addr = e.peer->at(remote);
    w->rkey = e.peer->mr->key;
    bool fits = message && op.length <= 64 && random_.chance(1, 2);
    if (fits) {
      w->flags |= send_inline;
      std::memcpy(e.qp->sq->inline_of_reserved(), e.bytes(local), op.length);
    } else if (op.opcode != WrOpcode::flush) {
      std::uint32_t cut = op.length / 3;
      auto list = e.qp->sq->sges_of_reserved();
      list[0] = {e.at(local), cut, e.mr->key};
      list[1] = {e.at(local) + cut, op.length - cut, e.mr->key};
      w->num_sge = 2;
    }
    if (message)
      e.sent[e.messages++ % e.sent.size()] = {op.opcode, op.length, w->imm_or_rkey, op.salt};
    e.qp->sq->publish();
    e.host->engine.ring_doorbell(*e.qp);
    return true;
  }

  // --- what must be so

  void collect(Host& h) {
    Cqe c[16];
    for (unsigned n; (n = h.cq->poll(16, c)) != 0;)
      for (unsigned i = 0; i < n; ++i) {
        End& e = *static_cast<End*>(c[i].qp->user);
        ASSERT_EQ(c[i].status, WcStatus::success) << "seed " << o.seed;
        if (static_cast<unsigned>(c[i].opcode) & 128)
          check_receive(e, c[i]);
        else
          check_send(e, c[i]);
      }
  }
  void check_send(End& e, const Cqe& c) {
    ASSERT_GE(c.wr_id, e.completed) << "seed " << o.seed;
    ASSERT_LT(c.wr_id, e.posted);
    for (; e.completed <= c.wr_id; ++e.completed) {
      const Operation& op = e.operations[e.completed % e.operations.size()];
      ASSERT_EQ(op.signaled, e.completed == c.wr_id) << "seed " << o.seed;
      std::uint64_t local = End::source + e.completed % slots * slot_bytes;
      std::uint64_t remote = End::target + e.completed % slots * slot_bytes;
      switch (op.opcode) {
        case WrOpcode::rdma_write:
        case WrOpcode::rdma_write_with_imm:
          ASSERT_TRUE(holds(e.peer->bytes(remote), op.length, op.salt)) << "seed " << o.seed;
          break;
        case WrOpcode::rdma_read:
          ASSERT_TRUE(holds(e.bytes(local), op.length, 77)) << "seed " << o.seed;
          break;
        case WrOpcode::atomic_fetch_and_add:
        case WrOpcode::atomic_cmp_and_swp:
          ASSERT_EQ(e.word(local), op.value) << "seed " << o.seed;
          break;
        case WrOpcode::atomic_write:
          ASSERT_GE(e.peer->word(End::words + 16), op.value) << "seed " << o.seed;
          break;
        default:
          break;
      }
    }
  }
  void check_receive(End& e, const Cqe& c) {
    ASSERT_LT(e.received, e.peer->messages) << "received twice, seed " << o.seed;
    const Message& m = e.peer->sent[e.received++ % e.sent.size()];
    ASSERT_EQ(c.byte_len, m.length) << "seed " << o.seed;
    if (m.opcode != WrOpcode::send) {
      ASSERT_EQ(c.imm_or_rkey, m.imm) << "seed " << o.seed;
    }
    End& owner = *ends_[c.wr_id / slots];  // of the buffer: with an SRQ another than the receiver
    auto slot = static_cast<unsigned>(c.wr_id % slots);
    if (m.opcode != WrOpcode::rdma_write_with_imm) {
      ASSERT_TRUE(holds(owner.bytes(End::inbox + slot * slot_bytes), m.length, m.salt))
          << "seed " << o.seed;
    }
    owner.free_receives[owner.free_count++] = slot;
  }
  void check_cursors(Host& h) {
    for (auto& e : ends_) {
      if (e->host != &h) continue;
      QueuePair& q = *e->qp;
      std::uint32_t posted = q.sq->posted();
      ASSERT_LE(q.req.next - q.comp.acked, posted - q.comp.acked) << "seed " << o.seed;
      ASSERT_LE(posted - q.comp.acked, o.depth) << "seed " << o.seed;
      ASSERT_GE(q.req.psn - q.comp.una, 0) << "seed " << o.seed;
      ASSERT_GE(q.req.highest - q.req.psn, 0) << "seed " << o.seed;
      ASSERT_LE(q.req.reads_outstanding, o.rd_atomic) << "seed " << o.seed;
    }
  }
  // Lets answers and timers that are still under way come to an end; then nothing may be in flight.
  bool settle() {
    for (int i = 0; i < 200; ++i) step();
    for (auto& e : ends_) {
      const QueuePair& q = *e->qp;
      EXPECT_EQ(q.req.in_flight, 0u) << "seed " << o.seed;
      EXPECT_EQ(q.req.read_bytes, 0u) << "seed " << o.seed;
      EXPECT_EQ(q.req.reads_outstanding, 0u) << "seed " << o.seed;
      EXPECT_EQ(q.destination->in_flight, 0u) << "seed " << o.seed;
      EXPECT_EQ(e->peer->word(End::words), e->adds) << "seed " << o.seed;
      EXPECT_EQ(e->peer->word(End::words + 8), e->swaps) << "seed " << o.seed;
    }
    return !::testing::Test::HasFailure();
  }

  // --- the network

  void step() {
    Instant next = never;
    for (auto& h : hosts_) {
      transmit(*h);
      collect(*h);
      check_cursors(*h);
      next = std::min(next, h->engine.next_deadline());
    }
    if (count_) next = std::min(next, now + std::chrono::microseconds(5));
    Instant soon = now + std::chrono::microseconds(50);  // for those who post
    now = std::max(now + std::chrono::microseconds(1), std::min(next, soon));
    deliver();
  }
  void transmit(Host& h) {
    TxBurst tx(arena_);
    bool more = true;
    while (more) {
      tx.clear();
      more = h.engine.transmit(now, tx);
      for (const TxFrame& f : tx.frames()) put(f, tx.bytes(f), h);
    }
  }
  void put(const TxFrame& f, const std::uint8_t* bytes, Host& h) {
    if (random_.chance(o.loss, 1000) || count_ + 2 > wire_.size()) return;
    Frame& slot = wire_[count_];
    slot.size = f.size;
    slot.av = f.av;
    slot.from = h.engine.config().slot - 1;
    std::memcpy(slot.bytes, bytes, f.size);
    order_[count_] = static_cast<unsigned>(count_);
    if (count_ && random_.chance(o.reorder, 1000)) {
      std::size_t earlier = count_ - 1 - random_.below(std::min<std::size_t>(count_, 4));
      std::swap(order_[count_], order_[earlier]);
    }
    ++count_;
    if (!random_.chance(o.duplicate, 1000)) return;
    std::memcpy(&wire_[count_], &slot, sizeof slot);
    order_[count_] = static_cast<unsigned>(count_);
    ++count_;
  }
  void deliver() {
    for (std::size_t i = 0; i < count_; ++i) {
      const Frame& p = wire_[order_[i]];
      auto packet = wire::decode({p.bytes, p.size});
      ASSERT_TRUE(packet);
      RxFrame f;
      f.packet = *packet;
      f.source = hosts_[p.from]->gid;
      f.destination = p.av.dgid;
      for (auto& h : hosts_)
        if (h->gid == f.destination) h->engine.receive(now, f);
    }
    count_ = 0;
  }

  Prng random_;
  std::vector<std::uint8_t> arena_;
  std::vector<std::unique_ptr<Host>> hosts_;
  std::vector<std::unique_ptr<End>> ends_;
  std::vector<Frame> wire_;
  std::vector<unsigned> order_;
  std::size_t count_ = 0;
};

}  // namespace adverb::engine::network
