// SPDX-License-Identifier: Apache-2.0
// Touching memory that is not ours.  Registered memory belongs to the application, which may unmap,
// protect or truncate it at any time, and may watch it while we write: so every access goes through
// these routines and nothing else.
//
// - Faults: each routine is a leaf whose instructions lie in known ranges and use no stack.  A
//   SIGSEGV or SIGBUS in them resumes at the routine's failure exit (guarded_recover; for a copy,
//   once by way of a byte loop).  The routine then returns false: all bytes before the fault were
//   copied and none after it; only a 2, 4 or 8 byte source that straddles the fault gives nothing.
//   A thread that copies must not block these signals: the kernel would kill the process.
// - Placement: bytes are stored in ascending address order and the last bytes after all others,
//   with release semantics: an application that polls the last byte sees all that precede it.
// - An aligned 8, 4 or 2 byte access is one load and one store.
#pragma once

#include <csignal>
#include <cstddef>
#include <cstdint>

namespace adverb {

// Copies size bytes; the ranges do not overlap.  False after a fault on either side.
[[nodiscard]] bool guarded_copy(void* destination, const void* source, std::size_t size);

// 64-bit atomics on naturally aligned application memory, with CPU instructions (so that the
// application's own atomics mix with them).  The original value is stored in *original.
[[nodiscard]] bool guarded_fetch_add(std::uint64_t* target, std::uint64_t add,
                                     std::uint64_t* original);
[[nodiscard]] bool guarded_compare_swap(std::uint64_t* target, std::uint64_t compare,
                                        std::uint64_t swap, std::uint64_t* original);

// If the interrupted instruction lies in a guarded routine, makes the context resume at its failure
// exit and returns true.  For the signal handler that src/nic installs.
bool guarded_recover(void* ucontext);

}  // namespace adverb
