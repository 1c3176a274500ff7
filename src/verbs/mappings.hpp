// SPDX-License-Identifier: Apache-2.0
// What of an address space is mapped.  Answers are a moment's: the program may change it.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>

namespace adverb::verbs {

// 0; EFAULT if a byte of the range is not mapped, or not for writing if `write`; EINVAL if the
// range goes past the end of the address space.
int check_mapped(const void* address, std::size_t length, bool write);

// The address is mapped, and by no mapping that has huge pages, be they of hugetlbfs or
// transparent. False as well where nobody tells (no /proc).
bool on_ordinary_pages(const void* address);

// Bytes of a file (or of anonymous shared memory, which is a file to the kernel).
struct FileRange {
  std::uint64_t device{}, inode{};  // as /proc/PID/maps numbers them
  std::uint64_t offset{};
};

// The file that a process has mapped shared at [address, address + length), as one mapping; none if
// the memory is its own or we may not look.
std::optional<FileRange> shared_file_at(pid_t, std::uint64_t address, std::uint64_t length);
// Where this process has these bytes mapped shared, as one mapping; null if nowhere.
std::byte* own_mapping_of(const FileRange&, std::uint64_t length, bool write);
// Has the process that file mapped?
bool maps_file(pid_t, std::uint64_t device, std::uint64_t inode);

}  // namespace adverb::verbs
