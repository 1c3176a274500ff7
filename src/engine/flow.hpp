// SPDX-License-Identifier: Apache-2.0
// Flow rules: which raw packet queue pairs get an Ethernet frame (ibv_create_flow(3)).
//
// A frame goes to the rule that fits it and has the lowest priority number, of equals to the oldest
// one, and to every rule with the same match beside it; behind a rule that does not trap, the rest
// is looked at too.  What no such rule has taken goes to the default rules.  Sniffers get a copy of
// everything.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "wire/flow_key.hpp"

namespace adverb::engine {

class QueuePair;

enum class FlowType : std::uint8_t { normal, all_default, mc_default, sniffer };

struct FlowRule {
  FlowType type{};
  std::uint16_t priority{};
  bool dont_trap{};
  wire::FlowKey value, mask;  // value has no bit that the mask has not
  QueuePair* qp{};
};

class FlowTable {
 public:
  static constexpr std::size_t max_rules = 65536;

  FlowRule* add(const FlowRule&);  // null: the table is full
  void remove(FlowRule*);
  void forget(const QueuePair&);  // it is destroyed
  bool uses(const QueuePair&) const;
  bool empty() const { return rules_.empty(); }

  // Calls f(QueuePair&) for every copy that is due.  `outgoing`: this host sends it.
  template <class F>
  void deliver(const wire::FlowKey& key, bool outgoing, F&& f) const {
    for (const auto& r : rules_)
      if (r->type == FlowType::sniffer) f(*r->qp);
    if (outgoing || steer(key, f)) return;
    for (const auto& r : rules_)
      if (r->type == FlowType::all_default || (r->type == FlowType::mc_default && key.multicast()))
        f(*r->qp);
  }

 private:
  static bool fits(const FlowRule&, const wire::FlowKey&);
  // True: a rule has trapped the frame.
  template <class F>
  bool steer(const wire::FlowKey& key, F& f) const {
    const FlowRule* taken = nullptr;
    for (const auto& r : rules_) {
      if (r->type != FlowType::normal) continue;
      if (taken && r->priority != taken->priority) break;
      const bool beside = taken && r->value == taken->value && r->mask == taken->mask;
      if (taken ? !beside : !fits(*r, key)) continue;
      f(*r->qp);
      if (!r->dont_trap && !taken) taken = r.get();
    }
    return taken != nullptr;
  }

  std::vector<std::unique_ptr<FlowRule>> rules_;  // by priority, then by age
};

}  // namespace adverb::engine
