// SPDX-License-Identifier: Apache-2.0
// The receive socket of one multicast group on one interface (design D5).  It is bound to the
// group's address, beside the steered pool and beside other processes' sockets for the same group:
// the kernel gives each of them a copy.  What a process sends to a group that it has joined comes
// back to it, as the frames of a NIC do.
#pragma once

#include <sys/socket.h>

#include "base/types.hpp"

namespace adverb::port {

// Non-blocking, close-on-exec; -1 with errno when the group cannot be joined there (ENODEV: the
// interface has no address of that family).
int open_group_socket(const Gid& group, unsigned ifindex);

// Did what was received on such a socket come in on that interface (0: any)?  IPv6 sockets hear
// what comes in on others too.
bool came_by(const msghdr&, unsigned ifindex);

// 0, or the errno with which the kernel refuses what is sent to the group from that address.
int send_error(const Gid& group, const Gid& source, unsigned ifindex);

}  // namespace adverb::port
