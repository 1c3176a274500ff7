// SPDX-License-Identifier: Apache-2.0
// Address handles and address vectors (ibv_create_ah(3), ibv_create_ah_from_wc(3)).  On RoCE every
// address is global: a destination GID and the index of a source GID (annex A17).
#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "nic/neighbour.hpp"
#include "port/group_socket.hpp"
#include "verbs/fault.hpp"
#include "verbs/guard.hpp"
#include "verbs/objects.hpp"

namespace adverb::verbs {

namespace {

// A group's address family decides how its datagrams travel; a source GID of the other one gives
// way to the first that fits.
bool find_source(const nic::DeviceInfo& info, engine::AddressVector& av) {
  const auto fits = [&](unsigned i) {
    const Gid& g = info.gids[i];
    return !g.is_zero() && !nic::is_roce_v1(i) && g.is_v4() == av.dgid.is_v4();
  };
  if (fits(av.sgid_index)) return true;
  for (unsigned i = 0; i < info.gids.size(); ++i)
    if (fits(i)) return av.sgid_index = static_cast<std::uint8_t>(i), true;
  return false;
}

// Of ibv_rate; 1 stands for nothing.
bool is_rate(unsigned rate) {
  return rate == IBV_RATE_MAX || (rate >= IBV_RATE_2_5_GBPS && rate <= IBV_RATE_1200_GBPS);
}

}  // namespace

int make_address(const Context& context, const ibv_ah_attr& a, const char* who,
                 engine::AddressVector& out) {
  const nic::DeviceInfo& info = context.info();
  if (a.port_num != 1)
    return refuse(EINVAL, "{}: port {} does not exist on {}", who, a.port_num, info.name);
  if (!a.is_global)
    return refuse(EINVAL, "{}: address handle without GRH: on RoCE add a GID index (e.g. -g 0)",
                  who);
  if (!is_rate(a.static_rate))
    return refuse(EINVAL, "{}: static_rate {} is no ibv_rate", who, a.static_rate);
  if (a.grh.sgid_index >= nic::gid_table_length)
    return refuse(EINVAL, "{}: GID index {} of {} is outside the table", who, a.grh.sgid_index,
                  info.name);
  if (info.gids[a.grh.sgid_index].is_zero())
    return refuse(ENODATA, "{}: GID index {} of {} is empty", who, a.grh.sgid_index, info.name);
  const bool v1 = nic::is_roce_v1(a.grh.sgid_index);
  if (v1 && !info.roce_v1)
    return refuse(EINVAL,
                  "{}: GID index {} of {} is RoCE v1, which needs CAP_NET_RAW; {} is the same "
                  "address for RoCE v2",
                  who, a.grh.sgid_index, info.name, a.grh.sgid_index + 1);
  std::memcpy(out.dgid.bytes.data(), a.grh.dgid.raw, 16);
  out.sgid_index = a.grh.sgid_index;
  if (!v1 && out.dgid.is_multicast() && !find_source(info, out))
    return refuse(EINVAL, "{}: {} has no GID of the multicast group's address family", who,
                  info.name);
  out.flow_label = a.grh.flow_label & 0xfffff;
  out.hop_limit = a.grh.hop_limit;
  out.traffic_class = a.grh.traffic_class;
  out.sl = a.sl;
  out.static_rate = a.static_rate;
  return 0;
}

int find_way(const Context& context, const char* who, engine::AddressVector& av) {
  if (av.dgid.is_multicast() || av.dgid.is_zero()) return 0;
  const nic::DeviceInfo info = context.info();
  if (nic::is_roce_v1(av.sgid_index)) {
    if (const int error = nic::resolve_mac(info, av.dgid, av.dmac))
      return refuse(error, "{}: no Ethernet address is known for the peer's GID on {}", who,
                    info.netdev);
    return 0;
  }
  const Gid& from = info.gids[av.sgid_index];
  if (const int error = nic::route_error(info, from, av.dgid))
    return refuse(error, "{}: there is no route from {} to the peer's GID", who, info.netdev);
  if (const int error = nic::neighbour_error(info, from, av.dgid))
    return refuse(error,
                  "{}: nobody answers ARP or neighbour solicitation at the next hop from {} to the "
                  "peer's GID",
                  who, info.netdev);
  return 0;
}

void fill_ah_attr(const engine::AddressVector& av, ibv_ah_attr& a) {
  a = {};
  std::memcpy(a.grh.dgid.raw, av.dgid.bytes.data(), 16);
  a.grh.flow_label = av.flow_label;
  a.grh.sgid_index = av.sgid_index;
  a.grh.hop_limit = av.hop_limit;
  a.grh.traffic_class = av.traffic_class;
  a.sl = av.sl;
  a.static_rate = av.static_rate;
  a.is_global = 1;
  a.port_num = 1;
}

namespace {

int check_group(const Context& context, const engine::AddressVector& av) {
  if (!av.dgid.is_multicast() || nic::is_roce_v1(av.sgid_index)) return 0;
  const nic::DeviceInfo info = context.info();
  if (info.netdev == "lo" && !av.dgid.is_v4())
    return refuse(ENETUNREACH,
                  "create_ah: lo carries no IPv6 multicast; IPv4 groups it does "
                  "(::ffff:239.0.0.1)");
  const int error = port::send_error(av.dgid, info.gids[av.sgid_index], info.ifindex);
  if (error)
    return refuse(error, "create_ah: multicast on {}: {}", info.netdev, std::strerror(error));
  return 0;
}

ibv_ah* create_ah(ibv_pd* p, const ibv_ah_attr& attr) {
  if (const int error = fault(Call::create_ah)) return errno = error, nullptr;
  Pd* pd = of(p);
  if (!pd->context->works()) return errno = EIO, nullptr;
  if (const int error = live().check(p, Kind::pd)) return fail(error, "create_ah: no such PD");
  auto ah = std::make_unique<Ah>();
  if (const int error = make_address(*pd->context, attr, "create_ah", ah->av))
    return errno = error, nullptr;
  const engine::ModifyResult path = pd->context->device->with_engine(
      [&](engine::Engine& e, Instant) { return e.check_path(ah->av); });
  if (!path.ok()) return fail(EINVAL, "create_ah: {}", path.what);
  if (const int error = find_way(*pd->context, "create_ah", ah->av)) return errno = error, nullptr;
  if (const int error = check_group(*pd->context, ah->av)) return errno = error, nullptr;
  if (const int error = ah->claim.hold(pd->context->use(), Limit::max_ah, 1, "create_ah"))
    return errno = error, nullptr;
  ah->pd = pd;
  ah->ah = {.context = p->context, .pd = p, .handle = next_handle()};
  ++pd->references;
  ++pd->context->references;
  live().add(ah.get(), Kind::ah);
  return &ah.release()->ah;
}

int destroy_ah(ibv_ah* a) {
  if (const int error = fault(Call::destroy_ah)) return error;
  if (const int error = live().check(a, Kind::ah)) return error;
  live().remove(a, Kind::ah);
  Ah* ah = of(a);
  Context* context = ah->pd->context;
  ah->pd->release();
  delete ah;
  context->release();
  return 0;
}

// The 40 bytes in front of a UD payload: a GRH or IPv6 header, or 20 unspecified bytes and an IPv4
// header (annex A17).
struct ReceivedHeader {
  Gid source{}, destination{};
  std::uint32_t flow_label{};
  std::uint8_t traffic_class{}, hop_limit{};
  bool to_group{};
};

constexpr unsigned ipv4_offset = 20, ipv4_bytes = 20;

std::uint16_t sum16(const std::uint8_t* p, unsigned n) {
  std::uint32_t sum = 0;
  for (unsigned i = 0; i < n; i += 2) sum += static_cast<std::uint32_t>(p[i] << 8 | p[i + 1]);
  while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<std::uint16_t>(sum);
}

// 4, 6, or 0 when it is neither.  The unspecified bytes may look like an IPv6 header: an IPv4
// header whose checksum is right is believed.
unsigned version_of(const std::uint8_t* grh) {
  const std::uint8_t* ip = grh + ipv4_offset;
  if (grh[0] >> 4 != 6) return ip[0] >> 4 == 4 ? 4 : 0;
  return ip[0] == 0x45 && sum16(ip, ipv4_bytes) == 0xffff ? 4 : 6;
}

ReceivedHeader parse_ipv4(const std::uint8_t* ip) {
  ReceivedHeader h;
  std::uint32_t address;
  std::memcpy(&address, ip + 12, 4);
  h.source = Gid::from_v4(address);
  std::memcpy(&address, ip + 16, 4);
  h.destination = Gid::from_v4(address);
  h.traffic_class = ip[1];
  h.hop_limit = ip[8];
  h.to_group = IN_MULTICAST(ntohl(address));
  return h;
}

ReceivedHeader parse_ipv6(const std::uint8_t* grh) {
  ReceivedHeader h;
  std::uint32_t word;
  std::memcpy(&word, grh, 4);
  word = ntohl(word);
  h.flow_label = word & 0xfffff;
  h.traffic_class = static_cast<std::uint8_t>(word >> 20);
  h.hop_limit = grh[7];
  std::memcpy(h.source.bytes.data(), grh + 8, 16);
  std::memcpy(h.destination.bytes.data(), grh + 24, 16);
  h.to_group = h.destination.bytes[0] == 0xff;
  return h;
}

// 0, or the errno.
int find_gid(const Context& context, const Gid& gid, bool v1, std::uint8_t& index) {
  const auto gids = context.info().gids;
  for (unsigned i = 0; i < gids.size(); ++i)
    if (gids[i] == gid && nic::is_roce_v1(i) == v1) return index = static_cast<std::uint8_t>(i), 0;
  return EINVAL;
}

// The reply to a datagram that was sent to a group has no source address: EINVAL, as the API's
// reference implementation has it.
int init_ah_from_wc(ibv_context* c, std::uint8_t port, const ibv_wc& wc, const ibv_grh* received,
                    ibv_ah_attr& attr) {
  attr = {};
  attr.sl = wc.sl;
  attr.port_num = port;
  if (!(wc.wc_flags & IBV_WC_GRH)) return 0;
  const auto* grh = reinterpret_cast<const std::uint8_t*>(received);
  const unsigned version = version_of(grh);
  if (!version) return EPROTONOSUPPORT;
  if (port != 1) return EINVAL;
  constexpr std::uint8_t next_header_ib = 0x1b;  // a GRH: RoCE v1
  const bool v1 = version == 6 && grh[6] == next_header_ib;
  if (version == 6 && !v1 && grh[6] != IPPROTO_UDP) return EPROTONOSUPPORT;
  const ReceivedHeader h = version == 4 ? parse_ipv4(grh + ipv4_offset) : parse_ipv6(grh);
  if (h.to_group) return EINVAL;
  if (const int error = find_gid(*of(c), h.destination, v1, attr.grh.sgid_index)) return error;
  attr.is_global = 1;
  std::memcpy(attr.grh.dgid.raw, h.source.bytes.data(), 16);
  attr.grh.flow_label = h.flow_label;
  attr.grh.hop_limit = h.hop_limit;
  attr.grh.traffic_class = h.traffic_class;
  return 0;
}

}  // namespace
}  // namespace adverb::verbs

using namespace adverb::verbs;

ADVERB_API ibv_ah* ibv_create_ah(ibv_pd* pd, ibv_ah_attr* attr) {
  return guarded([&] { return create_ah(pd, *attr); });
}

ADVERB_API int ibv_destroy_ah(ibv_ah* ah) {
  return guarded([&] { return destroy_ah(ah); });
}

ADVERB_API int ibv_init_ah_from_wc(ibv_context* c, std::uint8_t port, ibv_wc* wc, ibv_grh* grh,
                                   ibv_ah_attr* attr) {
  const int error = init_ah_from_wc(c, port, *wc, grh, *attr);
  if (!error) return 0;
  errno = error;
  return -1;
}

ADVERB_API ibv_ah* ibv_create_ah_from_wc(ibv_pd* pd, ibv_wc* wc, ibv_grh* grh, std::uint8_t port) {
  ibv_ah_attr attr;
  if (ibv_init_ah_from_wc(pd->context, port, wc, grh, &attr)) return nullptr;
  return ibv_create_ah(pd, &attr);
}

ADVERB_API int ibv_resolve_eth_l2_from_gid(ibv_context* c, ibv_ah_attr* attr, std::uint8_t* mac,
                                           std::uint16_t* vlan) {
  const int error = guarded([&] {
    std::array<std::uint8_t, 6> found{};
    adverb::Gid gid;
    std::memcpy(gid.bytes.data(), attr->grh.dgid.raw, 16);
    if (const int failed = adverb::nic::resolve_mac(of(c)->info(), gid, found)) return failed;
    std::copy(found.begin(), found.end(), mac);
    if (vlan) *vlan = 0xffff;  // none
    return 0;
  });
  errno = error;
  return -error;
}
