// SPDX-License-Identifier: Apache-2.0
// What registrations of host memory and of device memory share.
#pragma once

#include <expected>
#include <string>

#include "verbs/objects.hpp"
#include "verbs/process_memory.hpp"

namespace adverb::verbs {

inline constexpr unsigned known_access =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
    IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND | IBV_ACCESS_ZERO_BASED | IBV_ACCESS_ON_DEMAND |
    IBV_ACCESS_HUGETLB | access_flush_global | access_flush_persistent;

// 0, or EINVAL and a line in the log (ibv_reg_mr(3): remote write and atomic need local write).
// Optional flags that mean nothing here are no error.
int check_access(unsigned access);

// Of these rights what a region can have that is reached by copies only: not those to atomics, nor
// on-demand paging.
unsigned reachable(unsigned access, bool by_copies);

// The memory of an object of a table; or a line that says why it is out of reach.
std::expected<ReachedMemory, std::string> reach(const SharedObjects&, const SharedObject&);

// A region of `pd` with keys, and its object with that `address` and `length`, which belongs to
// `dm` or, if that is null, to the program; others may import it.  Null and errno when all regions
// are in use.
ibv_mr* add_mr(Pd& pd, engine::MemoryRegion, void* address, std::size_t length, Dm* dm);
// The same with memory that goes with the region.
ibv_mr* add_mr(Pd& pd, engine::MemoryRegion, void* address, std::size_t length, FileMapping);

}  // namespace adverb::verbs
