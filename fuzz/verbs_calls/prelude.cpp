// SPDX-License-Identifier: Apache-2.0
// What some programs begin with: two queue pairs of a type that are connected, and a region that
// everybody may read and write.  Without it, few inputs come as far as traffic.
#include <fcntl.h>

#include <algorithm>

#include "verbs_calls/steps.hpp"

namespace adverb::fuzz {
namespace {

// What the record is asked for when there must be this and nothing else.
void bring_up(Session& s, unsigned own, unsigned peer) {
  const std::uint8_t choice[] = {static_cast<std::uint8_t>(peer)};
  Record in(choice);
  ready(s, s.qps[own], in);
}

void connected(Session& s, unsigned i, ibv_qp_type type, bool with_batch, PdPlace& pd) {
  QpPlace& p = s.qps[i];
  ibv_qp_init_attr_ex a{};
  a.send_cq = s.cqs[0].cq;
  a.recv_cq = s.cqs[0].cq;
  a.cap = {16, 16, 4, 4, 64};
  a.qp_type = type;
  a.comp_mask = IBV_QP_INIT_ATTR_PD;
  if (with_batch) a.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  a.send_ops_flags = every_operation(type);
  a.pd = pd.pd;
  const bool target = type == IBV_QPT_XRC_RECV;
  if (target) {
    a.comp_mask = IBV_QP_INIT_ATTR_XRCD;
    a.xrcd = s.xrcds[0].xrcd;
  }
  p.qp = made([&] { return ibv_create_qp_ex(s.contexts[0], &a); });
  if (!p.qp) return REQUIRE(type == IBV_QPT_RAW_PACKET && errno == EPERM);
  p.ex = with_batch && !target ? ibv_qp_to_qp_ex(p.qp) : nullptr;
  if (target) {
    p.xrcd = &s.xrcds[0];
  } else {
    p.pd = &pd, p.send = &s.cqs[0];
    if (type != IBV_QPT_XRC_SEND) p.receive = &s.cqs[0];
  }
  p.serial = ++s.serials;
  s.count(p, 1);
}

void xrc_objects(Session& s) {
  XrcdPlace& x = s.xrcds[0];
  ibv_xrcd_init_attr domain{3, -1, O_CREAT};
  x.xrcd = made([&] { return ibv_open_xrcd(s.contexts[0], &domain); });
  ibv_srq_init_attr_ex a{};
  a.attr = {16, 4, 0};
  a.comp_mask =
      IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
  a.srq_type = IBV_SRQT_XRC;
  a.pd = s.pds[0].pd, a.xrcd = x.xrcd, a.cq = s.cqs[0].cq;
  SrqPlace& p = s.srqs[0];
  p.srq = made([&] { return ibv_create_srq_ex(s.contexts[0], &a); });
  REQUIRE(p.srq);
  p.pd = &s.pds[0], p.xrcd = &x, p.cq = &s.cqs[0];
  ++p.pd->users, ++x.users, ++p.cq->users;
}

void everything(Session& s) {
  s.pds[0].pd = made([&] { return ibv_alloc_pd(s.contexts[0]); });
  s.channels[0].channel = made([&] { return ibv_create_comp_channel(s.contexts[0]); });
  CqPlace& cq = s.cqs[0];
  ibv_cq_init_attr_ex a{};
  a.cqe = 512;
  a.wc_flags = IBV_WC_STANDARD_FLAGS;
  a.channel = s.channels[0].channel;
  cq.ex = made([&] { return ibv_create_cq_ex(s.contexts[0], &a); });
  REQUIRE(s.pds[0].pd && cq.ex);
  cq.cq = ibv_cq_ex_to_cq(cq.ex);
  cq.channel = &s.channels[0], ++cq.channel->users;
  MrPlace& mr = s.mrs[0];
  constexpr int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                         IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND;
  mr.mr = made([&] {
    return ibv_reg_mr(s.pds[0].pd, Session::buffer().data() + Session::guard,
                      Session::buffer_bytes - 2 * Session::guard, access);
  });
  REQUIRE(mr.mr);
  mr.pd = &s.pds[0], ++mr.pd->users;
}

// Receives for what will come.
void receives(Session& s, QpPlace& p) {
  const bool datagrams = p.qp->qp_type == IBV_QPT_UD || p.qp->qp_type == IBV_QPT_RAW_PACKET;
  ibv_sge sge{reinterpret_cast<std::uintptr_t>(s.mrs[0].mr->addr), datagrams ? 2000u : 600u,
              s.mrs[0].mr->lkey};
  for (unsigned i = 0; p.receive && i < 4; ++i) {
    ibv_recv_wr wr{s.next_id(), nullptr, &sge, 1}, *bad = nullptr;
    REQUIRE(ibv_post_recv(p.qp, &wr, &bad) == 0);
    s.enter(p.serial, true, true);
  }
}

// What makes datagrams and frames go to it.
void paths_to(Session& s, unsigned i) {
  QpPlace& p = s.qps[i];
  if (p.qp->qp_type == IBV_QPT_UD) {
    Membership m{&p, {}};
    const std::uint8_t group[] = {0xff, 0xff, 239, 0, 0, 0};  // ::ffff:239.0.0.0
    std::copy(std::begin(group), std::end(group), m.group.raw + 10);
    REQUIRE(ibv_attach_mcast(p.qp, &m.group, 0) == 0);
    s.memberships.push_back(m);
  } else if (is_raw(p)) {
    ibv_flow_attr a{};
    a.type = i ? IBV_FLOW_ATTR_SNIFFER : IBV_FLOW_ATTR_ALL_DEFAULT;
    a.size = sizeof a, a.port = 1;
    s.flows[i].flow = made([&] { return ibv_create_flow(p.qp, &a); });
    REQUIRE(s.flows[i].flow);
    s.flows[i].qp = &p, ++p.flows;
  }
}

void memory_of_other_kinds(Session& s) {
  ibv_alloc_dm_attr a{1024, 0, 0};
  DmPlace& dm = s.dms[0];
  dm.dm = made([&] { return ibv_alloc_dm(s.contexts[0], &a); });
  dm.length = a.length;
  MrPlace& mr = s.mrs[1];
  mr.mr = made([&] { return ibv_reg_dm_mr(s.pds[0].pd, dm.dm, 0, dm.length, 0x2f); });
  MwPlace& mw = s.mws[0];
  mw.mw = made([&] { return ibv_alloc_mw(s.pds[0].pd, IBV_MW_TYPE_2); });
  REQUIRE(dm.dm && mr.mr && mw.mw);
  mr.pd = &s.pds[0], mr.dm = &dm, ++dm.users;
  mw.pd = &s.pds[0];
  s.pds[0].users += 2;
}

}  // namespace

void prelude(Session& s, Record& in) {
  static constexpr ibv_qp_type types[][2] = {{IBV_QPT_RC, IBV_QPT_RC},
                                             {IBV_QPT_UC, IBV_QPT_UC},
                                             {IBV_QPT_UD, IBV_QPT_UD},
                                             {IBV_QPT_RAW_PACKET, IBV_QPT_RAW_PACKET},
                                             {IBV_QPT_XRC_SEND, IBV_QPT_XRC_RECV},
                                             {IBV_QPT_UD, IBV_QPT_RAW_PACKET},
                                             {IBV_QPT_RC, IBV_QPT_RAW_PACKET}};
  const unsigned kind = in.below(16);
  if (kind == 0) return;
  const auto& pair = types[(kind - 1) % std::size(types)];
  const bool with_batch = in.chance(128);
  const std::uint8_t extras = in.byte();
  everything(s);
  if (pair[0] == IBV_QPT_XRC_SEND) xrc_objects(s);
  if (extras & 1) memory_of_other_kinds(s);
  PdPlace* pd = &s.pds[0];
  if (extras & 2) {
    pd = &s.pds[1];
    own_allocators(*pd, s.pds[0], nullptr, s.contexts[0]);
    REQUIRE(pd->pd);
  }
  for (unsigned i = 0; i < 2; ++i) connected(s, i, pair[i], with_batch, *pd);
  const bool alike = pair[0] == pair[1] || pair[0] == IBV_QPT_XRC_SEND;
  for (unsigned i = 0; i < 2; ++i)
    if (s.qps[i].qp) bring_up(s, i, alike ? 1 - i : i);
  for (unsigned i = 0; i < 2; ++i) {
    if (extras & 4 && s.qps[i].qp) receives(s, s.qps[i]);
    if (extras & 8 && s.qps[i].qp) paths_to(s, i);
  }
  if (extras & 16 && is_raw(s.qps[1])) spread_frames(s);
}

}  // namespace adverb::fuzz
