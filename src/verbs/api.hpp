// SPDX-License-Identifier: Apache-2.0
// The public verbs API (libibverbs-dev 44) as this library implements it: its declarations with
// default visibility and without the macros that stand in front of functions that are defined here,
// and the parts that newer releases of the API added, declared by ourselves, because the installed
// header must not decide the sizes of structures.
#pragma once

#pragma GCC visibility push(default)
#include <infiniband/verbs.h>
#pragma GCC visibility pop

#undef ibv_get_device_list
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

#include <cstddef>
#include <cstdint>

#include "engine/qp_state.hpp"
#include "engine/receive_work_queue.hpp"
#include "engine/types.hpp"

#define ADVERB_API extern "C" __attribute__((visibility("default")))

namespace adverb::verbs {

// --- added after release 44, with the numbers of the API
inline constexpr unsigned access_flush_global = 1u << 8, access_flush_persistent = 1u << 9;
inline constexpr std::uint64_t qp_ex_with_flush = 1u << 11;

// verbs_context of release 65: six more slots on top; `sz` and `context` stay the last members.
struct VerbsContext {
  void (*free_buf)(void*);
  void* (*alloc_buf)(ibv_pd*, std::size_t, void**);
  int (*dm_export_dmabuf_fd)(ibv_dm*);
  ibv_mr* (*reg_mr_ex)(ibv_pd*, void*);
  int (*dealloc_dmah)(void*);
  void* (*alloc_dmah)(ibv_context*, void*);
  verbs_context v44;
};

// ibv_qp_ex with the slot of release 45.
struct QpExtended {
  ibv_qp_ex ex;
  void (*wr_flush)(ibv_qp_ex*, std::uint32_t rkey, std::uint64_t remote_addr, std::size_t len,
                   std::uint8_t type, std::uint8_t level);
};

// ibv_port_attr with the field of release 49.  Padding of 44 lies where it stands.
struct PortAttributes {
  ibv_port_attr v44;
  std::uint32_t active_speed_ex;
};

static_assert(sizeof(VerbsContext) == 696 && sizeof(verbs_context) == 648);
static_assert(offsetof(VerbsContext, v44.context) + sizeof(ibv_context) == sizeof(VerbsContext));
static_assert(offsetof(verbs_context, sz) + sizeof(std::size_t) ==
              offsetof(verbs_context, context));
static_assert(sizeof(QpExtended) == 360 && offsetof(QpExtended, wr_flush) == 352);
static_assert(sizeof(PortAttributes) == 56 && sizeof(ibv_port_attr) == 52);
static_assert(sizeof(ibv_device) == 664 && sizeof(ibv_context) == 328 && sizeof(ibv_cq) == 128);
static_assert(sizeof(ibv_cq_ex) == 288 && sizeof(ibv_qp) == 160 && sizeof(ibv_srq) == 128);
static_assert(sizeof(ibv_comp_channel) == 16 && sizeof(ibv_pd) == 16 && sizeof(ibv_mr) == 48);
static_assert(sizeof(ibv_device_attr) == 232 && sizeof(ibv_device_attr_ex) == 400 &&
              sizeof(ibv_wc) == 48);
static_assert(sizeof(ibv_async_event) == 16 && sizeof(ibv_gid_entry) == 32 &&
              sizeof(ibv_qp_attr) == 144);
static_assert(offsetof(ibv_device, name) == 24 && offsetof(ibv_device, ibdev_path) == 408);
static_assert(offsetof(ibv_context, cmd_fd) == 264 && offsetof(ibv_context, abi_compat) == 320);
static_assert(offsetof(ibv_cq_ex, start_poll) == 144 && offsetof(ibv_qp_ex, wr_start) == 320);
static_assert(offsetof(verbs_context, query_port) == 0 &&
              offsetof(verbs_context, query_device_ex) == 216);

// --- the engine's enumerators are the API's: the shell casts and never translates
template <class A, class B>
constexpr bool same(A a, B b) {
  return static_cast<unsigned>(a) == static_cast<unsigned>(b);
}
namespace e = engine;
static_assert(same(e::QpType::rc, IBV_QPT_RC) && same(e::QpType::uc, IBV_QPT_UC) &&
              same(e::QpType::ud, IBV_QPT_UD) && same(e::QpType::xrc_send, IBV_QPT_XRC_SEND) &&
              same(e::QpType::xrc_recv, IBV_QPT_XRC_RECV) &&
              same(e::QpType::raw_packet, IBV_QPT_RAW_PACKET));
static_assert(same(e::QpState::reset, IBV_QPS_RESET) && same(e::QpState::init, IBV_QPS_INIT) &&
              same(e::QpState::rtr, IBV_QPS_RTR) && same(e::QpState::rts, IBV_QPS_RTS) &&
              same(e::QpState::sqd, IBV_QPS_SQD) && same(e::QpState::sqe, IBV_QPS_SQE) &&
              same(e::QpState::error, IBV_QPS_ERR));
static_assert(same(e::Mtu::mtu_256, IBV_MTU_256) && same(e::Mtu::mtu_4096, IBV_MTU_4096));
static_assert(same(e::WrOpcode::rdma_write, IBV_WR_RDMA_WRITE) &&
              same(e::WrOpcode::rdma_write_with_imm, IBV_WR_RDMA_WRITE_WITH_IMM) &&
              same(e::WrOpcode::send, IBV_WR_SEND) &&
              same(e::WrOpcode::send_with_imm, IBV_WR_SEND_WITH_IMM) &&
              same(e::WrOpcode::rdma_read, IBV_WR_RDMA_READ) &&
              same(e::WrOpcode::atomic_cmp_and_swp, IBV_WR_ATOMIC_CMP_AND_SWP) &&
              same(e::WrOpcode::atomic_fetch_and_add, IBV_WR_ATOMIC_FETCH_AND_ADD) &&
              same(e::WrOpcode::local_inv, IBV_WR_LOCAL_INV) &&
              same(e::WrOpcode::bind_mw, IBV_WR_BIND_MW) &&
              same(e::WrOpcode::send_with_inv, IBV_WR_SEND_WITH_INV) &&
              same(e::WrOpcode::atomic_write, IBV_WR_ATOMIC_WRITE));
static_assert(same(e::send_fence, IBV_SEND_FENCE) && same(e::send_signaled, IBV_SEND_SIGNALED) &&
              same(e::send_solicited, IBV_SEND_SOLICITED) && same(e::send_inline, IBV_SEND_INLINE));
static_assert(same(e::WcStatus::success, IBV_WC_SUCCESS) &&
              same(e::WcStatus::loc_prot_err, IBV_WC_LOC_PROT_ERR) &&
              same(e::WcStatus::wr_flush_err, IBV_WC_WR_FLUSH_ERR) &&
              same(e::WcStatus::mw_bind_err, IBV_WC_MW_BIND_ERR) &&
              same(e::WcStatus::rem_access_err, IBV_WC_REM_ACCESS_ERR) &&
              same(e::WcStatus::rnr_retry_exc_err, IBV_WC_RNR_RETRY_EXC_ERR) &&
              same(e::WcStatus::general_err, IBV_WC_GENERAL_ERR));
static_assert(same(e::WcOpcode::send, IBV_WC_SEND) &&
              same(e::WcOpcode::rdma_write, IBV_WC_RDMA_WRITE) &&
              same(e::WcOpcode::rdma_read, IBV_WC_RDMA_READ) &&
              same(e::WcOpcode::comp_swap, IBV_WC_COMP_SWAP) &&
              same(e::WcOpcode::fetch_add, IBV_WC_FETCH_ADD) &&
              same(e::WcOpcode::bind_mw, IBV_WC_BIND_MW) &&
              same(e::WcOpcode::local_inv, IBV_WC_LOCAL_INV) &&
              same(e::WcOpcode::atomic_write, IBV_WC_ATOMIC_WRITE) &&
              same(e::WcOpcode::recv, IBV_WC_RECV) &&
              same(e::WcOpcode::recv_rdma_with_imm, IBV_WC_RECV_RDMA_WITH_IMM));
static_assert(same(e::wc_grh, IBV_WC_GRH) && same(e::wc_with_imm, IBV_WC_WITH_IMM) &&
              same(e::wc_with_inv, IBV_WC_WITH_INV));
static_assert(same(e::access_local_write, IBV_ACCESS_LOCAL_WRITE) &&
              same(e::access_remote_write, IBV_ACCESS_REMOTE_WRITE) &&
              same(e::access_remote_read, IBV_ACCESS_REMOTE_READ) &&
              same(e::access_remote_atomic, IBV_ACCESS_REMOTE_ATOMIC) &&
              same(e::access_mw_bind, IBV_ACCESS_MW_BIND) &&
              same(e::access_zero_based, IBV_ACCESS_ZERO_BASED) &&
              same(e::access_on_demand, IBV_ACCESS_ON_DEMAND) &&
              same(e::access_flush_global, access_flush_global) &&
              same(e::access_flush_persistent, access_flush_persistent));
static_assert(same(e::AsyncEvent::cq_err, IBV_EVENT_CQ_ERR) &&
              same(e::AsyncEvent::comm_est, IBV_EVENT_COMM_EST) &&
              same(e::AsyncEvent::sq_drained, IBV_EVENT_SQ_DRAINED) &&
              same(e::AsyncEvent::port_active, IBV_EVENT_PORT_ACTIVE) &&
              same(e::AsyncEvent::srq_limit_reached, IBV_EVENT_SRQ_LIMIT_REACHED) &&
              same(e::AsyncEvent::qp_last_wqe_reached, IBV_EVENT_QP_LAST_WQE_REACHED) &&
              same(e::AsyncEvent::gid_change, IBV_EVENT_GID_CHANGE) &&
              same(e::AsyncEvent::wq_fatal, IBV_EVENT_WQ_FATAL));
static_assert(same(e::WqState::reset, IBV_WQS_RESET) && same(e::WqState::ready, IBV_WQS_RDY) &&
              same(e::WqState::error, IBV_WQS_ERR));
static_assert(same(e::rx_src_ipv4, IBV_RX_HASH_SRC_IPV4) &&
              same(e::rx_dst_ipv4, IBV_RX_HASH_DST_IPV4) &&
              same(e::rx_src_ipv6, IBV_RX_HASH_SRC_IPV6) &&
              same(e::rx_dst_ipv6, IBV_RX_HASH_DST_IPV6) &&
              same(e::rx_src_port_tcp, IBV_RX_HASH_SRC_PORT_TCP) &&
              same(e::rx_dst_port_tcp, IBV_RX_HASH_DST_PORT_TCP) &&
              same(e::rx_src_port_udp, IBV_RX_HASH_SRC_PORT_UDP) &&
              same(e::rx_dst_port_udp, IBV_RX_HASH_DST_PORT_UDP));
static_assert(same(e::attr_state, IBV_QP_STATE) &&
              same(e::attr_access_flags, IBV_QP_ACCESS_FLAGS) && same(e::attr_av, IBV_QP_AV) &&
              same(e::attr_alt_path, IBV_QP_ALT_PATH) && same(e::attr_cap, IBV_QP_CAP) &&
              same(e::attr_dest_qpn, IBV_QP_DEST_QPN) &&
              same(e::attr_rate_limit, IBV_QP_RATE_LIMIT) &&
              same(e::attr_min_rnr_timer, IBV_QP_MIN_RNR_TIMER) &&
              same(e::attr_path_mig_state, IBV_QP_PATH_MIG_STATE) &&
              same(e::attr_max_dest_rd_atomic, IBV_QP_MAX_DEST_RD_ATOMIC) &&
              same(e::attr_sq_psn, IBV_QP_SQ_PSN));
static_assert(sizeof(e::Sge) == sizeof(ibv_sge) &&
              offsetof(e::Sge, lkey) == offsetof(ibv_sge, lkey));

}  // namespace adverb::verbs
