// SPDX-License-Identifier: Apache-2.0
// The words of the verbs API as the engine's own values.  Enumerators that the API also has carry
// the same numbers as libibverbs (ibv_wc_status, ibv_wc_opcode, ibv_qp_state, access and attribute
// masks); the shell in src/verbs asserts that at compile time, so it casts and never translates.
#pragma once

#include <array>
#include <cstdint>

#include "base/types.hpp"

namespace adverb::engine {

using PdId = std::uint32_t;    // protection domain; 0 is none
using XrcdId = std::uint32_t;  // XRC domain; 0 is none
using Srqn = Qpn;              // number of an XRC SRQ: made of slot and index as a QPN is

enum class QpType : std::uint8_t {
  rc = 2,
  uc = 3,
  ud = 4,
  raw_packet = 8,
  xrc_send = 9,
  xrc_recv = 10
};
enum class QpState : std::uint8_t { reset, init, rtr, rts, sqd, sqe, error };
enum class Mtu : std::uint8_t { mtu_256 = 1, mtu_512, mtu_1024, mtu_2048, mtu_4096 };
constexpr std::uint32_t bytes_of(Mtu m) { return 128u << static_cast<unsigned>(m); }

enum class WrOpcode : std::uint8_t {
  rdma_write = 0,
  rdma_write_with_imm = 1,
  send = 2,
  send_with_imm = 3,
  rdma_read = 4,
  atomic_cmp_and_swp = 5,
  atomic_fetch_and_add = 6,
  local_inv = 7,
  bind_mw = 8,
  send_with_inv = 9,
  flush = 14,
  atomic_write = 15,
};
enum SendFlags : std::uint8_t {
  send_fence = 1 << 0,
  send_signaled = 1 << 1,
  send_solicited = 1 << 2,
  send_inline = 1 << 3,
};

enum class WcStatus : std::uint8_t {
  success,
  loc_len_err,
  loc_qp_op_err,
  loc_eec_op_err,
  loc_prot_err,
  wr_flush_err,
  mw_bind_err,
  bad_resp_err,
  loc_access_err,
  rem_inv_req_err,
  rem_access_err,
  rem_op_err,
  retry_exc_err,
  rnr_retry_exc_err,
  loc_rdd_viol_err,
  rem_inv_rd_req_err,
  rem_abort_err,
  inv_eecn_err,
  inv_eec_state_err,
  fatal_err,
  resp_timeout_err,
  general_err,
};
enum class WcOpcode : std::uint8_t {
  send = 0,
  rdma_write = 1,
  rdma_read = 2,
  comp_swap = 3,
  fetch_add = 4,
  bind_mw = 5,
  local_inv = 6,
  flush = 8,
  atomic_write = 9,
  recv = 128,
  recv_rdma_with_imm = 129,
};
enum WcFlags : std::uint8_t { wc_grh = 1 << 0, wc_with_imm = 1 << 1, wc_with_inv = 1 << 3 };

enum Access : std::uint32_t {
  access_local_write = 1 << 0,
  access_remote_write = 1 << 1,
  access_remote_read = 1 << 2,
  access_remote_atomic = 1 << 3,
  access_mw_bind = 1 << 4,
  access_zero_based = 1 << 5,
  access_on_demand = 1 << 6,
  access_flush_global = 1 << 8,
  access_flush_persistent = 1 << 9,
};

// What the engine reports about an object, numbered as ibv_event_type.
enum class AsyncEvent : std::uint8_t {
  cq_err = 0,
  qp_fatal = 1,
  qp_req_err = 2,
  qp_access_err = 3,
  comm_est = 4,
  sq_drained = 5,
  path_mig = 6,
  path_mig_err = 7,
  device_fatal = 8,
  port_active = 9,
  port_err = 10,
  lid_change = 11,
  pkey_change = 12,
  sm_change = 13,
  srq_err = 14,
  srq_limit_reached = 15,
  qp_last_wqe_reached = 16,
  client_reregister = 17,
  gid_change = 18,
  wq_fatal = 19,
};

// How a frame travels: in UDP, in Ethernet frames of EtherType 0x8915 (annex A16), or as a whole
// Ethernet frame that the application made (raw packet queue pairs).
enum class Protocol : std::uint8_t { roce_v2, roce_v1, ethernet };

// A path to one destination, as an address handle or the AV of a connected QP holds it.
struct AddressVector {
  Gid dgid{};
  std::uint32_t flow_label{};
  std::uint8_t sgid_index{}, hop_limit{64}, traffic_class{}, sl{};
  std::array<std::uint8_t, 6> dmac{};  // RoCE v1: the next hop's Ethernet address
  // As ibv_rate numbers it, to be told when asked.  The engine does not pace by it: it sends at the
  // port's rate.
  std::uint8_t static_rate{};
  friend bool operator==(const AddressVector&, const AddressVector&) = default;
};

struct Sge {
  std::uint64_t addr{};
  std::uint32_t length{};
  std::uint32_t lkey{};
};

// A completion, as poll_cq hands it out.  `qp` is the engine's own, for the shell to find its
// object.
class QueuePair;
struct Cqe {
  std::uint64_t wr_id{};
  WcStatus status{};
  WcOpcode opcode{};
  std::uint8_t wc_flags{};
  std::uint8_t sl{};
  std::uint32_t vendor_err{};
  std::uint32_t byte_len{};
  std::uint32_t imm_or_rkey{};  // host order of the wire's word
  Qpn qp_num{};
  Qpn src_qp{};
  std::uint64_t completed_at{};  // Instant of the burst in ns, for completion timestamps
  QueuePair* qp{};
  std::uint32_t sq_advance{};  // send queue slots that polling this entry frees
  std::uint16_t cvlan{};       // raw packets: the VLAN tag that was taken out, or 0
};

}  // namespace adverb::engine
