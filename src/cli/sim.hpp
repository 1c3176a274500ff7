// SPDX-License-Identifier: Apache-2.0
// `adverb sim`: runs the engine in the deterministic world of src/sim.
#pragma once

#include <cstdint>
#include <string>

namespace adverb::cli {

struct SimOptions {
  std::uint64_t first = 0, last = 0;
  std::string scenario, pcap, dump;
  unsigned jobs = 0;        // 0: one per core
  bool keep_going = false;  // after a failure
  bool trace = false, hashes = false, shrink = true, bench = false;
};

// 0 when everything held, 1 when something was violated, 2 for bad arguments.
int sim(const SimOptions&);

}  // namespace adverb::cli
