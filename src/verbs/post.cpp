// SPDX-License-Identifier: Apache-2.0
// ibv_post_send(3), ibv_post_recv(3), ibv_post_srq_recv(3), ibv_post_wq_recv: work requests become
// WQEs under the queue's own lock, and one doorbell is rung for the whole list.  On an error
// *bad_wr is the first request that was not posted; those before it are.
#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>

#include "verbs/batch.hpp"
#include "verbs/fault.hpp"
#include "verbs/guard.hpp"
#include "verbs/objects.hpp"

namespace adverb::verbs {

using engine::QpState;
using engine::QpType;
using engine::WrOpcode;

namespace {

constexpr unsigned bit(WrOpcode o) { return 1u << static_cast<unsigned>(o); }

// Table "operations by service type" (IBTA 9.4, ibv_post_send(3)).
constexpr unsigned ud_opcodes = bit(WrOpcode::send) | bit(WrOpcode::send_with_imm);
constexpr unsigned uc_opcodes = ud_opcodes | bit(WrOpcode::rdma_write) |
                                bit(WrOpcode::rdma_write_with_imm) | bit(WrOpcode::send_with_inv) |
                                bit(WrOpcode::local_inv) | bit(WrOpcode::bind_mw);
constexpr unsigned rc_opcodes =
    uc_opcodes | bit(WrOpcode::rdma_read) | bit(WrOpcode::atomic_cmp_and_swp) |
    bit(WrOpcode::atomic_fetch_and_add) | bit(WrOpcode::atomic_write) | bit(WrOpcode::flush);
constexpr unsigned opcodes_without_data = bit(WrOpcode::local_inv) | bit(WrOpcode::bind_mw);
constexpr unsigned inline_opcodes =
    bit(WrOpcode::send) | bit(WrOpcode::send_with_imm) | bit(WrOpcode::send_with_inv) |
    bit(WrOpcode::rdma_write) | bit(WrOpcode::rdma_write_with_imm) | bit(WrOpcode::atomic_write);

bool allowed(QpType type, WrOpcode opcode) {
  unsigned mask = 0;  // an XRC target sends nothing
  switch (type) {
    case QpType::rc:
    case QpType::xrc_send:
      mask = rc_opcodes;
      break;
    case QpType::uc:
      mask = uc_opcodes;
      break;
    case QpType::ud:
      mask = ud_opcodes;
      break;
    case QpType::raw_packet:
      mask = bit(WrOpcode::send);
      break;
    case QpType::xrc_recv:
      break;
  }
  // The engine completes what UC and UD have not with LOC_QP_OP_ERR.
  if (mask && behaviour().get<nic::Wrong>(Point::wrong_operation) == nic::Wrong::completes)
    mask |= rc_opcodes;
  return static_cast<unsigned>(opcode) < 32 && (mask & bit(opcode));
}

const engine::Sge* list_of(const ibv_sge* list) {
  return reinterpret_cast<const engine::Sge*>(list);
}

std::uint64_t length_of(const ibv_sge* list, int n) {
  std::uint64_t length = 0;
  for (int i = 0; i < n; ++i) length += list[i].length;
  return length;
}

// In the requests of other operations the address handle's place is that of other members.
bool names_address(const Qp& qp, WrOpcode opcode) {
  return qp.pair->type == QpType::ud && ud_opcodes & bit(opcode);
}

void fill_operation(const Qp& qp, const ibv_send_wr& wr, engine::SendWqe& w) {
  switch (w.opcode) {
    case WrOpcode::send_with_imm:
    case WrOpcode::send:
      w.imm_or_rkey = ntohl(wr.imm_data);
      break;
    case WrOpcode::rdma_write_with_imm:
      w.imm_or_rkey = ntohl(wr.imm_data);
      [[fallthrough]];
    case WrOpcode::rdma_write:
    case WrOpcode::rdma_read:
    case WrOpcode::atomic_write:
      w.remote_addr = wr.wr.rdma.remote_addr;
      w.rkey = wr.wr.rdma.rkey;
      break;
    case WrOpcode::atomic_cmp_and_swp:
    case WrOpcode::atomic_fetch_and_add:
      w.remote_addr = wr.wr.atomic.remote_addr;
      w.rkey = wr.wr.atomic.rkey;
      w.compare_add = wr.wr.atomic.compare_add;
      w.swap = wr.wr.atomic.swap;
      break;
    default:
      w.imm_or_rkey = wr.invalidate_rkey;
      break;
  }
  if (qp.pair->type == QpType::xrc_send) w.srqn = engine::Srqn(wr.qp_type.xrc.remote_srqn);
  if (!names_address(qp, w.opcode)) return;
  const Ah& ah = *of(wr.wr.ud.ah);
  w.av = ah.av;
  w.pd_of_ah = ah.pd->id;
  w.remote_qpn = Qpn(wr.wr.ud.remote_qpn);
  w.remote_qkey = wr.wr.ud.remote_qkey;
}

Refusal append(const Qp& qp, engine::SendQueue& sq, const ibv_send_wr& wr) {
  const auto opcode = static_cast<WrOpcode>(wr.opcode);
  const bool inlined = wr.send_flags & IBV_SEND_INLINE;
  if (static_cast<unsigned>(wr.opcode) > 31) return {EINVAL, "unknown opcode"};
  const int num_sge = bit(opcode) & opcodes_without_data ? 0 : wr.num_sge;
  // Before the list is looked at: it may be shorter than an absurd number says.
  if (num_sge < 0) return {EINVAL, "negative num_sge"};
  if (static_cast<unsigned>(num_sge) > qp.cap.max_send_sge)
    return {behaviour().error(Point::too_many_sges), "num_sge > max_send_sge"};
  const std::uint64_t length = length_of(wr.sg_list, num_sge);
  const auto elements = static_cast<std::uint64_t>(num_sge);
  if (Refusal r = check_request(qp, opcode, wr.send_flags, inlined ? 0 : elements, length,
                                wr.wr.atomic.remote_addr))
    return r;
  if (names_address(qp, opcode) && !wr.wr.ud.ah) return {EINVAL, "no address handle"};
  engine::SendWqe* w = sq.reserve();
  if (!w) return {ENOMEM};
  w->wr_id = wr.wr_id;
  w->opcode = opcode;
  w->flags = static_cast<std::uint8_t>(wr.send_flags);
  w->length = length_in_wqe(length);
  if (inlined) {
    std::uint8_t* to = sq.inline_of_reserved();
    for (int i = 0; i < num_sge; ++i) {
      const ibv_sge& from = wr.sg_list[i];
      if (from.length) std::memcpy(to, reinterpret_cast<const void*>(from.addr), from.length);
      to += from.length;
    }
  } else if (num_sge) {
    w->num_sge = static_cast<std::uint8_t>(num_sge);
    std::copy_n(list_of(wr.sg_list), num_sge, sq.sges_of_reserved().data());
  }
  if (opcode == WrOpcode::bind_mw) {
    const auto& bind = wr.bind_mw;
    if (Refusal r = fill_binding(bind.mw, bind.rkey, bind.bind_info, *w)) return r;
  } else {
    fill_operation(qp, wr, *w);
  }
  sq.publish();
  return {};
}

}  // namespace

Refusal check_state(const engine::QueuePair& pair) {
  const QpState state = pair.state.load(std::memory_order_relaxed);
  if (state == QpState::reset || state == QpState::init || state == QpState::rtr)
    return {EINVAL, "the QP is not in RTS"};
  return {};
}

Refusal check_request(const Qp& qp, WrOpcode opcode, unsigned flags, std::uint64_t num_sge,
                      std::uint64_t length, std::uint64_t remote_addr) {
  if (!allowed(qp.pair->type, opcode)) return {EINVAL, "this QP type has no such operation"};
  if (flags & ~0xfu) return {EINVAL, "unsupported send flags"};
  if (num_sge > qp.cap.max_send_sge)
    return {behaviour().error(Point::too_many_sges), "num_sge > max_send_sge"};
  if (opcode == WrOpcode::rdma_read && num_sge > limit(Limit::max_sge_rd))
    return {EINVAL, "num_sge > max_sge_rd"};
  const bool atomic =
      opcode == WrOpcode::atomic_cmp_and_swp || opcode == WrOpcode::atomic_fetch_and_add;
  if (atomic && remote_addr % 8 &&
      behaviour().get<nic::Wrong>(Point::misaligned_atomic) == nic::Wrong::refused)
    return {EINVAL, "an atomic's address is a multiple of 8"};
  if (qp.pair->type == QpType::raw_packet && length < wire::ethernet_header_bytes)
    return {EINVAL, "an Ethernet frame begins with a header of 14 bytes"};
  if (flags & IBV_SEND_INLINE) {
    if (!(bit(opcode) & inline_opcodes)) return {EINVAL, "this operation has no inline data"};
    const bool operand = opcode == WrOpcode::atomic_write;  // has its own room
    if (length > (operand ? qp.pair->sq->max_inline() : qp.cap.max_inline_data))
      return {behaviour().error(Point::inline_too_long), "inline data longer than max_inline_data"};
    if (operand && length != 8) return {EINVAL, "an ATOMIC WRITE takes 8 bytes"};
  }
  return {};
}

void ring(Qp& qp) { qp.context->device->doorbell(*qp.pair); }

void log_refusal(const Qp& qp, const Refusal& r) {
  if (r.why) nic::log(nic::LogLevel::warn, "post_send qp {:#x}: {}", qp.qp.qp_num, r.why);
}

int post_send(ibv_qp* q, ibv_send_wr* wr, ibv_send_wr** bad) {
  if (const int error = fault(Call::post_send)) return *bad = wr, error;
  Qp& qp = *of(q);
  if (!qp.context->works()) return *bad = wr, EIO;
  engine::QueuePair& pair = *qp.pair;
  bool posted = false;
  Refusal refusal;
  {
    std::lock_guard lock(pair.sq->lock);
    refusal = check_state(pair);
    while (wr && !refusal && !(refusal = append(qp, *pair.sq, *wr))) {
      posted = true;
      wr = wr->next;
    }
  }
  if (posted) ring(qp);
  if (!refusal) return 0;
  *bad = wr;
  log_refusal(qp, refusal);
  return refusal.error;
}

Refusal post_one(Qp& qp, const engine::SendWqe& wqe) {
  {
    engine::SendQueue& sq = *qp.pair->sq;
    if (Refusal r = check_request(qp, wqe.opcode, wqe.flags, 0, 0)) return r;
    std::lock_guard lock(sq.lock);
    if (Refusal r = check_state(*qp.pair)) return r;
    engine::SendWqe* w = sq.reserve();
    if (!w) return {ENOMEM};
    *w = wqe;
    sq.publish();
  }
  ring(qp);
  return {};
}

namespace {

// Posts a list to a receive queue; the caller holds its lock.
int append_receives(engine::ReceiveQueue& rq, ibv_recv_wr*& wr) {
  for (; wr; wr = wr->next) {
    if (wr->num_sge < 0 || static_cast<unsigned>(wr->num_sge) > rq.max_sge()) return EINVAL;
    if (!rq.post(wr->wr_id, {list_of(wr->sg_list), static_cast<std::size_t>(wr->num_sge)}))
      return ENOMEM;
  }
  return 0;
}

}  // namespace

int post_recv(ibv_qp* q, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  if (const int error = fault(Call::post_recv)) return *bad = wr, error;
  Qp& qp = *of(q);
  if (!qp.context->works()) return *bad = wr, EIO;
  engine::QueuePair& pair = *qp.pair;
  if (!pair.own_rq) return *bad = wr, qp.srq ? behaviour().error(Point::recv_beside_srq) : EINVAL;
  int error = 0;
  {
    std::lock_guard lock(pair.own_rq->lock);
    if (pair.state.load(std::memory_order_relaxed) == QpState::reset) {
      error = EINVAL;
    } else {
      error = append_receives(*pair.own_rq, wr);
    }
  }
  // A receive queue in the error state is flushed by the engine, which learns of new entries by the
  // doorbell.
  if (pair.state.load(std::memory_order_seq_cst) == QpState::error) ring(qp);
  if (error) *bad = wr;
  return error;
}

int post_srq_recv(ibv_srq* s, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  if (const int error = fault(Call::post_srq_recv)) return *bad = wr, error;
  Srq& srq = *of(s);
  if (!srq.context->works()) return *bad = wr, EIO;
  std::lock_guard lock(srq.queue->queue.lock);
  const int error = append_receives(srq.queue->queue, wr);
  if (error) *bad = wr;
  return error;
}

// As to a queue pair's receive queue: refused in RESET, and flushed in ERROR.
int post_wq_recv(ibv_wq* w, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  if (const int error = fault(Call::post_wq_recv)) return *bad = wr, error;
  Wq& wq = *of(w);
  if (!wq.context->works()) return *bad = wr, EIO;
  engine::ReceiveWorkQueue& queue = *wq.queue;
  int error = EINVAL;
  {
    std::lock_guard lock(queue.queue.lock);
    if (queue.state.load(std::memory_order_relaxed) != engine::WqState::reset)
      error = append_receives(queue.queue, wr);
  }
  if (queue.state.load(std::memory_order_seq_cst) == engine::WqState::error)
    guarded([&] {
      wq.context->device->with_engine([&](engine::Engine& e, Instant) { e.flush(queue); });
    });
  if (error) *bad = wr;
  return error;
}

}  // namespace adverb::verbs
