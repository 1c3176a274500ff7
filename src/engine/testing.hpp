// SPDX-License-Identifier: Apache-2.0
// For tests: two hosts with an engine each and a wire between them that loses, doubles and reorders
// by a seed, all in virtual time.
#pragma once

#include <cstring>
#include <deque>
#include <vector>

#include "engine/engine.hpp"

namespace adverb::engine::testing {

struct PairOptions {
  std::uint64_t seed = 1;
  unsigned loss = 0, duplicate = 0, reorder = 0;  // per mille
  QpType type = QpType::rc;
  Mtu mtu = Mtu::mtu_1024;
  std::uint8_t timeout = 10, retry_cnt = 7, rnr_retry = 7, max_rd_atomic = 4;
  Psn psn_a{0xfffff0}, psn_b{0x123456};
  std::uint32_t access = access_remote_write | access_remote_read | access_remote_atomic;
};

struct Host {
  explicit Host(unsigned n, const PairOptions& o)
      : gid(Gid::from_v4(0x0100007f + (n << 24))),
        engine({.slot = n,
                .max_qp = 16,
                .max_mr = 64,
                .seed = o.seed + n,
                .active_mtu = Mtu::mtu_4096}),
        memory(std::size_t{1} << 18) {
    engine.set_gid(0, gid);
    MemoryRegion mr;
    mr.base = memory.data();
    mr.iova = reinterpret_cast<std::uintptr_t>(memory.data());
    mr.length = memory.size();
    mr.pd = 1;
    mr.access = 0xf;
    region = engine.keys().add(mr);
    cq = engine.create_cq(1024, nullptr);
    qp = engine.create_qp({.type = o.type,
                           .pd = 1,
                           .send_cq = cq,
                           .recv_cq = cq,
                           .max_send_wr = 64,
                           .max_recv_wr = 64,
                           .max_send_sge = 4,
                           .max_recv_sge = 4,
                           .max_inline = 64});
  }
  std::uint64_t address(std::uint64_t offset) const { return region->iova + offset; }

  Gid gid;
  Engine engine;
  std::vector<std::byte> memory;
  MemoryRegion* region;
  CompletionQueue* cq;
  QueuePair* qp;
  std::deque<Cqe> done;
};

class Pair {
 public:
  explicit Pair(PairOptions o = {}) : options(o), a(1, o), b(2, o), random_(o.seed) {
    connect(a, b, o.psn_a, o.psn_b);
    connect(b, a, o.psn_b, o.psn_a);
  }

  void fill(Host& h, std::uint64_t offset, std::size_t n, std::uint8_t salt) {
    for (std::size_t i = 0; i < n; ++i)
      h.memory[offset + i] = static_cast<std::byte>(salt + i * 7 + (i >> 8));
  }
  bool same(std::uint64_t in_a, std::uint64_t in_b, std::size_t n) const {
    return std::memcmp(a.memory.data() + in_a, b.memory.data() + in_b, n) == 0;
  }

  SendWqe* begin(Host& h, WrOpcode o, std::uint64_t local, std::uint32_t length) {
    SendWqe* w = h.qp->sq->reserve();
    if (!w) return nullptr;
    w->opcode = o;
    w->flags = send_signaled;
    w->length = length;
    w->num_sge = 1;
    w->wr_id = ++wr_id_;
    h.qp->sq->sges_of_reserved()[0] = {h.address(local), length, h.region->key};
    return w;
  }
  void end(Host& h) {
    h.qp->sq->publish();
    h.engine.ring_doorbell(*h.qp);
  }
  Host& peer(Host& h) { return &h == &a ? b : a; }
  void post_remote(Host& h, WrOpcode o, std::uint64_t local, std::uint64_t remote,
                   std::uint32_t n) {
    SendWqe* w = begin(h, o, local, n);
    w->remote_addr = peer(h).address(remote);
    w->rkey = peer(h).region->key;
    end(h);
  }
  void post_write(Host& h, std::uint64_t local, std::uint64_t remote, std::uint32_t n) {
    post_remote(h, WrOpcode::rdma_write, local, remote, n);
  }
  void post_read(Host& h, std::uint64_t local, std::uint64_t remote, std::uint32_t n) {
    post_remote(h, WrOpcode::rdma_read, local, remote, n);
  }
  void post_fetch_add(Host& h, std::uint64_t local, std::uint64_t remote, std::uint64_t add) {
    SendWqe* w = begin(h, WrOpcode::atomic_fetch_and_add, local, 8);
    w->remote_addr = peer(h).address(remote);
    w->rkey = peer(h).region->key;
    w->compare_add = add;
    end(h);
  }
  void post_send(Host& h, std::uint64_t local, std::uint32_t n) {
    begin(h, WrOpcode::send, local, n);
    end(h);
  }
  bool post_receive(Host& h, std::uint64_t local, std::uint32_t n) {
    Sge s{h.address(local), n, h.region->key};
    return h.qp->rq->post(++wr_id_, {&s, 1});
  }

  // Until nothing is on the wire and no timer is armed, or virtual minutes have passed.
  void run() { run_for(std::chrono::minutes(10)); }
  void run_for(Duration limit) {
    Instant end = now + limit;
    for (;;) {
      step(a);
      step(b);
      Instant next = std::min(a.engine.next_deadline(), b.engine.next_deadline());
      if (!wire_.empty()) next = std::min(next, now + std::chrono::microseconds(5));
      if (next == never) return;
      if (next > end) {
        now = end;
        return;
      }
      now = std::max(now + std::chrono::microseconds(1), next);
      deliver();
    }
  }

  std::size_t completions(Host& h) {
    Cqe c[64];
    for (unsigned n; (n = h.cq->poll(64, c)) != 0;) h.done.insert(h.done.end(), c, c + n);
    return h.done.size();
  }
  Cqe next(Host& h) {
    if (completions(h) == 0) return Cqe{.wr_id = ~0ull, .status = WcStatus::general_err};
    Cqe c = h.done.front();
    h.done.pop_front();
    return c;
  }
  WcStatus status_of(Host& h) { return next(h).status; }

  PairOptions options;
  Instant now{};
  Host a, b;

 private:
  struct InFlight {
    std::vector<std::uint8_t> bytes;
    AddressVector av;
    bool to_b;
  };

  void connect(Host& h, Host& to, Psn mine, Psn theirs) {
    QpAttributes x;
    x.access_flags = options.access;
    x.path_mtu = options.mtu;
    x.dest_qpn = to.qp->qpn;
    x.rq_psn = theirs;
    x.sq_psn = mine;
    x.av.dgid = to.gid;
    x.max_rd_atomic = x.max_dest_rd_atomic = options.max_rd_atomic;
    x.timeout = options.timeout;
    x.retry_cnt = options.retry_cnt;
    x.rnr_retry = options.rnr_retry;
    x.min_rnr_timer = 1;
    x.qkey = 0x11111111;
    for (const QpState state : {QpState::init, QpState::rtr, QpState::rts}) {
      x.state = state;
      const std::uint32_t mask = required_attributes(options.type, h.qp->state, state);
      if (!h.engine.modify_qp(now, *h.qp, x, mask).ok()) __builtin_trap();
    }
  }

  void step(Host& h) {
    alignas(64) static thread_local std::uint8_t arena[1 << 18];
    TxBurst tx(arena);
    bool more = true;
    while (more) {
      tx.clear();
      more = h.engine.transmit(now, tx);
      for (const TxFrame& f : tx.frames()) put(h, f, tx.bytes(f));
    }
  }
  void put(Host& h, const TxFrame& f, const std::uint8_t* bytes) {
    if (random_.chance(options.loss, 1000)) return;
    InFlight p{{bytes, bytes + f.size}, f.av, &h == &a};
    bool twice = random_.chance(options.duplicate, 1000);
    bool swap = random_.chance(options.reorder, 1000) && !wire_.empty();
    wire_.push_back(p);
    if (swap) std::swap(wire_.back(), wire_[wire_.size() - 2]);
    if (twice) wire_.push_back(p);
  }
  void deliver() {
    std::deque<InFlight> arrived;
    arrived.swap(wire_);
    for (const InFlight& p : arrived) {
      auto packet = wire::decode(p.bytes);
      if (!packet) __builtin_trap();
      RxFrame f;
      f.packet = *packet;
      f.source = p.to_b ? a.gid : b.gid;
      f.destination = p.av.dgid;
      f.traffic_class = p.av.traffic_class;
      (p.to_b ? b : a).engine.receive(now, f);
    }
  }

  Prng random_;
  std::deque<InFlight> wire_;
  std::uint64_t wr_id_ = 0;
};

}  // namespace adverb::engine::testing
