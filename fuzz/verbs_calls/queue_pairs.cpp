// SPDX-License-Identifier: Apache-2.0
// Queue pairs of every type, and XRC targets that are opened once more.
#include "verbs_calls/steps.hpp"

namespace adverb::fuzz {
namespace {

bool same_domain(const XrcdPlace* a, const XrcdPlace* b) {
  return a == b || (a && b && a->of_file && b->of_file);
}

// An XRC target, or one more handle of one.
void target(Session& s, QpPlace& p, Record& in) {
  XrcdPlace* xrcd = pick(s.xrcds, &XrcdPlace::xrcd, in);
  if (!xrcd) return;
  ibv_context* c = xrcd->xrcd->context;
  const QpPlace* first = a_qp(s, in);
  if (first && in.chance(96)) {
    ibv_qp_open_attr a{};
    a.comp_mask = in.chance(240) ? 0xf : in.word();
    a.qp_num = first->qp->qp_num;
    a.xrcd = xrcd->xrcd;
    a.qp_type = IBV_QPT_XRC_RECV;
    p.qp = made([&] { return ibv_open_qp(c, &a); });
    REQUIRE((p.qp != nullptr) == (same_domain(first->xrcd, xrcd) && (a.comp_mask | 4) == 0xf));
  } else {
    ibv_qp_init_attr_ex a{};
    a.qp_type = IBV_QPT_XRC_RECV;
    a.comp_mask = IBV_QP_INIT_ATTR_XRCD;
    a.xrcd = xrcd->xrcd;
    p.qp = made([&] { return ibv_create_qp_ex(c, &a); });
    REQUIRE(p.qp);
  }
  if (!p.qp) return;
  p.xrcd = xrcd;
  p.serial = ++s.serials;
  s.count(p, 1);
}

ibv_qp* create_plain(PdPlace& pd, const ibv_qp_init_attr_ex& a) {
  ibv_qp_init_attr b{a.qp_context, a.send_cq, a.recv_cq, a.srq, a.cap, a.qp_type, a.sq_sig_all};
  return ibv_create_qp(pd.pd, &b);
}

ibv_qp* create_extended(PdPlace& pd, ibv_qp_init_attr_ex& a, Record& in) {
  a.pd = pd.pd;
  a.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  if (in.chance(16)) a.comp_mask = in.word();
  a.send_ops_flags = in.chance(230) ? every_operation(a.qp_type) : in.word();
  return ibv_create_qp_ex(pd.pd->context, &a);
}

}  // namespace

std::uint64_t every_operation(ibv_qp_type type) {
  constexpr std::uint64_t datagrams = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM,
                          flush = 1 << 11;
  constexpr std::uint64_t unreliable =
      datagrams | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
      IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_SEND_WITH_INV;
  switch (type) {
    case IBV_QPT_RC:
    case IBV_QPT_XRC_SEND:
      return unreliable | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
             IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_ATOMIC_WRITE | flush;
    case IBV_QPT_UD:
      return datagrams;
    case IBV_QPT_RAW_PACKET:
      return IBV_QP_EX_WITH_SEND;
    default:
      return unreliable;
  }
}

namespace step {

void qp(Session& s, Record& in) {
  QpPlace& p = s.qps[in.below(4)];
  if (p.qp) return in.chance(64) ? s.destroy(p) : void();
  if (in.chance(64)) return target(s, p, in);
  PdPlace* pd = a_pd(s, in);
  CqPlace *send = a_cq(s, in), *receive = a_cq(s, in);
  if (!pd || !send) return;
  SrqPlace* srq = in.chance(64) ? pick(s.srqs, &SrqPlace::srq, in) : nullptr;
  constexpr std::uint32_t types[] = {IBV_QPT_RC, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD,
                                     IBV_QPT_XRC_SEND};
  const std::uint32_t type = in.chance(240) ? in.one_of(types) : in.word();
  const ibv_qp_cap cap{size(in), size(in), size(in) % 64, size(in) % 64,
                       in.chance(200) ? in.byte() : in.word()};
  ibv_qp_init_attr_ex a{};
  a.send_cq = in.chance(250) ? send->cq : nullptr;
  a.recv_cq = receive->cq;
  a.srq = srq ? srq->srq : nullptr;
  a.cap = cap;
  a.qp_type = any<ibv_qp_type>(type);
  a.sq_sig_all = in.byte() & 1;
  const bool extended = in.chance(128);
  p.qp = made([&] { return extended ? create_extended(*pd, a, in) : create_plain(*pd, a); });
  if (!p.qp) return;
  ibv_context* c = pd->pd->context;
  const bool receives = p.qp->qp_type != IBV_QPT_XRC_SEND;
  REQUIRE(a.send_cq && send->cq->context == c);
  REQUIRE(!receives ||
          (receive->cq->context == c && (!srq || (srq->srq->context == c && !srq->xrcd))));
  p.ex = extended ? ibv_qp_to_qp_ex(p.qp) : nullptr;
  p.pd = pd, p.send = send;
  if (receives) p.receive = receive, p.srq = srq;
  p.sig_all = a.sq_sig_all;
  p.serial = ++s.serials;
  s.count(p, 1);
}

}  // namespace step
}  // namespace adverb::fuzz
