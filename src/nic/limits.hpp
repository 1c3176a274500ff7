// SPDX-License-Identifier: Apache-2.0
// The limits of a device: what query_device reports and the creators enforce.  ADVERB_LIMITS sets
// them lower, to imitate a smaller NIC: "max_qp=16,max_mr=8,memlock=65536".
#pragma once

#include <array>
#include <cstdint>
#include <expected>
#include <string>
#include <string_view>

namespace adverb::nic {

// The names are those of ibv_device_attr, and of ibv_qp_cap and ibv_device_attr_ex for what it has
// not.  The value is the device's own, above which nothing can be set.  `memlock` is the sum of
// bytes that regions pin on a NIC, in whole pages.
// clang-format off
#define ADVERB_LIMITS(X) \
  X(max_mr_size, ~std::uint64_t{0}) \
  X(max_qp, 16383) \
  X(max_qp_wr, 32768) \
  X(max_sge, 32) \
  X(max_sge_rd, 32) \
  X(max_cq, 65536) \
  X(max_cqe, 4194303) \
  X(max_mr, 65536) \
  X(max_mw, 65536) \
  X(max_pd, 65536) \
  X(max_qp_rd_atom, 128) \
  X(max_res_rd_atom, 128 * 16383) \
  X(max_qp_init_rd_atom, 128) \
  X(max_ah, 262144) \
  X(max_srq, 65536) \
  X(max_srq_wr, 32767) \
  X(max_srq_sge, 31) \
  X(max_inline_data, 1024) \
  X(max_dm_size, 1048576) \
  X(max_wq_type_rq, 16383) \
  X(max_rwq_indirection_tables, 65536) \
  X(max_rwq_indirection_table_size, 2048) \
  X(memlock, ~std::uint64_t{0})
// clang-format on

enum class Limit : std::uint8_t {
#define ADVERB_LIMIT(name, value) name,
  ADVERB_LIMITS(ADVERB_LIMIT)
#undef ADVERB_LIMIT
};
inline constexpr unsigned limits = static_cast<unsigned>(Limit::memlock) + 1;
std::string_view name_of(Limit);
std::uint64_t own_limit(Limit);  // the device's

class Limits {
 public:
  Limits();  // the device's own
  // Of "name=value,..."; or what is wrong with it, in a line.
  static std::expected<Limits, std::string> parse(std::string_view);

  std::uint64_t operator[](Limit l) const { return values_[static_cast<unsigned>(l)]; }

 private:
  std::array<std::uint64_t, limits> values_;
};

}  // namespace adverb::nic
