// SPDX-License-Identifier: Apache-2.0
#include "verbs/mappings.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

namespace adverb::verbs {
namespace {

// Reads /proc/self/maps line by line without allocation: only the addresses and the permissions are
// looked at.
class Mappings {
 public:
  struct Entry {
    std::uintptr_t begin, end;
    bool readable, writable;
  };
  Mappings() : fd_(open("/proc/self/maps", O_RDONLY | O_CLOEXEC)) {}
  ~Mappings() {
    if (fd_ >= 0) close(fd_);
  }
  Mappings(const Mappings&) = delete;
  bool available() const { return fd_ >= 0; }
  bool next(Entry& e) {
    e.begin = hex();
    if (done_) return false;
    e.end = hex();
    e.readable = get() == 'r';
    e.writable = get() == 'w';
    while (!done_ && get() != '\n') {
    }
    return true;
  }

 private:
  int get() {
    if (at_ == filled_) {
      const ssize_t n = read(fd_, buffer_, sizeof buffer_);
      if (n <= 0) {
        done_ = true;
        return -1;
      }
      filled_ = static_cast<std::size_t>(n);
      at_ = 0;
    }
    return buffer_[at_++];
  }
  std::uintptr_t hex() {  // ends with the character behind the number
    std::uintptr_t value = 0;
    for (;;) {
      const int c = get();
      if (c >= '0' && c <= '9') {
        value = value << 4 | static_cast<std::uintptr_t>(c - '0');
      } else if (c >= 'a' && c <= 'f') {
        value = value << 4 | static_cast<std::uintptr_t>(c - 'a' + 10);
      } else {
        return value;
      }
    }
  }
  int fd_;
  bool done_ = false;
  std::size_t at_ = 0, filled_ = 0;
  char buffer_[8192];
};

// Without /proc: whether pages are mapped, in pieces; permissions are then found by the first
// access.
int check_resident(std::uintptr_t begin, std::uintptr_t end) {
  unsigned char pages[4096];
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  for (begin &= ~(page - 1); begin < end; begin += sizeof pages * page) {
    const std::uintptr_t n = std::min(end - begin, sizeof pages * page);
    if (mincore(reinterpret_cast<void*>(begin), n, pages)) return EFAULT;
  }
  return 0;
}

}  // namespace

int check_mapped(const void* address, std::size_t length, bool write) {
  auto at = reinterpret_cast<std::uintptr_t>(address);
  const std::uintptr_t end = at + length;
  if (end < at) return EINVAL;
  if (length == 0) return 0;
  Mappings maps;
  if (!maps.available()) return check_resident(at, end);
  for (Mappings::Entry m{}; at < end && maps.next(m);) {
    if (m.end <= at) continue;
    if (m.begin > at || !(m.readable || m.writable) || (write && !m.writable)) return EFAULT;
    at = m.end;
  }
  return at < end ? EFAULT : 0;
}

}  // namespace adverb::verbs
