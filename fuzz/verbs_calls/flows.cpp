// SPDX-License-Identifier: Apache-2.0
// Flow rules: ibv_create_flow(3), ibv_destroy_flow(3).
#include <arpa/inet.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "verbs_calls/steps.hpp"

namespace adverb::fuzz {
namespace {

struct Kind {
  std::uint32_t type;
  std::uint16_t size;
  std::uint16_t filter;  // where it begins, and half of what is there is the mask; 0: none
};
constexpr Kind kinds[] = {
    {IBV_FLOW_SPEC_ETH, sizeof(ibv_flow_spec_eth), offsetof(ibv_flow_spec_eth, val)},
    {IBV_FLOW_SPEC_IPV4, sizeof(ibv_flow_spec_ipv4), offsetof(ibv_flow_spec_ipv4, val)},
    {IBV_FLOW_SPEC_IPV4_EXT, sizeof(ibv_flow_spec_ipv4_ext), offsetof(ibv_flow_spec_ipv4_ext, val)},
    {IBV_FLOW_SPEC_IPV6, sizeof(ibv_flow_spec_ipv6), offsetof(ibv_flow_spec_ipv6, val)},
    {IBV_FLOW_SPEC_TCP, sizeof(ibv_flow_spec_tcp_udp), offsetof(ibv_flow_spec_tcp_udp, val)},
    {IBV_FLOW_SPEC_UDP, sizeof(ibv_flow_spec_tcp_udp), offsetof(ibv_flow_spec_tcp_udp, val)},
    // These are not supported.
    {IBV_FLOW_SPEC_ESP, sizeof(ibv_flow_spec_esp), offsetof(ibv_flow_spec_esp, val)},
    {IBV_FLOW_SPEC_VXLAN_TUNNEL, sizeof(ibv_flow_spec_tunnel), offsetof(ibv_flow_spec_tunnel, val)},
    {IBV_FLOW_SPEC_GRE, sizeof(ibv_flow_spec_gre), offsetof(ibv_flow_spec_gre, val)},
    {IBV_FLOW_SPEC_MPLS, sizeof(ibv_flow_spec_mpls), offsetof(ibv_flow_spec_mpls, val)},
    {IBV_FLOW_SPEC_ACTION_TAG, sizeof(ibv_flow_spec_action_tag), 0},
    {IBV_FLOW_SPEC_ACTION_DROP, sizeof(ibv_flow_spec_action_drop), 0},
    {IBV_FLOW_SPEC_ACTION_COUNT, sizeof(ibv_flow_spec_counter_action), 0},
    {IBV_FLOW_SPEC_INNER | IBV_FLOW_SPEC_IPV4, sizeof(ibv_flow_spec_ipv4),
     offsetof(ibv_flow_spec_ipv4, val)},
};
constexpr unsigned supported_kinds = 6;

// What a rule is judged by.
struct Rule {
  std::vector<std::uint8_t> bytes;
  bool refused = false;   // whatever the specifications are
  bool supported = true;  // no specification is of the wrong kind or size
  bool honest = true;     // what is said to be there is there
  unsigned specs = 0;
};

// A field of frames that lo carries, or any, under a mask.
void fill_filter(std::uint8_t* value, std::size_t bytes, const Kind& kind, Record& in) {
  std::uint8_t* mask = value + bytes;
  const std::uint8_t how = in.byte();
  std::fill_n(mask, bytes, how < 80 ? 0xff : 0);
  if (how >= 160)
    for (unsigned i = 0; i < 4; ++i) mask[in.below(static_cast<unsigned>(bytes))] = in.byte();
  if (in.chance(48)) value[in.below(static_cast<unsigned>(bytes))] = in.byte();
  const std::uint32_t host = htonl(INADDR_LOOPBACK);
  if (kind.type == IBV_FLOW_SPEC_ETH) value[12] = 0x08;
  if (kind.type == IBV_FLOW_SPEC_IPV4)
    std::memcpy(value, &host, 4), std::memcpy(value + 4, &host, 4);
  if (kind.type == IBV_FLOW_SPEC_UDP) value[0] = 0x12, value[1] = 0xb7;
}

void add_spec(Rule& r, Record& in) {
  const Kind kind = in.chance(230) ? kinds[in.below(supported_kinds)] : in.one_of(kinds);
  const std::size_t at = r.bytes.size();
  r.bytes.resize(at + kind.size);
  std::uint8_t* p = &r.bytes[at];
  if (kind.filter) fill_filter(p + kind.filter, (kind.size - 8u) / 2, kind, in);
  std::uint32_t type = kind.type;
  std::uint16_t size = kind.size;
  if (in.chance(12)) type = in.word();
  if (in.chance(12)) size = static_cast<std::uint16_t>(in.byte() * in.byte());
  const bool known = std::any_of(kinds, kinds + supported_kinds,
                                 [&](const Kind& k) { return k.type == type && k.size == size; });
  if (!known) r.supported = false;
  if (size > kind.size) r.honest = false;
  std::memcpy(p, &type, 4);
  std::memcpy(p + 4, &size, 2);
  ++r.specs;
}

Rule a_rule(const QpPlace& p, Record& in) {
  Rule r;
  ibv_flow_attr a{};
  a.type = any<ibv_flow_attr_type>(in.chance(180) ? 0 : in.chance(230) ? in.below(4) : in.word());
  a.priority = in.below(3);
  a.port = 1;
  const bool normal = a.type == IBV_FLOW_ATTR_NORMAL;
  if (normal && in.chance(64)) a.flags = IBV_FLOW_ATTR_FLAGS_DONT_TRAP;
  if (in.chance(8)) a.comp_mask = in.word();
  if (in.chance(8)) a.port = in.byte();
  if (in.chance(8)) a.flags = in.word();
  r.bytes.resize(sizeof a);
  const unsigned specs = normal || in.chance(16) ? in.below(4) : 0;
  for (unsigned i = 0; i < specs; ++i) add_spec(r, in);
  a.num_of_specs = static_cast<std::uint8_t>(r.specs);
  // More than there are: what is behind the last one is no specification.
  if (in.chance(8)) a.num_of_specs = in.byte();
  if (a.num_of_specs > r.specs) r.supported = false;
  a.size = static_cast<std::uint16_t>(r.bytes.size());
  std::memcpy(r.bytes.data(), &a, sizeof a);
  // Nobody can know that a list ends early; what is read there is no specification.
  if (a.num_of_specs > r.specs || !r.honest) r.bytes.resize(r.bytes.size() + 512);
  const unsigned flags = normal ? IBV_FLOW_ATTR_FLAGS_DONT_TRAP : 0;
  r.refused = !is_raw(p) || a.comp_mask || a.port != 1 || a.flags & ~flags ||
              static_cast<unsigned>(a.type) > IBV_FLOW_ATTR_SNIFFER ||
              (!normal && a.num_of_specs != 0);
  if (a.num_of_specs < r.specs) r.supported = true, r.specs = 2;  // not known
  return r;
}

}  // namespace

namespace step {

void flow(Session& s, Record& in) {
  FlowPlace& p = s.flows[in.below(3)];
  if (p.flow) return in.chance(96) ? s.destroy(p) : void();
  QpPlace* qp = a_qp(s, in);
  if (!in.chance(8))
    for (QpPlace& q : s.qps)
      if (is_raw(q) && !is_raw(*qp)) qp = &q;
  if (!qp) return;
  Rule r = a_rule(*qp, in);
  auto* attr = reinterpret_cast<ibv_flow_attr*>(r.bytes.data());
  p.flow = made([&] { return ibv_create_flow(qp->qp, attr); });
  if (!p.flow) {
    // Two specifications may contradict each other.
    REQUIRE(r.refused || !r.supported || r.specs > 1);
    return REQUIRE(errno == EINVAL || errno == EOPNOTSUPP);
  }
  REQUIRE(!r.refused && r.supported);
  REQUIRE(p.flow->context == qp->qp->context);
  p.qp = qp, ++qp->flows;
}

}  // namespace step
}  // namespace adverb::fuzz
