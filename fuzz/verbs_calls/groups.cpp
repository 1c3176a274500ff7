// SPDX-License-Identifier: Apache-2.0
// Multicast groups: ibv_attach_mcast(3), ibv_detach_mcast(3), and address handles of groups.
#include <algorithm>

#include "verbs_calls/steps.hpp"

namespace adverb::fuzz {
namespace {

constexpr unsigned most_groups = 128;  // max_mcast_grp

struct Group {
  ibv_gid gid{};
  bool multicast = false, v4 = false;
};

Group v4_group(unsigned n) {
  Group g{.multicast = true, .v4 = true};
  g.gid.raw[10] = g.gid.raw[11] = 0xff;
  g.gid.raw[12] = 239, g.gid.raw[14] = static_cast<std::uint8_t>(n >> 8);
  g.gid.raw[15] = static_cast<std::uint8_t>(n);
  return g;
}

Group a_group(Record& in) {
  const std::uint8_t how = in.byte();
  if (how < 200) return v4_group(how % 4);
  Group g;
  switch (how % 6) {
    case 0:  // all nodes of the link, or of another scope
    case 1:
      g.multicast = true;
      g.gid.raw[0] = 0xff, g.gid.raw[1] = in.byte(), g.gid.raw[15] = in.byte();
      break;
    case 2:  // no group
      g = v4_group(1);
      g.gid.raw[12] = 127, g.multicast = false;
      break;
    case 3:
      g.gid.raw[0] = 0xfe, g.gid.raw[1] = 0x80, g.gid.raw[15] = 1;
      break;
    case 4:  // the whole range, those of the local network among them
      g = v4_group(in.byte());
      g.gid.raw[12] = static_cast<std::uint8_t>(224 + in.below(16));
      break;
    default:
      break;
  }
  return g;
}

bool same(const ibv_gid& a, const ibv_gid& b) { return std::equal(a.raw, a.raw + 16, b.raw); }

bool is_member(const Session& s, const QpPlace& p, const Group& g) {
  return std::any_of(s.memberships.begin(), s.memberships.end(),
                     [&](const auto& m) { return m.qp == &p && same(m.group, g.gid); });
}

unsigned groups_without(const Session& s, const Group& g) {
  unsigned n = 0;
  for (auto at = s.memberships.begin(); at != s.memberships.end(); ++at) {
    if (same(at->group, g.gid)) return 0;
    n += at == std::find_if(s.memberships.begin(), at,
                            [&](const auto& m) { return same(m.group, at->group); });
  }
  return n;
}

void attach_one(Session& s, QpPlace& p, const Group& g) {
  const int error = checked(ibv_attach_mcast(p.qp, &g.gid, 0));
  if (p.qp->qp_type != IBV_QPT_UD || !g.multicast) return REQUIRE(error == EINVAL);
  if (is_member(s, p, g)) return REQUIRE(error == 0);
  if (groups_without(s, g) == most_groups) return REQUIRE(error == ENOMEM);
  REQUIRE(error == 0 || !g.v4);  // IPv6 is not there in every namespace
  if (!error) s.memberships.push_back({&p, g.gid});
}

void detach_one(Session& s, QpPlace& p, const Group& g) {
  const bool member = is_member(s, p, g);
  REQUIRE(checked(ibv_detach_mcast(p.qp, &g.gid, 0)) == (member ? 0 : EINVAL));
  std::erase_if(s.memberships, [&](const auto& m) { return m.qp == &p && same(m.group, g.gid); });
}

QpPlace* a_ud_qp(Session& s, Record& in) {
  QpPlace* p = a_qp(s, in);
  if (in.chance(16)) return p;
  for (QpPlace& q : s.qps)
    if (q.qp && q.qp->qp_type == IBV_QPT_UD && (!p || p->qp->qp_type != IBV_QPT_UD)) p = &q;
  return p;
}

}  // namespace

namespace step {

void attach(Session& s, Record& in) {
  QpPlace* p = a_ud_qp(s, in);
  if (!p) return;
  if (!in.chance(8)) return attach_one(s, *p, a_group(in));
  for (unsigned n = 0; n < most_groups + 4; ++n) attach_one(s, *p, v4_group(n));
}

void detach(Session& s, Record& in) {
  if (QpPlace* p = a_ud_qp(s, in)) detach_one(s, *p, a_group(in));
}

void group_ah(Session& s, Record& in) {
  AhPlace& p = s.ahs[in.below(2)];
  PdPlace* pd = a_pd(s, in);
  if (p.ah || !pd) return;
  const Group g = a_group(in);
  ibv_ah_attr a = address(s, in);
  a.grh.dgid = g.gid;
  const bool sane = a.is_global && a.port_num == 1 && a.grh.sgid_index == 0 && g.v4;
  p.ah = made([&] { return ibv_create_ah(pd->pd, &a); });
  REQUIRE(p.ah || !sane);
  if (p.ah) p.pd = pd, p.group = g.multicast, ++pd->users;
}

}  // namespace step
}  // namespace adverb::fuzz
