// SPDX-License-Identifier: Apache-2.0
// The extended post interface (ibv_wr_post(3)): wr_start, one call per request, setters that work
// on the last one, and wr_complete, which posts all of them or, after any mistake, none.
#include "verbs/batch.hpp"
#include "verbs/fault.hpp"

#include <arpa/inet.h>

#include <algorithm>

#include <cerrno>
#include <cstring>

namespace adverb::verbs {

using engine::QpType;
using engine::SendWqe;
using engine::WrOpcode;

std::uint32_t inline_room(const ibv_qp_cap& cap, std::uint64_t ops) {
  return ops & IBV_QP_EX_WITH_ATOMIC_WRITE ? std::max(cap.max_inline_data, 8u)
                                           : cap.max_inline_data;
}

Batch::Batch(Pd& pd, const ibv_qp_cap& cap, std::uint64_t ops)
    : capacity(cap.max_send_wr), max_sge(cap.max_send_sge), max_inline(inline_room(cap, ops)) {
  static_assert(std::is_trivially_destructible_v<SendWqe> && sizeof(SendWqe) % 8 == 0 &&
                alignof(SendWqe) <= 64 && alignof(engine::Sge) <= 8);
  const std::size_t of_wqes = capacity * sizeof(SendWqe),
                    of_sges = std::size_t{capacity} * max_sge * sizeof(engine::Sge),
                    of_inline = std::size_t{capacity} * max_inline;
  memory =
      allocate(pd, std::max<std::size_t>(of_wqes + of_sges + of_inline, 64), 64, resource_batch);
  auto* at = static_cast<std::byte*>(memory.get());
  wqes = reinterpret_cast<SendWqe*>(at);
  std::uninitialized_value_construct_n(wqes, capacity);
  sges = reinterpret_cast<engine::Sge*>(at + of_wqes);
  inline_data = reinterpret_cast<std::uint8_t*>(at + of_wqes + of_sges);
}

void Batch::start() {
  mutex.lock();
  count = 0;
  refusal = {};
}

SendWqe* Batch::add(const ibv_qp_ex& ex, WrOpcode opcode) {
  if (count == capacity) {
    refuse_with(ENOMEM, nullptr);
    return nullptr;
  }
  SendWqe& w = wqes[count++];
  w = SendWqe{};
  w.wr_id = ex.wr_id;
  w.opcode = opcode;
  w.flags = static_cast<std::uint8_t>(ex.wr_flags & 0xf & ~static_cast<unsigned>(IBV_SEND_INLINE));
  if (ex.wr_flags & ~0xfu) refuse_with(EINVAL, "unsupported send flags");
  return &w;
}

namespace {

Batch& batch_of(ibv_qp_ex* q) { return *of(q)->batch; }

void add_remote(ibv_qp_ex* q, WrOpcode opcode, std::uint32_t rkey, std::uint64_t address) {
  if (SendWqe* w = batch_of(q).add(*q, opcode)) {
    w->rkey = rkey;
    w->remote_addr = address;
  }
}

void add_word(ibv_qp_ex* q, WrOpcode opcode, std::uint32_t word) {
  if (SendWqe* w = batch_of(q).add(*q, opcode)) w->imm_or_rkey = word;
}

void atomic_cmp_swp(ibv_qp_ex* q, std::uint32_t rkey, std::uint64_t address, std::uint64_t compare,
                    std::uint64_t swap) {
  add_remote(q, WrOpcode::atomic_cmp_and_swp, rkey, address);
  if (SendWqe* w = batch_of(q).last()) {
    w->compare_add = compare;
    w->swap = swap;
  }
}

void atomic_fetch_add(ibv_qp_ex* q, std::uint32_t rkey, std::uint64_t address, std::uint64_t add) {
  add_remote(q, WrOpcode::atomic_fetch_and_add, rkey, address);
  if (SendWqe* w = batch_of(q).last()) w->compare_add = add;
}

void rdma_write_imm(ibv_qp_ex* q, std::uint32_t rkey, std::uint64_t address, __be32 imm) {
  add_remote(q, WrOpcode::rdma_write_with_imm, rkey, address);
  if (SendWqe* w = batch_of(q).last()) w->imm_or_rkey = ntohl(imm);
}

void flush(ibv_qp_ex* q, std::uint32_t rkey, std::uint64_t address, std::size_t length,
           std::uint8_t type, std::uint8_t level) {
  add_remote(q, WrOpcode::flush, rkey, address);
  if (length > longest_message)
    return batch_of(q).refuse_with(EINVAL, "a FLUSH of more than 2^31 bytes");
  if (SendWqe* w = batch_of(q).last()) {
    w->length = static_cast<std::uint32_t>(length);
    w->flush_type = type;
    w->flush_level = level;
  }
}

void bind_mw(ibv_qp_ex* q, ibv_mw* mw, std::uint32_t rkey, const ibv_mw_bind_info* info) {
  SendWqe* w = batch_of(q).add(*q, WrOpcode::bind_mw);
  if (!w) return;
  if (const Refusal r = fill_binding(mw, rkey, *info, *w)) batch_of(q).refuse_with(r.error, r.why);
}

// --- setters on the last request

void set_inline_list(ibv_qp_ex* q, std::size_t n, const ibv_data_buf* list) {
  Batch& b = batch_of(q);
  SendWqe* w = b.last();
  if (!w) return;
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (list[i].length > b.max_inline - length)
      return b.refuse_with(behaviour().error(Point::inline_too_long),
                           "inline data longer than max_inline_data");
    length += list[i].length;
  }
  std::uint8_t* to = b.inline_of_last();
  for (std::size_t i = 0; i < n; ++i) {
    if (list[i].length) std::memcpy(to, list[i].addr, list[i].length);
    to += list[i].length;
  }
  w->flags |= engine::send_inline;
  w->num_sge = 0;
  w->length = static_cast<std::uint32_t>(length);
}

void set_inline(ibv_qp_ex* q, void* address, std::size_t length) {
  const ibv_data_buf one{address, length};
  set_inline_list(q, 1, &one);
}

void atomic_write(ibv_qp_ex* q, std::uint32_t rkey, std::uint64_t address, const void* value) {
  add_remote(q, WrOpcode::atomic_write, rkey, address);
  Batch& b = batch_of(q);
  SendWqe* w = b.last();
  if (!w) return;
  if (b.max_inline < 8) return b.refuse_with(EINVAL, "the QP was not made for ATOMIC WRITE");
  std::memcpy(b.inline_of_last(), value, 8);
  w->flags |= engine::send_inline;
  w->length = 8;
}

void set_sge_list(ibv_qp_ex* q, std::size_t n, const ibv_sge* list) {
  Batch& b = batch_of(q);
  SendWqe* w = b.last();
  if (!w) return;
  if (n > b.max_sge)
    return b.refuse_with(behaviour().error(Point::too_many_sges), "num_sge > max_send_sge");
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < n; ++i) length += list[i].length;
  if (n) std::memcpy(static_cast<void*>(b.sges_of_last()), list, n * sizeof *list);
  w->num_sge = static_cast<std::uint8_t>(n);
  w->length = length_in_wqe(length);
}

void set_sge(ibv_qp_ex* q, std::uint32_t lkey, std::uint64_t address, std::uint32_t length) {
  const ibv_sge one{address, length, lkey};
  set_sge_list(q, 1, &one);
}

void set_ud_addr(ibv_qp_ex* q, ibv_ah* a, std::uint32_t qpn, std::uint32_t qkey) {
  SendWqe* w = batch_of(q).last();
  if (!w) return;
  if (!a) return batch_of(q).refuse_with(EINVAL, "no address handle");
  const Ah& ah = *of(a);
  w->av = ah.av;
  w->pd_of_ah = ah.pd->id;
  w->remote_qpn = Qpn(qpn);
  w->remote_qkey = qkey;
}

// --- the batch

Refusal check(const Qp& qp, Batch& b) {
  if (b.refusal) return b.refusal;
  for (std::uint32_t i = 0; i < b.count; ++i) {
    const SendWqe& w = b.wqes[i];
    if (Refusal r = check_request(qp, w.opcode, w.flags, w.num_sge, w.length, w.remote_addr))
      return r;
  }
  return {};
}

Refusal post(Qp& qp, Batch& b) {
  engine::SendQueue& sq = *qp.pair->sq;
  std::lock_guard lock(sq.lock);
  if (Refusal r = check_state(*qp.pair)) return r;
  if (sq.free_slots() < b.count) return {ENOMEM};
  for (std::uint32_t i = 0; i < b.count; ++i) {
    SendWqe* w = sq.reserve();
    *w = b.wqes[i];
    if (w->flags & engine::send_inline) {
      std::memcpy(sq.inline_of_reserved(), &b.inline_data[std::size_t{i} * b.max_inline],
                  w->length);
    } else if (w->num_sge) {
      std::copy_n(&b.sges[std::size_t{i} * b.max_sge], w->num_sge, sq.sges_of_reserved().data());
    }
    sq.publish();
  }
  return {};
}

void start(ibv_qp_ex* q) { batch_of(q).start(); }

int complete(ibv_qp_ex* q) {
  Qp& qp = *of(q);
  Batch& b = *qp.batch;
  Refusal refusal{fault(Call::wr_complete)};
  if (!refusal) refusal = qp.context->works() ? check(qp, b) : Refusal{EIO};
  if (!refusal) refusal = post(qp, b);
  const bool posted = !refusal && b.count;
  b.mutex.unlock();
  if (posted) ring(qp);
  if (refusal) log_refusal(qp, refusal);
  return refusal.error;
}

void abort(ibv_qp_ex* q) { batch_of(q).mutex.unlock(); }

constexpr std::uint64_t rc_ops =
    IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND |
    IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
    IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW |
    IBV_QP_EX_WITH_SEND_WITH_INV | IBV_QP_EX_WITH_ATOMIC_WRITE | qp_ex_with_flush;
constexpr std::uint64_t uc_ops = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
                                 IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM |
                                 IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW |
                                 IBV_QP_EX_WITH_SEND_WITH_INV;
constexpr std::uint64_t ud_ops = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;

// Operations that no QP here has: segmentation offload.
void set_unsupported(ibv_qp_ex& q) {
  q.wr_send_tso = [](ibv_qp_ex* x, void*, std::uint16_t, std::uint16_t) {
    batch_of(x).refuse_with(EOPNOTSUPP, "segmentation offload is not supported");
  };
}

std::uint64_t operations_of(QpType type) {
  switch (type) {
    case QpType::rc:
    case QpType::xrc_send:
      return rc_ops;
    case QpType::uc:
      return uc_ops;
    case QpType::ud:
      return ud_ops;
    case QpType::raw_packet:
      return IBV_QP_EX_WITH_SEND;
    case QpType::xrc_recv:
      break;
  }
  return 0;
}

}  // namespace

int init_batch(Qp& qp, engine::QpType type, std::uint64_t ops) {
  if (ops & ~operations_of(type)) return EOPNOTSUPP;
  qp.batch = std::make_unique<Batch>(*qp.pd, qp.cap, ops);
  ibv_qp_ex& q = qp.ext.ex;
  q.wr_atomic_cmp_swp = atomic_cmp_swp;
  q.wr_atomic_fetch_add = atomic_fetch_add;
  q.wr_local_inv = [](ibv_qp_ex* x, std::uint32_t rkey) { add_word(x, WrOpcode::local_inv, rkey); };
  q.wr_bind_mw = bind_mw;
  q.wr_rdma_read = [](ibv_qp_ex* x, std::uint32_t k, std::uint64_t a) {
    add_remote(x, WrOpcode::rdma_read, k, a);
  };
  q.wr_rdma_write = [](ibv_qp_ex* x, std::uint32_t k, std::uint64_t a) {
    add_remote(x, WrOpcode::rdma_write, k, a);
  };
  q.wr_rdma_write_imm = rdma_write_imm;
  q.wr_send = [](ibv_qp_ex* x) { batch_of(x).add(*x, WrOpcode::send); };
  q.wr_send_imm = [](ibv_qp_ex* x, __be32 imm) {
    add_word(x, WrOpcode::send_with_imm, ntohl(imm));
  };
  q.wr_send_inv = [](ibv_qp_ex* x, std::uint32_t rkey) {
    add_word(x, WrOpcode::send_with_inv, rkey);
  };
  q.wr_set_ud_addr = set_ud_addr;
  q.wr_set_inline_data = set_inline;
  q.wr_set_inline_data_list = set_inline_list;
  q.wr_set_sge = set_sge;
  q.wr_set_sge_list = set_sge_list;
  q.wr_set_xrc_srqn = [](ibv_qp_ex* x, std::uint32_t srqn) {
    if (SendWqe* w = batch_of(x).last()) w->srqn = engine::Srqn(srqn);
  };
  q.wr_start = start;
  q.wr_complete = complete;
  q.wr_abort = abort;
  q.wr_atomic_write = atomic_write;
  qp.ext.wr_flush = flush;
  set_unsupported(q);
  return 0;
}

}  // namespace adverb::verbs
