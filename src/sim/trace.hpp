// SPDX-License-Identifier: Apache-2.0
// What a run leaves: a hash over every event (two runs are the same run when it is), and for people
// a line per event and a capture file.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <cstdio>
#include <span>
#include <string>

#include "base/prng.hpp"
#include "engine/burst.hpp"
#include "sim/event_queue.hpp"
#include "wire/pcap.hpp"

namespace adverb::sim {

class Trace {
 public:
  std::FILE* lines = nullptr;  // --trace
  std::FILE* pcap = nullptr;   // --pcap; begin_pcap() first

  void note(std::uint64_t a, std::uint64_t b = 0) {
    hash_ = SplitMix::mix(hash_ ^ SplitMix::mix(a ^ b * 0x9e3779b97f4a7c15));
  }
  std::uint64_t hash() const { return hash_; }
  bool wants_lines() const { return lines != nullptr; }

  template <class... T>
  void line(Picoseconds now, fmt::format_string<T...> text, T&&... values) {
    if (lines) write(now, fmt::format(text, std::forward<T>(values)...));
  }
  void begin_pcap();
  // A frame as it leaves its host: Ethernet, IP, UDP, `transport` from BTH to ICRC.
  void capture(Picoseconds now, const wire::IpPath&, std::span<const std::uint8_t> transport);

 private:
  void write(Picoseconds now, const std::string& text);
  std::uint64_t hash_ = 0x5eed;
};

// "RC SEND_ONLY psn 12 qp 0x4001 ..." for people.
std::string describe(const wire::Packet&);
const char* name_of(engine::WcStatus);
const char* name_of(engine::WrOpcode);

}  // namespace adverb::sim
