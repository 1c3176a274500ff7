// SPDX-License-Identifier: Apache-2.0
// Protection domains and memory regions (ibv_alloc_pd(3), ibv_reg_mr(3), ibv_rereg_mr(3)).
// Registration pins nothing and touches no byte; it checks that the range is mapped, and writable
// where LOCAL_WRITE asks for it.  Later changes are found by the engine's guarded copies.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "verbs/fault.hpp"
#include "verbs/guard.hpp"
#include "verbs/objects.hpp"

namespace adverb::verbs {
namespace {

constexpr unsigned known_access =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
    IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND | IBV_ACCESS_ZERO_BASED | IBV_ACCESS_ON_DEMAND |
    IBV_ACCESS_HUGETLB | access_flush_global | access_flush_persistent;

// 0 or EINVAL (ibv_reg_mr(3): remote write and atomic need local write).
int check_access(unsigned access) {
  access &= ~static_cast<unsigned>(IBV_ACCESS_OPTIONAL_RANGE);
  if (access & ~known_access)
    return refuse(EINVAL, "reg_mr: unknown access flags {:#x}", access & ~known_access);
  if ((access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) &&
      !(access & IBV_ACCESS_LOCAL_WRITE))
    return refuse(EINVAL, "reg_mr: REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE");
  return 0;
}

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

ibv_mr* reg_mr(ibv_pd* p, void* address, std::size_t length, std::uint64_t iova, unsigned access) {
  if (const int error = fault(Call::reg_mr)) return errno = error, nullptr;
  Pd* pd = of(p);
  if (!pd->context->alive()) return errno = EIO, nullptr;
  if (const int error = check_access(access)) return errno = error, nullptr;
  const bool write = access & IBV_ACCESS_LOCAL_WRITE;
  const bool on_demand = access & IBV_ACCESS_ON_DEMAND;
  if (iova + length < iova)
    return fail(EINVAL, "reg_mr: {} bytes at {:#x} go past the end", length, iova);
  if (on_demand && !address && length == SIZE_MAX)
    return fail(EOPNOTSUPP, "reg_mr: implicit on-demand paging is not supported");
  if (const int error = on_demand ? 0 : check_mapped(address, length, write)) {
    return fail(error, "reg_mr: {} bytes at {} are not {}", length, address,
                write ? "mapped for writing" : "mapped");
  }
  auto mr = std::make_unique<Mr>();
  const engine::MemoryRegion wanted{.iova = access & IBV_ACCESS_ZERO_BASED ? 0 : iova,
                                    .length = length,
                                    .base = static_cast<std::byte*>(address),
                                    .access = access & known_access,
                                    .pd = pd->id};
  mr->region = pd->context->device->with_engine(
      [&](engine::Engine& e, Instant) { return e.keys().add(wanted); });
  if (!mr->region) return fail(ENOMEM, "reg_mr: {} memory regions are in use", max_mr);
  mr->pd = pd;
  mr->mr = {.context = p->context,
            .pd = p,
            .addr = address,
            .length = length,
            .handle = mr->region->key,
            .lkey = mr->region->key,
            .rkey = mr->region->key};
  ++pd->references;
  ++pd->context->references;
  live().add(&mr->mr, Kind::mr);
  return &mr.release()->mr;
}

int dereg_mr(ibv_mr* m) {
  if (const int error = fault(Call::dereg_mr)) return error;
  if (!live().contains(m, Kind::mr)) return EINVAL;
  Mr* mr = of(m);
  if (!mr->pd->context->alive()) return EIO;
  live().remove(m, Kind::mr);
  Context* context = mr->pd->context;
  context->device->with_engine([&](engine::Engine& e, Instant) { e.keys().remove(*mr->region); });
  --mr->pd->references;
  delete mr;
  context->release();
  return 0;
}

// Changes in place: the keys stay what they are.
int rereg_mr(ibv_mr* m, int flags, ibv_pd* new_pd, void* address, std::size_t length, int access) {
  if (const int error = fault(Call::rereg_mr)) return errno = error, IBV_REREG_MR_ERR_CMD;
  Mr* mr = of(m);
  if (flags & ~IBV_REREG_MR_FLAGS_SUPPORTED || !flags)
    return errno = EINVAL, IBV_REREG_MR_ERR_INPUT;
  const bool translation = flags & IBV_REREG_MR_CHANGE_TRANSLATION;
  if ((flags & IBV_REREG_MR_CHANGE_PD) && (!new_pd || of(new_pd)->context != mr->pd->context))
    return errno = EINVAL, IBV_REREG_MR_ERR_INPUT;
  if (translation && (!length || !address)) return errno = EINVAL, IBV_REREG_MR_ERR_INPUT;
  if (!mr->pd->context->alive()) return errno = EIO, IBV_REREG_MR_ERR_CMD;
  engine::MemoryRegion changed = *mr->region;
  if (flags & IBV_REREG_MR_CHANGE_ACCESS) {
    if (const int error = check_access(static_cast<unsigned>(access)))
      return errno = error, IBV_REREG_MR_ERR_INPUT;
    changed.access = static_cast<unsigned>(access) & known_access;
  }
  if (flags & IBV_REREG_MR_CHANGE_PD) changed.pd = of(new_pd)->id;
  if (translation) {
    changed.base = static_cast<std::byte*>(address);
    changed.iova =
        changed.access & IBV_ACCESS_ZERO_BASED ? 0 : reinterpret_cast<std::uintptr_t>(address);
    changed.length = length;
  }
  if (const int error =
          check_mapped(changed.base, changed.length, changed.access & IBV_ACCESS_LOCAL_WRITE))
    return errno = error, IBV_REREG_MR_ERR_CMD;
  mr->pd->context->device->with_engine([&](engine::Engine&, Instant) { *mr->region = changed; });
  if (flags & IBV_REREG_MR_CHANGE_PD) {
    --mr->pd->references;
    mr->pd = of(new_pd);
    ++mr->pd->references;
    m->pd = new_pd;
  }
  if (translation) {
    m->addr = address;
    m->length = length;
  }
  return 0;
}

ibv_pd* alloc_pd(ibv_context* c) {
  static std::atomic<engine::PdId> next{1};
  if (const int error = fault(Call::alloc_pd)) return errno = error, nullptr;
  Context* context = of(c);
  if (!context->alive()) return errno = EIO, nullptr;
  auto pd = std::make_unique<Pd>();
  pd->context = context;
  pd->id = next.fetch_add(1, std::memory_order_relaxed);
  pd->pd = {.context = c, .handle = pd->id};
  ++context->references;
  live().add(&pd->pd, Kind::pd);
  return &pd.release()->pd;
}

int dealloc_pd(ibv_pd* p) {
  if (const int error = fault(Call::dealloc_pd)) return error;
  if (!live().contains(p, Kind::pd)) return EINVAL;
  Pd* pd = of(p);
  if (pd->references) return EBUSY;
  live().remove(p, Kind::pd);
  Context* context = pd->context;
  delete pd;
  context->release();
  return 0;
}

}  // namespace
}  // namespace adverb::verbs

using namespace adverb::verbs;

ADVERB_API ibv_pd* ibv_alloc_pd(ibv_context* c) {
  return guarded([&] { return alloc_pd(c); });
}

ADVERB_API int ibv_dealloc_pd(ibv_pd* pd) {
  return guarded([&] { return dealloc_pd(pd); });
}

ADVERB_API ibv_mr* ibv_reg_mr(ibv_pd* pd, void* address, std::size_t length, int access) {
  const auto iova = reinterpret_cast<std::uintptr_t>(address);
  return guarded([&] { return reg_mr(pd, address, length, iova, static_cast<unsigned>(access)); });
}

ADVERB_API ibv_mr* ibv_reg_mr_iova(ibv_pd* pd, void* address, std::size_t length,
                                   std::uint64_t iova, int access) {
  return guarded([&] { return reg_mr(pd, address, length, iova, static_cast<unsigned>(access)); });
}

ADVERB_API ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* address, std::size_t length,
                                    std::uint64_t iova, unsigned access) {
  return guarded([&] { return reg_mr(pd, address, length, iova, access); });
}

ADVERB_API int ibv_dereg_mr(ibv_mr* mr) {
  return guarded([&] { return dereg_mr(mr); });
}

ADVERB_API int ibv_rereg_mr(ibv_mr* mr, int flags, ibv_pd* pd, void* address, std::size_t length,
                            int access) {
  return guarded([&] { return rereg_mr(mr, flags, pd, address, length, access); });
}
