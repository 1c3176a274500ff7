// SPDX-License-Identifier: Apache-2.0
// Makes a failing scenario smaller while it fails: without this fault, this event, this pair, with
// half the operations.
#pragma once

#include <functional>

#include "sim/scenario.hpp"

namespace adverb::sim {

// `fails` runs a scenario.  `tries` bounds how often.
Scenario shrink(Scenario failing, const std::function<bool(const Scenario&)>& fails,
                unsigned tries);

}  // namespace adverb::sim
