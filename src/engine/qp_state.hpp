// SPDX-License-Identifier: Apache-2.0
// The queue pair state machine: which transitions exist, and which attributes each one needs and
// allows (IBTA vol. 1, 10.3.1 and 11.2.5.2, tables "QP state transition properties";
// ibv_modify_qp(3)).
#pragma once

#include <cstdint>

#include "engine/types.hpp"

namespace adverb::engine {

// Numbered as ibv_qp_attr_mask.
enum QpAttrMask : std::uint32_t {
  attr_state = 1 << 0,
  attr_cur_state = 1 << 1,
  attr_en_sqd_async_notify = 1 << 2,
  attr_access_flags = 1 << 3,
  attr_pkey_index = 1 << 4,
  attr_port = 1 << 5,
  attr_qkey = 1 << 6,
  attr_av = 1 << 7,
  attr_path_mtu = 1 << 8,
  attr_timeout = 1 << 9,
  attr_retry_cnt = 1 << 10,
  attr_rnr_retry = 1 << 11,
  attr_rq_psn = 1 << 12,
  attr_max_qp_rd_atomic = 1 << 13,
  attr_alt_path = 1 << 14,
  attr_min_rnr_timer = 1 << 15,
  attr_sq_psn = 1 << 16,
  attr_max_dest_rd_atomic = 1 << 17,
  attr_path_mig_state = 1 << 18,
  attr_cap = 1 << 19,
  attr_dest_qpn = 1 << 20,
  attr_rate_limit = 1 << 25,
};
inline constexpr std::uint32_t attr_kernel_only = 0xfu
                                                  << 21;  // passed through by librdmacm, ignored

// What modify_qp sets.  Members are meaningful where the mask names them.
struct QpAttributes {
  QpState state{};
  QpState cur_state{};
  Mtu path_mtu{Mtu::mtu_1024};
  std::uint32_t qkey{};
  Psn rq_psn{}, sq_psn{};
  Qpn dest_qpn{};
  std::uint32_t access_flags{};
  AddressVector av{};
  std::uint16_t pkey_index{};
  bool en_sqd_async_notify{};
  std::uint8_t max_rd_atomic{}, max_dest_rd_atomic{};
  std::uint8_t min_rnr_timer{};  // 5-bit code
  std::uint8_t port{1};
  std::uint8_t timeout{};    // 5 bits: 4.096 us * 2^timeout, 0 never
  std::uint8_t retry_cnt{};  // 3 bits
  std::uint8_t rnr_retry{};  // 3 bits, 7 for ever
  std::uint8_t path_mig_state{};
};

// Why a transition was refused; `reason` is one line for the log, without the object's name.
struct TransitionError {
  enum Kind : std::uint8_t {
    none,
    no_such_transition,
    missing_attribute,
    attribute_not_allowed
  } kind{none};
  std::uint32_t mask{};  // the attributes in question
};

// Checks mask for the transition from -> to of a QP of this type.  Mask bits of attr_kernel_only
// are ignored.
TransitionError check_transition(QpType, QpState from, QpState to, std::uint32_t mask);
// The least mask with which that transition is made: what it requires, and attr_state.
std::uint32_t required_attributes(QpType, QpState from, QpState to);
// The names of the attributes in mask as the verbs API spells them, comma-separated, into out
// (NUL-terminated, cut to size).
void describe_mask(std::uint32_t mask, char* out, unsigned size);
const char* name_of(QpState);

}  // namespace adverb::engine
