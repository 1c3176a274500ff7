// SPDX-License-Identifier: Apache-2.0
#include "verbs/process_memory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "verbs/mappings.hpp"

namespace adverb::verbs {
namespace {

// Copies by the kernel.  A process number may come to mean another process, and a process another
// program; the descriptor of its memory does not.  So each copy is preceded by a look through that.
// The system calls are made by number, as all on the data path: glibc's functions may be
// cancellation points.
class ProcessMemory final : public engine::IndirectMemory {
 public:
  ProcessMemory(pid_t process, int memory_fd) : process_(process), fd_(memory_fd) {}
  ~ProcessMemory() { close(fd_); }
  ProcessMemory(const ProcessMemory&) = delete;

  bool store(std::byte* at, const void* from, std::size_t n) const override {
    return n == 0 || (is_there(at) && copy(SYS_process_vm_writev, const_cast<void*>(from), at, n));
  }
  bool load(void* to, const std::byte* at, std::size_t n) const override {
    return n == 0 ||
           (is_there(at) && copy(SYS_process_vm_readv, to, const_cast<std::byte*>(at), n));
  }

 private:
  bool is_there(const std::byte* at) const {
    char byte;
    return ::syscall(SYS_pread64, fd_, &byte, 1, reinterpret_cast<std::uintptr_t>(at)) == 1;
  }
  bool copy(long call, void* local, std::byte* remote, std::size_t n) const {
    const iovec ours{local, n}, theirs{remote, n};
    return ::syscall(call, process_, &ours, 1ul, &theirs, 1ul, 0ul) == static_cast<long>(n);
  }
  pid_t process_;
  int fd_;
};

}  // namespace

std::expected<ReachedMemory, std::string> reach(pid_t owner, std::uint64_t base,
                                                std::uint64_t length, bool write) {
  auto* at = reinterpret_cast<std::byte*>(base);
  if (owner == getpid()) return ReachedMemory{at, nullptr};
  if (const auto file = shared_file_at(owner, base, length))
    if (std::byte* own = own_mapping_of(*file, length, write)) return ReachedMemory{own, nullptr};
  const std::string path = fmt::format("/proc/{}/mem", owner);
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return std::unexpected(
        fmt::format("the memory of process {} is not mapped here, and not to be "
                    "had otherwise ({}: {})",
                    owner, path, std::strerror(errno)));
  auto memory = std::make_shared<const ProcessMemory>(owner, fd);
  char byte;
  errno = 0;
  if (length && (!memory->load(&byte, at, 1) || !memory->load(&byte, at + length - 1, 1)))
    return std::unexpected(fmt::format("{} bytes at {} of process {} cannot be read: {}", length,
                                       fmt::ptr(at), owner, std::strerror(errno)));
  return ReachedMemory{at, memory};
}

}  // namespace adverb::verbs
