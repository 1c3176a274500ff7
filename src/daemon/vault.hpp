// SPDX-License-Identifier: Apache-2.0
// A vault keeps descriptors open without a process holding each of them: they lie, sent by
// SCM_RIGHTS, unread in the queue of a unix datagram socket.  Whoever holds that one socket keeps
// them all; reading with MSG_PEEK gives duplicates, in order, and leaves them there.  The sending
// end may be closed (tested).
#pragma once

#include <span>
#include <vector>

#include "daemon/descriptors.hpp"

namespace adverb::daemon {

// As many vaults as the descriptors need (253 each); empty leaves errno: ETOOMANYREFS when the
// user's descriptors in flight exceed RLIMIT_NOFILE.
Descriptors lock_away(std::span<const int> descriptors);

// Duplicates of everything in the vault; empty leaves errno.
Descriptors peek(int vault);

}  // namespace adverb::daemon
