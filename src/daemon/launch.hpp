// SPDX-License-Identifier: Apache-2.0
// Starting adverbd from inside somebody else's process: no SIGCHLD, no copied address space,
// nothing inherited.
#pragma once

#include <expected>
#include <string>

#include "daemon/client.hpp"

namespace adverb::daemon {

// Where adverbd is: ADVERB_DAEMON, else beside the library or executable that holds this code.
std::expected<std::string, ClientError> find_daemon();

// Starts it.  The returned process ends with status 0 once a daemon listens (that one or another
// that was faster); reap it with waitpid(pid, ..., __WALL).
std::expected<int, ClientError> launch_daemon();

}  // namespace adverb::daemon
