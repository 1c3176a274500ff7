// SPDX-License-Identifier: Apache-2.0
#include "verbs_calls/session.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace adverb::fuzz {
namespace {

int lowest_fd() {
  const int fd = dup(STDERR_FILENO);
  close(fd);
  return fd;
}

}  // namespace

Session::Session(bool two_contexts) : lowest_fd_(lowest_fd()) {
  REQUIRE((contexts[0] = ibv_open_device(device())));
  if (two_contexts) REQUIRE((contexts[1] = ibv_import_device(dup(contexts[0]->cmd_fd))));
  std::memset(buffer().data(), 0x5a, buffer().size());
}

void Session::destroy(PdPlace& p) {
  const int expected = p.users ? EBUSY : 0;
  REQUIRE(ibv_dealloc_pd(p.pd) == expected);
  if (expected) return;
  if (p.domain) --p.domain->users;
  if (p.td) --p.td->users;
  REQUIRE(p.allocations == 0);
  p = {};
}

void Session::destroy(TdPlace& p) {
  const int expected = p.users ? EBUSY : 0;
  REQUIRE(ibv_dealloc_td(p.td) == expected);
  if (!expected) p = {};
}

void Session::destroy(FlowPlace& p) {
  REQUIRE(ibv_destroy_flow(p.flow) == 0);
  --p.qp->flows;
  p = {};
}

void Session::destroy(WqPlace& p) {
  acknowledge_async();
  const int expected = p.users ? EBUSY : 0;
  REQUIRE(ibv_destroy_wq(p.wq) == expected);
  if (expected) return;
  forget(p.serial);
  --p.pd->users, --p.cq->users;
  p = {};
}

void Session::destroy(TablePlace& p) {
  const int expected = p.users ? EBUSY : 0;
  REQUIRE(ibv_destroy_rwq_ind_table(p.table) == expected);
  if (expected) return;
  for (WqPlace* wq : p.wqs) --wq->users;
  p = {};
}

void Session::destroy(ScalingPlace& p) {
  acknowledge_async();
  const int expected = p.flow ? EBUSY : 0;
  REQUIRE(ibv_destroy_qp(p.qp) == expected);
  if (expected) return;
  --p.pd->users, --p.table->users;
  p = {};
}

void Session::destroy(DmPlace& p) {
  if (p.twins) return;
  const int expected = p.users ? EBUSY : 0;
  REQUIRE(ibv_free_dm(p.dm) == expected);
  if (expected) return;
  if (p.twin_of) --p.twin_of->twins;
  p = {};
}

void Session::destroy(MrPlace& p) {
  const int error = ibv_dereg_mr(p.mr);
  REQUIRE(error == 0 || (error == EBUSY && p.maybe_bound));
  if (error) return;
  --p.pd->users;
  if (p.dm) --p.dm->users;
  p = {};
}

void Session::destroy(MwPlace& p) {
  REQUIRE(ibv_dealloc_mw(p.mw) == 0);
  --p.pd->users;
  p = {};
}

void Session::destroy(ChannelPlace& p) {
  const int expected = p.users ? EBUSY : 0;
  REQUIRE(ibv_destroy_comp_channel(p.channel) == expected);
  if (!expected) p = {};
}

void Session::acknowledge(CqPlace& p) {
  if (p.unacked) ibv_ack_cq_events(p.cq, p.unacked);
  p.unacked = 0;
}

void Session::acknowledge_async() {
  for (ibv_async_event& e : unacked) ibv_ack_async_event(&e);
  unacked.clear();
}

void Session::destroy(CqPlace& p) {
  acknowledge(p);
  acknowledge_async();
  const int expected = p.users ? EBUSY : 0;
  REQUIRE(ibv_destroy_cq(p.cq) == expected);
  if (expected) return;
  if (p.channel) --p.channel->users;
  if (p.domain) --p.domain->users;
  p = {};
}

void Session::destroy(SrqPlace& p) {
  acknowledge_async();
  const int expected = p.users ? EBUSY : 0;
  REQUIRE(ibv_destroy_srq(p.srq) == expected);
  if (expected) return;
  --p.pd->users;
  if (p.xrcd) --p.xrcd->users, --p.cq->users;
  p = {};
}

void Session::destroy(XrcdPlace& p) {
  const int expected = p.users ? EBUSY : 0;
  REQUIRE(ibv_close_xrcd(p.xrcd) == expected);
  if (!expected) p = {};
}

void Session::destroy(QpPlace& p) {
  acknowledge_async();
  const bool attached = std::any_of(memberships.begin(), memberships.end(),
                                    [&](const Membership& m) { return m.qp == &p; });
  const int expected = attached || p.flows ? EBUSY : 0;
  REQUIRE(ibv_destroy_qp(p.qp) == expected);
  if (expected) return;
  forget(p.serial);
  count(p, ~0u);
  p = {};
}

void Session::count(QpPlace& p, unsigned by) {
  if (p.pd) p.pd->users += by;
  if (p.send) p.send->users += by;
  if (p.receive) p.receive->users += by;
  if (p.srq) p.srq->users += by;
  if (p.xrcd) p.xrcd->users += by;
}

void Session::destroy(AhPlace& p) {
  REQUIRE(ibv_destroy_ah(p.ah) == 0);
  --p.pd->users;
  p = {};
}

void Session::finish() {
  for (FlowPlace& f : flows)
    if (f.flow) destroy(f);
  for (const Membership& m : memberships) REQUIRE(ibv_detach_mcast(m.qp->qp, &m.group, 0) == 0);
  memberships.clear();
  for (QpPlace& q : qps) flush(q);
  for (QpPlace& q : qps)
    if (q.qp) destroy(q);
  finish_scaling();
  for (AhPlace& a : ahs)
    if (a.ah) destroy(a);
  for (SrqPlace& s : srqs)
    if (s.srq) destroy(s);
  for (XrcdPlace& x : xrcds)
    if (x.xrcd) destroy(x), REQUIRE(!x.xrcd);
  for (CqPlace& c : cqs)
    if (c.cq) destroy(c);
  for (ChannelPlace& c : channels)
    if (c.channel) destroy(c);
  for (MwPlace& w : mws)
    if (w.mw) destroy(w);
  for (MrPlace& m : mrs)
    if (m.mr) destroy(m), REQUIRE(!m.mr);
  for (std::size_t i = 0; i < dms.size(); ++i)
    for (DmPlace& d : dms)
      if (d.dm) destroy(d);
  for (DmPlace& d : dms) REQUIRE(!d.dm && d.users == 0);
  // A parent domain goes before what it stands for.
  for (std::size_t i = 0; i < pds.size(); ++i)
    for (PdPlace& p : pds)
      if (p.pd) destroy(p);
  for (PdPlace& p : pds) REQUIRE(!p.pd && p.users == 0);
  for (TdPlace& t : tds)
    if (t.td) destroy(t), REQUIRE(!t.td);
  for (ibv_context*& c : contexts)
    if (c) REQUIRE(ibv_close_device(c) == 0);
  REQUIRE(lowest_fd() == lowest_fd_);
  const auto& b = buffer();
  for (std::size_t i = 0; i < guard; ++i) REQUIRE(b[i] == 0x5a && b[b.size() - 1 - i] == 0x5a);
}

void Session::finish_scaling() {
  for (ScalingPlace& p : scaling) {
    if (p.flow) REQUIRE(ibv_destroy_flow(p.flow) == 0), p.flow = nullptr;
    if (p.qp) destroy(p);
  }
  for (TablePlace& t : tables)
    if (t.table) destroy(t), REQUIRE(!t.table);
  for (WqPlace& w : wqs) flush(w);
  for (WqPlace& w : wqs)
    if (w.wq) destroy(w), REQUIRE(!w.wq);
}

// --- work requests

void Session::forget(unsigned serial) {
  for (Work& w : book)
    if (w.serial == serial) w.gone = true;
}

void Session::completed(const ibv_wc& c) {
  REQUIRE(c.wr_id < book.size());
  Work& w = book[c.wr_id];
  REQUIRE(!w.done && !w.gone);
  if (c.status == IBV_WC_SUCCESS) {
    REQUIRE(w.receive == ((c.opcode & IBV_WC_RECV) != 0));
    REQUIRE(w.signaled);
  }
  REQUIRE(c.status <= IBV_WC_GENERAL_ERR);
  const unsigned serial = serial_of(c.qp_num);
  // What came by XRC stays when its queue pair goes.
  REQUIRE(w.xrc || (serial && (w.serial == 0 || w.serial == serial)));
  w.done = true;
}

unsigned Session::serial_of(std::uint32_t number) const {
  unsigned serial = 0;
  for (const QpPlace& q : qps)
    if (q.qp && q.qp->qp_num == number) serial = q.serial;
  for (const WqPlace& w : wqs)
    if (w.wq && w.wq->wq_num == number) serial = w.serial;
  return serial;
}

unsigned Session::poll(CqPlace& p, int n) {
  ibv_wc wc[8];
  const int got = ibv_poll_cq(p.cq, std::min(n, 8), wc);
  REQUIRE(got >= 0 && got <= 8);
  for (int i = 0; i < got; ++i) completed(wc[i]);
  return static_cast<unsigned>(got);
}

void Session::flush(QpPlace& q) {
  if (!q.qp) return;
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_ERR;
  const bool error = ibv_modify_qp(q.qp, &a, IBV_QP_STATE) == 0;
  for (CqPlace* c : {q.send, q.receive})
    while (c && poll(*c, 8)) {
    }
  if (!error || (q.send && q.send->small) || (q.receive && q.receive->small)) return;
  for (const Work& w : book) REQUIRE(w.serial != q.serial || w.gone || w.done || !w.signaled);
}

void Session::flush(WqPlace& w) {
  if (!w.wq) return;
  ibv_wq_attr a{};
  a.attr_mask = IBV_WQ_ATTR_STATE;
  a.wq_state = IBV_WQS_ERR;
  const bool error = ibv_modify_wq(w.wq, &a) == 0;
  while (poll(*w.cq, 8)) {
  }
  if (!error || w.cq->small) return;
  for (const Work& work : book) REQUIRE(work.serial != w.serial || work.gone || work.done);
}

}  // namespace adverb::fuzz
