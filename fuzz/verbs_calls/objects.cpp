// SPDX-License-Identifier: Apache-2.0
// What needs no memory and no queue pair: protection domains, completion channels, XRC domains,
// shared receive queues, address handles.
#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>

#include "verbs_calls/steps.hpp"

namespace adverb::fuzz {
namespace {

// An XRC SRQ, if there is what it needs.
bool xrc_srq(Session& s, SrqPlace& p, PdPlace& pd, Record& in) {
  XrcdPlace* xrcd = pick(s.xrcds, &XrcdPlace::xrcd, in);
  CqPlace* cq = a_cq(s, in);
  if (!xrcd || !cq) return false;
  ibv_srq_init_attr_ex a{};
  a.attr = {1 + in.below(16), 1 + in.below(4), 0};
  a.comp_mask =
      IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
  a.srq_type = IBV_SRQT_XRC;
  a.pd = pd.pd;
  a.xrcd = xrcd->xrcd;
  a.cq = cq->cq;
  ibv_context* c = pd.pd->context;
  p.srq = made([&] { return ibv_create_srq_ex(c, &a); });
  REQUIRE((p.srq != nullptr) == (xrcd->xrcd->context == c && cq->cq->context == c));
  if (p.srq) p.pd = &pd, p.xrcd = xrcd, p.cq = cq, ++pd.users, ++xrcd->users, ++cq->users;
  return true;
}

}  // namespace

ibv_ah_attr address(Session& s, Record& in) {
  ibv_ah_attr a{};
  a.is_global = in.chance(250);
  a.port_num = in.chance(250) ? 1 : in.byte();
  a.grh.sgid_index = in.chance(250) ? 0 : in.byte();
  a.grh.hop_limit = 64;
  ibv_query_gid(s.contexts[0], 1, 0, &a.grh.dgid);
  if (in.chance(8)) a.grh.dgid.raw[in.below(16)] = in.byte();
  return a;
}

namespace step {

void pd(Session& s, Record& in) {
  PdPlace& p = s.pds[in.below(3)];
  if (p.pd) return s.destroy(p);
  if (p.users) return;  // it was unimported
  ibv_context* c = context(s, in);
  PdPlace* domain = in.chance(64) ? a_pd(s, in) : nullptr;
  if (!domain) {
    p.pd = made([&] { return ibv_alloc_pd(c); });
    return REQUIRE(p.pd);
  }
  ibv_parent_domain_init_attr a{};
  a.pd = domain->pd;
  a.comp_mask = in.chance(240) ? 0 : in.word();
  p.pd = made([&] { return ibv_alloc_parent_domain(c, &a); });
  REQUIRE((p.pd != nullptr) ==
          (domain->pd->context == c && (a.comp_mask | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT) ==
                                           IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT));
  if (p.pd) p.domain = domain, ++domain->users;
}

void channel(Session& s, Record& in) {
  ChannelPlace& p = s.channels[in.below(2)];
  if (p.channel) return s.destroy(p);
  p.channel = made([&] { return ibv_create_comp_channel(context(s, in)); });
  REQUIRE(p.channel);
}

void xrcd(Session& s, Record& in) {
  XrcdPlace& p = s.xrcds[in.below(2)];
  if (p.xrcd) return s.destroy(p);
  const bool sane = in.chance(220);
  ibv_xrcd_init_attr a{sane ? 3u : in.word(), sane ? -1 : static_cast<int>(in.word()),
                       sane ? O_CREAT : static_cast<int>(in.word())};
  if (a.fd >= 0) a.fd |= 1 << 20;  // no descriptor of the fuzzer's
  p.xrcd = made([&] { return ibv_open_xrcd(context(s, in), &a); });
  REQUIRE(p.xrcd || !sane);
}

// The domain of a file, which all who open it share.
void xrcd_of_file(Session& s, Record& in) {
  XrcdPlace& p = s.xrcds[in.below(2)];
  if (p.xrcd) return;
  static const int file = memfd_create("xrcd", MFD_CLOEXEC);
  const bool exists = std::any_of(s.xrcds.begin(), s.xrcds.end(),
                                  [](const XrcdPlace& x) { return x.xrcd && x.of_file; });
  const bool create = in.chance(200), alone = in.chance(64);
  ibv_xrcd_init_attr a{IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, file,
                       (create ? O_CREAT : 0) | (alone ? O_EXCL : 0)};
  p.xrcd = made([&] { return ibv_open_xrcd(context(s, in), &a); });
  REQUIRE((p.xrcd != nullptr) == (exists ? !alone : create));
  p.of_file = p.xrcd;
}

void srq(Session& s, Record& in) {
  SrqPlace& p = s.srqs[in.below(2)];
  if (p.srq) return in.chance(128) ? s.destroy(p) : void();
  PdPlace* pd = a_pd(s, in);
  if (!pd) return;
  if (in.chance(96) && xrc_srq(s, p, *pd, in)) return;
  const ibv_srq_attr attr{size(in), size(in) % 64, 0};
  p.srq = made([&] {
    if (in.chance(128)) {
      ibv_srq_init_attr a{&s, attr};
      return ibv_create_srq(pd->pd, &a);
    }
    ibv_srq_init_attr_ex a{};
    a.attr = attr;
    a.comp_mask = IBV_SRQ_INIT_ATTR_PD | (in.chance(32) ? in.byte() : 0u);
    a.srq_type = any<ibv_srq_type>(in.byte());
    a.pd = pd->pd;
    return ibv_create_srq_ex(pd->pd->context, &a);
  });
  if (p.srq) p.pd = pd, ++pd->users;
}

void modify_srq(Session& s, Record& in) {
  SrqPlace* p = pick(s.srqs, &SrqPlace::srq, in);
  if (!p) return;
  ibv_srq_attr a{size(in), size(in), size(in)};
  const int mask = in.chance(200) ? IBV_SRQ_LIMIT : static_cast<int>(in.word());
  ibv_srq_attr before{}, after{};
  REQUIRE(ibv_query_srq(p->srq, &before) == 0);
  const int error = checked(ibv_modify_srq(p->srq, &a, mask));
  REQUIRE(ibv_query_srq(p->srq, &after) == 0);
  REQUIRE(before.max_wr == after.max_wr && before.max_sge == after.max_sge);
  // A limit is disarmed when it is reached.
  const std::uint32_t wanted = error || !(mask & IBV_SRQ_LIMIT) ? before.srq_limit : a.srq_limit;
  REQUIRE(after.srq_limit == wanted || after.srq_limit == 0);
}

void ah(Session& s, Record& in) {
  AhPlace& p = s.ahs[in.below(2)];
  if (p.ah) return s.destroy(p);
  PdPlace* pd = a_pd(s, in);
  if (!pd) return;
  ibv_ah_attr a = address(s, in);
  p.ah = made([&] { return ibv_create_ah(pd->pd, &a); });
  if (p.ah) p.pd = pd, ++pd->users;
}

}  // namespace step
}  // namespace adverb::fuzz
