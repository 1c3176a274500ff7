// SPDX-License-Identifier: Apache-2.0
// Device memory (ibv_alloc_dm(3), ibv_import_dm(3)): pages of this process, or of the one that it
// was imported from, that programs reach by ibv_memcpy_to_dm
// and ibv_memcpy_from_dm and, once registered, by work requests.  Offset and length of a copy are
// multiples of 4, as devices have it.
#include <sys/mman.h>

#include <cerrno>
#include <memory>

#include "base/guarded.hpp"
#include "verbs/fault.hpp"
#include "verbs/guard.hpp"
#include "verbs/memory.hpp"
#include "verbs/objects.hpp"

namespace adverb::verbs {
namespace {

constexpr std::uint32_t copy_alignment = 4, max_log_align = 12;

bool inside(const Dm& dm, std::uint64_t offset, std::uint64_t length) {
  return offset <= dm.length && length <= dm.length - offset;
}

// 0, EINVAL for what is not aligned, EFAULT for what is not in the buffer.
int check_copy(const Dm& dm, std::uint64_t offset, std::size_t length) {
  if (offset % copy_alignment || length % copy_alignment)
    return refuse(EINVAL,
                  "memcpy of device memory: offset {} and length {} must be multiples of {}",
                  offset, length, copy_alignment);
  if (!inside(dm, offset, length))
    return refuse(EFAULT, "memcpy of device memory: {} bytes at {} of {}", length, offset,
                  dm.length);
  return 0;
}

int memcpy_to_dm(ibv_dm* d, std::uint64_t offset, const void* from, std::size_t length) {
  if (const int error = fault(Call::memcpy_to_dm)) return error;
  const Dm& dm = *of(d);
  if (const int error = check_copy(dm, offset, length)) return error;
  const bool done = dm.through ? dm.through->store(dm.memory + offset, from, length)
                               : guarded_copy(dm.memory + offset, from, length);
  return done ? 0 : EFAULT;
}

int memcpy_from_dm(void* to, ibv_dm* d, std::uint64_t offset, std::size_t length) {
  if (const int error = fault(Call::memcpy_from_dm)) return error;
  const Dm& dm = *of(d);
  if (const int error = check_copy(dm, offset, length)) return error;
  const bool done = dm.through ? dm.through->load(to, dm.memory + offset, length)
                               : guarded_copy(to, dm.memory + offset, length);
  return done ? 0 : EFAULT;
}

int check_attributes(const ibv_alloc_dm_attr& a) {
  if (a.comp_mask) return refuse(EINVAL, "alloc_dm: comp_mask {:#x}", a.comp_mask);
  const std::uint64_t most = limit(Limit::max_dm_size);
  if (a.length < 1 || a.length > most)
    return refuse(EINVAL, "alloc_dm: {} bytes, 1 to {} are possible", a.length, most);
  if (a.log_align_req > max_log_align)
    return refuse(EINVAL, "alloc_dm: log_align_req {} of at most {}", a.log_align_req,
                  max_log_align);
  return 0;
}

ibv_dm* enter(std::unique_ptr<Dm> dm, std::uint32_t handle) {
  dm->dm = {.context = dm->context->context(),
            .memcpy_to_dm = memcpy_to_dm,
            .memcpy_from_dm = memcpy_from_dm,
            .comp_mask = IBV_DM_MASK_HANDLE,
            .handle = handle};
  ++dm->context->references;
  live().add(&dm->dm, Kind::dm);
  return &dm.release()->dm;
}

// Memory alone needs no running device: a forked child may have some of the context that it
// inherited.
ibv_dm* do_alloc_dm(ibv_context* c, const ibv_alloc_dm_attr& a) {
  if (const int error = fault(Call::alloc_dm)) return errno = error, nullptr;
  if (const int error = check_attributes(a)) return errno = error, nullptr;
  Context* context = of(c);
  auto dm = std::make_unique<Dm>();
  const std::uint64_t most = limit(Limit::max_dm_size);
  if (context->device_memory.fetch_add(a.length) > most - a.length) {
    context->device_memory -= a.length;
    return fail(ENOMEM, "alloc_dm: less than {} bytes of {} are free", a.length, most);
  }
  void* p = mmap(nullptr, a.length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) {
    context->device_memory -= a.length;
    return fail(ENOMEM, "alloc_dm: {} bytes cannot be mapped", a.length);
  }
  dm->context = context;
  dm->memory = static_cast<std::byte*>(p);
  dm->length = a.length;
  const SharedObject object{
      .kind = SharedKind::dm, .base = reinterpret_cast<std::uintptr_t>(p), .length = a.length};
  return enter(std::move(dm), share(*context, object));
}

void free(Dm* dm) {
  Context* context = dm->context;
  if (!dm->imported) {
    unshare(*context, dm->dm.handle);
    munmap(dm->memory, dm->length);
    context->device_memory -= dm->length;
  }
  delete dm;
  context->release();
}

int do_free_dm(ibv_dm* d) {
  if (const int error = fault(Call::free_dm)) return error;
  if (const int error = live().check(d, Kind::dm)) return error;
  if (of(d)->references) return EBUSY;
  live().remove(d, Kind::dm);
  free(of(d));
  return 0;
}

ibv_dm* do_import_dm(ibv_context* c, std::uint32_t handle) {
  if (const int error = fault(Call::import_dm)) return errno = error, nullptr;
  Context* context = of(c);
  if (!context->works()) return errno = EIO, nullptr;
  if (!context->shared) return fail(EOPNOTSUPP, "import_dm: nothing can be imported here");
  const auto object = context->shared->find(handle, SharedKind::dm);
  if (!object) return fail(ENOENT, "import_dm: there is no device memory with handle {}", handle);
  auto memory = reach(*context->shared, *object);
  if (!memory) return fail(EOPNOTSUPP, "import_dm: {}", memory.error());
  auto dm = std::make_unique<Dm>();
  dm->context = context;
  dm->memory = memory->base;
  dm->length = object->length;
  dm->through = std::move(memory->through);
  dm->imported = true;
  return enter(std::move(dm), handle);
}

// The program may unimport it before the regions that it registered on it.
void unimport_dm(ibv_dm* d) {
  if (!live().contains(d, Kind::dm) || !of(d)->imported) return;
  live().remove(d, Kind::dm);
  ++of(d)->references;
  of(d)->unimported = true;
  of(d)->release();
}

ibv_mr* do_reg_dm_mr(ibv_pd* p, ibv_dm* d, std::uint64_t offset, std::size_t length,
                     unsigned access) {
  constexpr unsigned of_host_memory = IBV_ACCESS_ON_DEMAND | IBV_ACCESS_HUGETLB;
  if (const int error = fault(Call::reg_dm_mr)) return errno = error, nullptr;
  Pd* pd = of(p);
  Dm* dm = of(d);
  if (!pd->context->works()) return errno = EIO, nullptr;
  if (!live().contains(p, Kind::pd)) return fail(EINVAL, "reg_dm_mr: no such PD");
  if (!live().contains(d, Kind::dm) || dm->context != pd->context)
    return fail(EINVAL, "reg_dm_mr: no device memory of the PD's context");
  if (const int error = check_access(access)) return errno = error, nullptr;
  if (!(access & IBV_ACCESS_ZERO_BASED) || access & of_host_memory)
    return fail(EINVAL, "reg_dm_mr: ZERO_BASED must be set, ON_DEMAND and HUGETLB must not");
  if (!inside(*dm, offset, length))
    return fail(EINVAL, "reg_dm_mr: {} bytes at {} of {}", length, offset, dm->length);
  return add_mr(*pd,
                {.iova = 0,
                 .length = length,
                 .base = dm->memory + offset,
                 .access = reachable(access & known_access, dm->through != nullptr),
                 .indirect = dm->through.get()},
                nullptr, length, dm);
}

}  // namespace

void Dm::release() {
  if (references.fetch_sub(1, std::memory_order_acq_rel) == 1 && unimported) free(this);
}

ibv_dm* alloc_dm(ibv_context* c, ibv_alloc_dm_attr* attr) {
  return guarded([&] { return do_alloc_dm(c, *attr); });
}

int free_dm(ibv_dm* dm) {
  return guarded([&] { return do_free_dm(dm); });
}

ibv_mr* reg_dm_mr(ibv_pd* pd, ibv_dm* dm, std::uint64_t offset, std::size_t length,
                  unsigned access) {
  return guarded([&] { return do_reg_dm_mr(pd, dm, offset, length, access); });
}

}  // namespace adverb::verbs

using namespace adverb::verbs;

ADVERB_API ibv_dm* ibv_import_dm(ibv_context* context, std::uint32_t handle) {
  return guarded([&] { return do_import_dm(context, handle); });
}

ADVERB_API void ibv_unimport_dm(ibv_dm* dm) {
  guarded([&] { unimport_dm(dm); });
}
