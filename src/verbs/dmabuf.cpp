// SPDX-License-Identifier: Apache-2.0
// Regions of dma-bufs (ibv_reg_dmabuf_mr(3)).  The CPU moves the bytes, so that the exporter must
// let the buffer be mapped: those of host memory do (udmabuf), and a memfd serves as well.
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "verbs/fault.hpp"
#include "verbs/guard.hpp"
#include "verbs/memory.hpp"

namespace adverb::verbs {

FileMapping::~FileMapping() {
  if (address_) munmap(address_, length_);
}

namespace {

constexpr unsigned dmabuf_access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                   IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
                                   IBV_ACCESS_RELAXED_ORDERING;

// The bytes of a buffer; or EBADF, EINVAL (neither a dma-buf nor a memfd).
int size_of(int fd, std::uint64_t& size) {
  struct stat st{};
  struct statfs fs{};
  if (fstat(fd, &st) || fstatfs(fd, &fs)) return errno;
  if (fs.f_type == DMA_BUF_MAGIC) {
    const off_t end = lseek(fd, 0, SEEK_END);  // all that seeking is for there
    if (end < 0) return errno;
    size = static_cast<std::uint64_t>(end);
    return 0;
  }
  if (fcntl(fd, F_GET_SEALS) < 0) return EINVAL;
  size = static_cast<std::uint64_t>(st.st_size);
  return 0;
}

int check_arguments(std::uint64_t offset, std::size_t length, std::uint64_t iova, int fd,
                    unsigned access) {
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  if (access & ~dmabuf_access)
    return refuse(EINVAL, "reg_dmabuf_mr: access flags {:#x}", access & ~dmabuf_access);
  if (const int error = check_access(access)) return error;
  if (offset % page != iova % page)
    return refuse(EINVAL, "reg_dmabuf_mr: iova {:#x} and offset {:#x} differ within a page", iova,
                  offset);
  std::uint64_t size = 0;
  if (const int error = size_of(fd, size))
    return refuse(error, "reg_dmabuf_mr: descriptor {} is {}", fd,
                  error == EBADF ? "not open" : "no dma-buf");
  if (length == 0 || offset > size || length > size - offset)
    return refuse(EINVAL, "reg_dmabuf_mr: {} bytes at {} of {}", length, offset, size);
  if (iova + length < iova)
    return refuse(EINVAL, "reg_dmabuf_mr: {} bytes at {:#x} go past the end", length, iova);
  return 0;
}

ibv_mr* reg_dmabuf_mr(ibv_pd* p, std::uint64_t offset, std::size_t length, std::uint64_t iova,
                      int fd, unsigned access) {
  if (const int error = fault(Call::reg_dmabuf_mr)) return errno = error, nullptr;
  Pd* pd = of(p);
  if (!pd->context->works()) return errno = EIO, nullptr;
  if (const int error = live().check(p, Kind::pd)) return fail(error, "reg_dmabuf_mr: no such PD");
  if (const int error = check_arguments(offset, length, iova, fd, access))
    return errno = error, nullptr;
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  const std::uint64_t into = offset % page;
  const int protection = PROT_READ | (access & IBV_ACCESS_LOCAL_WRITE ? PROT_WRITE : 0);
  void* mapped =
      mmap(nullptr, length + into, protection, MAP_SHARED, fd, static_cast<off_t>(offset - into));
  if (mapped == MAP_FAILED) {
    const bool forbidden = errno == EACCES || errno == EPERM;
    return fail(forbidden ? EACCES : EOPNOTSUPP, "reg_dmabuf_mr: the buffer cannot be mapped: {}",
                std::strerror(errno));
  }
  FileMapping mapping(mapped, length + into);
  return add_mr(*pd,
                {.iova = iova,
                 .length = length,
                 .base = static_cast<std::byte*>(mapped) + into,
                 .access = access & known_access},
                reinterpret_cast<void*>(offset), length, std::move(mapping));
}

}  // namespace
}  // namespace adverb::verbs

using namespace adverb::verbs;

ADVERB_API ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* pd, std::uint64_t offset, std::size_t length,
                                     std::uint64_t iova, int fd, int access) {
  return guarded(
      [&] { return reg_dmabuf_mr(pd, offset, length, iova, fd, static_cast<unsigned>(access)); });
}
