// SPDX-License-Identifier: Apache-2.0
// A program as a child whose end is waited for, and which is otherwise as if it stood in our place:
// it gets the signals that are sent to us, stops and goes on with us, and does not outlive us.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace adverb::cli {

// Starts it and waits for its end; returns its wait status (wait(2)), or nothing and errno when it
// could not be started.  Signals stay blocked when it has ended: one that ended the program must
// not keep us from saying what there is to say.
std::optional<int> supervise(std::vector<std::string>& command);

// Ends this process as that status tells: with its exit status, or by its signal.
[[noreturn]] void end_as(int wait_status);

}  // namespace adverb::cli
