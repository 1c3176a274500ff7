// SPDX-License-Identifier: Apache-2.0
// Questions about devices, ports and objects, and names of numbers.
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

}  // namespace step
}  // namespace adverb::fuzz
