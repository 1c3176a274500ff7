// SPDX-License-Identifier: Apache-2.0
// The AETH syndrome (IBTA vol. 1, 9.7.5.1.2): one byte whose bits 6:5 say ACK, RNR NAK or NAK and
// whose low five bits carry a credit count, a timer or a NAK code.  Bit 7 is reserved: sent as
// zero, ignored on receive.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>

#include "base/types.hpp"

namespace adverb::wire {

enum class AethKind : std::uint8_t { ack = 0, rnr_nak = 1, reserved = 2, nak = 3 };

enum class NakCode : std::uint8_t {
  psn_sequence_error = 0,
  invalid_request = 1,
  remote_access_error = 2,
  remote_operational_error = 3,
  invalid_rd_request = 4,  // codes above are reserved
};

constexpr AethKind aeth_kind(std::uint8_t syndrome) {
  return static_cast<AethKind>(syndrome >> 5 & 3);
}
constexpr unsigned aeth_value(std::uint8_t syndrome) { return syndrome & 31; }
// Meaningful for AethKind::nak; may be a reserved code.
constexpr NakCode nak_code(std::uint8_t syndrome) {
  return static_cast<NakCode>(aeth_value(syndrome));
}

constexpr std::uint8_t make_syndrome(AethKind kind, unsigned value) {
  return static_cast<std::uint8_t>(static_cast<unsigned>(kind) << 5 | (value & 31));
}
constexpr std::uint8_t make_rnr_nak(unsigned timer_code) {
  return make_syndrome(AethKind::rnr_nak, timer_code);
}
constexpr std::uint8_t make_nak(NakCode code) {
  return make_syndrome(AethKind::nak, static_cast<unsigned>(code));
}

// How long a requester waits after an RNR NAK, by timer code.  The order is not the order of the
// codes: 0 is the longest.
inline constexpr std::array<Duration, 32> rnr_timers = [] {
  constexpr std::array<std::uint32_t, 32> ten_microseconds{
      65536, 1,    2,    3,    4,    6,     8,     12,    16,    24,   32,
      48,    64,   96,   128,  192,  256,   384,   512,   768,   1024, 1536,
      2048,  3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};
  std::array<Duration, 32> t{};
  for (unsigned i = 0; i < 32; ++i) t[i] = std::chrono::microseconds(10) * ten_microseconds[i];
  return t;
}();
constexpr Duration rnr_timer(unsigned code) { return rnr_timers[code & 31]; }

// The credit count of an ACK: how many more requests that need a receive WQE the responder can
// take, of those after the MSN.  Code 31 says that the responder does not tell (or that it uses a
// shared receive queue).
inline constexpr std::array<std::uint32_t, 31> credit_counts{
    0,   1,   2,   3,   4,    6,    8,    12,   16,   24,   32,   48,    64,    96,    128,  192,
    256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768};
inline constexpr unsigned no_credit_limit_code = 31;
inline constexpr std::uint32_t no_credit_limit = ~0u;

// The largest code that promises no more than `count`; never no_credit_limit_code for a finite
// count.
constexpr unsigned credit_code(std::uint32_t count) {
  if (count == no_credit_limit) return no_credit_limit_code;
  auto above = std::upper_bound(credit_counts.begin(), credit_counts.end(), count);
  return static_cast<unsigned>(above - credit_counts.begin()) - 1;
}
constexpr std::uint32_t credits_of(unsigned code) {
  code &= 31;
  return code == no_credit_limit_code ? no_credit_limit : credit_counts[code];
}
// An ACK that advertises `credits` (no_credit_limit: none is advertised).
constexpr std::uint8_t make_ack(std::uint32_t credits) {
  return make_syndrome(AethKind::ack, credit_code(credits));
}

}  // namespace adverb::wire
