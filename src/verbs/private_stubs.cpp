// SPDX-License-Identifier: Apache-2.0
// The private nodes, one per release of rdma-core's provider interface.  Programs link libmlx5 and
// libefa directly, which will not load without these names.  No driver is ever loaded here:
// registering one does nothing, commands to the kernel fail with EOPNOTSUPP.  The one function that
// programs call themselves is ibv_query_gid_type.
#include <cerrno>

#include "verbs/objects.hpp"

using namespace adverb::verbs;

ADVERB_API int adverb_private_error() {
  errno = EOPNOTSUPP;
  return EOPNOTSUPP;
}
ADVERB_API void* adverb_private_pointer() {
  errno = EOPNOTSUPP;
  return nullptr;
}
ADVERB_API void adverb_private_nothing() {}
ADVERB_API unsigned adverb_private_number() { return 0; }
ADVERB_API bool adverb_private_object;
bool adverb_private_object = false;

// The types are 0 for InfiniBand and RoCE v1, 1 for RoCE v2.
ADVERB_API int adverb_private_gid_type(ibv_context* c, std::uint8_t port, unsigned index,
                                       unsigned* type) {
  if (port != 1 || index >= adverb::nic::gid_table_length) {
    errno = EINVAL;
    return -1;
  }
  *type = of(c)->info().gids[index].is_zero() || adverb::nic::is_roce_v1(index) ? 0 : 1;
  return 0;
}

#define X(kind, name, node, at) \
  __asm__(".symver adverb_private_" #kind ", " #name at "IBVERBS_PRIVATE_" #node);
#include "verbs/private_symbols.inc"
#undef X
