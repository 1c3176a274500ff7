// SPDX-License-Identifier: Apache-2.0
// For tests: a conversation with one queue pair.  The test plays the peer: it says what comes in,
// what must go out, and that nothing else does, in virtual time.
//
//   Talk t;
//   t.in(write_only(0, t.at(0), "abc").ack_req());
//   t.out(ack(0, 1));
//   t.silent();
//
// Packets are compared field by field, as the lines of text that a failure prints.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <optional>
#include <source_location>
#include <string>
#include <vector>

#include "engine/engine.hpp"
#include "wire/aeth.hpp"

namespace adverb::engine::talk {

using namespace std::chrono_literals;
using wire::NakCode;
using wire::Operation;
using wire::Transport;

// The i-th byte depends on i and salt, with a period longer than any path MTU.
inline std::string pattern(std::size_t n, unsigned salt = 1) {
  std::string s(n, 0);
  for (std::size_t i = 0; i < n; ++i) s[i] = static_cast<char>(i * 7 + (i >> 8) * 13 + salt);
  return s;
}

// One packet as the test says it.  The transport, the QPNs and the pad are filled in by Talk.
struct Said {
  Operation operation{};
  std::optional<wire::Opcode> raw{};
  wire::Packet p{};
  std::string payload{};
  std::optional<unsigned> pad{};
  std::uint8_t traffic_class = 0;
  std::optional<Gid> source{}, destination{};
  std::optional<Qpn> to_qp{};
  std::uint8_t forced_syndrome = 0;

  Said ack_req() const {
    return with([](Said& s) { s.p.bth.ack_request = true; });
  }
  Said se() const {
    return with([](Said& s) { s.p.bth.solicited = true; });
  }
  Said imm(std::uint32_t v) const {
    return with([v](Said& s) { s.p.imm.data = v; });
  }
  Said inv(std::uint32_t k) const {
    return with([k](Said& s) { s.p.ieth.rkey = k; });
  }
  Said pkey(std::uint16_t k) const {
    return with([k](Said& s) { s.p.bth.pkey = k; });
  }
  Said syndrome(std::uint8_t v) const {
    return with([v](Said& s) { s.p.aeth.syndrome = v; });
  }
  Said credits(std::uint32_t n) const { return syndrome(wire::make_ack(n)); }
  Said length(std::uint32_t n) const {
    return with([n](Said& s) { s.p.reth.dma_length = n; });
  }
  Said rkey(std::uint32_t k) const {
    return with([k](Said& s) { s.p.reth.rkey = s.p.atomic.rkey = k; });
  }
  Said psn(std::uint32_t n) const {
    return with([n](Said& s) { s.p.bth.psn = Psn(n); });
  }
  Said padded(unsigned n) const {
    return with([n](Said& s) { s.pad = n; });
  }
  Said ce() const {
    return with([](Said& s) { s.traffic_class |= 3; });
  }
  Said tos(std::uint8_t v) const {
    return with([v](Said& s) { s.traffic_class = v; });
  }
  Said forced(std::uint8_t v) const {  // what a fault rule has our responder answer
    return with([v](Said& s) { s.forced_syndrome = v; });
  }
  Said from(Gid g) const {
    return with([g](Said& s) { s.source = g; });
  }
  Said to(Gid g) const {
    return with([g](Said& s) { s.destination = g; });
  }
  Said to(Qpn q) const {
    return with([q](Said& s) { s.to_qp = q; });
  }
  Said qkey(std::uint32_t k) const {
    return with([k](Said& s) { s.p.deth.qkey = k; });
  }
  Said srqn(Srqn n) const {
    return with([n](Said& s) { s.p.xrc.srqn = n.raw(); });
  }
  Said opcode(std::uint8_t b) const {
    return with([b](Said& s) { s.raw = wire::Opcode{b}; });
  }

 private:
  template <class F>
  Said with(F change) const {
    Said s = *this;
    change(s);
    return s;
  }
};

inline Said say(Operation o, std::uint32_t psn, std::string payload = {}) {
  Said s{.operation = o, .payload = std::move(payload)};
  s.p.bth.psn = Psn(psn);
  return s;
}

struct Remote {  // what a RETH names
  std::uint64_t va{};
  std::uint32_t rkey{};
};

#define ADVERB_SAY(name) \
  inline Said name(std::uint32_t psn, std::string b = {}) { return say(Operation::name, psn, b); }
ADVERB_SAY(send_first)
ADVERB_SAY(send_middle)
ADVERB_SAY(send_last)
ADVERB_SAY(send_only)
ADVERB_SAY(send_last_imm)
ADVERB_SAY(send_only_imm)
ADVERB_SAY(send_last_invalidate)
ADVERB_SAY(send_only_invalidate)
ADVERB_SAY(write_middle)
ADVERB_SAY(write_last)
ADVERB_SAY(write_last_imm)
#undef ADVERB_SAY

// The RETH's length is the payload's unless .length() says another.
inline Said with_reth(Operation o, std::uint32_t psn, Remote r, std::string b = {}) {
  Said s = say(o, psn, std::move(b));
  s.p.reth = {r.va, r.rkey, static_cast<std::uint32_t>(s.payload.size())};
  return s;
}
inline Said write_first(std::uint32_t psn, Remote r, std::string b) {
  return with_reth(Operation::write_first, psn, r, b);
}
inline Said write_only(std::uint32_t psn, Remote r, std::string b = {}) {
  return with_reth(Operation::write_only, psn, r, b);
}
inline Said write_only_imm(std::uint32_t psn, Remote r, std::string b = {}) {
  return with_reth(Operation::write_only_imm, psn, r, b);
}
inline Said atomic_write(std::uint32_t psn, Remote r, std::string b) {
  return with_reth(Operation::atomic_write, psn, r, b);
}
inline Said read_request(std::uint32_t psn, Remote r, std::uint32_t length) {
  return with_reth(Operation::read_request, psn, r).length(length);
}
inline Said flush(std::uint32_t psn, Remote r, std::uint32_t length, std::uint8_t type,
                  std::uint8_t selectivity = 0) {
  Said s = with_reth(Operation::flush, psn, r).length(length);
  s.p.feth = {selectivity, type};
  return s;
}
inline Said fetch_add(std::uint32_t psn, Remote r, std::uint64_t add) {
  Said s = say(Operation::fetch_add, psn);
  s.p.atomic = {r.va, r.rkey, add, 0};
  return s;
}
inline Said compare_swap(std::uint32_t psn, Remote r, std::uint64_t compare, std::uint64_t swap) {
  Said s = say(Operation::compare_swap, psn);
  s.p.atomic = {r.va, r.rkey, swap, compare};
  return s;
}

inline Said with_aeth(Operation o, std::uint32_t psn, std::uint32_t msn, std::string b = {}) {
  Said s = say(o, psn, std::move(b));
  s.p.aeth = {wire::make_ack(wire::no_credit_limit), msn};
  return s;
}
inline Said ack(std::uint32_t psn, std::uint32_t msn) {
  return with_aeth(Operation::acknowledge, psn, msn);
}
inline Said nak(std::uint32_t psn, NakCode code, std::uint32_t msn) {
  return ack(psn, msn).syndrome(wire::make_nak(code));
}
inline Said rnr_nak(std::uint32_t psn, unsigned timer, std::uint32_t msn) {
  return ack(psn, msn).syndrome(wire::make_rnr_nak(timer));
}
inline Said read_response_first(std::uint32_t psn, std::uint32_t msn, std::string b) {
  return with_aeth(Operation::read_response_first, psn, msn, b);
}
inline Said read_response_middle(std::uint32_t psn, std::string b) {
  return say(Operation::read_response_middle, psn, b);
}
inline Said read_response_last(std::uint32_t psn, std::uint32_t msn, std::string b) {
  return with_aeth(Operation::read_response_last, psn, msn, b);
}
inline Said read_response_only(std::uint32_t psn, std::uint32_t msn, std::string b = {}) {
  return with_aeth(Operation::read_response_only, psn, msn, b);
}
inline Said atomic_acknowledge(std::uint32_t psn, std::uint32_t msn, std::uint64_t original) {
  Said s = with_aeth(Operation::atomic_acknowledge, psn, msn);
  s.p.atomic_ack.original = original;
  return s;
}
// Congestion notification packet: BECN and 16 reserved bytes.
inline Said cnp() {
  Said s = say({}, 0, std::string(16, 0));
  s.raw = wire::cnp_opcode;
  s.p.bth.becn = true;
  return s;
}

// Every field of the packet, in the specification's words.
inline std::string describe(const wire::Packet& p) {
  auto hex = [](std::uint64_t v) {
    char b[32];
    std::snprintf(b, sizeof b, "%#llx", static_cast<unsigned long long>(v));
    return std::string(b);
  };
  auto num = [](std::uint64_t v) { return std::to_string(v); };
  const wire::OpcodeInfo& op = p.info();
  std::string s(op.name);
  s += " (opcode " + hex(static_cast<std::uint8_t>(p.bth.opcode)) + ") psn " +
       num(p.bth.psn.raw()) + " dest_qp " + hex(p.bth.dest_qp.raw()) + " pkey " + hex(p.bth.pkey);
  if (p.bth.ack_request) s += " AckReq";
  if (p.bth.solicited) s += " SE";
  if (!p.bth.mig_req) s += " MigReq=0";
  if (p.bth.fecn) s += " FECN";
  if (p.bth.becn) s += " BECN";
  if (p.bth.tver) s += " tver " + num(p.bth.tver);
  s += " pad " + num(p.bth.pad_count);
  if (op.has(wire::ext_xrceth)) s += "\n  XRCETH srqn " + hex(p.xrc.srqn);
  if (op.has(wire::ext_deth))
    s += "\n  DETH qkey " + hex(p.deth.qkey) + " src_qp " + hex(p.deth.src_qp.raw());
  if (op.has(wire::ext_feth))
    s += "\n  FETH selectivity " + num(p.feth.selectivity) + " type " + num(p.feth.placement_type);
  if (op.has(wire::ext_reth))
    s += "\n  RETH va " + hex(p.reth.va) + " rkey " + hex(p.reth.rkey) + " length " +
         num(p.reth.dma_length);
  if (op.has(wire::ext_atomic_eth))
    s += "\n  AtomicETH va " + hex(p.atomic.va) + " rkey " + hex(p.atomic.rkey) + " swap_add " +
         hex(p.atomic.swap_add) + " compare " + hex(p.atomic.compare);
  if (op.has(wire::ext_aeth)) {
    constexpr const char* kinds[] = {"ACK credits code ", "RNR NAK timer ", "reserved ",
                                     "NAK code "};
    s += "\n  AETH " + std::string(kinds[static_cast<unsigned>(wire::aeth_kind(p.aeth.syndrome))]) +
         num(wire::aeth_value(p.aeth.syndrome)) + " msn " + num(p.aeth.msn);
  }
  if (op.has(wire::ext_atomic_ack_eth))
    s += "\n  AtomicAckETH original " + hex(p.atomic_ack.original);
  if (op.has(wire::ext_imm_dt)) s += "\n  ImmDt " + hex(p.imm.data);
  if (op.has(wire::ext_ieth)) s += "\n  IETH rkey " + hex(p.ieth.rkey);
  s += "\n  payload " + num(p.payload.size()) + ":";
  for (std::size_t i = 0; i < p.payload.size(); ++i) {
    static constexpr char digits[] = "0123456789abcdef";
    if (i % 4 == 0) s += ' ';
    s += digits[p.payload[i] >> 4];
    s += digits[p.payload[i] & 15];
  }
  return s;
}

// "wr 1 status 0 opcode 0 byte_len 3 flags 0"
inline std::string describe(const Cqe& c) {
  std::string s = "wr " + std::to_string(c.wr_id) + " status " +
                  std::to_string(static_cast<int>(c.status)) + " opcode " +
                  std::to_string(static_cast<int>(c.opcode));
  if (c.status != WcStatus::success) return s;
  s += " byte_len " + std::to_string(c.byte_len) + " flags " + std::to_string(c.wc_flags);
  if (c.wc_flags & (wc_with_imm | wc_with_inv)) s += " imm " + std::to_string(c.imm_or_rkey);
  return s;
}

inline const char* name_of(AsyncEvent e) {
  constexpr const char* names[] = {"CQ_ERR",       "QP_FATAL",    "QP_REQ_ERR", "QP_ACCESS_ERR",
                                   "COMM_EST",     "SQ_DRAINED",  "PATH_MIG",   "MIG_ERR",
                                   "DEVICE_FATAL", "PORT_ACTIVE", "PORT_ERR",   "LID_CHANGE",
                                   "PKEY",         "SM_CHANGE",   "SRQ_ERR",    "SRQ_LIMIT",
                                   "LAST_WQE",     "REREGISTER",  "GID_CHANGE"};
  return names[static_cast<unsigned>(e)];
}

using Where = std::source_location;
using Words = std::vector<std::string>;

struct Options {
  QpType type = QpType::rc;
  Mtu mtu = Mtu::mtu_1024;
  std::uint32_t sq_psn = 100, rq_psn = 0;
  std::uint8_t timeout = 14, retry_cnt = 7, rnr_retry = 7;
  std::uint8_t max_rd_atomic = 4, max_dest_rd_atomic = 4, min_rnr_timer = 1;
  std::uint32_t access = access_remote_write | access_remote_read | access_remote_atomic;
  std::uint32_t max_send_wr = 64, max_recv_wr = 64, cq_size = 256;
  std::uint32_t srq_depth = 0;  // not 0: the QP has an SRQ; an XRC target always
  PdId srq_pd = 1;
  TargetStore* store = nullptr;  // of the XRC domain
  bool sq_sig_all = false, v6 = false;
  std::size_t arena = 1 << 19;  // of a TxBurst
  QpState state = QpState::rts;
  EngineConfig config{.max_qp = 16, .max_mr = 64, .active_mtu = Mtu::mtu_4096};
};

struct Post {
  WrOpcode opcode = WrOpcode::send;
  std::uint64_t local = 0;  // offset in Talk's memory
  std::uint32_t length = 0;
  unsigned flags = send_signaled;
  Remote remote{};
  std::uint64_t compare_add = 0, swap = 0;
  std::uint32_t imm_or_rkey = 0;
  std::uint8_t flush_type = 0, flush_level = 0;
  std::optional<std::uint32_t> lkey{};
  std::vector<Sge> list{};  // instead of local and length
  std::string inline_data{};
  Qpn remote_qpn{};
  std::uint32_t remote_qkey = 0;
  std::optional<PdId> pd_of_ah{};
  std::optional<Srqn> srqn{};
  WindowBinding bind{};  // BIND_MW
};

class Talk {
 public:
  static constexpr PdId pd = 1, other_pd = 2;
  static constexpr XrcdId xrcd = 3;
  static constexpr std::uint32_t qkey = 0x11111111;
  static constexpr std::size_t memory_bytes = 1 << 20;

  explicit Talk(Options options = {})
      : o(options), engine(o.config), memory(memory_bytes), arena_(o.arena) {
    engine.set_gid(0, us());
    mr = add_region(0, memory_bytes, 0xf | access_flush_global | access_flush_persistent);
    send_cq = engine.create_cq(o.cq_size, &send_cq);
    recv_cq = engine.create_cq(o.cq_size, &recv_cq);
    if (o.type == QpType::xrc_recv)
      srq = engine.create_xrc_srq(16, 4, pd, xrcd, recv_cq, &srq, o.store);
    else if (o.srq_depth)
      srq = engine.create_srq(o.srq_depth, 4, o.srq_pd, &srq);
    if (o.store) engine.add_store(o.store);
    qp = create_qp();
    modify_to(*qp, o.state);
  }

  Gid us() const { return o.v6 ? Gid{{0xfd, 1}} : Gid::from_v4(0x0100000a); }
  Gid them() const { return o.v6 ? Gid{{0xfd, 2}} : Gid::from_v4(0x0200000a); }
  static constexpr Qpn their_qpn{0x00abcd};
  static constexpr Srqn their_srqn{0x123456};

  MemoryRegion* add_region(std::size_t offset, std::size_t n, std::uint32_t access, PdId in = pd) {
    return add_region_at(memory.data() + offset, n, access, in);
  }
  MemoryRegion* add_region_at(void* base, std::size_t n, std::uint32_t access, PdId in = pd) {
    MemoryRegion m;
    m.base = static_cast<std::byte*>(base);
    m.iova = reinterpret_cast<std::uintptr_t>(base);
    m.length = n;
    m.pd = in;
    m.access = access;
    return engine.keys().add(m);
  }
  QueuePair* create_qp() {
    return engine.create_qp({.type = o.type,
                             .pd = pd,
                             .xrcd = xrcd,
                             .store = o.store,
                             .send_cq = send_cq,
                             .recv_cq = recv_cq,
                             .srq = o.type == QpType::xrc_recv ? nullptr : srq,
                             .max_send_wr = o.max_send_wr,
                             .max_recv_wr = o.max_recv_wr,
                             .max_send_sge = 32,
                             .max_recv_sge = 32,
                             .max_inline = 256,
                             .sq_sig_all = o.sq_sig_all,
                             .user = &qp});
  }

  QpAttributes attributes() const {
    QpAttributes x;
    x.access_flags = o.access;
    x.path_mtu = o.mtu;
    x.dest_qpn = their_qpn;
    x.rq_psn = Psn(o.rq_psn);
    x.sq_psn = Psn(o.sq_psn);
    x.av = path();
    x.max_rd_atomic = o.max_rd_atomic;
    x.max_dest_rd_atomic = o.max_dest_rd_atomic;
    x.timeout = o.timeout;
    x.retry_cnt = o.retry_cnt;
    x.rnr_retry = o.rnr_retry;
    x.min_rnr_timer = o.min_rnr_timer;
    x.qkey = qkey;
    return x;
  }
  AddressVector path() const { return {.dgid = them(), .flow_label = 5, .traffic_class = 0x22}; }

  // INIT, RTR, RTS, as far as asked.
  void modify_to(QueuePair& q, QpState last) {
    for (const QpState state : {QpState::init, QpState::rtr, QpState::rts}) {
      if (last < state) return;
      modify(q, state, required_attributes(o.type, q.state, state));
    }
  }
  void modify(QueuePair& q, QpState state, std::uint32_t mask = attr_state, bool notify = false) {
    QpAttributes x = attributes();
    x.state = state;
    x.en_sqd_async_notify = notify;
    ModifyResult r = engine.modify_qp(now, q, x, mask);
    ASSERT_TRUE(r.ok()) << (r.what ? r.what : "transition");
  }
  void modify(QpState state, std::uint32_t mask = attr_state, bool notify = false) {
    modify(*qp, state, mask, notify);
  }

  // --- memory
  std::uint64_t address(std::uint64_t offset) const { return mr->iova + offset; }
  Remote at(std::uint64_t offset) const { return {address(offset), mr->key}; }
  std::string text(std::uint64_t offset, std::size_t n) const {
    return {reinterpret_cast<const char*>(memory.data()) + offset, n};
  }
  std::uint64_t word(std::uint64_t offset) const {
    std::uint64_t v;
    std::memcpy(&v, memory.data() + offset, 8);
    return v;
  }
  void set_word(std::uint64_t offset, std::uint64_t v) {
    std::memcpy(memory.data() + offset, &v, 8);
  }
  void fill(std::uint64_t offset, const std::string& s) {
    std::memcpy(memory.data() + offset, s.data(), s.size());
  }

  // --- posting; returns the wr_id, which counts from 1 over both queues; 0 when the queue is full
  std::uint64_t post(const Post& w) { return post(*qp, w); }
  std::uint64_t post(QueuePair& q, const Post& w) {
    SendWqe* wqe = q.sq->reserve();
    if (!wqe) return 0;
    wqe->wr_id = ++wr_id_;
    wqe->opcode = w.opcode;
    wqe->flags = static_cast<std::uint8_t>(w.flags);
    wqe->length = w.length;
    if (w.flags & send_inline) {
      wqe->length = static_cast<std::uint32_t>(w.inline_data.size());
      std::memcpy(q.sq->inline_of_reserved(), w.inline_data.data(), w.inline_data.size());
    } else if (!w.list.empty()) {
      wqe->length = 0;
      for (const Sge& s : w.list) {
        q.sq->sges_of_reserved()[wqe->num_sge++] = s;
        wqe->length += s.length;
      }
    } else if (w.length) {
      wqe->num_sge = 1;
      q.sq->sges_of_reserved()[0] = {address(w.local), w.length, w.lkey.value_or(mr->key)};
    }
    wqe->imm_or_rkey = w.imm_or_rkey;
    wqe->remote_addr = w.remote.va;
    wqe->rkey = w.remote.rkey;
    wqe->compare_add = w.compare_add;
    wqe->swap = w.swap;
    wqe->flush_type = w.flush_type;
    wqe->flush_level = w.flush_level;
    if (w.opcode == WrOpcode::bind_mw) {
      wqe->rkey = w.bind.key;
      wqe->imm_or_rkey = w.bind.new_key;
      wqe->bind_lkey = w.bind.lkey;
      wqe->bind_access = w.bind.access;
      wqe->remote_addr = w.bind.address;
      wqe->bind_length = w.bind.length;
    }
    wqe->av = path();
    wqe->remote_qpn = w.remote_qpn;
    wqe->remote_qkey = w.remote_qkey;
    wqe->pd_of_ah = w.pd_of_ah.value_or(pd);
    wqe->srqn = w.srqn.value_or(their_srqn);
    q.sq->publish();
    engine.ring_doorbell(q);
    return wr_id_;
  }
  std::uint64_t post_recv(std::uint64_t offset, std::uint32_t n) {
    return post_recv(std::vector<Sge>{{address(offset), n, mr->key}});
  }
  std::uint64_t post_recv(const std::vector<Sge>& list) {
    if (!(srq ? srq->queue : *qp->rq).post(++wr_id_, list)) return 0;
    if (!srq) engine.ring_doorbell(*qp);
    return wr_id_;
  }

  // --- what comes in
  template <class... S>
  void in(const S&... s) {
    (in_one(s), ...);
  }
  std::vector<std::uint8_t> bytes_of(const Said& s) const {
    wire::Packet p = s.p;
    p.bth.opcode = s.raw ? *s.raw : wire::opcode_of(transport(), s.operation);
    p.bth.dest_qp = s.to_qp.value_or(qp->qpn);
    p.bth.pad_count = static_cast<std::uint8_t>(s.pad.value_or(wire::pad_of(s.payload.size())));
    if (o.type == QpType::ud) {
      if (!p.deth.qkey) p.deth.qkey = qkey;
      p.deth.src_qp = their_qpn;
    }
    if (o.type == QpType::xrc_recv && !p.xrc.srqn) p.xrc.srqn = srq->srqn.raw();
    std::vector<std::uint8_t> b(wire::max_header_bytes);
    b.resize(wire::encode_headers(p, b.data()));
    b.insert(b.end(), s.payload.begin(), s.payload.end());
    b.insert(b.end(), p.bth.pad_count, 0);
    return b;
  }

  // --- what goes out
  void out(const Said& s, Where w = Where::current()) {
    pump();
    wire::Packet want = s.p;
    want.bth.opcode = s.raw ? *s.raw : wire::opcode_of(transport(), s.operation);
    want.bth.dest_qp = their_qpn;
    want.bth.pad_count = static_cast<std::uint8_t>(wire::pad_of(s.payload.size()));
    if (s.raw == wire::cnp_opcode) want.bth.pad_count = 0;
    if (o.type == QpType::ud) want.deth.src_qp = qp->qpn;
    if (!want.xrc.srqn) want.xrc.srqn = their_srqn.raw();
    want.payload = {reinterpret_cast<const std::uint8_t*>(s.payload.data()), s.payload.size()};
    std::string expected = describe(want);
    if (sent_.empty()) {
      ADD_FAILURE_AT(w.file_name(), static_cast<int>(w.line())) << "nothing went out, expected\n"
                                                                << expected;
      return;
    }
    Frame f = sent_.front();
    sent_.pop_front();
    EXPECT_EQ(describe_bytes(f.bytes), expected) << "(line " << w.line() << ")";
    EXPECT_EQ(f.av, path());
  }
  void silent(Where w = Where::current()) {
    pump();
    for (const Frame& f : sent_)
      ADD_FAILURE_AT(w.file_name(), static_cast<int>(w.line()))
          << "went out though nothing should\n"
          << describe_bytes(f.bytes);
    sent_.clear();
  }
  // The next packet, for tests that look at parts of it only; its payload lives until the next
  // call.
  wire::Packet next(Where w = Where::current()) {
    pump();
    if (sent_.empty()) {
      ADD_FAILURE_AT(w.file_name(), static_cast<int>(w.line())) << "nothing went out";
      return {};
    }
    last_ = sent_.front();
    sent_.pop_front();
    return wire::decode(last_.bytes).value();
  }
  // The same as bytes, and the slot that it is steered to.
  std::vector<std::uint8_t> next_bytes() { return next(), last_.bytes; }
  unsigned next_slot() { return next(), last_.slot; }
  std::size_t waiting() {
    pump();
    return sent_.size();
  }
  void discard() {
    pump();
    sent_.clear();
  }

  // --- time
  void after(Duration d) { now += d; }
  // Nothing happens for so long, less one tick of the wheel; then it is past that time.
  void silent_for(Duration d, Where w = Where::current()) {
    Instant end = now + d;
    while (now < end - 4us) {
      silent(w);
      now = std::min(end - 4us, std::max(now + 1us, engine.next_deadline()));
      silent(w);
    }
    now = end + 4us;
  }

  // --- completions, in order
  void sent(std::uint64_t wr, WcOpcode opcode, std::uint32_t byte_len, Where w = Where::current()) {
    completion(*send_cq,
               {.wr_id = wr, .status = WcStatus::success, .opcode = opcode, .byte_len = byte_len},
               w);
  }
  void failed(std::uint64_t wr, WcStatus status, Where w = Where::current()) {
    std::optional<Cqe> c = poll(*send_cq);
    ASSERT_TRUE(c) << "no completion (line " << w.line() << ")";
    EXPECT_EQ(c->wr_id, wr) << "(line " << w.line() << ")";
    EXPECT_EQ(c->status, status) << "(line " << w.line() << ")";
    EXPECT_NE(c->vendor_err, 0u);
  }
  void received(std::uint64_t wr, std::uint32_t byte_len, WcOpcode opcode = WcOpcode::recv,
                unsigned flags = 0, std::uint32_t imm = 0, Where w = Where::current()) {
    completion(*recv_cq,
               {.wr_id = wr,
                .status = WcStatus::success,
                .opcode = opcode,
                .wc_flags = static_cast<std::uint8_t>(flags),
                .byte_len = byte_len,
                .imm_or_rkey = imm},
               w);
  }
  void receive_failed(std::uint64_t wr, WcStatus status, Where w = Where::current()) {
    std::optional<Cqe> c = poll(*recv_cq);
    ASSERT_TRUE(c) << "no completion (line " << w.line() << ")";
    EXPECT_EQ(c->wr_id, wr) << "(line " << w.line() << ")";
    EXPECT_EQ(c->status, status) << "(line " << w.line() << ")";
  }
  void no_completion(Where w = Where::current()) {
    pump();
    for (CompletionQueue* cq : {send_cq, recv_cq})
      if (auto c = poll(*cq))
        ADD_FAILURE_AT(w.file_name(), static_cast<int>(w.line())) << "completed: " << describe(*c);
  }
  std::optional<Cqe> poll(CompletionQueue& cq) {
    pump();
    Cqe c;
    if (cq.poll(1, &c) == 0) return std::nullopt;
    EXPECT_EQ(c.completed_at <= static_cast<std::uint64_t>(now.time_since_epoch().count()), true);
    return c;
  }

  // Asynchronous and completion events since the last call: "qp QP_FATAL", "completion send".
  Words events() {
    pump();
    Words all;
    EventRecord r[4];
    unsigned n;
    do {
      n = engine.take_events(r);
      for (unsigned i = 0; i < n; ++i) {
        constexpr const char* kinds[] = {"completion", "cq", "qp", "srq"};
        std::string s = kinds[r[i].kind];
        if (r[i].user == &send_cq) s += " send";
        if (r[i].user == &recv_cq) s += " recv";
        if (r[i].kind != EventRecord::completion) s += std::string(" ") + name_of(r[i].event);
        all.push_back(s);
      }
    } while (engine.events_pending());
    return all;
  }
  QpState state() const { return qp->state.load(); }
  const Counters& counters() const { return engine.counters(); }

  // Nothing is in flight: what is counted must have been given back.
  void idle(Where w = Where::current()) {
    silent(w);
    EXPECT_EQ(qp->req.in_flight, 0u) << "(line " << w.line() << ")";
    EXPECT_EQ(qp->req.read_bytes, 0u) << "(line " << w.line() << ")";
    EXPECT_EQ(qp->req.reads_outstanding, 0u) << "(line " << w.line() << ")";
    if (qp->destination) {
      EXPECT_EQ(qp->destination->in_flight, 0u) << "(line " << w.line() << ")";
    }
  }

  // Everything that the engine has to send now.
  void pump() {
    TxBurst tx(arena_);
    bool more = true;
    while (more) {
      tx.clear();
      more = engine.transmit(now, tx);
      for (const TxFrame& f : tx.frames()) {
        const std::uint8_t* b = tx.bytes(f);
        sent_.push_back({{b, b + f.size}, f.av, f.slot});
      }
    }
    check_cursors(*qp);
  }
  // acked <= sent <= posted.
  static void check_cursors(QueuePair& q) {
    std::uint32_t posted = q.sq->posted();
    ASSERT_LE(q.req.next - q.comp.acked, posted - q.comp.acked);
    ASSERT_LE(posted - q.comp.acked, q.sq->depth());
  }

  Options o;
  Instant now{};
  Engine engine;
  std::vector<std::byte> memory;
  MemoryRegion* mr{};
  CompletionQueue *send_cq{}, *recv_cq{};
  SharedReceiveQueue* srq{};
  QueuePair* qp{};

 private:
  struct Frame {
    std::vector<std::uint8_t> bytes;
    AddressVector av;
    unsigned slot;
  };

  Transport transport() const { return transport_of(o.type); }
  static std::string describe_bytes(const std::vector<std::uint8_t>& b) {
    auto packet = wire::decode(b);
    return packet ? describe(*packet) : "bytes that are no packet";
  }
  void in_one(const Said& s) {
    auto bytes = bytes_of(s);
    auto packet = wire::decode(bytes);
    ASSERT_TRUE(packet) << "the test says what is no packet";
    RxFrame f;
    f.packet = *packet;
    f.source = s.source.value_or(them());
    f.destination = s.destination.value_or(us());
    f.traffic_class = s.traffic_class;
    f.forced_syndrome = s.forced_syndrome;
    engine.receive(now, f);
    check_cursors(*qp);
  }
  void completion(CompletionQueue& cq, const Cqe& want, Where w) {
    std::optional<Cqe> c = poll(cq);
    ASSERT_TRUE(c) << "no completion, expected " << describe(want) << " (line " << w.line() << ")";
    EXPECT_EQ(describe(*c), describe(want)) << "(line " << w.line() << ")";
    EXPECT_EQ(c->qp, o.type == QpType::xrc_recv ? nullptr : qp);
    EXPECT_EQ(c->qp_num, qp->qpn);
  }

  std::vector<std::uint8_t> arena_;
  std::deque<Frame> sent_;
  Frame last_;
  std::uint64_t wr_id_ = 0;
};

}  // namespace adverb::engine::talk
