// SPDX-License-Identifier: Apache-2.0
#include "daemon/slot_table.hpp"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <cstdio>
#include <cstring>
#include <new>
#include <utility>

namespace adverb::daemon {

namespace {

constexpr int required_seals = F_SEAL_SHRINK | F_SEAL_GROW;

SlotMemory* map_memory(int fd) {
  void* p = ::mmap(nullptr, sizeof(SlotMemory), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return p == MAP_FAILED ? nullptr : static_cast<SlotMemory*>(p);
}

}  // namespace

SlotTable::SlotTable(Descriptor fd, SlotMemory* memory)
    : memory_fd_(std::move(fd)),
      memory_(memory),
      slots_(memory->header.slots),
      id_(memory->header.id) {}

SlotTable::SlotTable(SlotTable&& o) noexcept
    : memory_fd_(std::move(o.memory_fd_)),
      memory_(std::exchange(o.memory_, nullptr)),
      slots_(o.slots_),
      id_(o.id_) {}

SlotTable& SlotTable::operator=(SlotTable&& o) noexcept {
  std::swap(memory_fd_, o.memory_fd_);
  std::swap(memory_, o.memory_);
  std::swap(slots_, o.slots_);
  std::swap(id_, o.id_);
  return *this;
}

SlotTable::~SlotTable() {
  if (memory_) ::munmap(memory_, sizeof *memory_);
}

std::optional<SlotTable> SlotTable::create(unsigned slots) {
  Descriptor fd(::memfd_create("adverb-slots", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd || ::ftruncate(fd.get(), sizeof(SlotMemory)) < 0) return std::nullopt;
  ::fcntl(fd.get(), F_ADD_SEALS, required_seals | F_SEAL_SEAL);
  SlotMemory* memory = map_memory(fd.get());
  if (!memory) return std::nullopt;
  new (memory) SlotMemory;
  memory->header.slots = slots;
  memory->header.pid_namespace = own_pid_namespace();
  std::uint64_t id = 0;
  if (::getrandom(&id, sizeof id, 0) != sizeof id) id = static_cast<std::uint64_t>(now_ms()) << 20;
  memory->header.id = id;
  return SlotTable(std::move(fd), memory);
}

std::optional<SlotTable> SlotTable::map(Descriptor fd) {
  struct stat s;
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (::fstat(fd.get(), &s) < 0 || s.st_size != sizeof(SlotMemory) || seals < 0 ||
      (seals & required_seals) != required_seals) {
    errno = EPROTO;
    return std::nullopt;
  }
  SlotMemory* memory = map_memory(fd.get());
  if (!memory) return std::nullopt;
  SlotTable table(std::move(fd), memory);
  const auto& h = memory->header;
  if (h.magic != protocol_magic || h.version != 1 || table.slots_ < 2 ||
      table.slots_ > slot_limit - 2) {
    errno = EPROTO;
    return std::nullopt;
  }
  return table;
}

std::string SlotTable::relay_prefix(unsigned uid) const {
  return fmt::format("{}{:016x}/", relay_root(uid), id_);
}

std::uint64_t own_pid_namespace() {
  struct stat s;
  return ::stat("/proc/self/ns/pid", &s) == 0 ? s.st_ino : 0;
}

std::uint64_t process_start_time(int pid) {
  Descriptor fd(::open(fmt::format("/proc/{}/stat", pid).c_str(), O_RDONLY | O_CLOEXEC));
  char text[1024];
  const ssize_t n = fd ? ::read(fd.get(), text, sizeof text - 1) : -1;
  if (n <= 0) return 0;
  text[n] = 0;
  const char* p = std::strrchr(text, ')');  // the name may hold anything
  unsigned long long start = 0;
  if (!p || std::sscanf(p + 1,
                        " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d"
                        " %*d %*d %*d %llu",
                        &start) != 1)
    return 0;
  return start;
}

}  // namespace adverb::daemon
