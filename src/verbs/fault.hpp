// SPDX-License-Identifier: Apache-2.0
// Verbs that fault rules make fail (docs/faults.md).  Each verb asks at its entry; without rules
// that is one look at a null pointer.
#pragma once

#include "nic/fault_rules.hpp"

namespace adverb::verbs {

using faults::Call;

// Set by load_fault_rules(), before there is a context; null without rules.
extern nic::FaultRules* fault_rules;

// EINVAL after a line in the log, when the rules cannot be read: a program must not run as if it
// had none.
int load_fault_rules();

int fault_of(Call);  // with rules: asks them

// The errno with which this call is to fail; 0: it is not.
inline int fault(Call call) { return fault_rules ? fault_of(call) : 0; }

}  // namespace adverb::verbs
