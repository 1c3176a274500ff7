// SPDX-License-Identifier: Apache-2.0
// Starting adverbd from inside somebody else's process: no SIGCHLD, no copied address space,
// nothing inherited.
#pragma once

#include <expected>
#include <string>

#include "daemon/client.hpp"
#include "daemon/descriptors.hpp"

namespace adverb::daemon {

// Where adverbd is: ADVERB_DAEMON, else beside the library or executable that holds this code.
std::expected<std::string, ClientError> find_daemon();

// Starts it.  The pipe ends (reads 0) once a daemon listens, that one or another that was faster;
// what comes before is why it did not start.
std::expected<Descriptor, ClientError> launch_daemon();

}  // namespace adverb::daemon
