// SPDX-License-Identifier: Apache-2.0
// What of the address space is mapped.
#pragma once

#include <cstddef>

namespace adverb::verbs {

// 0; EFAULT if a byte of the range is not mapped, or not for writing if `write`; EINVAL if the
// range goes past the end of the address space.  A moment's answer: the program may change it.
int check_mapped(const void* address, std::size_t length, bool write);

}  // namespace adverb::verbs
