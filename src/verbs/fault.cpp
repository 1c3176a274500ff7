// SPDX-License-Identifier: Apache-2.0
#include "verbs/fault.hpp"

#include "engine/types.hpp"
#include "verbs/api.hpp"
#include "verbs/guard.hpp"

namespace adverb::verbs {

nic::FaultRules* fault_rules = nullptr;

int load_fault_rules() {
  const auto rules = nic::FaultRules::get();
  if (!rules) {
    nic::log(nic::LogLevel::error, "fault rules: {}", rules.error());
    return EINVAL;
  }
  fault_rules = *rules;
  return 0;
}

int fault_of(Call call) {
  NotCancelled guard;
  const int error = fault_rules->call(call);
  if (error)
    nic::log(nic::LogLevel::info, "a fault rule fails ibv_{} with {}", faults::name_of(call),
             faults::name_of(faults::errnos(), error));
  return error;
}

}  // namespace adverb::verbs
