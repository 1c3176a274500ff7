// SPDX-License-Identifier: Apache-2.0
// Work requests by the extended interface (ibv_wr_post(3)).
#include "verbs_calls/steps.hpp"

namespace adverb::fuzz {
namespace {

void build(Session& s, QpPlace& p, const Elements& list, Record& in) {
  ibv_qp_ex* q = p.ex;
  MrPlace* m = pick(s.mrs, &MrPlace::mr, in);
  const std::uint64_t va = reinterpret_cast<std::uintptr_t>(inside(in)) & ~7ull;
  const std::uint32_t key = m ? m->mr->rkey : 7;
  MwPlace* w = pick(s.mws, &MwPlace::mw, in);
  switch (in.below(11)) {
    case 7:
      ibv_wr_local_inv(q, w ? w->mw->rkey : key);
      break;
    case 8: {
      const ibv_mw_bind_info info = binding(s, in);
      ibv_wr_bind_mw(q, w ? w->mw : nullptr, key, &info);
      break;
    }
    case 0:
      ibv_wr_rdma_write(q, key, va);
      break;
    case 1:
      ibv_wr_rdma_write_imm(q, key, va, 3);
      break;
    case 2:
      ibv_wr_rdma_read(q, key, va);
      break;
    case 3:
      ibv_wr_atomic_cmp_swp(q, key, va, 1, 2);
      break;
    case 4:
      ibv_wr_atomic_fetch_add(q, key, va, 1);
      break;
    case 5:
      ibv_wr_send_imm(q, 5);
      break;
    case 6:
      ibv_wr_send_inv(q, key);
      break;
    default:
      ibv_wr_send(q);
  }
  const ibv_data_buf buffers[2] = {{inside(in), in.chance(240) ? in.byte() : ~std::size_t{0}},
                                   {inside(in), in.chance(240) ? in.byte() : std::size_t{1} << 63}};
  switch (in.below(4)) {
    case 0:
      ibv_wr_set_inline_data_list(q, 2, buffers);
      break;
    case 1:
      ibv_wr_set_inline_data(q, buffers[0].addr, buffers[0].length);
      break;
    case 2:
      ibv_wr_set_sge(q, list.all[0].lkey, list.all[0].addr, list.all[0].length);
      break;
    default:
      ibv_wr_set_sge_list(q, in.below(5), list.all);
  }
  if (p.qp->qp_type == IBV_QPT_XRC_SEND) ibv_wr_set_xrc_srqn(q, srq_number(s, in));
  AhPlace* ah = pick(s.ahs, &AhPlace::ah, in);
  if (p.qp->qp_type == IBV_QPT_UD && ah)
    ibv_wr_set_ud_addr(q, ah->ah, ah->group ? 0xffffff : p.qp->qp_num, 0x11);
}

// As release 45 has it: one slot more.
struct QpExtended {
  ibv_qp_ex ex;
  void (*wr_flush)(ibv_qp_ex*, std::uint32_t rkey, std::uint64_t remote_addr, std::size_t length,
                   std::uint8_t type, std::uint8_t level);
};

// False: it only set data.
bool build_rare(Session& s, QpPlace& p, const Elements& list, Record& in) {
  ibv_qp_ex* q = p.ex;
  MrPlace* m = pick(s.mrs, &MrPlace::mr, in);
  const std::uint64_t va = reinterpret_cast<std::uintptr_t>(inside(in)) & ~7ull;
  const std::uint32_t key = m && in.chance(240) ? m->mr->rkey : in.word();
  std::uint64_t value = in.word();
  switch (in.below(8)) {
    case 0:
    case 1:
      ibv_wr_atomic_write(q, key, va + in.below(2), &value);
      break;
    case 2:
      ibv_wr_send_tso(q, &value, 8, 1000);
      break;
    case 3:
      reinterpret_cast<QpExtended*>(q)->wr_flush(q, key, va, in.chance(200) ? in.byte() : in.word(),
                                                 in.byte(), in.byte() & 3);
      break;
    case 4:  // the data of the request before, or of none
      ibv_wr_set_sge_list(q, in.below(34), list.all);
      return false;
    case 5:
      ibv_wr_set_inline_data(q, Session::buffer().data(), in.byte());
      return false;
    case 6:
      ibv_wr_rdma_read(q, key, va);
      ibv_wr_set_sge_list(q, in.below(5), list.all);
      break;
    default:
      ibv_wr_send_imm(q, 7);
      ibv_wr_set_inline_data(q, inside(in), in.byte());
      ibv_wr_set_sge(q, list.all[1].lkey, list.all[1].addr, list.all[1].length);
  }
  return true;
}

}  // namespace

namespace step {

// The extended interface: some requests, posted together or not at all.
void batch(Session& s, Record& in) {
  QpPlace* p = a_qp(s, in);
  if (!p || !p->ex) return;
  Elements list = elements(s, in);
  to_offsets(list);
  ibv_qp_ex* q = p->ex;
  ibv_wr_start(q);
  const unsigned n = in.below(4);
  bool signaled[4];
  for (unsigned i = 0; i < n; ++i) {
    q->wr_id = s.next_id() + i;
    q->wr_flags = in.chance(240) ? in.below(16) & ~IBV_SEND_FENCE : in.word();
    signaled[i] = p->sig_all || q->wr_flags & IBV_SEND_SIGNALED;
    build(s, *p, list, in);
  }
  if (in.chance(32)) return ibv_wr_abort(q);
  if (checked(ibv_wr_complete(q))) return;
  for (unsigned i = 0; i < n; ++i) s.enter(p->serial, false, signaled[i]);
}

// Requests that are rarely posted, and calls in the wrong order.
void batch_rare(Session& s, Record& in) {
  QpPlace* p = a_qp(s, in);
  for (QpPlace& q : s.qps)
    if (q.ex && p && !p->ex) p = &q;
  if (!p || !p->ex) return;
  Elements list = elements(s, in);
  to_offsets(list);
  ibv_wr_start(p->ex);
  unsigned requests = 0;
  bool signaled[4]{};
  for (unsigned n = 1 + in.below(3); n; --n) {
    p->ex->wr_id = s.next_id() + requests;
    p->ex->wr_flags = in.below(16);
    signaled[requests] = p->sig_all || p->ex->wr_flags & IBV_SEND_SIGNALED;
    if (build_rare(s, *p, list, in)) ++requests;
  }
  if (in.chance(32)) return ibv_wr_abort(p->ex);
  if (checked(ibv_wr_complete(p->ex))) return;
  for (unsigned i = 0; i < requests; ++i) s.enter(p->serial, false, signaled[i]);
}

}  // namespace step
}  // namespace adverb::fuzz
