// SPDX-License-Identifier: Apache-2.0
// A hostile peer and a careless application: the input is a script of packets with fields near what
// is right (by way of the opcode table), work requests, state changes and time, for an RC, a UC and
// a UD queue pair.  The engine's own assertions and the sanitizers are the judges; at the end
// nothing may be left in flight.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <vector>

#include "engine/engine.hpp"

using namespace adverb;
using namespace adverb::engine;

namespace {

void require(bool x) {
  if (!x) __builtin_trap();
}

class Input {
 public:
  Input(const std::uint8_t* p, std::size_t n) : p_(p), end_(p + n) {}
  bool empty() const { return p_ == end_; }
  std::uint8_t byte() { return empty() ? 0 : *p_++; }
  std::uint32_t word() {
    std::uint32_t v = 0;
    for (int i = 0; i < 4; ++i) v = v << 8 | byte();
    return v;
  }

 private:
  const std::uint8_t *p_, *end_;
};

constexpr std::uint32_t mtu = 256;
const Gid us = Gid::from_v4(0x0100000a), them = Gid::from_v4(0x0200000a);

class World {
 public:
  explicit World(Input& in)
      : in_(in),
        engine_({.max_qp = 4,
                 .max_mr = 16,
                 .initial_window = 3000,
                 .read_chunk_packets = 2,
                 .read_budget = 2000}),
        memory_(std::make_unique<std::byte[]>(bytes)),
        arena_(TxBurst::max_frame * 2) {
    engine_.set_gid(0, us);
    MemoryRegion m;
    m.base = memory_.get();
    m.iova = 0x10000;
    m.length = bytes;
    m.pd = 1;
    m.access = 0xf | access_flush_global | access_flush_persistent;
    region_ = engine_.keys().add(m);
    m.invalidatable = true;
    second_ = engine_.keys().add(m);
    cq_ = engine_.create_cq(64, nullptr);
    std::uint8_t setup = in_.byte();
    if (setup & 1) srq_ = engine_.create_srq(4, 4, 1, nullptr);
    constexpr QpType types[] = {QpType::rc, QpType::uc, QpType::ud};
    for (int i = 0; i < 3; ++i) {
      qps_[i] = engine_.create_qp({.type = types[i],
                                   .pd = 1,
                                   .send_cq = cq_,
                                   .recv_cq = cq_,
                                   .srq = srq_,
                                   .max_send_wr = 4,
                                   .max_recv_wr = 4,
                                   .max_send_sge = 2,
                                   .max_recv_sge = 2,
                                   .max_inline = 32});
      bring_up(*qps_[i]);
    }
  }

  void run() {
    while (!in_.empty()) {
      QueuePair& q = *qps_[in_.byte() % 3];
      switch (in_.byte() % 10) {
        case 0:
        case 1:
        case 2:
          packet(q);
          break;
        case 3:
          raw();
          break;
        case 4:
          post(q);
          break;
        case 5:
          receive_wqe(q);
          break;
        case 6:
          now_ += Duration(std::int64_t{in_.byte()} << (in_.byte() % 24));
          break;
        case 7:
          transmit();
          break;
        case 8:
          poll();
          break;
        case 9:
          modify(q);
          break;
      }
      check();
    }
    for (QueuePair* q : qps_) engine_.destroy_qp(q);
    transmit();
    require(engine_.next_deadline() == never);
    require(engine_.destroy_cq(cq_));
  }

 private:
  static constexpr std::size_t bytes = 8192;

  void bring_up(QueuePair& q) {
    QpAttributes x;
    x.access_flags = access_remote_write | access_remote_read | access_remote_atomic;
    x.path_mtu = Mtu::mtu_256;
    x.dest_qpn = Qpn(0x777);
    x.rq_psn = Psn(0xfffffa);
    x.sq_psn = Psn(0xfffffc);
    x.av.dgid = them;
    x.max_rd_atomic = x.max_dest_rd_atomic = 2;
    x.timeout = 4;
    x.retry_cnt = 3;
    x.rnr_retry = 3;
    x.min_rnr_timer = 1;
    x.qkey = 5;
    bool rc = q.type == QpType::rc, ud = q.type == QpType::ud;
    std::uint32_t masks[] = {attr_state | attr_port | attr_pkey_index |
                                 (ud ? attr_qkey : static_cast<std::uint32_t>(attr_access_flags)),
                             attr_state, attr_state | attr_sq_psn};
    if (!ud) masks[1] |= attr_av | attr_path_mtu | attr_dest_qpn | attr_rq_psn;
    if (rc) masks[1] |= attr_max_dest_rd_atomic | attr_min_rnr_timer;
    if (rc) masks[2] |= attr_timeout | attr_retry_cnt | attr_rnr_retry | attr_max_qp_rd_atomic;
    constexpr QpState states[] = {QpState::init, QpState::rtr, QpState::rts};
    for (int i = 0; i < 3; ++i) {
      x.state = states[i];
      require(engine_.modify_qp(now_, q, x, masks[i]).ok());
    }
  }

  std::uint64_t address() {
    std::uint8_t how = in_.byte();
    if (how < 200) return 0x10000 + std::uint64_t{how} * 8;
    if (how < 230) return 0x10000 + bytes - in_.byte();
    return std::uint64_t{in_.word()} << 32 | in_.word();
  }
  std::uint32_t key() {
    std::uint8_t how = in_.byte();
    return how < 200 ? region_->key : how < 230 ? second_->key : in_.word();
  }
  std::uint32_t length() {
    std::uint8_t how = in_.byte();
    constexpr std::uint32_t usual[] = {0, 1, 7, 8, mtu - 1, mtu, mtu + 1, 2 * mtu, 3 * mtu + 5};
    if (how < 9 * 25) return usual[how % 9];
    return how < 250 ? in_.byte() * 8u : in_.word();
  }

  void packet(QueuePair& q) {
    wire::Packet p;
    std::uint8_t which = in_.byte(), flags = in_.byte();
    wire::Transport t = q.type == QpType::rc   ? wire::Transport::rc
                        : q.type == QpType::uc ? wire::Transport::uc
                                               : wire::Transport::ud;
    const auto& row = wire::operations[which % wire::operations.size()];
    p.bth.opcode = wire::opcode_of(t, row.code);
    if (which >= 250) p.bth.opcode = wire::cnp_opcode;
    if (!p.info()) return;
    Psn base = wire::is_response(p.info().verb) ? q.comp.una : q.resp.expected;
    p.bth.psn = base + static_cast<std::uint32_t>(static_cast<std::int8_t>(in_.byte()) / 8);
    p.bth.dest_qp = q.qpn;
    p.bth.ack_request = flags & 1;
    p.bth.solicited = flags & 2;
    p.reth = {address(), key(), length()};
    p.atomic = {p.reth.va, p.reth.rkey, in_.byte(), in_.byte()};
    p.aeth = {in_.byte(), in_.byte()};
    p.deth = {flags & 4 ? 6u : 5u, Qpn(9)};
    p.ieth.rkey = p.reth.rkey;
    p.feth = {static_cast<std::uint8_t>(flags >> 4 & 3), static_cast<std::uint8_t>(flags >> 6)};
    std::uint32_t n = p.info().payload ? std::min(length(), 1500u) : 0;
    if (flags & 8 && p.info().has(wire::ext_reth)) p.reth.dma_length = n;
    std::vector<std::uint8_t> b(wire::max_header_bytes);
    p.bth.pad_count = static_cast<std::uint8_t>(wire::pad_of(n));
    b.resize(wire::encode_headers(p, b.data()));
    b.resize(b.size() + n + p.bth.pad_count, 0x5a);
    deliver(b, flags & 16 ? 3 : 0);
  }
  void raw() {
    std::vector<std::uint8_t> b(in_.byte() % 80);
    for (auto& x : b) x = in_.byte();
    if (b.size() >= 8) {
      std::uint32_t qpn = qps_[b[5] % 3]->qpn.raw();
      b[5] = static_cast<std::uint8_t>(qpn >> 16);
      b[6] = static_cast<std::uint8_t>(qpn >> 8);
      b[7] = static_cast<std::uint8_t>(qpn);
    }
    deliver(b, 0);
  }
  void deliver(const std::vector<std::uint8_t>& b, std::uint8_t tos) {
    auto packet = wire::decode(b);
    if (!packet) return;
    RxFrame f;
    f.packet = *packet;
    f.source = them;
    f.destination = us;
    f.traffic_class = tos;
    engine_.receive(now_, f);
  }

  void post(QueuePair& q) {
    SendWqe* w = q.sq->reserve();
    if (!w) return;
    constexpr WrOpcode all[] = {WrOpcode::rdma_write,
                                WrOpcode::rdma_write_with_imm,
                                WrOpcode::send,
                                WrOpcode::send_with_imm,
                                WrOpcode::rdma_read,
                                WrOpcode::atomic_cmp_and_swp,
                                WrOpcode::atomic_fetch_and_add,
                                WrOpcode::send_with_inv,
                                WrOpcode::flush,
                                WrOpcode::atomic_write,
                                WrOpcode::local_inv};
    w->opcode = all[in_.byte() % std::size(all)];
    w->flags = in_.byte() & (send_fence | send_signaled | send_solicited);
    std::uint32_t n = std::min(length(), 2000u);
    w->num_sge = 2;
    w->length = n;
    q.sq->sges_of_reserved()[0] = {0x10000, n / 2, key()};
    q.sq->sges_of_reserved()[1] = {0x11000, n - n / 2, region_->key};
    w->pd_of_ah = 1;
    w->av.dgid = them;
    w->flush_type = 1;
    q.sq->publish();
    engine_.ring_doorbell(q);
  }
  void receive_wqe(QueuePair& q) {
    Sge list[2] = {{0x10800, std::min(length(), 2000u), key()}, {0x11000, 300, region_->key}};
    if (q.rq->post(1, list) && !q.srq) engine_.ring_doorbell(q);
  }
  void transmit() {
    TxBurst tx(arena_);
    for (int i = 0; i < 50; ++i) {
      tx.clear();
      bool more = engine_.transmit(now_, tx);
      for (const TxFrame& f : tx.frames()) require(wire::decode({tx.bytes(f), f.size}).has_value());
      if (!more) return;
    }
  }
  void poll() {
    Cqe c[8];
    cq_->poll(8, c);
    EventRecord r[4];
    while (engine_.take_events(r) == 4) {
    }
  }
  void modify(QueuePair& q) {
    QpAttributes x;
    constexpr QpState to[] = {QpState::sqd, QpState::rts, QpState::error, QpState::reset};
    x.state = to[in_.byte() % 4];
    x.en_sqd_async_notify = true;
    std::uint32_t mask = attr_state;
    if (x.state == QpState::sqd) mask |= attr_en_sqd_async_notify;
    engine_.modify_qp(now_, q, x, mask);
    if (q.state.load() == QpState::reset) bring_up(q);
  }
  void check() {
    for (QueuePair* q : qps_) {
      std::uint32_t posted = q->sq->posted();
      require(q->req.next - q->comp.acked <= posted - q->comp.acked);
      require(posted - q->comp.acked <= 4);
      require(q->req.psn - q->comp.una >= 0 && q->req.highest - q->req.psn >= 0);
      if (q->req.psn == q->comp.una) require(q->req.in_flight == 0 && q->req.read_bytes == 0);
    }
  }

  Input& in_;
  Engine engine_;
  std::unique_ptr<std::byte[]> memory_;
  std::vector<std::uint8_t> arena_;
  MemoryRegion *region_, *second_;
  CompletionQueue* cq_;
  SharedReceiveQueue* srq_ = nullptr;
  QueuePair* qps_[3];
  Instant now_{};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size > 4096) return 0;
  Input in(data, size);
  World(in).run();
  return 0;
}
