// SPDX-License-Identifier: Apache-2.0
// Questions about devices, ports and objects, names of numbers, and what there is not.
#include <arpa/inet.h>

#include <cstring>

#include "verbs_calls/steps.hpp"

namespace adverb::fuzz {
namespace step {

void query(Session& s, Record& in) {
  ibv_context* c = context(s, in);
  ibv_device_attr_ex device;
  ibv_query_device_ex_input input{in.chance(16) ? in.word() : 0};
  checked(ibv_query_device_ex(c, in.chance(128) ? nullptr : &input, &device));
  ibv_port_attr port;
  const auto number = static_cast<std::uint8_t>(in.chance(128) ? 1 : in.byte());
  REQUIRE(checked(ibv_query_port(c, number, &port)) == (number == 1 ? 0 : EINVAL));
  ibv_gid gid;
  const int index = in.chance(240) ? in.byte() : static_cast<int>(in.word());
  errno = 0;
  const int error = ibv_query_gid(c, number, index, &gid);
  REQUIRE(error == 0 || (error == -1 && errno > 0));
  __be16 pkey = 0;
  errno = 0;
  const int second = ibv_query_pkey(c, number, index, &pkey);
  REQUIRE(second == 0 || (second == -1 && errno > 0));
  ibv_gid_entry entries[4];
  const ssize_t n = ibv_query_gid_table(c, entries, in.below(5), 0);
  REQUIRE(n >= -4096 && n <= 4);
  checked(ibv_query_gid_ex(c, number, static_cast<std::uint32_t>(index), entries, 0));
  ibv_srq_attr srq;
  if (SrqPlace* p = pick(s.srqs, &SrqPlace::srq, in)) checked(ibv_query_srq(p->srq, &srq));
}

void names(Session&, Record& in) {
  const std::uint32_t v = in.chance(200) ? in.byte() : in.word();
  REQUIRE(ibv_wc_status_str(any<ibv_wc_status>(v)));
  REQUIRE(ibv_event_type_str(any<ibv_event_type>(v)));
  REQUIRE(ibv_port_state_str(any<ibv_port_state>(v)));
  REQUIRE(ibv_node_type_str(any<ibv_node_type>(v)));
  REQUIRE(ibv_rate_to_mult(any<ibv_rate>(v)) >= -1);
  REQUIRE(ibv_rate_to_mbps(any<ibv_rate>(v)) >= -1);
  REQUIRE(mult_to_ibv_rate(static_cast<int>(v)) <= IBV_RATE_1200_GBPS);
  REQUIRE(mbps_to_ibv_rate(static_cast<int>(v)) <= IBV_RATE_1200_GBPS);
}

// Each question has one right answer.
void query_constants(Session& s, Record& in) {
  ibv_context* c = context(s, in);
  ibv_values_ex values{in.chance(240) ? std::uint32_t{IBV_VALUES_MASK_RAW_CLOCK} : in.word(), {}};
  const bool clock_only =
      (values.comp_mask | IBV_VALUES_MASK_RAW_CLOCK) == IBV_VALUES_MASK_RAW_CLOCK;
  REQUIRE(checked(ibv_query_rt_values_ex(c, &values)) == (clock_only ? 0 : EINVAL));
  ibv_device_attr device;
  REQUIRE(ibv_query_device(c, &device) == 0 && device.phys_port_cnt == 1);
  REQUIRE(device.node_guid == ibv_get_device_guid(c->device));
  REQUIRE(std::strcmp(ibv_get_device_name(c->device), c->device->name) == 0);
  REQUIRE(ibv_get_device_index(c->device) == -1);
  const auto port = static_cast<std::uint8_t>(in.chance(200) ? 1 : in.byte());
  const auto pkey = static_cast<__be16>(in.chance(128) ? 0xffff : in.word());
  errno = 0;
  REQUIRE(ibv_get_pkey_index(c, port, pkey) == (port == 1 && pkey == 0xffff ? 0 : -1));
  REQUIRE(ibv_is_fork_initialized() == IBV_FORK_UNNEEDED && ibv_fork_init() == 0);
  if (QpPlace* q = a_qp(s, in)) {
    const auto opcode = any<ibv_wr_opcode>(in.chance(200) ? in.below(16) : in.word());
    const int order = ibv_query_qp_data_in_order(q->qp, opcode, in.chance(200) ? 0 : in.word());
    REQUIRE(order >= 0 && order <= 3);
    ibv_ece ece{};
    REQUIRE(ibv_query_ece(q->qp, &ece) == EOPNOTSUPP && ibv_set_ece(q->qp, &ece) == EOPNOTSUPP);
    ibv_qp_attr a;
    ibv_qp_init_attr init;
    REQUIRE(ibv_query_qp(q->qp, &a, static_cast<int>(in.word()), &init) == 0);
    REQUIRE(init.qp_type == q->qp->qp_type && init.sq_sig_all == q->sig_all);
  }
}

// A header as it stands in front of a datagram, or any bytes.
void address_of_sender(Session& s, Record& in) {
  ibv_context* c = context(s, in);
  ibv_grh grh{};
  std::uint8_t* bytes = reinterpret_cast<std::uint8_t*>(&grh);
  const std::uint8_t v4[] = {0x45, 0,    0,   60, 0, 0, 0,   0, 64, 17,
                             0x7c, 0xae, 127, 0,  0, 1, 127, 0, 0,  1};
  switch (in.below(4)) {
    case 0:
      std::memcpy(bytes + 20, v4, sizeof v4);
      break;
    case 1:
      bytes[0] = 0x60, bytes[6] = 17, bytes[23] = bytes[39] = 1;
      break;
    case 2:
      bytes[0] = 0x60, bytes[6] = 0x1b;
      ibv_query_gid(c, 1, 0, &grh.sgid), ibv_query_gid(c, 1, 0, &grh.dgid);
      break;
    default:
      for (unsigned i = 0; i < 8; ++i) bytes[in.below(40)] = in.byte();
  }
  if (in.chance(64)) bytes[in.below(40)] = in.byte();
  ibv_wc wc{};
  wc.wc_flags = in.chance(230) ? IBV_WC_GRH : 0;
  const auto port = static_cast<std::uint8_t>(in.chance(230) ? 1 : in.byte());
  ibv_ah_attr a{};
  errno = 0;
  const int error = ibv_init_ah_from_wc(c, port, &wc, &grh, &a);
  REQUIRE(error == 0 || (error == -1 && errno > 0));
  std::uint8_t mac[6];
  std::uint16_t vlan = 0;
  if (a.is_global) ibv_resolve_eth_l2_from_gid(c, &a, mac, in.chance(128) ? &vlan : nullptr);
  AhPlace& p = s.ahs[in.below(2)];
  PdPlace* pd = a_pd(s, in);
  if (p.ah || !pd || pd->pd->context != c) return;
  p.ah = made([&] { return ibv_create_ah_from_wc(pd->pd, &wc, &grh, port); });
  REQUIRE(!p.ah || (!error && a.is_global));
  if (p.ah) p.pd = pd, ++pd->users;
}

// Refused, whatever the arguments are.
void unsupported(Session& s, Record& in) {
  ibv_context* c = context(s, in);
  ibv_counters_init_attr counters{in.word()};
  REQUIRE(!made([&] { return ibv_create_counters(c, &counters); }) && errno == EOPNOTSUPP);
  ibv_flow_action_esp_attr esp{};
  REQUIRE(!made([&] { return ibv_create_flow_action_esp(c, &esp); }) && errno == EOPNOTSUPP);
  if (QpPlace* q = a_qp(s, in)) {
    ibv_qp_rate_limit_attr limit{in.word(), in.word(), 0, 0};
    REQUIRE(checked(ibv_modify_qp_rate_limit(q->qp, &limit)) == EOPNOTSUPP);
  }
  if (SrqPlace* p = pick(s.srqs, &SrqPlace::srq, in)) {
    ibv_ops_wr wr{}, *bad = nullptr;
    REQUIRE(checked(ibv_post_srq_ops(p->srq, &wr, &bad)) == EOPNOTSUPP);
  }
}

}  // namespace step
}  // namespace adverb::fuzz
