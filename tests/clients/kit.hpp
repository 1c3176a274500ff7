// SPDX-License-Identifier: Apache-2.0
// What the client programs share: a device and its objects, connecting queue pairs, content that a
// seed determines.  A failing call ends the program with a line that names it.
#pragma once

#include <infiniband/verbs.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/prng.hpp"

namespace adverb::clients {

enum Exit { exit_good = 0, exit_wrong_data = 1, exit_usage = 2, exit_stuck = 3, exit_failed = 4 };

[[noreturn, gnu::format(printf, 2, 3)]] inline void die(int status, const char* format, ...) {
  std::fflush(stdout);
  va_list args;
  va_start(args, format);
  std::vfprintf(stderr, format, args);
  va_end(args);
  std::fputc('\n', stderr);
  std::_Exit(status);
}

template <class T>
T* need(T* object, const char* call) {
  if (!object) die(exit_failed, "%s: %s", call, std::strerror(errno));
  return object;
}
inline void need_zero(int error, const char* call) {
  if (error) die(exit_failed, "%s: %s", call, std::strerror(error > 0 ? error : errno));
}

// --- content: word i of a message is a function of the message's seed and i

inline std::uint64_t content_word(std::uint64_t seed, std::uint64_t i) {
  return SplitMix::mix(seed + i * 0x9e3779b97f4a7c15);
}
inline void fill(std::uint8_t* p, std::size_t size, std::uint64_t seed) {
  for (std::size_t at = 0; at < size; at += 8) {
    const std::uint64_t word = content_word(seed, at / 8);
    std::memcpy(p + at, &word, std::min<std::size_t>(8, size - at));
  }
}
// The first byte that is not as `fill` makes it, or `size`.
inline std::size_t first_difference(const std::uint8_t* p, std::size_t size, std::uint64_t seed) {
  for (std::size_t at = 0; at < size; at += 8) {
    const std::uint64_t word = content_word(seed, at / 8);
    const std::size_t n = std::min<std::size_t>(8, size - at);
    if (std::memcmp(p + at, &word, n) == 0) continue;
    std::uint8_t bytes[8];
    std::memcpy(bytes, &word, 8);
    for (std::size_t i = 0; i < n; ++i)
      if (p[at + i] != bytes[i]) return at + i;
  }
  return size;
}

// --- device

struct Nic {
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_port_attr port{};
  ibv_gid gid{};
  unsigned gid_index = 0;

  void open(const std::string& name, unsigned index) {
    int n = 0;
    ibv_device** list = need(ibv_get_device_list(&n), "ibv_get_device_list");
    ibv_device* chosen = nullptr;
    for (int i = 0; i < n && !chosen; ++i)
      if (name.empty() || name == ibv_get_device_name(list[i])) chosen = list[i];
    if (!chosen) die(exit_usage, "no RDMA device %s", name.c_str());
    context = need(ibv_open_device(chosen), "ibv_open_device");
    ibv_free_device_list(list);
    need_zero(ibv_query_port(context, 1, &port), "ibv_query_port");
    gid_index = index;
    need_zero(ibv_query_gid(context, 1, static_cast<int>(index), &gid), "ibv_query_gid");
    pd = need(ibv_alloc_pd(context), "ibv_alloc_pd");
  }
  void close() {
    need_zero(ibv_dealloc_pd(pd), "ibv_dealloc_pd");
    need_zero(ibv_close_device(context), "ibv_close_device");
  }
  ibv_ah_attr address(const ibv_gid& to) const {
    ibv_ah_attr a{};
    a.is_global = 1;
    a.grh.dgid = to;
    a.grh.sgid_index = static_cast<std::uint8_t>(gid_index);
    a.grh.hop_limit = 64;
    a.port_num = 1;
    return a;
  }
};

// --- queue pairs

constexpr std::uint32_t ud_qkey = 0x11111111;

struct ConnectOptions {
  ibv_mtu mtu = IBV_MTU_1024;
  std::uint8_t timeout = 14, retry_cnt = 7, rnr_retry = 7;
};

inline void to_init(ibv_qp* qp) {
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_INIT;
  a.port_num = 1;
  int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
  if (qp->qp_type == IBV_QPT_UD) {
    a.qkey = ud_qkey;
    mask |= IBV_QP_QKEY;
  } else {
    a.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    if (qp->qp_type == IBV_QPT_RC)
      a.qp_access_flags |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    mask |= IBV_QP_ACCESS_FLAGS;
  }
  need_zero(ibv_modify_qp(qp, &a, mask), "ibv_modify_qp to INIT");
}

inline void to_rtr(ibv_qp* qp, const Nic& nic, const ibv_gid& to, std::uint32_t qpn,
                   std::uint32_t psn, const ConnectOptions& o) {
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_RTR;
  int mask = IBV_QP_STATE;
  if (qp->qp_type != IBV_QPT_UD) {
    a.ah_attr = nic.address(to);
    a.path_mtu = o.mtu;
    a.dest_qp_num = qpn;
    a.rq_psn = psn;
    mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  }
  if (qp->qp_type == IBV_QPT_RC) {
    a.max_dest_rd_atomic = 8;
    a.min_rnr_timer = 12;
    mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  }
  need_zero(ibv_modify_qp(qp, &a, mask), "ibv_modify_qp to RTR");
}

inline void to_rts(ibv_qp* qp, std::uint32_t psn, const ConnectOptions& o) {
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_RTS;
  a.sq_psn = psn;
  int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
  if (qp->qp_type == IBV_QPT_RC) {
    a.timeout = o.timeout;
    a.retry_cnt = o.retry_cnt;
    a.rnr_retry = o.rnr_retry;
    a.max_rd_atomic = 8;
    mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
  }
  need_zero(ibv_modify_qp(qp, &a, mask), "ibv_modify_qp to RTS");
}

}  // namespace adverb::clients
