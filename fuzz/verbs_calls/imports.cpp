// SPDX-License-Identifier: Apache-2.0
// Objects of a context that another one has.
#include "verbs_calls/steps.hpp"

namespace adverb::fuzz {
namespace {

// What a handle names, or may name, in a context that knows it or does not.
template <class Place, class Member>
std::uint32_t a_handle(Place* p, Member member, Record& in) {
  return p && in.chance(220) ? (p->*member)->handle : in.word() | 1u << 20;  // behind the table
}

}  // namespace

namespace step {

void import(Session& s, Record& in) {
  PdPlace* pd = a_pd(s, in);
  MrPlace& m = s.mrs[in.below(4)];
  if (!m.mr && pd && in.chance(128)) {
    MrPlace* from = pick(s.mrs, &MrPlace::mr, in);
    const bool on_demand = from && from->on_demand;
    if (from && from->dm) return;
    const std::uint32_t handle = a_handle(from, &MrPlace::mr, in);
    m.mr = made([&] { return ibv_import_mr(pd->pd, handle); });
    if (m.mr) m.pd = pd, m.imported = true, m.on_demand = on_demand, ++pd->users;
    return;
  }
  PdPlace& p = s.pds[in.below(3)];
  if (!p.pd && in.chance(128)) {
    const std::uint32_t handle = a_handle(pd, &PdPlace::pd, in);
    p.pd = made([&] { return ibv_import_pd(context(s, in), handle); });
    p.imported = p.pd;
    return;
  }
  DmPlace& d = s.dms[in.below(2)];
  DmPlace* from = pick(s.dms, &DmPlace::dm, in);
  if (d.dm || !from) return;
  const std::size_t length = from->length;
  d.dm = made([&] { return ibv_import_dm(context(s, in), from->dm->handle); });
  if (d.dm) d.length = length, d.twin_of = from, ++from->twins;
}

}  // namespace step
}  // namespace adverb::fuzz
