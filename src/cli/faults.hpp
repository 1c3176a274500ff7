// SPDX-License-Identifier: Apache-2.0
// Fault rules on the command line: `adverb faults --check`, and what a run with rules adds to
// `adverb run`: rules are looked at before the program starts, and counted over all its processes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "nic/fault_rules.hpp"

namespace adverb::cli {

// Parses a file (or - for standard input) and says what each rule does.  0, or 2 with a line for
// each mistake.
int check_faults(const std::string& path);

// The counts of one run.  Its file lies in a folder of its own that goes away with it.
class FaultCount {
 public:
  // From the environment as the program will have it.  False: the rules are wrong, a line each has
  // been printed.
  bool prepare();
  bool has_rules() const { return !rules_.empty(); }
  // Makes the shared file and puts its name into the environment.  False: no place for it; printed.
  bool share();
  void report() const;  // a line for each rule, to standard error
  // Names the rules that never acted on standard error; true: there are none.
  bool all_fired() const;
  FaultCount() = default;
  FaultCount(const FaultCount&) = delete;
  ~FaultCount() { remove(); }
  void remove();  // the shared file

 private:
  std::vector<faults::Rule> rules_;
  std::string folder_;
  std::unique_ptr<nic::FaultTotals> totals_;
};

}  // namespace adverb::cli
