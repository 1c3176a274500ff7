// SPDX-License-Identifier: Apache-2.0
// What a device and its port are (ibv_query_device(3), ibv_query_port(3), ibv_query_gid(3),
// ibv_query_pkey(3)).  Every limit here is the one that the creators enforce.
#include <arpa/inet.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string_view>

#include "port/packet_socket.hpp"
#include "verbs/fault.hpp"
#include "verbs/guard.hpp"
#include "verbs/objects.hpp"
#include "verbs/sysfs.hpp"

namespace adverb::verbs {
namespace {

int number(Limit l) { return static_cast<int>(limit(l)); }

void fill_limits(ibv_device_attr& a) {
  a.max_mr_size = limit(Limit::max_mr_size);
  a.page_size_cap = ~0ull;
  a.max_qp = number(Limit::max_qp);
  a.max_qp_wr = number(Limit::max_qp_wr);
  a.device_cap_flags = IBV_DEVICE_CURR_QP_STATE_MOD | IBV_DEVICE_PORT_ACTIVE_EVENT |
                       IBV_DEVICE_SYS_IMAGE_GUID | IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_XRC |
                       IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B |
                       IBV_DEVICE_MEM_MGT_EXTENSIONS | IBV_DEVICE_BAD_PKEY_CNTR |
                       IBV_DEVICE_BAD_QKEY_CNTR;
  a.max_sge = number(Limit::max_sge);
  a.max_sge_rd = std::min(number(Limit::max_sge_rd), a.max_sge);
  a.max_cq = number(Limit::max_cq);
  a.max_cqe = number(Limit::max_cqe);
  a.max_mr = number(Limit::max_mr);
  a.max_mw = number(Limit::max_mw);
  a.max_pd = number(Limit::max_pd);
  a.max_qp_rd_atom = number(Limit::max_qp_rd_atom);
  a.max_res_rd_atom = std::min(number(Limit::max_res_rd_atom), a.max_qp_rd_atom * a.max_qp);
  a.max_qp_init_rd_atom = number(Limit::max_qp_init_rd_atom);
  a.atomic_cap = behaviour().get<ibv_atomic_cap>(Point::atomic_cap);
  a.max_ah = number(Limit::max_ah);
  using Groups = engine::MulticastTable;
  a.max_mcast_grp = Groups::max_groups;
  a.max_mcast_qp_attach = Groups::max_qps_per_group;
  a.max_total_mcast_qp_attach = Groups::max_groups * Groups::max_qps_per_group;
  a.max_srq = number(Limit::max_srq);
  a.max_srq_wr = number(Limit::max_srq_wr);
  a.max_srq_sge = number(Limit::max_srq_sge);
  a.max_pkeys = 1;
  a.local_ca_ack_delay = 15;
  a.phys_port_cnt = 1;
}

// On-demand paging: the CPU moves the bytes, so that every operation of a transport can take a page
// fault.
void fill_paging(ibv_device_attr_ex& a) {
  constexpr std::uint32_t messages =
      IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV;
  ibv_odp_caps& caps = a.odp_caps;
  caps.general_caps = IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT;
  caps.per_transport_caps.rc_odp_caps =
      messages | IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC;
  caps.per_transport_caps.uc_odp_caps = messages | IBV_ODP_SUPPORT_WRITE;
  caps.per_transport_caps.ud_odp_caps = messages;
  a.xrc_odp_caps = caps.per_transport_caps.rc_odp_caps;
}

// For those who may have raw packets: receive side scaling, and what is done to frames.
void fill_raw_packets(ibv_device_attr_ex& a) {
  if (!port::packet_sockets_permitted()) return;
  a.rss_caps = {.supported_qpts = 1u << IBV_QPT_RAW_PACKET,
                .max_rwq_indirection_tables = limit32(Limit::max_rwq_indirection_tables),
                .max_rwq_indirection_table_size = limit32(Limit::max_rwq_indirection_table_size),
                .rx_hash_fields_mask = engine::rx_hash_fields,
                .rx_hash_function = IBV_RX_HASH_FUNC_TOEPLITZ};
  a.max_wq_type_rq = limit32(Limit::max_wq_type_rq);
  a.raw_packet_caps = IBV_RAW_PACKET_CAP_CVLAN_STRIPPING;
}

// What a device is needs no running one: a forked child may ask.
int query_device(ibv_context* c, ibv_device_attr* a) {
  if (const int error = fault(Call::query_device)) return error;
  if (of(c)->failed.load(std::memory_order_relaxed)) return EIO;
  *a = {};
  std::snprintf(a->fw_ver, sizeof a->fw_ver, "%s", ADVERB_VERSION);
  std::memcpy(&a->node_guid, of(c)->guid.data(), 8);
  a->sys_image_guid = a->node_guid;
  a->vendor_part_id = nic::settings().part_id;
  a->vendor_id = nic::settings().vendor_id;
  fill_limits(*a);
  if (port::packet_sockets_permitted()) {
    a->device_cap_flags |= IBV_DEVICE_MANAGED_FLOW_STEERING | IBV_DEVICE_RAW_MULTI;
    a->max_raw_ethy_qp = a->max_qp;
  }
  return 0;
}

// Active speed and width by the speed of the interface, as the kernel reckons them for RoCE;
// unknown counts as 10 Gb/s.
struct LinkSpeed {
  std::uint32_t mbps;
  std::uint8_t speed, width;  // speed: 1 SDR 2.5, 2 DDR 5, 8 FDR10, 32 EDR, 64 HDR, 128 NDR; width:
                              // 1, 2 (4x), 16 (2x)
};
constexpr LinkSpeed link_speeds[] = {{1'000, 1, 1},    {10'000, 8, 1},   {20'000, 2, 2},
                                     {25'000, 32, 1},  {40'000, 8, 2},   {50'000, 32, 16},
                                     {100'000, 32, 2}, {200'000, 64, 2}, {400'000, 128, 2}};
LinkSpeed link_speed(const nic::DeviceInfo& info) {
  const std::uint32_t mbps = info.speed_mbps ? info.speed_mbps : 10'000;
  for (const LinkSpeed& s : link_speeds)
    if (mbps <= s.mbps) return {mbps, s.speed, s.width};
  return {mbps, 128, 2};
}

int check_port(ibv_context* c, unsigned port) {
  if (!of(c)->works()) return EIO;
  return port == 1 ? 0 : EINVAL;
}

}  // namespace

int compat_query_device(ibv_context* c, ibv_device_attr* a) { return query_device(c, a); }

int query_device_ex(ibv_context* c, const ibv_query_device_ex_input* input, ibv_device_attr_ex* out,
                    std::size_t size) {
  return guarded([&] {
    if ((input && input->comp_mask) || size < sizeof(ibv_device_attr)) return EINVAL;
    ibv_device_attr_ex a{};
    if (const int error = query_device(c, &a.orig_attr)) return error;
    a.completion_timestamp_mask = ~0ull;  // completion timestamps count nanoseconds
    a.hca_core_clock = 1'000'000;         // kHz
    a.cq_mod_caps = {max_moderation_count, max_moderation_us};
    a.device_cap_flags_ex = a.orig_attr.device_cap_flags;
    fill_paging(a);
    fill_raw_packets(a);
    a.max_dm_size = limit(Limit::max_dm_size);
    a.phys_port_cnt_ex = 1;
    std::memset(static_cast<void*>(out), 0, size);
    std::memcpy(static_cast<void*>(out), &a, std::min(size, sizeof a));
    return 0;
  });
}

PortAttributes port_attributes(const nic::DeviceInfo& info, bool up) {
  const LinkSpeed link = link_speed(info);
  PortAttributes p{};
  ibv_port_attr& a = p.v44;
  a.state = up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
  a.max_mtu = static_cast<ibv_mtu>(info.max_mtu);
  a.active_mtu = static_cast<ibv_mtu>(info.active_mtu);
  a.gid_tbl_len = nic::gid_table_length;
  a.port_cap_flags = IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS;
  a.max_msg_sz = behaviour()[Point::max_msg_sz];
  a.pkey_tbl_len = 1;
  a.max_vl_num = 1;
  a.active_width = link.width;
  a.active_speed = link.speed;
  a.phys_state = up ? 5 : 3;  // LinkUp, Disabled
  a.link_layer = IBV_LINK_LAYER_ETHERNET;
  return p;
}

int query_port(ibv_context* c, std::uint8_t port, ibv_port_attr* out, std::size_t length) {
  if (const int error = fault(Call::query_port)) return error;
  if (const int error = check_port(c, port)) return error;
  PortAttributes p = port_attributes(of(c)->info(), of(c)->device->link_up());
  const engine::Counters counters = of(c)->device->engine_counters();
  p.v44.bad_pkey_cntr = static_cast<std::uint32_t>(counters.drop_pkey);
  p.v44.qkey_viol_cntr = static_cast<std::uint32_t>(counters.drop_qkey);
  std::memset(static_cast<void*>(out), 0, length);
  std::memcpy(static_cast<void*>(out), &p, std::min(length, sizeof p));
  return 0;
}

// The structure of before release 1.1.8 ends behind `flags`.
int compat_query_port(ibv_context* c, std::uint8_t port, _compat_ibv_port_attr* out) {
  return query_port(c, port, reinterpret_cast<ibv_port_attr*>(out), 48);
}

int query_rt_values(ibv_context* c, ibv_values_ex* values) {
  if (!of(c)->works()) return EIO;
  if (values->comp_mask & ~static_cast<std::uint32_t>(IBV_VALUES_MASK_RAW_CLOCK)) return EINVAL;
  if (values->comp_mask & IBV_VALUES_MASK_RAW_CLOCK) {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    values->raw_clock = {0, now.tv_sec * 1'000'000'000l + now.tv_nsec};
  }
  return 0;
}

bool gid_entry(const nic::DeviceInfo& info, unsigned index, ibv_gid_entry& entry) {
  const Gid& gid = info.gids[index];
  if (gid.is_zero()) return false;
  std::memcpy(entry.gid.raw, gid.bytes.data(), 16);
  entry.gid_index = index;
  entry.port_num = 1;
  entry.gid_type = nic::is_roce_v1(index) ? IBV_GID_TYPE_ROCE_V1 : IBV_GID_TYPE_ROCE_V2;
  entry.ndev_ifindex = info.ifindex;
  return true;
}

namespace {

int query_gid_entry(ibv_context* c, unsigned port, unsigned index, ibv_gid_entry& entry) {
  if (const int error = check_port(c, port)) return error;
  if (index >= nic::gid_table_length) return EINVAL;
  return gid_entry(of(c)->info(), index, entry) ? 0 : ENODATA;
}

void copy_entry(void* out, const ibv_gid_entry& entry, std::size_t size) {
  std::memset(out, 0, size);
  std::memcpy(out, &entry, std::min(size, sizeof entry));
}

}  // namespace
}  // namespace adverb::verbs

using namespace adverb::verbs;

ADVERB_API int ibv_query_device(ibv_context* c, ibv_device_attr* a) {
  return guarded([&] { return query_device(c, a); });
}

ADVERB_API int ibv_query_port(ibv_context* c, std::uint8_t port, _compat_ibv_port_attr* a) {
  return compat_query_port(c, port, a);
}

ADVERB_API int ibv_query_port_speed(ibv_context* c, std::uint32_t port, std::uint64_t* speed) {
  if (const int error = check_port(c, port)) return error;
  *speed = link_speed(of(c)->info()).mbps / 100;  // in units of 100 Mb/s
  return 0;
}

ADVERB_API int ibv_query_gid(ibv_context* c, std::uint8_t port, int index, ibv_gid* gid) {
  ibv_gid_entry entry{};
  int error = fault(Call::query_gid);
  if (!error) error = query_gid_entry(c, port, static_cast<unsigned>(index), entry);
  if (error && error != ENODATA) {
    errno = error;
    return -1;
  }
  *gid = entry.gid;  // an empty entry is all zero
  return 0;
}

ADVERB_API int _ibv_query_gid_ex(ibv_context* c, std::uint32_t port, std::uint32_t index,
                                 ibv_gid_entry* out, std::uint32_t flags, std::size_t size) {
  if (flags) return EOPNOTSUPP;
  ibv_gid_entry entry{};
  if (const int error = fault(Call::query_gid)) return error;
  if (const int error = query_gid_entry(c, port, index, entry)) return error;
  copy_entry(out, entry, size);
  return 0;
}

ADVERB_API ssize_t _ibv_query_gid_table(ibv_context* c, ibv_gid_entry* out, std::size_t room,
                                        std::uint32_t flags, std::size_t size) {
  if (flags) return -EOPNOTSUPP;
  if (!of(c)->works()) return -EIO;
  std::size_t n = 0;
  for (unsigned i = 0; i < adverb::nic::gid_table_length; ++i) {
    ibv_gid_entry entry{};
    if (query_gid_entry(c, 1, i, entry)) continue;
    if (n == room) return -EINVAL;
    copy_entry(reinterpret_cast<char*>(out) + n++ * size, entry, size);
  }
  return static_cast<ssize_t>(n);
}

ADVERB_API int ibv_query_pkey(ibv_context* c, std::uint8_t port, int index, __be16* pkey) {
  int error = fault(Call::query_pkey);
  if (!error && (check_port(c, port) || index != 0)) error = EINVAL;
  if (error) {
    errno = error;
    return -1;
  }
  *pkey = 0xffff;
  return 0;
}

ADVERB_API int ibv_get_pkey_index(ibv_context* c, std::uint8_t port, __be16 pkey) {
  if (check_port(c, port) || pkey != 0xffff) {
    errno = EINVAL;
    return -1;
  }
  return 0;
}
