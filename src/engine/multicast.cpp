// SPDX-License-Identifier: Apache-2.0
#include "engine/multicast.hpp"

#include <algorithm>

namespace adverb::engine {

MulticastTable::Group* MulticastTable::find(const Gid& gid) {
  const auto at = std::find_if(groups_.begin(), groups_.end(),
                               [&](const Group& group) { return group.gid == gid; });
  return at == groups_.end() ? nullptr : &*at;
}

std::span<QueuePair* const> MulticastTable::members(const Gid& gid) const {
  for (const Group& group : groups_)
    if (group.gid == gid) return group.members;
  return {};
}

MulticastTable::Result MulticastTable::attach(QueuePair& qp, const Gid& gid) {
  Group* group = find(gid);
  if (!group) {
    if (groups_.size() == max_groups) return Result::full;
    group = &groups_.emplace_back();
    group->gid = gid;
  }
  auto& members = group->members;
  if (std::find(members.begin(), members.end(), &qp) != members.end()) return Result::unchanged;
  if (members.size() == max_qps_per_group) return Result::full;
  members.push_back(&qp);
  return Result::done;
}

MulticastTable::Result MulticastTable::detach(QueuePair& qp, const Gid& gid) {
  Group* group = find(gid);
  if (!group || std::erase(group->members, &qp) == 0) return Result::unchanged;
  if (group->members.empty()) std::erase_if(groups_, [&](const Group& g) { return g.gid == gid; });
  return Result::done;
}

bool MulticastTable::attached(const QueuePair& qp) const {
  return std::any_of(groups_.begin(), groups_.end(), [&](const Group& group) {
    return std::find(group.members.begin(), group.members.end(), &qp) != group.members.end();
  });
}

void MulticastTable::forget(const QueuePair& qp) {
  for (Group& group : groups_) std::erase(group.members, &qp);
  std::erase_if(groups_, [](const Group& group) { return group.members.empty(); });
}

}  // namespace adverb::engine
