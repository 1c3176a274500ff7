// SPDX-License-Identifier: Apache-2.0
// One host under attack: an engine with four queue pairs (RC, UC, UD, and RC with an SRQ), memory
// of every kind of right, and a book of every work request.  After each step of a script it judges
// what the step was allowed to do.
#pragma once

#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "engine/engine.hpp"
#include "script.hpp"

namespace adverb::fuzz {

using namespace engine;

// Memory, area by area; what lies between them is nobody's.
struct Area {
  const char* name;
  std::size_t offset, size;
  std::uint32_t access;
  PdId pd;
  bool invalidatable;
  std::uint64_t iova() const { return 0x10000 + offset * 16; }
};
inline constexpr std::uint32_t all_rights = 0xf | access_flush_global | access_flush_persistent;
inline constexpr std::size_t memory_bytes = 6 << 10;
inline constexpr std::array areas = std::to_array<Area>({
    {"open", 128, 2304, all_rights, 1, false},
    {"window", 2560, 512, all_rights, 1, true},
    {"library", 3200, 1280, access_remote_read, 1, false},
    {"private", 4608, 512, access_local_write, 1, false},
    {"foreign", 5248, 512, all_rights, 2, false},
});
enum AreaIndex : unsigned { open_area, window_area, library_area, private_area, foreign_area };

struct Range {  // of the memory, in bytes from its start
  std::size_t begin = 0, end = 0;
};

struct Setup {
  bool srq_limit, small_cq, sig_all, v6, credit, no_end_to_end;
  std::uint32_t access;  // of the QPs
};

class World {
 public:
  static constexpr unsigned qp_count = 4, srq_qp = 3, queue_depth = 4;
  static constexpr Mtu path_mtu = Mtu::mtu_256;
  static constexpr std::uint32_t mtu = 256, qkey = 5;

  explicit World(const Setup& setup)
      : setup(setup),
        engine({.max_qp = 8,
                .max_mr = 16,
                .active_mtu = Mtu::mtu_512,
                .initial_window = 3000,
                .read_chunk_packets = 2,
                .read_budget = 2000,
                .end_to_end_credits = !setup.no_end_to_end}),
        memory(secrets()) {
    us = setup.v6 ? Gid{{0xfd, 1}} : Gid::from_v4(0x0100000a);
    them = setup.v6 ? Gid{{0xfd, 2}} : Gid::from_v4(0x0200000a);
    stranger = setup.v6 ? Gid{{0xfd, 3}} : Gid::from_v4(0x0300000a);
    engine.set_gid(0, us);
    if (setup.credit) engine.set_local({&them, 1}, lines, 4000);
    for (unsigned i = 0; i < areas.size(); ++i) add_region(i);
    cq = engine.create_cq(setup.small_cq ? 6 : 256, nullptr);
    srq = engine.create_srq(queue_depth, 2, 1, nullptr);
    for (unsigned i = 0; i < qp_count; ++i) create_qp(i);
  }

  // Everything goes away; nothing may be left, and every work request must have been completed
  // once.
  void finish() {
    QpAttributes x;
    x.state = QpState::error;
    for (QueuePair* q : qps)
      if (q->state.load() != QpState::reset) engine.modify_qp(now, *q, x, attr_state);
    transmit();
    poll();
    if (!overrun)
      for (const Work& w : book) REQUIRE(!w.owed());
    for (unsigned i = 0; i < qp_count; ++i) destroy_qp(i);
    REQUIRE(engine.next_deadline() == never);
    REQUIRE(engine.idle());
    EventRecord none[4];
    while (engine.take_events(none) == 4) {
    }
    REQUIRE(engine.destroy_cq(cq));
    REQUIRE(engine.destroy_srq(srq));
    for (MemoryRegion* r : regions) engine.keys().remove(*r);
    REQUIRE(engine.keys().size() == 0);
  }

  // --- memory
  // What stands in it at first: no eight bytes twice, as good as.
  static const std::vector<std::byte>& secrets() {
    static const std::vector<std::byte> all = [] {
      std::vector<std::byte> v(memory_bytes);
      SplitMix random(1);
      for (auto& b : v) b = static_cast<std::byte>(random.next());
      return v;
    }();
    return all;
  }
  void add_region(unsigned area) {
    const Area& a = areas[area];
    MemoryRegion m;
    m.base = memory.data() + a.offset;
    m.iova = a.iova();
    m.length = a.size;
    m.pd = a.pd;
    m.access = a.access;
    m.invalidatable = a.invalidatable;
    REQUIRE((regions[area] = engine.keys().add(m)));
    keys[area] = regions[area]->key;
  }
  void renew_region(unsigned area) {
    engine.keys().remove(*regions[area]);
    add_region(area);
  }
  // Where a remote request may write; nothing when its key, rights, PD or range forbid it.
  std::optional<Range> target(std::uint32_t rkey, std::uint64_t va, std::uint64_t n,
                              std::uint32_t right) const {
    for (unsigned i = 0; i < areas.size(); ++i) {
      const Area& a = areas[i];
      if (rkey != keys[i] || a.pd != 1 || !(a.access & right)) continue;
      if (va < a.iova() || n > a.size || va - a.iova() > a.size - n) continue;
      const auto begin = static_cast<std::size_t>(a.offset + (va - a.iova()));
      return Range{begin, begin + static_cast<std::size_t>(n)};
    }
    return std::nullopt;
  }

  // --- queue pairs
  void create_qp(unsigned i) {
    constexpr QpType types[] = {QpType::rc, QpType::uc, QpType::ud, QpType::rc};
    qps[i] = engine.create_qp({.type = types[i],
                               .pd = 1,
                               .send_cq = cq,
                               .recv_cq = cq,
                               .srq = i == srq_qp ? srq : nullptr,
                               .max_send_wr = queue_depth,
                               .max_recv_wr = queue_depth,
                               .max_send_sge = 2,
                               .max_recv_sge = 2,
                               .max_inline = 32,
                               .sq_sig_all = setup.sig_all,
                               .user = &qps[i]});
    REQUIRE(qps[i]);
    for (int step = 0; step < 3; ++step) bring_up(i);
  }
  void destroy_qp(unsigned i) {
    engine.destroy_qp(qps[i]);
    forget(i);
  }
  // One state further, up to RTS.
  void bring_up(unsigned i) {
    QueuePair& q = *qps[i];
    const QpState from = q.state.load();
    if (from >= QpState::rts) return;
    QpAttributes x = attributes(i);
    x.state = static_cast<QpState>(static_cast<int>(from) + 1);
    REQUIRE(engine.modify_qp(now, q, x, required_attributes(q.type, from, x.state)).ok());
  }
  QpAttributes attributes(unsigned i) const {
    QpAttributes x;
    x.access_flags = setup.access;
    x.path_mtu = path_mtu;
    x.dest_qpn = Qpn::of(2, 0x77 + i);
    x.rq_psn = Psn(0xfffffa);
    x.sq_psn = Psn(0xfffffc);
    x.av.dgid = them;
    x.max_rd_atomic = x.max_dest_rd_atomic = 2;
    x.timeout = 4;
    x.retry_cnt = 3;
    x.rnr_retry = 3;
    x.min_rnr_timer = 1;
    x.qkey = qkey;
    return x;
  }
  unsigned index_of(const QueuePair* q) const {
    for (unsigned i = 0; i < qp_count; ++i)
      if (qps[i] == q) return i;
    violated("a queue pair of ours", __FILE__, __LINE__);
  }

  // --- the book of work requests: wr_id is the place in it
  struct Work {
    unsigned qp;
    bool receive, shared, signaled, done = false, gone = false;
    bool owed() const { return !done && !gone && signaled && !shared; }
  };
  std::uint64_t enter(unsigned qp, bool receive, bool signaled) {
    book.push_back({qp, receive, receive && qp == srq_qp, signaled});
    return book.size() - 1;
  }
  void forget(unsigned qp) {
    for (Work& w : book)
      if (w.qp == qp && !w.shared) w.gone = true;
  }
  void poll() {
    Cqe c[8];
    for (unsigned n; (n = cq->poll(8, c)) != 0;)
      for (unsigned i = 0; i < n; ++i) completed(c[i]);
    EventRecord r[4];
    for (unsigned n = 4; n == 4;) {
      n = engine.take_events(r);
      for (unsigned i = 0; i < n; ++i)
        if (r[i].kind == EventRecord::cq) overrun = true;
    }
  }
  void completed(const Cqe& c) {
    REQUIRE(c.wr_id < book.size());
    Work& w = book[c.wr_id];
    REQUIRE(!w.done && !w.gone);
    REQUIRE(w.receive == ((static_cast<unsigned>(c.opcode) & 128) != 0));
    const unsigned qp = index_of(c.qp);
    REQUIRE(w.shared ? qp == srq_qp : w.qp == qp);
    REQUIRE(c.qp_num == c.qp->qpn);
    REQUIRE(w.signaled || c.status != WcStatus::success);
    for (std::uint64_t i = 0; i < c.wr_id; ++i) {  // in order: nothing before it is owed any more
      const Work& before = book[i];
      REQUIRE(!(before.owed() && before.qp == w.qp && before.receive == w.receive));
    }
    w.done = true;
  }

  // --- what leaves
  void transmit() {
    TxBurst tx(arena_);
    for (unsigned rounds = 0;; ++rounds) {
      REQUIRE(rounds < 2000);
      tx.clear();
      const bool more = engine.transmit(now, tx);
      for (const TxFrame& f : tx.frames()) check_frame(f, tx.bytes(f));
      if (!more) return;
    }
  }
  void check_frame(const TxFrame& f, const std::uint8_t* bytes) {
    auto p = wire::decode({bytes, f.size});
    REQUIRE(p.has_value());
    const QueuePair* from = nullptr;
    for (const QueuePair* q : qps)
      if (q->qpn == f.src_qp) from = q;
    REQUIRE(from);
    REQUIRE(p->payload.size() <= from->mtu);
    for (unsigned i = 0; i < p->bth.pad_count; ++i) REQUIRE(bytes[f.size - 1 - i] == 0);
    if (from->type == QpType::ud) return;
    REQUIRE(p->bth.dest_qp == from->attr.dest_qpn && f.av.dgid == from->attr.av.dgid);
    // What a READ response carries stands in memory that may be read from afar.
    if (p->info().verb == wire::Verb::read_response && !p->payload.empty())
      REQUIRE(readable(p->payload));
  }
  bool readable(std::span<const std::uint8_t> bytes) const {
    for (unsigned i : {open_area, window_area, library_area})
      if (memmem(memory.data() + areas[i].offset, areas[i].size, bytes.data(), bytes.size()))
        return true;
    return false;
  }

  // --- after each step
  void check_cursors() const {
    for (const QueuePair* q : qps) {
      const std::uint32_t posted = q->sq->posted();
      REQUIRE(q->comp.acked - q->comp.reported <= queue_depth);
      REQUIRE(q->req.next - q->comp.acked <= posted - q->comp.acked);
      REQUIRE(posted - q->comp.acked <= queue_depth);
      REQUIRE(q->req.psn - q->comp.una >= 0 && q->req.highest - q->req.psn >= 0);
      if (q->req.psn == q->comp.una) REQUIRE(q->req.in_flight == 0 && q->req.read_bytes == 0);
      REQUIRE(q->resp.pending_tail - q->resp.pending_head <= q->resp.dest_resources);
      if (q->destination) REQUIRE(q->req.in_flight <= q->destination->in_flight);
    }
    REQUIRE(cq->attached == 2 * qp_count && srq->attached == 1);
  }

  Setup setup;
  Gid us, them, stranger;
  Engine engine;
  std::vector<std::byte> memory;
  std::array<CreditLine, 4> lines{};
  std::array<MemoryRegion*, areas.size()> regions{};
  std::array<std::uint32_t, areas.size()> keys{};  // as they were registered
  CompletionQueue* cq = nullptr;
  SharedReceiveQueue* srq = nullptr;
  std::array<QueuePair*, qp_count> qps{};
  std::vector<Work> book;
  bool overrun = false;
  Instant now{};

 private:
  std::vector<std::uint8_t> arena_ = std::vector<std::uint8_t>(TxBurst::max_frame * 2);
};

// Everything but memory that a packet could change, as bytes: two images are equal when nothing was
// changed.
class Image {
 public:
  void take(World& w) {
    used_ = 0;
    for (QueuePair* q : w.qps) {
      add(q, sizeof *q);
      add(q->sq.get(), sizeof *q->sq);
      for (std::uint32_t i = 0; i < q->sq->depth(); ++i) add(&q->sq->at(i), sizeof(SendWqe));
      if (q->own_rq) add(q->own_rq.get(), sizeof *q->own_rq);
      if (q->destination) add(q->destination, sizeof *q->destination);
      add(q->resp.resources.get(), q->resp.dest_resources * sizeof(ResponderResource));
      add(q->resp.pending.get(), q->resp.dest_resources * sizeof(PendingResponse));
    }
    add(w.srq, sizeof *w.srq);
    add(w.cq, sizeof *w.cq);
    for (MemoryRegion* r : w.regions) add(r, sizeof *r);
  }
  bool operator==(const Image& other) const {
    return used_ == other.used_ && std::memcmp(bytes_.get(), other.bytes_.get(), used_) == 0;
  }

 private:
  static constexpr std::size_t room = 16 << 10;
  void add(const void* p, std::size_t n) {
    if (!n) return;
    REQUIRE(used_ + n <= room);
    std::memcpy(bytes_.get() + used_, p, n);
    used_ += n;
  }
  std::unique_ptr<std::uint8_t[]> bytes_ = std::make_unique_for_overwrite<std::uint8_t[]>(room);
  std::size_t used_ = 0;
};

}  // namespace adverb::fuzz
