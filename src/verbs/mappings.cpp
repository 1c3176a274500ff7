// SPDX-License-Identifier: Apache-2.0
#include "verbs/mappings.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <string>

namespace adverb::verbs {
namespace {

// Reads /proc/PID/maps line by line without allocation; the names of files are not looked at.
class Mappings {
 public:
  struct Entry {
    std::uintptr_t begin, end;
    bool readable, writable, shared;
    FileRange file;
    bool holds(std::uint64_t address, std::uint64_t length) const {
      return address >= begin && address < end && length <= end - address;
    }
  };
  explicit Mappings(const char* path = "/proc/self/maps") : fd_(open(path, O_RDONLY | O_CLOEXEC)) {}
  explicit Mappings(pid_t process) : fd_(-1) {
    char path[32];
    std::snprintf(path, sizeof path, "/proc/%d/maps", process);
    fd_ = open(path, O_RDONLY | O_CLOEXEC);
  }
  ~Mappings() {
    if (fd_ >= 0) close(fd_);
  }
  Mappings(const Mappings&) = delete;
  bool available() const { return fd_ >= 0; }
  bool next(Entry& e) {
    e.begin = number(16);
    if (done_) return false;
    e.end = number(16);
    e.readable = get() == 'r';
    e.writable = get() == 'w';
    get();
    e.shared = get() == 's';
    get();
    e.file.offset = number(16);
    const std::uint64_t major = number(16);
    e.file.device = major << 32 | number(16);
    e.file.inode = number(10);
    while (!done_ && last_ != '\n') get();
    return true;
  }

 private:
  int get() {
    if (at_ == filled_) {
      const ssize_t n = read(fd_, buffer_, sizeof buffer_);
      if (n <= 0) {
        done_ = true;
        return last_ = -1;
      }
      filled_ = static_cast<std::size_t>(n);
      at_ = 0;
    }
    return last_ = buffer_[at_++];
  }
  std::uint64_t number(unsigned base) {  // ends with the character behind it
    std::uint64_t value = 0;
    for (;;) {
      const int c = get();
      if (c >= '0' && c <= '9') {
        value = value * base + static_cast<std::uint64_t>(c - '0');
      } else if (base == 16 && c >= 'a' && c <= 'f') {
        value = value * base + static_cast<std::uint64_t>(c - 'a' + 10);
      } else {
        return value;
      }
    }
  }
  int fd_;
  bool done_ = false;
  int last_ = -1;
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

// proc_pid_smaps(5): a line as in maps begins a mapping, "Key: value" lines follow, of which
// VmFlags is the last.
bool on_ordinary_pages(const void* address) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  constexpr const char* transparent[] = {"AnonHugePages: %lu", "ShmemPmdMapped: %lu",
                                         "FilePmdMapped: %lu"};
  std::ifstream smaps("/proc/self/smaps");
  bool found = false;
  for (std::string line; std::getline(smaps, line);) {
    unsigned long begin = 0, end = 0, kilobytes = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) {
      if (at < begin) return false;
      found = at < end;
    }
    if (!found) continue;
    for (const char* key : transparent)
      if (std::sscanf(line.c_str(), key, &kilobytes) == 1 && kilobytes) return false;
    if (line.starts_with("VmFlags:")) return line.find(" ht") == std::string::npos;
  }
  return false;
}

std::optional<FileRange> shared_file_at(pid_t process, std::uint64_t address,
                                        std::uint64_t length) {
  Mappings maps(process);
  for (Mappings::Entry m{}; maps.available() && maps.next(m);) {
    if (!m.shared || !m.file.inode || !m.holds(address, length)) continue;
    m.file.offset += address - m.begin;
    return m.file;
  }
  return {};
}

std::byte* own_mapping_of(const FileRange& file, std::uint64_t length, bool write) {
  Mappings maps;
  for (Mappings::Entry m{}; maps.available() && maps.next(m);) {
    if (!m.shared || m.file.device != file.device || m.file.inode != file.inode) continue;
    if (!m.readable || (write && !m.writable) || file.offset < m.file.offset) continue;
    const std::uint64_t into = file.offset - m.file.offset;
    if (into < m.end - m.begin && length <= m.end - m.begin - into)
      return reinterpret_cast<std::byte*>(m.begin + into);
  }
  return nullptr;
}

bool maps_file(pid_t process, std::uint64_t device, std::uint64_t inode) {
  Mappings maps(process);
  for (Mappings::Entry m{}; maps.available() && maps.next(m);)
    if (m.file.device == device && m.file.inode == inode) return true;
  return false;
}

}  // namespace adverb::verbs
