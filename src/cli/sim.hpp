// SPDX-License-Identifier: Apache-2.0
// `adverb sim`: runs the engine in the deterministic world of src/sim.
#pragma once

#include <string>

#include "cli/fleet.hpp"

namespace adverb::cli {

struct SimOptions {
  Seeds seeds;
  std::string scenario;    // a file, instead of seeds
  std::string pcap, dump;  // files to write: the frames; the scenario
  std::string save;        // where a failure's smaller scenario goes
  bool trace = false, shrink = true, bench = false;
};

// 0 when everything held, 1 when something was violated.  Throws for files that cannot be read.
int sim(const SimOptions&);

}  // namespace adverb::cli
