// SPDX-License-Identifier: Apache-2.0
// Runs of the simulator in processes of their own: over many seeds on all cores, or of one scenario
// that may bring its process down.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "sim/scenario.hpp"
#include "sim/world.hpp"

namespace adverb::cli {

// What a worker says of one run, over its pipe; fits into PIPE_BUF, so that it arrives whole.
struct Report {
  std::uint64_t seed, hash, events, frames, operations, end, errors, generations;
  std::uint32_t begins;  // the run starts: the rest is empty
  char violation[600];
};

struct Seeds {
  std::uint64_t first = 0, last = 0;
  unsigned jobs = 0;        // 0: one per core
  bool keep_going = false;  // after a failure
  bool hashes = false;      // print them, instead of a summary
};

// Runs them, with progress on a terminal; prints the summary when all held.  The first failure, if
// any.
std::optional<Report> run_seeds(const Seeds&);

// Runs it in a child; a death there is a violation too.
Report run_apart(const sim::Scenario&);

}  // namespace adverb::cli
