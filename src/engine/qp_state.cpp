// SPDX-License-Identifier: Apache-2.0
// The transitions as rows: what each type of QP must be given (required) and may be given
// (optional). attr_state and attr_kernel_only are always allowed and stand in no row.
#include "engine/qp_state.hpp"

#include <cstddef>

namespace adverb::engine {

namespace {

enum Types : std::uint8_t {
  rc = 1,
  uc = 2,
  ud = 4,
  xrc_ini = 8,   // XRC_SEND: a requester only
  xrc_tgt = 16,  // XRC_RECV: a responder only
  raw = 32,
  xrc = xrc_ini | xrc_tgt,
  connected = rc | uc | xrc,
  all = connected | ud | raw,
};

constexpr std::uint8_t bit_of(QpType t) {
  switch (t) {
    case QpType::rc:
      return rc;
    case QpType::uc:
      return uc;
    case QpType::ud:
      return ud;
    case QpType::xrc_send:
      return xrc_ini;
    case QpType::xrc_recv:
      return xrc_tgt;
    case QpType::raw_packet:
      return raw;
  }
  return 0;
}

struct Row {
  QpState from, to;
  std::uint8_t types;
  std::uint32_t required, optional;
};

using enum QpState;
constexpr std::uint32_t address = attr_pkey_index | attr_port;
constexpr std::uint32_t path = attr_av | attr_path_mtu | attr_dest_qpn | attr_rq_psn;
constexpr std::uint32_t responder = attr_max_dest_rd_atomic | attr_min_rnr_timer;
constexpr std::uint32_t requester =
    attr_timeout | attr_retry_cnt | attr_rnr_retry | attr_max_qp_rd_atomic;
constexpr std::uint32_t migration = attr_alt_path | attr_path_mig_state;
constexpr std::uint32_t running = attr_cur_state | attr_access_flags | migration;

// clang-format off
constexpr Row rows[] = {
    // from, to, types, required, optional
    {reset, init, connected, address | attr_access_flags, 0},
    {reset, init, ud, address | attr_qkey, 0},
    {reset, init, raw, attr_port, 0},
    {init, init, raw, 0, attr_port},
    {init, rtr, raw, 0, 0},
    {rtr, rts, raw, 0, attr_cur_state},
    {rts, rts, raw, 0, attr_cur_state},
    {init, init, connected, 0, address | attr_access_flags},
    {init, init, ud, 0, address | attr_qkey},
    {init, rtr, rc | xrc_tgt, path | responder,
     attr_alt_path | attr_access_flags | attr_pkey_index},
    {init, rtr, uc | xrc_ini, path, attr_alt_path | attr_access_flags | attr_pkey_index},
    {init, rtr, ud, 0, attr_pkey_index | attr_qkey},
    {rtr, rts, rc, attr_sq_psn | requester, running | attr_min_rnr_timer},
    {rtr, rts, xrc_ini, attr_sq_psn | requester, running},
    {rtr, rts, xrc_tgt, attr_sq_psn | attr_timeout, running | attr_min_rnr_timer},
    {rtr, rts, uc, attr_sq_psn, running},
    {rtr, rts, ud, attr_sq_psn, attr_cur_state | attr_qkey},
    {rts, rts, rc | xrc_tgt, 0, running | attr_min_rnr_timer},
    {rts, rts, uc | xrc_ini, 0, running},
    {rts, rts, ud, 0, attr_cur_state | attr_qkey},
    {rts, sqd, all, 0, attr_en_sqd_async_notify},
    {sqd, rts, rc | xrc_tgt, 0, running | attr_min_rnr_timer},
    {sqd, rts, uc | xrc_ini, 0, running},
    {sqd, rts, ud, 0, attr_cur_state | attr_qkey},
    {sqd, rts, raw, 0, attr_cur_state},
    {sqd, sqd, rc, 0,
     address | attr_av | requester | responder | attr_access_flags | migration},
    {sqd, sqd, xrc_ini, 0, address | attr_av | requester | attr_access_flags | migration},
    {sqd, sqd, xrc_tgt, 0,
     address | attr_av | attr_timeout | responder | attr_access_flags | migration},
    {sqd, sqd, uc, 0, attr_pkey_index | attr_av | attr_access_flags | migration},
    {sqd, sqd, ud, 0, attr_pkey_index | attr_qkey},
    // A send queue error leaves an RC QP in the error state: only UC and UD know SQE.
    {sqe, rts, uc, 0, attr_cur_state | attr_access_flags},
    {sqe, rts, ud, 0, attr_cur_state | attr_qkey},
    {sqe, rts, raw, 0, attr_cur_state},
};
// clang-format on

constexpr Row any_to_reset{reset, reset, all, 0, 0};
constexpr Row any_to_error{error, error, all, 0, 0};

const Row* find_row(QpType type, QpState from, QpState to) {
  if (to == reset) return &any_to_reset;
  if (to == error && from != reset) return &any_to_error;
  for (const Row& row : rows)
    if (row.from == from && row.to == to && (row.types & bit_of(type))) return &row;
  return nullptr;
}

constexpr const char* attribute_names[] = {
    "IBV_QP_STATE",
    "IBV_QP_CUR_STATE",
    "IBV_QP_EN_SQD_ASYNC_NOTIFY",
    "IBV_QP_ACCESS_FLAGS",
    "IBV_QP_PKEY_INDEX",
    "IBV_QP_PORT",
    "IBV_QP_QKEY",
    "IBV_QP_AV",
    "IBV_QP_PATH_MTU",
    "IBV_QP_TIMEOUT",
    "IBV_QP_RETRY_CNT",
    "IBV_QP_RNR_RETRY",
    "IBV_QP_RQ_PSN",
    "IBV_QP_MAX_QP_RD_ATOMIC",
    "IBV_QP_ALT_PATH",
    "IBV_QP_MIN_RNR_TIMER",
    "IBV_QP_SQ_PSN",
    "IBV_QP_MAX_DEST_RD_ATOMIC",
    "IBV_QP_PATH_MIG_STATE",
    "IBV_QP_CAP",
    "IBV_QP_DEST_QPN",
};
constexpr unsigned named_bits = sizeof(attribute_names) / sizeof(attribute_names[0]);

const char* name_of_bit(unsigned bit) {
  if (bit < named_bits) return attribute_names[bit];
  if (1u << bit == attr_rate_limit) return "IBV_QP_RATE_LIMIT";
  return "unknown";
}

}  // namespace

TransitionError check_transition(QpType type, QpState from, QpState to, std::uint32_t mask) {
  const Row* row = find_row(type, from, to);
  if (!row) return {TransitionError::no_such_transition, 0};
  const std::uint32_t missing = row->required & ~mask;
  if (missing) return {TransitionError::missing_attribute, missing};
  const std::uint32_t allowed = row->required | row->optional | attr_state | attr_kernel_only;
  if (mask & ~allowed) return {TransitionError::attribute_not_allowed, mask & ~allowed};
  return {};
}

std::uint32_t required_attributes(QpType type, QpState from, QpState to) {
  const Row* row = find_row(type, from, to);
  return attr_state | (row ? row->required : 0);
}

void describe_mask(std::uint32_t mask, char* out, unsigned size) {
  if (!size) return;
  unsigned used = 0;
  const auto put = [&](const char* text) {
    while (*text && used + 1 < size) out[used++] = *text++;
  };
  for (unsigned bit = 0; bit < 32; ++bit) {
    if (!(mask >> bit & 1)) continue;
    if (used) put(", ");
    put(name_of_bit(bit));
  }
  out[used] = 0;
}

const char* name_of(QpState state) {
  constexpr const char* names[] = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};
  const auto i = static_cast<std::size_t>(state);
  return i < sizeof(names) / sizeof(names[0]) ? names[i] : "unknown";
}

}  // namespace adverb::engine
