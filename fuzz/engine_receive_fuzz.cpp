// SPDX-License-Identifier: Apache-2.0
// Hostile peers, strangers and a careless application against live queue pairs.  Frames are derived
// from the opcode table and from what the queue pair expects next, and then broken in one field.
// What is judged, besides the engine's assertions and the sanitizers (engine_world.hpp has the
// rest):
//   - bytes change only where the packet's key, PD, rights and range allow it;
//   - a packet from or to another address than the connection's changes nothing but a counter;
//   - a packet that changes nothing else moves a counter;
//   - every work request completes once, in order, and nothing is left at the end.
#include <algorithm>
#include <cstring>

#include "engine/requester.hpp"
#include "engine_world.hpp"
#include "wire/aeth.hpp"

namespace adverb::fuzz {
namespace {

using wire::Place;
using wire::Transport;
using wire::Verb;

class Frame {
 public:
  wire::Packet p;  // as decode() will see it, but for the payload
  std::uint32_t payload = 0;
  unsigned pad = 0, cut = 0, more = 0;
  Gid source, destination;
  std::uint8_t traffic_class = 0;

  std::vector<std::uint8_t> bytes(std::uint8_t fill) const {
    std::vector<std::uint8_t> b(wire::max_header_bytes);
    b.resize(wire::encode_headers(p, b.data()));
    b.resize(b.size() + payload + pad + more, fill);
    b.resize(b.size() - std::min<std::size_t>(cut, b.size()));
    return b;
  }
};

// A frame that a right peer could send now.
class Peer {
 public:
  Peer(World& w, QueuePair& q, Record& in) : w_(w), q_(q), in_(in) {}

  Frame frame() {
    f_.source = w_.them;
    f_.destination = w_.us;
    const std::uint8_t what = in_.byte();
    if (what < 4) return congestion();
    const bool answers = q_.type == QpType::rc && q_.req.highest != q_.comp.una;
    if (what >= 230)
      start(in_.one_of(wire::operations).code);
    else if (answers && what >= 128)
      response();
    else
      request();
    f_.p.bth.dest_qp = q_.qpn;
    f_.p.bth.ack_request = what & 1;
    f_.p.bth.solicited = what & 2;
    fill_remote();
    f_.pad = wire::pad_of(f_.payload);
    f_.p.bth.pad_count = static_cast<std::uint8_t>(f_.pad);
    return f_;
  }

 private:
  void start(wire::Operation o) {
    const Transport t = q_.type == QpType::rc   ? Transport::rc
                        : q_.type == QpType::uc ? Transport::uc
                                                : Transport::ud;
    f_.p.bth.opcode = wire::opcode_of(t, o);
    if (!f_.p.info()) f_.p.bth.opcode = wire::opcode_of(t, wire::Operation::send_only);
    const bool response = wire::is_response(f_.p.info().verb);
    f_.p.bth.psn = response ? q_.comp.una : q_.resp.expected;
    f_.payload = usual_payload();
  }
  Frame congestion() {
    f_.p.bth.opcode = wire::cnp_opcode;
    f_.p.bth.becn = true;
    f_.p.bth.dest_qp = q_.qpn;
    f_.payload = 16;
    return f_;
  }
  std::uint32_t usual_payload() {
    if (!f_.p.info().payload) return 0;
    if (f_.p.info().verb == Verb::atomic_write) return 8;
    switch (f_.p.info().place) {
      case Place::first:
      case Place::middle:
        return World::mtu;
      case Place::last:
        return 1 + in_.byte();
      case Place::only:
        break;
    }
    return in_.chance(64) ? World::mtu : in_.byte();
  }
  // The next packet of the open message, or the first of one.
  void request() {
    const bool open = q_.resp.previous && !q_.resp.previous.ends();
    const std::uint8_t which = in_.byte();
    wire::Operation candidates[wire::operations.size()];
    unsigned n = 0;
    for (const auto& row : wire::operations) {
      const bool starts = row.place == Place::first || row.place == Place::only;
      const bool fits = open ? !starts && row.verb == q_.resp.previous.verb : starts;
      if (fits && !wire::is_response(row.verb)) candidates[n++] = row.code;
    }
    start(candidates[which % n]);
    if (open && f_.p.info().verb == Verb::write && f_.p.info().place == Place::last)
      f_.payload =
          static_cast<std::uint32_t>(std::min<std::uint64_t>(q_.resp.write_left, World::mtu));
  }
  void fill_remote() {
    wire::Packet& p = f_.p;
    const Area& area =
        areas[in_.one_of(std::array{open_area, open_area, window_area, library_area, open_area,
                                    open_area, private_area, foreign_area})];
    const std::uint32_t key = w_.keys[static_cast<unsigned>(&area - areas.data())];
    p.reth.va = area.iova() + in_.byte() * 8u;
    p.reth.rkey = p.ieth.rkey = key;
    if (p.info().verb == Verb::read)
      p.reth.dma_length = in_.byte() * 5u;
    else if (p.info().place == Place::first)
      p.reth.dma_length = World::mtu + 1 + in_.byte() * 3u;
    else
      p.reth.dma_length = f_.payload;
    p.atomic = {p.reth.va, key, in_.byte(), in_.byte()};
    p.feth = {static_cast<std::uint8_t>(in_.below(3)), static_cast<std::uint8_t>(in_.below(4))};
    p.deth = {World::qkey, Qpn(9)};
    p.imm.data = 0x01020304;
  }
  // What answers the oldest request that is not complete.
  void response() {
    const std::uint8_t which = in_.byte();
    const SendWqe& wqe = w_.qps[w_.index_of(&q_)]->sq->at(q_.comp.acked);
    const bool waits = wqe.started && Requester::needs_response(wqe.opcode) && which < 192;
    if (!waits) {
      start(wire::Operation::acknowledge);
      const auto ahead = static_cast<std::uint32_t>(q_.req.highest - q_.comp.una);
      f_.p.bth.psn = q_.comp.una + which % (ahead + 1);
      f_.p.aeth = {syndrome(), q_.req.ssn};
    } else if (wqe.opcode == WrOpcode::rdma_read) {
      read_response(wqe);
    } else {
      const bool atomic = wqe.opcode == WrOpcode::atomic_cmp_and_swp ||
                          wqe.opcode == WrOpcode::atomic_fetch_and_add;
      start(atomic ? wire::Operation::atomic_acknowledge : wire::Operation::read_response_only);
      f_.payload = 0;
      f_.p.aeth = {wire::make_ack(wire::no_credit_limit), q_.req.ssn};
      f_.p.atomic_ack.original = which;
    }
  }
  void read_response(const SendWqe& wqe) {
    const Requester r(w_.engine, q_);
    const std::uint32_t end = r.chunk_end(wqe, wqe.received);
    const bool last = wqe.received + 1 == end;
    const bool first = wqe.received % w_.engine.config().read_chunk_packets == 0;
    start(
        first
            ? (last ? wire::Operation::read_response_only : wire::Operation::read_response_first)
            : (last ? wire::Operation::read_response_last : wire::Operation::read_response_middle));
    f_.payload = static_cast<std::uint32_t>(r.response_bytes(wqe, wqe.received, wqe.received + 1));
    f_.p.aeth = {wire::make_ack(wire::no_credit_limit), q_.req.ssn};
  }
  std::uint8_t syndrome() {
    const std::uint8_t how = in_.byte();
    if (how < 160) return wire::make_ack(how % 32);
    if (how < 200) return wire::make_rnr_nak(how % 32);
    if (how < 240) return wire::make_nak(static_cast<wire::NakCode>(how % 5));
    return in_.byte();
  }

  World& w_;
  QueuePair& q_;
  Record& in_;
  Frame f_;
};

// One field that is not as it should be; long because each has its case.
void break_field(World& w, Frame& f, Record& in) {
  wire::Packet& p = f.p;
  switch (in.byte() % 40) {
    case 1:
      p.bth.psn = p.bth.psn + static_cast<std::uint32_t>(static_cast<std::int8_t>(in.byte()));
      break;
    case 2:
      p.bth.psn = Psn(in.word());
      break;
    case 3:
      f.payload = in.byte() * 4u;
      f.pad = wire::pad_of(f.payload);
      break;
    case 4:
      f.payload = in.byte() % 8;
      f.pad = wire::pad_of(f.payload);
      p.bth.pad_count = static_cast<std::uint8_t>(f.pad);
      break;
    case 5:
      p.bth.pad_count ^= static_cast<std::uint8_t>(1 + in.below(3));
      break;
    case 6:
      p.bth.tver = static_cast<std::uint8_t>(in.byte() & 15);
      break;
    case 7:
      p.bth.pkey = static_cast<std::uint16_t>(in.word());
      break;
    case 8:
      p.bth.opcode = wire::Opcode{in.byte()};
      break;
    case 9:
      p.bth.dest_qp = in.chance(128) ? w.qps[in.below(World::qp_count)]->qpn : Qpn(in.word());
      break;
    case 10:
      p.reth.va = p.atomic.va = p.reth.va + static_cast<std::uint64_t>(in.byte()) - 128;
      break;
    case 11:
      p.reth.va = p.atomic.va = std::uint64_t{in.word()} << 32 | in.word();
      break;
    case 12:
      p.reth.rkey = p.atomic.rkey = p.ieth.rkey = in.one_of(w.keys);
      break;
    case 13:
      p.reth.rkey = p.atomic.rkey = p.ieth.rkey = in.word();
      break;
    case 14:
      p.reth.dma_length += static_cast<std::uint32_t>(in.byte()) - 128;
      break;
    case 15:
      p.reth.dma_length = in.word();
      break;
    case 16:
      f.source = in.chance(128) ? w.stranger : Gid{};
      break;
    case 17:
      f.destination = in.chance(128) ? w.stranger : w.them;
      break;
    case 18:
      f.traffic_class = 3;
      break;
    case 19:
      p.deth.qkey ^= in.byte();
      break;
    case 20:
      p.aeth.syndrome = in.byte();
      break;
    case 21:
      p.aeth.msn = in.word() & 0xffffff;
      break;
    case 22:
      f.cut = in.byte();
      break;
    case 23:
      f.more = in.byte() % 64;
      break;
    case 24:
      p.feth = {static_cast<std::uint8_t>(in.below(4)), static_cast<std::uint8_t>(in.below(16))};
      break;
    case 25:
      p.bth.mig_req = false;
      break;
    case 26:
      p.bth.fecn = p.bth.becn = true;
      break;
    default:
      break;  // right
  }
}

class Attack {
 public:
  explicit Attack(Record in)
      : w_({.srq_limit = in.chance(64),
            .small_cq = in.chance(32),
            .sig_all = in.chance(64),
            .v6 = in.chance(64),
            .credit = in.chance(64),
            .no_end_to_end = in.chance(64),
            .access = in.chance(160) ? 0xeu : in.byte() & 0xeu}) {
    if (w_.setup.srq_limit) w_.engine.arm_srq_limit(w_.srq, 2);
  }

  void run(Script& script) {
    while (!script.empty()) {
      Record in = script.next();
      step(in);
      w_.check_cursors();
    }
    w_.finish();
  }

 private:
  void step(Record& in) {
    const std::uint8_t what = in.byte();
    const unsigned qp = in.below(World::qp_count);
    if (what < 128) return packet(qp, in);
    before_ = w_.memory;
    switch (what % 16) {
      case 0:
      case 1:
        post(qp, in);
        break;
      case 2:
      case 3:
        receive_wqe(qp, in);
        break;
      case 4:
      case 5:
        w_.transmit();
        break;
      case 6:
        w_.now += Duration(std::int64_t{in.byte()} << in.below(24));
        break;
      case 7:
        w_.poll();
        break;
      case 8:
      case 9:
        modify(qp, in);
        break;
      case 10:
        w_.renew_region(in.below(areas.size()));
        break;
      case 11:
        if (!frame_.empty()) return deliver(last_, frame_);  // once more
        break;
      case 12:
        w_.destroy_qp(qp);
        w_.create_qp(qp);
        break;
      case 13:
        w_.cq->arm(in.chance(128));
        break;
      case 14:
        w_.lines[in.below(4)].consumed.fetch_add(in.byte() * 64u);
        w_.engine.credit_settle(w_.engine.credit_mark());
        break;
      case 15:
        raw(qp, in);
        return;
    }
    REQUIRE(w_.memory == before_);
  }

  // --- packets
  void packet(unsigned qp, Record& in) {
    Frame f = Peer(w_, *w_.qps[qp], in).frame();
    break_field(w_, f, in);
    frame_ = f.bytes(static_cast<std::uint8_t>(0x5a + in.byte()));
    last_ = f;
    deliver(f, frame_);
  }
  void raw(unsigned qp, Record& in) {
    frame_.assign(12 + in.below(4) * 16u, 0);
    for (auto& b : frame_) b = in.byte();
    const std::uint32_t qpn = w_.qps[qp]->qpn.raw();
    for (int i = 0; i < 3; ++i) frame_[5 + i] = static_cast<std::uint8_t>(qpn >> (16 - 8 * i));
    last_.source = w_.them, last_.destination = w_.us, last_.traffic_class = 0;
    deliver(last_, frame_);
  }
  void deliver(const Frame& how, const std::vector<std::uint8_t>& bytes) {
    auto packet = wire::decode(bytes);
    if (!packet) return;  // the port counts it
    RxFrame f;
    f.packet = *packet;
    f.source = how.source;
    f.destination = how.destination;
    f.traffic_class = how.traffic_class;
    QueuePair* q = nullptr;
    for (QueuePair* each : w_.qps)
      if (each->qpn == packet->bth.dest_qp) q = each;
    before_ = w_.memory;
    const std::uint64_t counted = counters();
    const Range allowed = q ? writable(*q, *packet) : Range{};
    image_.take(w_);
    w_.engine.receive(w_.now, f);
    after_.take(w_);
    const bool foreign =
        !q || (q->type != QpType::ud && (f.source != w_.them || f.destination != w_.us));
    REQUIRE(!foreign || image_ == after_);
    REQUIRE(counted != counters() || !(image_ == after_));
    check_memory(allowed);
  }
  std::uint64_t counters() const {
    std::uint64_t sum = 0;
    for_each_counter(w_.engine.counters(), [&](auto, std::uint64_t v) { sum += v; });
    const Counters& c = w_.engine.counters();
    return sum - c.rcvd_pkts - c.rcvd_bytes;
  }
  // Where this packet may change bytes.
  Range writable(const QueuePair& q, const wire::Packet& p) const {
    const auto right = [&](std::uint32_t access, std::uint32_t key, std::uint64_t va,
                           std::uint64_t n) {
      if (!(q.attr.access_flags & access)) return Range{};
      return w_.target(key, va, n, access).value_or(Range{});
    };
    switch (p.info().verb) {
      case Verb::write:
        if (!p.info().has(wire::ext_reth))
          return right(access_remote_write, q.resp.write_rkey, q.resp.write_va, p.payload.size());
        return right(access_remote_write, p.reth.rkey, p.reth.va, p.payload.size());
      case Verb::atomic_write:
        return right(access_remote_write, p.reth.rkey, p.reth.va, 8);
      case Verb::atomic:
        return right(access_remote_atomic, p.atomic.rkey, p.atomic.va, 8);
      case Verb::send:
      case Verb::read_response:
      case Verb::atomic_ack:
        return {0, memory_bytes};  // the application's own lists: see check_memory
      default:
        return {};
    }
  }
  void check_memory(Range allowed) const {
    const auto same = [&](std::size_t from, std::size_t to) {
      return from >= to || std::memcmp(&w_.memory[from], &before_[from], to - from) == 0;
    };
    REQUIRE(same(0, std::min(allowed.begin, memory_bytes)));
    REQUIRE(same(allowed.end, memory_bytes));
    std::size_t from = 0;  // never: what lies between, and what has no right or another PD
    for (const Area& a : areas) {
      if (!(a.access & access_local_write) || a.pd != 1) continue;
      REQUIRE(same(from, a.offset));
      from = a.offset + a.size;
    }
    REQUIRE(same(from, memory_bytes));
  }

  // --- the application
  Sge element(Record& in, std::uint32_t length) {
    const unsigned area = in.one_of(std::array{open_area, open_area, open_area, window_area,
                                               private_area, library_area, foreign_area});
    return {areas[area].iova() + in.byte() * 2u, length,
            in.chance(250) ? w_.keys[area] : in.word()};
  }
  std::uint32_t length(Record& in) {
    constexpr std::uint32_t usual[] = {0, 1, 7, 8, 255, 256, 257, 512, 773};
    const std::uint8_t how = in.byte();
    return how < 225 ? usual[how % 9] : (how - 225) * 64u;
  }
  void post(unsigned qp, Record& in) {
    QueuePair& q = *w_.qps[qp];
    if (q.state.load() < QpState::rts) return;
    SendWqe* w = q.sq->reserve();
    if (!w) return;
    constexpr WrOpcode all[] = {WrOpcode::rdma_write,
                                WrOpcode::rdma_write_with_imm,
                                WrOpcode::send,
                                WrOpcode::send_with_imm,
                                WrOpcode::rdma_read,
                                WrOpcode::rdma_read,
                                WrOpcode::atomic_cmp_and_swp,
                                WrOpcode::atomic_fetch_and_add,
                                WrOpcode::send_with_inv,
                                WrOpcode::flush,
                                WrOpcode::atomic_write,
                                WrOpcode::local_inv};
    w->opcode = in.one_of(all);
    w->flags = in.byte() & (send_fence | send_signaled | send_solicited);
    if (w_.setup.sig_all) w->flags |= send_signaled;
    const std::uint32_t n = length(in);
    w->num_sge = 2;
    w->length = n;
    q.sq->sges_of_reserved()[0] = element(in, n / 2);
    q.sq->sges_of_reserved()[1] = element(in, n - n / 2);
    if (n <= 32 && in.chance(64)) w->flags |= send_inline, w->num_sge = 0;
    w->pd_of_ah = in.chance(240) ? 1 : 2;
    w->av.dgid = w_.them;
    w->remote_qpn = Qpn::of(2, 5);
    w->remote_qkey = 0x80000005;
    w->flush_type = 1;
    w->imm_or_rkey = w_.keys[window_area];
    w->wr_id = w_.enter(qp, false, w->flags & send_signaled);
    q.sq->publish();
    w_.engine.ring_doorbell(q);
  }
  void receive_wqe(unsigned qp, Record& in) {
    QueuePair& q = *w_.qps[qp];
    if (q.state.load() == QpState::reset && !q.srq) return;
    const Sge list[2] = {element(in, length(in)), element(in, 300)};
    if (q.rq->post(w_.book.size(), {list, 1 + in.below(2)})) w_.enter(qp, true, true);
    if (!q.srq) w_.engine.ring_doorbell(q);
  }
  void modify(unsigned qp, Record& in) {
    QueuePair& q = *w_.qps[qp];
    if (in.chance(128)) return w_.bring_up(qp);
    constexpr QpState to[] = {QpState::sqd, QpState::sqd,   QpState::rts,
                              QpState::rts, QpState::error, QpState::reset};
    QpAttributes x = w_.attributes(qp);
    x.state = in.one_of(to);
    x.en_sqd_async_notify = in.chance(128);
    x.access_flags = in.byte() & 0xe;
    x.retry_cnt = in.below(8);
    x.rnr_retry = in.below(8);
    std::uint32_t mask = attr_state;
    if (x.state == QpState::sqd) mask |= attr_en_sqd_async_notify;
    if (x.state == QpState::rts && q.type != QpType::ud && in.chance(128))
      mask |= attr_access_flags;
    if (in.chance(16)) mask = in.word();
    const bool ok = w_.engine.modify_qp(w_.now, q, x, mask).ok();
    if (ok && q.state.load() == QpState::reset) w_.forget(qp);
  }

  World w_;
  std::vector<std::byte> before_;
  Image image_, after_;
  std::vector<std::uint8_t> frame_;
  Frame last_;
};

}  // namespace
}  // namespace adverb::fuzz

// Longer scripts find no more, and cost more.
constexpr std::size_t max_script = 96 * adverb::fuzz::record_bytes;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size > max_script) return 0;
  adverb::fuzz::Script script(data, size);
  adverb::fuzz::Attack attack(script.next());
  attack.run(script);
  return 0;
}
