// SPDX-License-Identifier: Apache-2.0
#include "engine/flow.hpp"

#include <algorithm>
#include <cstring>

namespace adverb::engine {

FlowRule* FlowTable::add(const FlowRule& rule) {
  if (rules_.size() >= max_rules) return nullptr;
  const auto at = std::upper_bound(
      rules_.begin(), rules_.end(), rule.priority,
      [](std::uint16_t priority, const auto& r) { return priority < r->priority; });
  return rules_.insert(at, std::make_unique<FlowRule>(rule))->get();
}

void FlowTable::remove(FlowRule* rule) {
  std::erase_if(rules_, [&](const auto& r) { return r.get() == rule; });
}

void FlowTable::forget(const QueuePair& qp) {
  std::erase_if(rules_, [&](const auto& r) { return r->qp == &qp; });
}

bool FlowTable::uses(const QueuePair& qp) const {
  return std::any_of(rules_.begin(), rules_.end(), [&](const auto& r) { return r->qp == &qp; });
}

bool FlowTable::fits(const FlowRule& rule, const wire::FlowKey& key) {
  std::uint8_t k[sizeof key], v[sizeof key], m[sizeof key];
  std::memcpy(k, &key, sizeof key);
  std::memcpy(v, &rule.value, sizeof key);
  std::memcpy(m, &rule.mask, sizeof key);
  unsigned difference = 0;
  for (std::size_t i = 0; i < sizeof key; ++i) difference |= (k[i] ^ v[i]) & m[i];
  return difference == 0;
}

}  // namespace adverb::engine
