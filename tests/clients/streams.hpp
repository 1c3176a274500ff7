// SPDX-License-Identifier: Apache-2.0
// The two ends of a stream (plan.hpp): Requester posts a round's operations and checks what READs
// and atomics bring back; Responder posts the receives, and checks what arrived.
#pragma once

#include <sys/mman.h>

#include "tests/clients/plan.hpp"

namespace adverb::clients {

// Pages of memory and their registration.
struct Area {
  std::uint8_t* p = nullptr;
  std::size_t size = 0;
  ibv_mr* mr = nullptr;

  void make(const Nic& nic, std::size_t bytes, int access) {
    size = bytes;
    void* got = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (got == MAP_FAILED) die(exit_failed, "mmap: %s", std::strerror(errno));
    p = static_cast<std::uint8_t*>(got);
    mr = need(ibv_reg_mr(nic.pd, p, size, access), "ibv_reg_mr");
  }
  void free() {
    need_zero(ibv_dereg_mr(mr), "ibv_dereg_mr");
    munmap(p, size);
  }
};

struct RemoteArea {
  std::uint64_t address;
  std::uint32_t rkey;
};

struct Totals {
  std::uint64_t ops[what_count] = {}, bytes = 0, shared_sum = 0;
};

// A work request's number: what it was, of which session, queue pair, round and operation.
struct WrId {
  bool receive, control;
  unsigned session, qp;
  std::uint32_t round, op;
  std::uint64_t pack() const {
    return std::uint64_t{receive} << 63 | std::uint64_t{control} << 62 |
           std::uint64_t{session & 63} << 56 | std::uint64_t{qp & 255} << 48 |
           std::uint64_t{round} << 16 | op;
  }
  static WrId unpack(std::uint64_t v) {
    return {(v >> 63 & 1) != 0,      (v >> 62 & 1) != 0,     unsigned(v >> 56 & 63),
            unsigned(v >> 48 & 255), std::uint32_t(v >> 16), std::uint32_t(v & 0xffff)};
  }
};

// Where a stream is: who complains says this.
struct Place {
  unsigned session = 0, direction = 0, qp = 0;
};

[[noreturn]] inline void wrong(const Place& at, std::uint32_t round, std::uint32_t i, const Op& op,
                               const char* text, std::uint64_t got, std::uint64_t expected) {
  die(exit_wrong_data,
      "WRONG: session %u, queue pair %u, stream of the %s, round %u, operation %u (%s of %u "
      "bytes): "
      "%s 0x%llx, expected 0x%llx",
      at.session, at.qp, at.direction ? "server" : "client", round, i, name_of[int(op.what)],
      op.size, text, (unsigned long long)got, (unsigned long long)expected);
}

inline void set_guards(const Round& round, std::uint8_t* half) {
  for_each_guard(round,
                 [&](std::uint32_t at, std::uint32_t n) { std::memset(half + at, guard_byte, n); });
}
inline void check_guards(const Place& at, std::uint32_t number, const Round& round,
                         const std::uint8_t* half) {
  std::uint32_t i = 0;  // the operation that the guard stands before
  for_each_guard(round, [&](std::uint32_t from, std::uint32_t n) {
    const auto* bad =
        std::find_if(half + from, half + from + n, [](std::uint8_t b) { return b != guard_byte; });
    if (bad != half + from + n)
      wrong(at, number, i ? i - 1 : 0, round[i ? i - 1 : 0], "a byte outside the message is", *bad,
            guard_byte);
    ++i;
  });
}

// Cuts [p, p + size) into one to `most` pieces.
inline int cut(ibv_sge* sges, unsigned most, std::uint8_t* p, std::uint32_t size,
               std::uint32_t lkey, Prng& prng) {
  int n = 0;
  const unsigned pieces = 1 + static_cast<unsigned>(prng.next() % most);
  while (size && n + 1u < pieces) {
    const auto part = static_cast<std::uint32_t>(1 + prng.next() % size);
    sges[n++] = {reinterpret_cast<std::uintptr_t>(p), part, lkey};
    p += part;
    size -= part;
  }
  if (size) sges[n++] = {reinterpret_cast<std::uintptr_t>(p), size, lkey};
  return n;
}

// --- the requester's end

class Requester {
 public:
  // rounds of the responder: its arena; pattern; its words, of which [0] is shared and [1 + qp]
  // ours
  RemoteArea arena{}, pattern{}, words{};
  std::uint64_t pattern_seed = 0;
  ibv_ah* ah = nullptr;  // UD
  std::uint32_t remote_qpn = 0;
  Totals totals;

  void open(const Nic& nic, const Setup& setup, Place place, ibv_qp* qp, unsigned max_inline) {
    setup_ = &setup, place_ = place, qp_ = qp, max_inline_ = max_inline;
    prng_ = Prng(setup.seed ^ (place.session << 20 | place.direction << 16 | place.qp));
    source_.make(nic, 2 * half_size(setup), 0);
    result_.make(nic, 2 * half_size(setup), IBV_ACCESS_LOCAL_WRITE);
  }
  void close() {
    source_.free();
    result_.free();
    if (ah) need_zero(ibv_destroy_ah(ah), "ibv_destroy_ah");
  }
  std::uint32_t rounds() const { return setup_->rounds[place_.direction]; }
  bool done() const { return credits_ == rounds() && completed_ == rounds(); }
  std::uint64_t own_word() const { return own_; }
  std::uint32_t completed() const { return completed_; }

  void on_credit() {
    ++credits_;
    advance();
  }
  // Starts the rounds that may start.
  void advance() {
    while (next_ < rounds() && next_ < credits_ + 2 && next_ < completed_ + 2) start_round();
  }

  void on_completion(const WrId& id, const ibv_wc& wc) {
    Half& half = halves_[id.round % 2];
    if (id.round != half.number || id.op < half.checked)
      wrong(place_, id.round, id.op, half.round[0], "completion out of order: round", id.round,
            half.number);
    check_opcode(id, half.round[id.op], wc);
    for (; half.checked <= id.op; ++half.checked) check_result(half, half.checked);
    if (half.checked < half.round.size()) return;
    check_guards(place_, half.number, half.round, result(half.number));
    ++completed_;
    advance();
  }
  const Op& op_of(const WrId& id) const { return halves_[id.round % 2].round[id.op]; }

 private:
  struct Half {
    std::uint32_t number = 0, checked = 0;
    Round round;
    std::vector<std::uint64_t> expected;  // of atomics
  };

  std::uint8_t* source(std::uint32_t round) { return source_.p + round % 2 * half_size(*setup_); }
  std::uint8_t* result(std::uint32_t round) { return result_.p + round % 2 * half_size(*setup_); }

  void start_round() {
    Half& half = halves_[next_ % 2];
    half.number = next_;
    half.checked = 0;
    half.round = plan_round(*setup_, place_.direction, place_.qp, next_);
    half.expected.assign(half.round.size(), 0);
    set_guards(half.round, result(next_));
    for (std::uint32_t i = 0; i < half.round.size();) i = post_some(half, i);
    ++next_;
  }

  // Posts up to eight operations with one call; returns the number of the next one.
  std::uint32_t post_some(Half& half, std::uint32_t first) {
    ibv_send_wr wrs[8] = {};
    ibv_sge sges[8][4];
    const std::size_t rest = half.round.size() - first;
    const auto n = static_cast<std::uint32_t>(1 + prng_.next() % std::min<std::size_t>(8, rest));
    for (std::uint32_t i = 0; i < n; ++i) {
      prepare(half, first + i, wrs[i], sges[i]);
      if (i + 1 < n) wrs[i].next = &wrs[i + 1];
    }
    ibv_send_wr* bad = nullptr;
    need_zero(ibv_post_send(qp_, wrs, &bad), "ibv_post_send");
    for (std::uint32_t i = 0; i < n; ++i) {  // what was inline is ours again
      const Op& op = half.round[first + i];
      if (wrs[i].send_flags & IBV_SEND_INLINE)
        std::memset(source(half.number) + op.offset, 0xee, op.size);
    }
    return first + n;
  }

  void prepare(Half& half, std::uint32_t i, ibv_send_wr& wr, ibv_sge* sges) {
    const Op& op = half.round[i];
    const bool last = i + 1 == half.round.size(), back = returns_data(op.what);
    ++totals.ops[int(op.what)];
    totals.bytes += op.size;
    wr.wr_id = WrId{false, false, place_.session, place_.qp, half.number, i}.pack();
    if (last || back || prng_.next() % 4 == 0) wr.send_flags |= IBV_SEND_SIGNALED;
    if (last && setup_->type == IBV_QPT_RC) wr.send_flags |= IBV_SEND_FENCE;
    if (last || prng_.next() % 4 == 0) wr.send_flags |= IBV_SEND_SOLICITED;
    if (!back) fill(source(half.number) + op.offset, op.size, op.content);
    if (!back && op.size <= max_inline_ && prng_.next() % 2) wr.send_flags |= IBV_SEND_INLINE;
    Area& area = back ? result_ : source_;
    std::uint8_t* at = (back ? result(half.number) : source(half.number)) + op.offset;
    wr.sg_list = sges;
    wr.num_sge = cut(sges, is_atomic(op.what) ? 1 : 4, at, op.size, area.mr->lkey, prng_);
    set_opcode(half, i, wr);
    if (setup_->type == IBV_QPT_UD) {
      wr.wr.ud.ah = ah;
      wr.wr.ud.remote_qpn = remote_qpn;
      wr.wr.ud.remote_qkey = ud_qkey;
    }
  }

  void set_opcode(Half& half, std::uint32_t i, ibv_send_wr& wr) {
    const Op& op = half.round[i];
    const std::uint64_t remote =
        arena.address + half.number % 2 * std::uint64_t{half_size(*setup_)};
    if (has_imm(op.what)) wr.imm_data = htobe32(op.imm);
    switch (op.what) {
      case What::send:
        wr.opcode = IBV_WR_SEND;
        break;
      case What::send_imm:
        wr.opcode = IBV_WR_SEND_WITH_IMM;
        break;
      case What::write:
      case What::write_imm:
        wr.opcode = op.what == What::write ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_WRITE_WITH_IMM;
        wr.wr.rdma = {remote + op.offset, arena.rkey};
        break;
      case What::read_pattern:
        wr.opcode = IBV_WR_RDMA_READ;
        wr.wr.rdma = {pattern.address + op.source, pattern.rkey};
        break;
      case What::read_back:
        wr.opcode = IBV_WR_RDMA_READ;
        wr.wr.rdma = {remote + half.round[op.source].offset, arena.rkey};
        break;
      default:
        set_atomic(half, i, wr);
        break;
    }
  }

  // Our own word's value is known before each atomic; of the shared word we know the sum.
  void set_atomic(Half& half, std::uint32_t i, ibv_send_wr& wr) {
    const Op& op = half.round[i];
    wr.wr.atomic.remote_addr =
        words.address + (op.what == What::add_shared ? 0 : 8 + 8 * place_.qp);
    wr.wr.atomic.rkey = words.rkey;
    half.expected[i] = own_;
    const bool add = op.what == What::add_own || op.what == What::add_shared;
    wr.opcode = add ? IBV_WR_ATOMIC_FETCH_AND_ADD : IBV_WR_ATOMIC_CMP_AND_SWP;
    if (op.what == What::add_own) {
      wr.wr.atomic.compare_add = op.content;
      own_ += op.content;
    } else if (op.what == What::add_shared) {
      wr.wr.atomic.compare_add = op.content & 0xffffff;
      totals.shared_sum += op.content & 0xffffff;
    } else {
      const bool refused = op.what == What::swap_own_refused;
      wr.wr.atomic.compare_add = refused ? ~own_ : own_;
      wr.wr.atomic.swap = op.content;
      if (!refused) own_ = op.content;
    }
  }

  void check_opcode(const WrId& id, const Op& op, const ibv_wc& wc) {
    static constexpr ibv_wc_opcode expected[what_count] = {
        IBV_WC_SEND,      IBV_WC_SEND,      IBV_WC_RDMA_WRITE, IBV_WC_RDMA_WRITE, IBV_WC_RDMA_READ,
        IBV_WC_RDMA_READ, IBV_WC_FETCH_ADD, IBV_WC_COMP_SWAP,  IBV_WC_COMP_SWAP,  IBV_WC_FETCH_ADD};
    if (wc.opcode != expected[int(op.what)])
      wrong(place_, id.round, id.op, op, "completion's opcode", wc.opcode, expected[int(op.what)]);
    if (wc.qp_num != qp_->qp_num)
      wrong(place_, id.round, id.op, op, "completion's queue pair", wc.qp_num, qp_->qp_num);
  }

  void check_result(Half& half, std::uint32_t i) {
    const Op& op = half.round[i];
    if (!returns_data(op.what)) return;
    const std::uint8_t* at = result(half.number) + op.offset;
    if (is_atomic(op.what)) {
      std::uint64_t got;
      std::memcpy(&got, at, 8);
      const bool shared = op.what == What::add_shared;
      if (shared ? got < shared_floor_ : got != half.expected[i])
        wrong(place_, half.number, i, op, "the word was", got,
              shared ? shared_floor_ : half.expected[i]);
      if (shared) shared_floor_ = got + (op.content & 0xffffff);
      return;
    }
    const std::uint64_t seed = op.what == What::read_back
                                   ? half.round[op.source].content
                                   : pattern_seed + op.source / 8 * 0x9e3779b97f4a7c15;
    const std::size_t same = first_difference(at, op.size, seed);
    if (same != op.size) wrong(place_, half.number, i, op, "first wrong byte", same, op.size);
  }

  const Setup* setup_ = nullptr;
  Place place_;
  ibv_qp* qp_ = nullptr;
  unsigned max_inline_ = 0;
  Prng prng_{0};
  Area source_, result_;
  Half halves_[2];
  std::uint32_t next_ = 0, completed_ = 0, credits_ = 0;
  std::uint64_t own_ = 0, shared_floor_ = 0;
};

// --- the responder's end

class Responder {
 public:
  void open(const Nic& nic, const Setup& setup, Place place, ibv_qp* qp) {
    setup_ = &setup, place_ = place, qp_ = qp;
    prng_ = Prng(~setup.seed ^ (place.session << 20 | place.direction << 16 | place.qp));
    arena_.make(nic, 2 * half_size(setup),
                IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
    for (std::uint32_t i = 0; i < 2 && i < rounds(); ++i) prepare_round(i);
  }
  void close() { arena_.free(); }
  RemoteArea arena() const { return {reinterpret_cast<std::uintptr_t>(arena_.p), arena_.mr->rkey}; }
  std::uint32_t rounds() const { return setup_->rounds[place_.direction]; }
  bool done() const { return received_ == rounds(); }
  std::uint32_t received() const { return received_; }

  // Returns true when the round is complete: its sender gets a credit.
  bool on_completion(const WrId& id, const ibv_wc& wc) {
    Half& half = halves_[id.round % 2];
    while (half.next < half.round.size() && !takes_receive(half.round[half.next].what)) ++half.next;
    const Op& op = half.round[half.next];
    if (id.round != received_ || id.op != half.next)
      wrong(place_, id.round, id.op, op, "receive out of order: operation", id.op, half.next);
    check_arrival(id, op, wc);
    if (++half.next < half.round.size()) return false;
    for (std::uint32_t i = 0; i < half.round.size(); ++i)
      if (half.round[i].what == What::write) check_content(id.round, i, half.round[i]);
    check_guards(place_, id.round, half.round, arena_of(id.round));
    ++received_;
    if (id.round + 2 < rounds()) prepare_round(id.round + 2);
    return true;
  }

 private:
  struct Half {
    std::uint32_t next = 0;  // the operation that is expected next, or one before it
    Round round;
  };
  static constexpr std::uint32_t grh_size = 40;

  std::uint8_t* arena_of(std::uint32_t round) { return arena_.p + round % 2 * half_size(*setup_); }

  void prepare_round(std::uint32_t number) {
    Half& half = halves_[number % 2];
    half.next = 0;
    half.round = plan_round(*setup_, place_.direction, place_.qp, number);
    set_guards(half.round, arena_of(number));
    for (std::uint32_t i = 0; i < half.round.size(); ++i)
      if (takes_receive(half.round[i].what)) post(number, i, half.round[i]);
  }

  // A receive may be longer than the message by up to half a guard, which must stay as it is.
  void post(std::uint32_t number, std::uint32_t i, const Op& op) {
    ibv_recv_wr wr{}, *bad = nullptr;
    ibv_sge sges[3];
    wr.wr_id = WrId{true, false, place_.session, place_.qp, number, i}.pack();
    wr.sg_list = sges;
    if (op.what != What::write_imm) {
      const std::uint32_t grh = setup_->type == IBV_QPT_UD ? grh_size : 0;
      const auto more = static_cast<std::uint32_t>(prng_.next() % (guard_size / 2));
      wr.num_sge = cut(sges, 3, arena_of(number) + op.offset - grh, grh + op.size + more,
                       arena_.mr->lkey, prng_);
    }
    need_zero(ibv_post_recv(qp_, &wr, &bad), "ibv_post_recv");
  }

  void check_arrival(const WrId& id, const Op& op, const ibv_wc& wc) {
    const auto check = [&](const char* what, std::uint64_t got, std::uint64_t expected) {
      if (got != expected) wrong(place_, id.round, id.op, op, what, got, expected);
    };
    const bool ud = setup_->type == IBV_QPT_UD;
    check("byte_len", wc.byte_len, op.size + (ud ? grh_size : 0));
    check("opcode", wc.opcode,
          op.what == What::write_imm ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV);
    check("wc_flags", wc.wc_flags,
          (has_imm(op.what) ? IBV_WC_WITH_IMM : 0) | (ud ? IBV_WC_GRH : 0));
    if (has_imm(op.what)) check("immediate", be32toh(wc.imm_data), op.imm);
    check("queue pair", wc.qp_num, qp_->qp_num);
    check_content(id.round, id.op, op);
  }
  void check_content(std::uint32_t number, std::uint32_t i, const Op& op) {
    const std::size_t same = first_difference(arena_of(number) + op.offset, op.size, op.content);
    if (same != op.size) wrong(place_, number, i, op, "first wrong byte", same, op.size);
  }

  const Setup* setup_ = nullptr;
  Place place_;
  ibv_qp* qp_ = nullptr;
  Prng prng_{0};
  Area arena_;
  Half halves_[2];
  std::uint32_t received_ = 0;
};

}  // namespace adverb::clients
