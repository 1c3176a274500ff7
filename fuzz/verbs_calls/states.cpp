// SPDX-License-Identifier: Apache-2.0
// The state machine: the right way up, and any other transition with any attributes.
#include "verbs_calls/steps.hpp"

namespace adverb::fuzz {
namespace {

std::uint32_t mask_from(ibv_qp_state from, ibv_qp_type type) {
  const bool rc = type != IBV_QPT_UC && type != IBV_QPT_UD, ud = type == IBV_QPT_UD;
  if (type == IBV_QPT_RAW_PACKET) return IBV_QP_STATE | (from == IBV_QPS_RESET ? IBV_QP_PORT : 0);
  switch (from) {
    case IBV_QPS_RESET:
      return IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX |
             (ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
    case IBV_QPS_INIT:
      if (ud) return IBV_QP_STATE;
      return IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
             (rc ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0);
    default:
      return IBV_QP_STATE | IBV_QP_SQ_PSN |
             (rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC
                 : 0);
  }
}

ibv_qp_attr right_attributes(Session& s, const QpPlace& own, Record& in) {
  QpPlace* peer = a_qp(s, in);
  for (QpPlace& q : s.qps) {  // an XRC initiator's peer is a target, and the other way round
    const bool halves =
        q.qp && (q.xrcd ? own : q).qp->qp_type == IBV_QPT_XRC_SEND && (q.xrcd || own.xrcd);
    if (halves) peer = &q;
  }
  ibv_qp_attr a{};
  a.path_mtu = IBV_MTU_1024;
  a.dest_qp_num = peer->qp->qp_num;
  a.rq_psn = a.sq_psn = 7;
  a.qkey = 0x11;
  a.qp_access_flags = 0xe;
  a.max_rd_atomic = a.max_dest_rd_atomic = 2;
  a.min_rnr_timer = 1;
  a.timeout = 8;
  a.retry_cnt = a.rnr_retry = 1;
  a.port_num = 1;
  a.ah_attr.is_global = a.ah_attr.port_num = 1;
  a.ah_attr.grh.hop_limit = 64;
  ibv_query_gid(s.contexts[0], 1, 0, &a.ah_attr.grh.dgid);
  return a;
}

void advance(Session& s, QpPlace& p, Record& in) {
  const ibv_qp_state from = current(p).qp_state;
  if (from > IBV_QPS_RTR) return;
  ibv_qp_attr a = right_attributes(s, p, in);
  a.qp_state = any<ibv_qp_state>(from + 1u);
  const int mask = static_cast<int>(mask_from(from, p.qp->qp_type));
  const int error = ibv_modify_qp(p.qp, &a, mask);
  // A peer's bad request may have moved it to the error state meanwhile.
  REQUIRE(error == 0 || (error == EINVAL && current(p).qp_state == IBV_QPS_ERR));
}

void spoil(ibv_qp_attr& a, Record& in) {
  switch (in.below(12)) {
    case 0:
      a.path_mtu = any<ibv_mtu>(in.chance(128) ? in.byte() : in.word());
      break;
    case 1:
      a.cur_qp_state = any<ibv_qp_state>(in.word());
      break;
    case 2:
      a.timeout = in.byte();
      break;
    case 3:
      a.retry_cnt = in.byte(), a.rnr_retry = in.byte();
      break;
    case 4:
      a.max_rd_atomic = in.byte(), a.max_dest_rd_atomic = in.byte();
      break;
    case 5:
      a.min_rnr_timer = in.byte();
      break;
    case 6:
      a.port_num = in.byte(), a.pkey_index = in.byte();
      break;
    case 7:
      a.ah_attr.grh.sgid_index = in.byte(), a.ah_attr.port_num = in.byte();
      break;
    case 8:
      a.ah_attr.is_global = 0;
      break;
    case 9:
      a.ah_attr.grh.dgid = {};
      a.ah_attr.grh.dgid.raw[in.below(16)] = in.byte();
      break;
    case 10:
      a.dest_qp_num = in.word(), a.rq_psn = in.word(), a.sq_psn = in.word();
      break;
    default:
      a.qp_access_flags = in.word(), a.path_mig_state = any<ibv_mig_state>(in.word());
  }
}

// What a queue pair keeps of access flags: those of ibv_modify_qp(3), and the two of FLUSH.
constexpr unsigned remote_rights =
    IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC | 3u << 8;

// What traffic cannot have changed in the meantime.
bool same(const ibv_qp_attr& a, const ibv_qp_attr& b) {
  return a.path_mtu == b.path_mtu && a.qkey == b.qkey && a.dest_qp_num == b.dest_qp_num &&
         a.qp_access_flags == b.qp_access_flags && a.pkey_index == b.pkey_index &&
         a.max_rd_atomic == b.max_rd_atomic && a.max_dest_rd_atomic == b.max_dest_rd_atomic &&
         a.min_rnr_timer == b.min_rnr_timer && a.port_num == b.port_num && a.timeout == b.timeout &&
         a.retry_cnt == b.retry_cnt && a.rnr_retry == b.rnr_retry &&
         std::memcmp(&a.ah_attr.grh, &b.ah_attr.grh, sizeof a.ah_attr.grh) == 0;
}

}  // namespace

void ready(Session& s, QpPlace& p, Record& in) {
  for (int i = 0; i < 3; ++i) advance(s, p, in);
}

ibv_qp_attr current(QpPlace& p) {
  ibv_qp_attr a;
  ibv_qp_init_attr init;
  REQUIRE(ibv_query_qp(p.qp, &a, 0, &init) == 0);
  REQUIRE(init.send_cq == (p.send ? p.send->cq : nullptr));
  REQUIRE(init.recv_cq == (p.receive ? p.receive->cq : nullptr));
  return a;
}

namespace step {

void bring_up(Session& s, Record& in) {
  if (QpPlace* p = a_qp(s, in)) advance(s, *p, in);
}

// As far as RTS.
void ready(Session& s, Record& in) {
  if (QpPlace* p = a_qp(s, in)) fuzz::ready(s, *p, in);
}

void modify(Session& s, Record& in) {
  QpPlace* p = a_qp(s, in);
  if (!p) return;
  const ibv_qp_attr before = current(*p);
  ibv_qp_attr a = right_attributes(s, *p, in);
  a.qp_state = any<ibv_qp_state>(in.chance(240) ? in.below(7) : in.word());
  a.cur_qp_state = before.qp_state;
  std::uint32_t mask = IBV_QP_STATE;
  if (in.chance(128)) mask = mask_from(before.qp_state, p->qp->qp_type);
  if (in.chance(128)) spoil(a, in);
  if (in.chance(64)) mask ^= 1u << in.below(32);
  if (in.chance(32)) mask = in.word();
  const int error = checked(ibv_modify_qp(p->qp, &a, static_cast<int>(mask)));
  const ibv_qp_attr after = current(*p);
  if (error) {
    REQUIRE(same(before, after));
  } else if (mask & IBV_QP_STATE && a.qp_state == IBV_QPS_RESET) {
    s.forget(p->serial);
  } else {
    if (mask & IBV_QP_TIMEOUT) REQUIRE(after.timeout == a.timeout);
    if (mask & IBV_QP_ACCESS_FLAGS)
      REQUIRE(after.qp_access_flags == (a.qp_access_flags & remote_rights));
    if (mask & IBV_QP_PATH_MTU) REQUIRE(after.path_mtu == a.path_mtu);
    if (mask & IBV_QP_QKEY) REQUIRE(after.qkey == a.qkey);
  }
}

}  // namespace step
}  // namespace adverb::fuzz
