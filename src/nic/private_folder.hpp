// SPDX-License-Identifier: Apache-2.0
// A folder of this process's own, for small files that calls of this process read: below
// $XDG_RUNTIME_DIR, else /dev/shm, else $TMPDIR, else /tmp, as adverb-UID/sysfs-NS-PID-START.  The
// name says whose it is (PID namespace, process, and when it started), so that whoever makes one
// removes those of processes that died without doing so.
#pragma once

#include <string>

namespace adverb::nic {

// Its absolute path without symbolic links; empty and an errno when no place takes it.  One of the
// same process is from before an execve(2), and is replaced.
std::string make_private_folder();
// With all that is in it.
void remove_private_folder(const std::string&);

}  // namespace adverb::nic
