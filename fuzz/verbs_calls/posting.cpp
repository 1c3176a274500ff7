// SPDX-License-Identifier: Apache-2.0
// Work requests by lists: ibv_post_send(3), ibv_post_recv(3), ibv_post_srq_recv(3).
#include <algorithm>
#include <span>

#include "verbs_calls/steps.hpp"

namespace adverb::fuzz {
namespace {

constexpr std::uint32_t group_qpn = 0xffffff;

std::uint32_t length(Record& in) {
  constexpr std::uint32_t all[] = {0, 1, 8, 64, 1024, 1025, 2000, 4096, 0x40000000, 0xffffffff};
  return in.one_of(all);
}

int element_count(Record& in) {
  constexpr int all[] = {-1, 5, 33, 256, 0x7fffffff, -0x7fffffff};
  const std::uint8_t how = in.byte();
  return how < 240 ? how % 4 : all[how % std::size(all)];
}

void fill_remote(Session& s, ibv_send_wr& wr, Record& in) {
  MrPlace* m = pick(s.mrs, &MrPlace::mr, in);
  std::uint64_t va = reinterpret_cast<std::uintptr_t>(inside(in)) & ~7ull;
  if (m && m->dm) va %= 128;  // an offset
  MwPlace* w = pick(s.mws, &MwPlace::mw, in);
  std::uint32_t key = m && in.chance(240) ? m->mr->rkey : in.word();
  if (w && in.chance(64)) key = w->mw->rkey + in.below(4);
  if (wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
    wr.wr.atomic = {va, 1, 2, key};
  else
    wr.wr.rdma = {va, key};
}

// BIND_MW has a binding, and what invalidates a key that may be a window's.
void fill_window(Session& s, ibv_send_wr& wr, Record& in) {
  MwPlace* w = pick(s.mws, &MwPlace::mw, in);
  if (wr.opcode == IBV_WR_BIND_MW)
    wr.bind_mw = {w ? w->mw : nullptr, w ? w->mw->rkey + in.below(4) : 0, binding(s, in)};
  else
    wr.invalidate_rkey = w && in.chance(200) ? w->mw->rkey + in.below(4) : in.word();
}

template <class F>
void post_receives(Session& s, Record& in, unsigned serial, F&& post, bool xrc = false) {
  Elements list = elements(s, in);
  to_offsets(list);
  ibv_recv_wr wr[2]{}, *bad = nullptr;
  for (unsigned i = 0; i < 2; ++i)
    wr[i] = {s.next_id() + i, i ? nullptr : &wr[1], list.all, element_count(in)};
  const int error = checked(post(wr, &bad));
  const auto posted = error ? static_cast<unsigned>(bad - wr) : 2;
  REQUIRE(posted <= 2 && (!error || posted < 2));
  for (unsigned i = 0; i < posted; ++i) s.enter(serial, true, true, xrc);
}

}  // namespace

Elements elements(Session& s, Record& in) {
  Elements list;
  MrPlace* m = pick(s.mrs, &MrPlace::mr, in);
  for (ibv_sge& e : std::span(list.all).first(4)) {
    e.addr = reinterpret_cast<std::uintptr_t>(inside(in));
    e.length = length(in);
    e.lkey = m && in.chance(240) ? m->mr->lkey : in.byte();
  }
  list.of_device = m && m->dm;
  return list;
}

// Elements of device memory have offsets, except for inline data, which is read here and now.
void to_offsets(Elements& list) {
  if (!list.of_device) return;
  for (ibv_sge& e : list.all) e.addr %= 128;
}

std::uint32_t srq_number(Session& s, Record& in) {
  SrqPlace* p = pick(s.srqs, &SrqPlace::srq, in);
  std::uint32_t n = in.word();
  if (p && in.chance(240)) REQUIRE(ibv_get_srq_num(p->srq, &n) == 0);
  return n;
}

namespace step {

void send(Session& s, Record& in) {
  QpPlace* p = a_qp(s, in);
  if (!p) return;
  Elements list = elements(s, in);
  ibv_send_wr wr[3]{}, *bad = nullptr;
  const unsigned n = in.chance(200) ? 1 : 3;
  const unsigned opcode = in.chance(240) ? in.below(16) : in.word();
  AhPlace* ah = pick(s.ahs, &AhPlace::ah, in);
  for (unsigned i = 0; i < n; ++i) {
    wr[i].wr_id = s.next_id() + i;
    wr[i].next = i + 1 < n ? &wr[i + 1] : nullptr;
    wr[i].opcode = any<ibv_wr_opcode>(i ? std::uint32_t{IBV_WR_SEND} : opcode);
    wr[i].send_flags = in.chance(240) ? in.below(16) & ~IBV_SEND_FENCE : in.word();
    wr[i].sg_list = list.all;
    wr[i].num_sge = element_count(in);
    if (p->qp->qp_type == IBV_QPT_UD)
      wr[i].wr.ud = {ah ? ah->ah : nullptr, ah && ah->group ? group_qpn : p->qp->qp_num, 0x11};
    else
      fill_remote(s, wr[i], in);
    constexpr unsigned of_windows =
        1u << IBV_WR_BIND_MW | 1u << IBV_WR_LOCAL_INV | 1u << IBV_WR_SEND_WITH_INV;
    if (opcode < 32 && of_windows >> wr[i].opcode & 1) fill_window(s, wr[i], in);
    if (p->qp->qp_type == IBV_QPT_XRC_SEND) wr[i].qp_type.xrc.remote_srqn = srq_number(s, in);
  }
  if (std::none_of(wr, wr + n, [](auto& w) { return w.send_flags & IBV_SEND_INLINE; }))
    to_offsets(list);
  const int error = checked(ibv_post_send(p->qp, wr, &bad));
  const auto posted = error ? static_cast<unsigned>(bad - wr) : n;
  REQUIRE(posted <= n && (!error || posted < n));
  for (unsigned i = 0; i < posted; ++i)
    s.enter(p->serial, false, p->sig_all || wr[i].send_flags & IBV_SEND_SIGNALED);
}

void receive(Session& s, Record& in) {
  if (QpPlace* p = a_qp(s, in))
    post_receives(s, in, p->serial, [&](auto* w, auto** b) { return ibv_post_recv(p->qp, w, b); });
}

void srq_receive(Session& s, Record& in) {
  if (SrqPlace* p = pick(s.srqs, &SrqPlace::srq, in))
    post_receives(
        s, in, 0, [&](auto* w, auto** b) { return ibv_post_srq_recv(p->srq, w, b); },
        p->xrcd != nullptr);
}

}  // namespace step
}  // namespace adverb::fuzz
