// SPDX-License-Identifier: Apache-2.0
// Objects of a context that another one has.
#include <unistd.h>

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
    if (from && (from->dm || from->dmabuf)) return;  // it would have to outlive the other
    const std::uint32_t handle = a_handle(from, &MrPlace::mr, in);
    m.mr = made([&] { return ibv_import_mr(pd->pd, handle); });
    if (m.mr) m.pd = pd, m.imported = true, m.on_demand = on_demand, ++pd->users;
    return;
  }
  PdPlace& p = s.pds[in.below(3)];
  if (!p.pd && !p.users && in.chance(128)) {
    const std::uint32_t handle = a_handle(pd, &PdPlace::pd, in);
    p.pd = made([&] { return ibv_import_pd(context(s, in), handle); });
    p.imported = p.pd;
    return;
  }
  DmPlace& d = s.dms[in.below(2)];
  DmPlace* from = pick(s.dms, &DmPlace::dm, in);
  if (d.dm || d.users || !from) return;
  const std::size_t length = from->length;
  d.dm = made([&] { return ibv_import_dm(context(s, in), from->dm->handle); });
  if (d.dm) d.length = length, d.twin_of = from, ++from->twins;
}

// What is still in use stays until it is not; the place is free when that is so.
void unimport(Session& s, Record& in) {
  PdPlace& p = s.pds[in.below(3)];
  if (p.pd && p.imported && in.chance(128)) {
    ibv_unimport_pd(p.pd);
    p.pd = nullptr, p.imported = false;
    return;
  }
  MrPlace& m = s.mrs[in.below(4)];
  if (m.mr && m.imported && !m.maybe_bound) {
    ibv_unimport_mr(m.mr);
    --m.pd->users;
    m = {};
    return;
  }
  DmPlace& d = s.dms[in.below(2)];
  if (!d.dm || !d.twin_of || d.users || d.twins) return;
  ibv_unimport_dm(d.dm);
  --d.twin_of->twins;
  d = {};
}

// A context that comes and goes, or a descriptor that is none of a context.
void import_context(Session& s, Record& in) {
  int fds[2] = {-1, -1};
  REQUIRE(pipe(fds) == 0);
  const bool right = in.chance(200);
  const int fd = right ? dup(s.contexts[0]->cmd_fd) : in.chance(128) ? fds[0] : -1;
  ibv_context* c = made([&] { return ibv_import_device(fd); });
  REQUIRE((c != nullptr) == right);
  if (c) {
    const PdPlace* pd = a_pd(s, in);
    ibv_pd* again = pd ? made([&] { return ibv_import_pd(c, pd->pd->handle); }) : nullptr;
    REQUIRE(again || !pd);
    if (again && in.chance(128)) ibv_unimport_pd(again), again = nullptr;
    if (again) REQUIRE(ibv_dealloc_pd(again) == 0);
    REQUIRE(ibv_close_device(c) == 0);
  }
  close(fds[0]), close(fds[1]);
}

}  // namespace step
}  // namespace adverb::fuzz
