// SPDX-License-Identifier: Apache-2.0
// Devices differ where the specification and the manual pages leave room, and where drivers do as
// they like.  A profile is whose behaviour a device shows: ConnectX hardware with the mlx5 driver,
// the kernel's soft-RoCE (rxe), or the letter of the specification and the manual pages.  One table
// has every such point, with what says so.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace adverb::nic {

enum class Profile : std::uint8_t { mlx5, rxe, strict };
inline constexpr std::array<std::string_view, 3> profile_names{"mlx5", "rxe", "strict"};
std::optional<Profile> find_profile(std::string_view name);

// How many entries a queue has that was asked for with n.
enum class Rounding : std::uint8_t { exact, power_of_two, power_of_two_less_one };
// n rounded, but not above `limit`.
std::uint32_t round_up(Rounding, std::uint32_t n, std::uint32_t limit);

// What becomes of a work request that is wrong.
enum class Wrong : std::uint8_t { refused, completes };
// How much inline data a queue pair has that was asked for some.
enum class InlineRoom : std::uint8_t { exact, rest_of_wqe, at_least_the_sges };

enum class Point : std::uint8_t {
  inline_too_long,
  too_many_sges,
  recv_beside_srq,
  wrong_operation,
  misaligned_atomic,
  long_datagram,
  datagram_sl,
  send_queue_size,
  recv_queue_size,
  srq_size,
  cq_size,
  inline_room,
  max_msg_sz,
  atomic_cap,
};
inline constexpr unsigned points = static_cast<unsigned>(Point::atomic_cap) + 1;

struct ProfileValue {
  std::uint32_t number;   // an errno, an enumerator or an amount, by the row
  std::string_view word;  // the same for people
};
struct ProfileRow {
  Point point;
  std::string_view what;
  std::array<ProfileValue, 3> values;  // by Profile
  std::string_view source;
};
std::span<const ProfileRow> profile_rows();

// The column of one profile.
class Behaviour {
 public:
  explicit Behaviour(Profile);
  std::uint32_t operator[](Point p) const { return values_[static_cast<unsigned>(p)]; }
  int error(Point p) const { return static_cast<int>((*this)[p]); }
  template <class E>
  E get(Point p) const {
    return static_cast<E>((*this)[p]);
  }

 private:
  std::array<std::uint32_t, points> values_{};
};

}  // namespace adverb::nic
