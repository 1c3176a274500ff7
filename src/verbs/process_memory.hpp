// SPDX-License-Identifier: Apache-2.0
// The memory of another process, for what is imported from it (ibv_import_mr(3)): where both have
// the same file or shared memory mapped, our own mapping of it; else the kernel copies
// (process_vm_readv(2)), if we may.
#pragma once

#include <sys/types.h>

#include <expected>
#include <memory>
#include <string>

#include "engine/memory.hpp"

namespace adverb::verbs {

struct ReachedMemory {
  std::byte* base = nullptr;  // of this process, or with `through` of the other one
  std::shared_ptr<const engine::IndirectMemory> through;  // null: by loads and stores
};

// [base, base + length) of `owner`, for writing too if `write`; or a line that says why not.
std::expected<ReachedMemory, std::string> reach(pid_t owner, std::uint64_t base,
                                                std::uint64_t length, bool write);

}  // namespace adverb::verbs
