// SPDX-License-Identifier: Apache-2.0
// Memory windows, and bindings by the verb.
#include "verbs_calls/steps.hpp"

namespace adverb::fuzz {
ibv_mw_bind_info binding(Session& s, Record& in) {
  MrPlace* m = pick(s.mrs, &MrPlace::mr, in);
  if (!m || in.chance(32)) return {};
  m->maybe_bound = true;
  const unsigned access = in.chance(200) ? 0xe : in.word();
  const std::uint64_t length = in.chance(230) ? in.byte() * 8u : std::uint64_t{in.word()} << 8;
  const auto at = reinterpret_cast<std::uintptr_t>(in.chance(128) ? m->mr->addr : inside(in));
  return {m->mr, at, length, access};
}

namespace {

// By the verb: what completes has the wr_id of the binding.
void bind(Session& s, MwPlace& p, Record& in) {
  QpPlace* q = a_qp(s, in);
  if (!q) return;
  ibv_mw_bind b{s.next_id(), in.chance(240) ? in.below(8) : in.word(), binding(s, in)};
  const std::uint32_t before = p.mw->rkey;
  const int error = checked(ibv_bind_mw(q->qp, p.mw, &b));
  REQUIRE(p.mw->rkey == (error ? before : ibv_inc_rkey(before)));
  if (!error) s.enter(q->serial, false, q->sig_all || b.send_flags & IBV_SEND_SIGNALED);
}

}  // namespace

namespace step {

void window(Session& s, Record& in) {
  MwPlace& p = s.mws[in.below(3)];
  if (p.mw && in.chance(64)) return s.destroy(p);
  if (p.mw) return bind(s, p, in);
  PdPlace* pd = a_pd(s, in);
  if (!pd) return;
  const std::uint32_t type = in.chance(240) ? 1 + in.below(2) : in.word();
  p.mw = made([&] { return ibv_alloc_mw(pd->pd, any<ibv_mw_type>(type)); });
  REQUIRE((p.mw != nullptr) == (type == IBV_MW_TYPE_1 || type == IBV_MW_TYPE_2));
  if (p.mw) p.pd = pd, ++pd->users;
}

}  // namespace step
}  // namespace adverb::fuzz
