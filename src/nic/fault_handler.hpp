// SPDX-License-Identifier: Apache-2.0
// SIGSEGV and SIGBUS inside the guarded copy routines (design D9, Faults; base/guarded.hpp) become
// a failed copy.  Every other fault goes to the handler that was installed before, or kills as if
// ours did not exist.
//
// A program that installs its own handler after the first device was opened must chain to the
// handler it found, or registered memory that it unmaps before deregistration can stop it.
#pragma once

namespace adverb::nic {

// Installs the handler once per process; further calls do nothing.
void install_fault_handler();

}  // namespace adverb::nic
