// SPDX-License-Identifier: Apache-2.0
// The strong values that every layer speaks in: packet sequence numbers, queue pair numbers, GIDs
// and time.  Arithmetic exists only where the specification has it: Psn has no `<`, because on a
// circle there is none.
#pragma once

#include <array>
#include <chrono>
#include <compare>
#include <cstdint>
#include <cstring>

namespace adverb {

// A clock that cannot be read: Instants come in as arguments (the engine is sans-I/O).
struct EngineClock {
  using duration = std::chrono::nanoseconds;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<EngineClock, duration>;
  static constexpr bool is_steady = true;
};
using Duration = EngineClock::duration;
using Instant = EngineClock::time_point;
inline constexpr Instant never = Instant::max();

// Packet sequence number: 24 bits, a circle (IBTA vol. 1, 9.7.2).  a - b is the signed distance.
class Psn {
 public:
  constexpr Psn() = default;
  constexpr explicit Psn(std::uint32_t x) : v_(x & 0xffffff) {}
  constexpr std::uint32_t raw() const { return v_; }
  friend constexpr bool operator==(Psn, Psn) = default;
  friend constexpr Psn operator+(Psn a, std::uint32_t n) { return Psn(a.v_ + n); }
  friend constexpr Psn operator-(Psn a, std::uint32_t n) { return Psn(a.v_ - n); }
  friend constexpr std::int32_t operator-(Psn a, Psn b) {
    return static_cast<std::int32_t>((a.v_ - b.v_) << 8) >> 8;
  }

 private:
  std::uint32_t v_{};
};

// Queue pair number: 24 bits.  The upper ten are the slot of the process that owns it (see
// ARCHITECTURE.md).
class Qpn {
 public:
  static constexpr unsigned slot_bits = 10, index_bits = 14;
  constexpr Qpn() = default;
  constexpr explicit Qpn(std::uint32_t x) : v_(x & 0xffffff) {}
  static constexpr Qpn of(unsigned slot, unsigned index) { return Qpn(slot << index_bits | index); }
  constexpr std::uint32_t raw() const { return v_; }
  constexpr unsigned slot() const { return v_ >> index_bits; }
  constexpr unsigned index() const { return v_ & ((1u << index_bits) - 1); }
  friend constexpr bool operator==(Qpn, Qpn) = default;

 private:
  std::uint32_t v_{};
};

// Global identifier: an IPv6 address; an IPv4 address stands as ::ffff:a.b.c.d (annex A17).
struct Gid {
  std::array<std::uint8_t, 16> bytes{};
  friend constexpr bool operator==(const Gid&, const Gid&) = default;
  constexpr bool is_zero() const { return *this == Gid{}; }
  constexpr bool is_v4() const {
    for (int i = 0; i < 10; ++i)
      if (bytes[i]) return false;
    return bytes[10] == 0xff && bytes[11] == 0xff;
  }
  // An MGID: an IPv6 multicast address, or an IPv4 one (224.0.0.0/4) that is mapped.
  constexpr bool is_multicast() const {
    return bytes[0] == 0xff || (is_v4() && bytes[12] >> 4 == 0xe);
  }
  // The address of a v4-mapped GID, in network byte order.
  std::uint32_t v4() const {
    std::uint32_t a;
    std::memcpy(&a, &bytes[12], 4);
    return a;
  }
  static Gid from_v4(std::uint32_t network_order) {
    Gid g;
    g.bytes[10] = g.bytes[11] = 0xff;
    std::memcpy(&g.bytes[12], &network_order, 4);
    return g;
  }
};

}  // namespace adverb
