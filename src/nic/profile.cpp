// SPDX-License-Identifier: Apache-2.0
#include "nic/profile.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>

namespace adverb::nic {
namespace {

template <class E>
constexpr ProfileValue value(E e, std::string_view word) {
  return {static_cast<std::uint32_t>(e), word};
}

constexpr ProfileValue enomem{ENOMEM, "ENOMEM"}, einval{EINVAL, "EINVAL"};
constexpr ProfileValue exact = value(Rounding::exact, "exact"),
                       pow2 = value(Rounding::power_of_two, "2^n"),
                       pow2_less_one = value(Rounding::power_of_two_less_one, "2^n - 1");
constexpr ProfileValue refused = value(Wrong::refused, "EINVAL"),
                       completes = value(Wrong::completes, "LOC_QP_OP_ERR"),
                       answered = value(Wrong::completes, "REM_INV_REQ_ERR");
constexpr ProfileValue fails{1, "LOC_LEN_ERR"}, vanishes{0, "SUCCESS, no packet"};
constexpr ProfileValue header{1, "10 (IPv4), 9 (IPv6)"}, none{0, "0"};
constexpr ProfileValue hca{1, "HCA"}, glob{2, "GLOB"};

// clang-format off
constexpr ProfileRow rows[] = {
    // what a device does                                  mlx5     rxe      strict
    {Point::inline_too_long, "post_send, inline data above max_inline_data",
     {enomem, einval, einval},
     "drivers; strict: no value of the request that create_qp granted"},
    {Point::too_many_sges, "post_send, num_sge above max_send_sge",
     {enomem, einval, einval},
     "drivers; IBTA 11.4.1.1, invalid scatter/gather list length"},
    {Point::recv_beside_srq, "post_recv to a QP with an SRQ",
     {enomem, einval, einval},
     "drivers (mlx5: a receive queue of no entries is full); ibv_post_recv(3)"},
    {Point::wrong_operation, "operation that a UC or UD QP has not",
     {completes, completes, refused},
     "drivers; IBTA 11.4.1.1, invalid operation type"},
    {Point::misaligned_atomic, "atomic at an address that is no multiple of 8",
     {answered, refused, answered},
     "drivers; IBTA 9.4.5, the responder finds it"},
    {Point::long_datagram, "UD message above the MTU",
     {fails, vanishes, vanishes},
     "drivers; IBTA C10-93.1.1: no packet, and no error"},
    {Point::datagram_sl, "sl in the completion of a received datagram",
     {header, none, none},
     "drivers; annex A17.4.5.1: RoCE has no service level there"},
    {Point::send_queue_size, "entries of a send queue",
     {pow2, pow2_less_one, exact},
     "drivers; ibv_create_qp(3): equal or larger"},
    {Point::recv_queue_size, "entries of a receive queue",
     {pow2, pow2_less_one, exact},
     "drivers; ibv_create_qp(3)"},
    {Point::srq_size, "entries of an SRQ",
     {pow2_less_one, pow2_less_one, exact},
     "drivers; ibv_create_srq(3)"},
    {Point::cq_size, "entries of a CQ",
     {pow2_less_one, pow2_less_one, exact},
     "drivers; ibv_create_cq(3), ibv_resize_cq(3)"},
    {Point::inline_room, "max_inline_data that is granted",
     {value(InlineRoom::rest_of_wqe, "rest of the WQE"),
      value(InlineRoom::at_least_the_sges, "at least 16 a SGE"),
      value(InlineRoom::exact, "exact")},
     "drivers; ibv_create_qp(3)"},
    {Point::max_msg_sz, "max_msg_sz of the port",
     {ProfileValue{1u << 30, "2^30"}, ProfileValue{1u << 23, "2^23"},
      ProfileValue{1u << 31, "2^31"}},
     "drivers; IBTA 9.7.4: at most 2^31 bytes"},
    {Point::atomic_cap, "atomic_cap of the device",
     {hca, hca, glob},
     "drivers; ibv_query_device(3): the CPU's own instructions execute atomics"},
};
// clang-format on
static_assert(std::size(rows) == points);

// The queue of n entries that mlx5 and rxe keep one of free.
std::uint32_t with_a_free_one(std::uint32_t n) { return std::bit_ceil(n + 1) - 1; }

}  // namespace

std::optional<Profile> find_profile(std::string_view name) {
  const auto at = std::ranges::find(profile_names, name);
  if (at == profile_names.end()) return std::nullopt;
  return static_cast<Profile>(at - profile_names.begin());
}

std::uint32_t round_up(Rounding how, std::uint32_t n, std::uint32_t limit) {
  std::uint32_t rounded = n;
  if (n && how == Rounding::power_of_two) rounded = std::bit_ceil(n);
  if (n && how == Rounding::power_of_two_less_one) rounded = with_a_free_one(n);
  return std::max(n, std::min(rounded, limit));
}

std::span<const ProfileRow> profile_rows() { return rows; }

Behaviour::Behaviour(Profile profile) {
  for (const ProfileRow& row : rows)
    values_[static_cast<unsigned>(row.point)] = row.values[static_cast<unsigned>(profile)].number;
}

}  // namespace adverb::nic
