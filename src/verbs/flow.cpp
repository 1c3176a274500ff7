// SPDX-License-Identifier: Apache-2.0
// ibv_create_flow(3), ibv_destroy_flow(3): which Ethernet frames a raw packet queue pair gets.
//
// The interface stays the host's: what a rule takes, the kernel's own network stack sees too, and
// other processes' rules are not weighed against this one's.
#include <netinet/in.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "verbs/fault.hpp"
#include "verbs/guard.hpp"
#include "verbs/objects.hpp"

namespace adverb::verbs {
namespace {

using engine::FlowRule;
using engine::FlowType;

// Sets one field of the rule: `value` and `mask` are the specification's, in network order.
template <class Field, class From>
void set(Field& value, Field& mask, const From& from_value, const From& from_mask) {
  static_assert(sizeof from_value <= sizeof value);
  std::uint8_t v[sizeof value]{}, m[sizeof value]{};
  std::memcpy(v, &from_value, sizeof from_value);
  std::memcpy(m, &from_mask, sizeof from_mask);
  for (std::size_t i = 0; i < sizeof v; ++i) v[i] &= m[i];
  std::memcpy(&value, v, sizeof v);
  std::memcpy(&mask, m, sizeof m);
}

// A field that must have this value.  False: another specification wants another one.
bool require(std::uint8_t& value, std::uint8_t& mask, std::uint8_t wanted) {
  if (value != (wanted & mask)) return false;
  value = wanted, mask = 0xff;
  return true;
}

bool fill(FlowRule& r, const ibv_flow_spec_eth& s) {
  auto &v = r.value, &m = r.mask;
  set(v.dst_mac, m.dst_mac, s.val.dst_mac, s.mask.dst_mac);
  set(v.src_mac, m.src_mac, s.val.src_mac, s.mask.src_mac);
  set(v.ether_type, m.ether_type, s.val.ether_type, s.mask.ether_type);
  set(v.vlan_tag, m.vlan_tag, s.val.vlan_tag, s.mask.vlan_tag);
  return !s.mask.vlan_tag || require(v.tagged, m.tagged, 1);
}

bool fill(FlowRule& r, const ibv_flow_spec_ipv4& s) {
  auto &v = r.value, &m = r.mask;
  set(v.src_ip, m.src_ip, s.val.src_ip, s.mask.src_ip);
  set(v.dst_ip, m.dst_ip, s.val.dst_ip, s.mask.dst_ip);
  return require(v.ip_version, m.ip_version, 4);
}

bool fill(FlowRule& r, const ibv_flow_spec_ipv4_ext& s) {
  auto &v = r.value, &m = r.mask;
  const bool transport = m.next_header != 0 && s.mask.proto != 0;
  if (transport && v.next_header != s.val.proto) return false;
  set(v.src_ip, m.src_ip, s.val.src_ip, s.mask.src_ip);
  set(v.dst_ip, m.dst_ip, s.val.dst_ip, s.mask.dst_ip);
  if (!transport) set(v.next_header, m.next_header, s.val.proto, s.mask.proto);
  set(v.traffic_class, m.traffic_class, s.val.tos, s.mask.tos);
  set(v.hop_limit, m.hop_limit, s.val.ttl, s.mask.ttl);
  set(v.fragment, m.fragment, s.val.flags, s.mask.flags);
  return require(v.ip_version, m.ip_version, 4);
}

bool fill(FlowRule& r, const ibv_flow_spec_ipv6& s) {
  auto &v = r.value, &m = r.mask;
  const bool transport = m.next_header != 0 && s.mask.next_hdr != 0;
  if (transport && v.next_header != s.val.next_hdr) return false;
  set(v.src_ip, m.src_ip, s.val.src_ip, s.mask.src_ip);
  set(v.dst_ip, m.dst_ip, s.val.dst_ip, s.mask.dst_ip);
  set(v.flow_label, m.flow_label, s.val.flow_label, s.mask.flow_label);
  if (!transport) set(v.next_header, m.next_header, s.val.next_hdr, s.mask.next_hdr);
  set(v.traffic_class, m.traffic_class, s.val.traffic_class, s.mask.traffic_class);
  set(v.hop_limit, m.hop_limit, s.val.hop_limit, s.mask.hop_limit);
  return require(v.ip_version, m.ip_version, 6);
}

bool fill(FlowRule& r, const ibv_flow_spec_tcp_udp& s) {
  auto &v = r.value, &m = r.mask;
  set(v.src_port, m.src_port, s.val.src_port, s.mask.src_port);
  set(v.dst_port, m.dst_port, s.val.dst_port, s.mask.dst_port);
  if ((s.mask.src_port || s.mask.dst_port) && !require(v.ports, m.ports, 1)) return false;
  return require(v.next_header, m.next_header,
                 s.type == IBV_FLOW_SPEC_TCP ? IPPROTO_TCP : IPPROTO_UDP);
}

// One specification out of the application's list, whatever its alignment there.
template <class Spec>
int take(FlowRule& r, const std::uint8_t* at, std::uint16_t size) {
  if (size != sizeof(Spec)) return EINVAL;
  Spec spec;
  std::memcpy(&spec, at, sizeof spec);
  return fill(r, spec) ? 0 : EINVAL;
}

int take_spec(FlowRule& r, unsigned type, const std::uint8_t* at, std::uint16_t size) {
  switch (type) {
    case IBV_FLOW_SPEC_ETH:
      return take<ibv_flow_spec_eth>(r, at, size);
    case IBV_FLOW_SPEC_IPV4:
      return take<ibv_flow_spec_ipv4>(r, at, size);
    case IBV_FLOW_SPEC_IPV4_EXT:
      return take<ibv_flow_spec_ipv4_ext>(r, at, size);
    case IBV_FLOW_SPEC_IPV6:
      return take<ibv_flow_spec_ipv6>(r, at, size);
    case IBV_FLOW_SPEC_TCP:
    case IBV_FLOW_SPEC_UDP:
      return take<ibv_flow_spec_tcp_udp>(r, at, size);
    default:
      return EOPNOTSUPP;  // inner headers, tunnels, actions
  }
}

// An EtherType that excludes the IP header which another specification describes.
bool contradicts(const FlowRule& r) {
  constexpr std::array<std::uint8_t, 2> whole{0xff, 0xff}, ipv4{0x08, 0x00}, ipv6{0x86, 0xdd};
  if (r.mask.ip_version == 0 || r.mask.ether_type != whole) return false;
  return r.value.ether_type != (r.value.ip_version == 4 ? ipv4 : ipv6);
}

int read_specs(const ibv_flow_attr& a, FlowRule& r) {
  const auto* at = reinterpret_cast<const std::uint8_t*>(&a + 1);
  for (unsigned i = 0; i < a.num_of_specs; ++i) {
    struct {
      std::uint32_t type;
      std::uint16_t size;
    } header;
    std::memcpy(&header, at, 6);
    if (const int error = take_spec(r, header.type, at, header.size))
      return refuse(error, "create_flow: specification {} (type {:#x}, {} bytes) {}", i,
                    header.type, header.size,
                    error == EINVAL ? "is wrong, or contradicts another" : "is not supported");
    at += header.size;
  }
  if (contradicts(r)) return refuse(EINVAL, "create_flow: the EtherType is another IP version's");
  return 0;
}

int read_rule(const ibv_qp* qp, const ibv_flow_attr& a, FlowRule& r) {
  if (qp->qp_type != IBV_QPT_RAW_PACKET)
    return refuse(EINVAL, "create_flow qp {:#x}: flow rules are for raw packet queue pairs",
                  qp->qp_num);
  if (a.comp_mask || a.port != 1)
    return refuse(EINVAL, "create_flow: comp_mask {:#x}, port {}", a.comp_mask, a.port);
  if (static_cast<unsigned>(a.type) > IBV_FLOW_ATTR_SNIFFER)
    return refuse(EINVAL, "create_flow: unknown type {}", static_cast<unsigned>(a.type));
  if (a.flags & IBV_FLOW_ATTR_FLAGS_EGRESS)
    return refuse(EOPNOTSUPP, "create_flow: egress rules are not supported");
  const bool normal = a.type == IBV_FLOW_ATTR_NORMAL;
  if (a.flags & ~static_cast<unsigned>(normal ? IBV_FLOW_ATTR_FLAGS_DONT_TRAP : 0))
    return refuse(EINVAL, "create_flow: flags {:#x} of a rule of type {}", a.flags,
                  static_cast<unsigned>(a.type));
  r.type = static_cast<FlowType>(a.type);
  r.priority = a.priority;
  r.dont_trap = a.flags & IBV_FLOW_ATTR_FLAGS_DONT_TRAP;
  r.qp = of(const_cast<ibv_qp*>(qp))->pair;
  if (normal) return read_specs(a, r);
  if (a.num_of_specs) return refuse(EINVAL, "create_flow: only normal rules have specifications");
  return 0;
}

ibv_flow* do_create_flow(ibv_qp* q, const ibv_flow_attr& a) {
  if (const int error = fault(Call::create_flow)) return errno = error, nullptr;
  Qp& qp = *of(q);
  if (!qp.context->works()) return errno = EIO, nullptr;
  if (const int error = live().check(q, Kind::qp)) return fail(error, "create_flow: no such QP");
  FlowRule rule;
  if (const int error = read_rule(q, a, rule)) return errno = error, nullptr;
  auto flow = std::make_unique<Flow>();
  int error = 0;
  flow->rule = qp.context->device->create_flow(rule, error);
  if (!flow->rule) return fail(error, "create_flow qp {:#x}: {}", q->qp_num, std::strerror(error));
  flow->context = qp.context;
  flow->flow = {.comp_mask = 0, .context = q->context, .handle = next_handle()};
  ++qp.context->references;
  live().add(flow.get(), Kind::flow);
  return &flow.release()->flow;
}

int do_destroy_flow(ibv_flow* f) {
  if (const int error = fault(Call::destroy_flow)) return error;
  if (const int error = live().check(f, Kind::flow)) return error;
  Flow* flow = of(f);
  if (!flow->context->works()) return EIO;
  live().remove(f, Kind::flow);
  Context* context = flow->context;
  context->device->destroy_flow(flow->rule);
  delete flow;
  context->release();
  return 0;
}

}  // namespace

ibv_flow* create_flow(ibv_qp* qp, ibv_flow_attr* attr) {
  return guarded([&] { return do_create_flow(qp, *attr); });
}

int destroy_flow(ibv_flow* flow) {
  return guarded([&] { return do_destroy_flow(flow); });
}

}  // namespace adverb::verbs
