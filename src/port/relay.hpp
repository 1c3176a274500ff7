// SPDX-License-Identifier: Apache-2.0
// What travels between the relay sockets of one user's processes (design D5): frames that came to
// the wrong one, and bells.
#pragma once

#include <cstdint>
#include <string>

#include "base/types.hpp"

namespace adverb::port {

// Before the segments; on one host and between equals: host byte order.  Alone it is a bell, which
// only wakes who sleeps.
struct RelayHeader {
  static constexpr std::uint32_t magic_of_this_version = 0x41447201;
  std::uint32_t magic = magic_of_this_version;
  std::uint32_t flow_label{};
  std::uint32_t segment{};
  std::uint8_t traffic_class{}, hop_limit{}, icrc_verified{}, reserved{};
  Gid source{}, destination{};
};

// Wakes the process of another slot, so that it looks at memory that both share.
class RelayBell {
 public:
  explicit RelayBell(std::string name_prefix);
  ~RelayBell();
  RelayBell(const RelayBell&) = delete;
  void ring(unsigned slot);

 private:
  std::string prefix_;
  int socket_;
};

}  // namespace adverb::port
