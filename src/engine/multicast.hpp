// SPDX-License-Identifier: Apache-2.0
// Multicast groups: which queue pairs get what is sent to an MGID (IBTA 10.5, ibv_attach_mcast(3)).
// A datagram to a group has the destination QPN 0xFFFFFF, and every attached queue pair gets a copy
// of its own.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/types.hpp"

namespace adverb::engine {

class QueuePair;

inline constexpr Qpn multicast_qpn{0xffffff};

class MulticastTable {
 public:
  // As ibv_query_device(3) tells them.
  static constexpr std::uint32_t max_groups = 128, max_qps_per_group = 240;

  enum class Result : std::uint8_t { done, unchanged, full };
  // unchanged: it was attached already.
  Result attach(QueuePair&, const Gid& group);
  // unchanged: it was not attached.
  Result detach(QueuePair&, const Gid& group);
  bool attached(const QueuePair&) const;  // to any group
  void forget(const QueuePair&);          // it is destroyed
  // In the order in which they were attached; none: nobody here is in that group.
  std::span<QueuePair* const> members(const Gid& group) const;

 private:
  struct Group {
    Gid gid{};
    std::vector<QueuePair*> members;
  };
  Group* find(const Gid&);
  std::vector<Group> groups_;
};

}  // namespace adverb::engine
