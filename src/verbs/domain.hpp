// SPDX-License-Identifier: Apache-2.0
// Memory of an object that was made in a parent domain: from the domain's allocator, if it has one
// (ibv_alloc_parent_domain(3)).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "verbs/objects.hpp"

namespace adverb::verbs {

// What an allocator is told about the purpose: the driver (upper half; ours has no number in
// rdma_driver_id, so 0, RDMA_DRIVER_UNKNOWN) and its own code.
inline constexpr std::uint64_t resource_batch = 1;  // work requests that wr_complete will post

struct DomainFree {
  Pd* domain = nullptr;  // null: the memory is the C library's
  std::uint64_t resource_type = 0;
  void operator()(void*) const;
};
using DomainMemory = std::unique_ptr<void, DomainFree>;

// `alignment`: a power of two.  The content is undefined.  std::bad_alloc when there is none or the
// allocator refuses.
DomainMemory allocate(Pd&, std::size_t size, std::size_t alignment, std::uint64_t resource_type);

}  // namespace adverb::verbs
