// SPDX-License-Identifier: Apache-2.0
// `adverb run`: sets the environment in which a program's libibverbs.so.1 is ours, then becomes the
// program (design D1): exit status, standard streams and signals are the program's own.  Where
// fault rules are to be counted over the whole run, it stays as the program's parent, to the same
// effect.
#pragma once

#include <string>
#include <vector>

namespace adverb::cli {

// Exit statuses of our own, as env(1) and nohup(1) have them.
inline constexpr int exit_failure = 125, exit_not_executable = 126, exit_not_found = 127;
// The program ended with 0, but a fault rule that must fire did not.
inline constexpr int exit_not_fired = 123;

struct Variable {
  std::string name, value;
};

// Returns only when the program could not be started: one of the statuses above.
int run(const std::vector<Variable>& variables, std::vector<std::string> command);

}  // namespace adverb::cli
