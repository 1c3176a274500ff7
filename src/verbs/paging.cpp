// SPDX-License-Identifier: Apache-2.0
// Advice about on-demand paging regions (ibv_advise_mr(3)).  The CPU moves all bytes and takes page
// faults as they come, so that prefetching is what madvise(2) has for it: the pages are faulted in
// now and not by the first access.
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <span>
#include <vector>

#include "verbs/fault.hpp"
#include "verbs/guard.hpp"
#include "verbs/mappings.hpp"
#include "verbs/objects.hpp"

namespace adverb::verbs {
namespace {

using Range = std::span<std::byte>;

int errno_of(engine::KeyError error) {
  switch (error) {
    case engine::KeyError::bad_pd:
    case engine::KeyError::bad_access:
      return EPERM;
    case engine::KeyError::bad_key:
    case engine::KeyError::bad_range:
      break;
  }
  return EFAULT;
}

// Where the bytes of an element are; or EFAULT, EPERM, EINVAL.
int find(engine::Engine& e, engine::PdId pd, const ibv_sge& sge, unsigned access, Range& out) {
  const auto grant = e.keys().resolve(sge.lkey, pd, sge.addr, sge.length, access);
  if (!grant) return errno_of(grant.error());
  if (!(e.keys().find(sge.lkey)->access & IBV_ACCESS_ON_DEMAND)) return EINVAL;
  out = {grant->data, static_cast<std::size_t>(grant->length)};
  return 0;
}

// 0 or EFAULT.
int prefetch(Range range, bool write) {
  if (range.empty()) return 0;
  if (check_mapped(range.data(), range.size(), write)) return EFAULT;
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(range.data()) & ~(page - 1);
  const auto end = reinterpret_cast<std::uintptr_t>(range.data() + range.size());
  const int advice = write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
  if (madvise(reinterpret_cast<void*>(begin), end - begin, advice) == 0) return 0;
  // EFAULT: pages behind the end of a file.  ENOMEM: unmapped in the meantime.  Anything else is a
  // kernel before 5.14 or a mapping that has no pages to fault in.
  return errno == EFAULT || errno == ENOMEM ? EFAULT : 0;
}

int do_advise_mr(ibv_pd* p, unsigned advice, std::uint32_t flags, std::span<const ibv_sge> list) {
  if (const int error = fault(Call::advise_mr)) return error;
  if (const int error = live().check(p, Kind::pd)) return error;
  Pd* pd = of(p);
  if (!pd->context->works()) return EIO;
  if (advice > IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT)
    return refuse(EOPNOTSUPP, "advise_mr: unknown advice {}", advice);
  if (flags & ~std::uint32_t{IBV_ADVISE_MR_FLAG_FLUSH})
    return refuse(EINVAL, "advise_mr: unknown flags {:#x}", flags);
  if (list.empty() || !list.data()) return refuse(EINVAL, "advise_mr: an empty list");
  const bool write = advice == IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE;
  const unsigned needed = write ? +engine::access_local_write : 0;
  std::vector<Range> ranges(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    const int error = pd->context->device->with_engine(
        [&](engine::Engine& e, Instant) { return find(e, pd->id, list[i], needed, ranges[i]); });
    if (error)
      return refuse(error, "advise_mr: element {} (lkey {:#x}): {}", i, list[i].lkey,
                    error == EPERM    ? "another PD's, or not writable"
                    : error == EINVAL ? "the region is not registered with ON_DEMAND"
                                      : "no such key, or outside the region");
  }
  if (advice == IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT) return 0;  // present pages are present
  for (const Range& range : ranges)
    if (const int error = prefetch(range, write))
      return refuse(error, "advise_mr: {} bytes at {} are not mapped{}", range.size(),
                    fmt::ptr(range.data()), write ? " for writing" : "");
  return 0;
}

}  // namespace

int advise_mr(ibv_pd* pd, ibv_advise_mr_advice advice, std::uint32_t flags, ibv_sge* list,
              std::uint32_t n) {
  return guarded([&] {
    return do_advise_mr(pd, static_cast<unsigned>(advice), flags, std::span(list, list ? n : 0));
  });
}

}  // namespace adverb::verbs
