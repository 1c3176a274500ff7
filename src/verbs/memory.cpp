// SPDX-License-Identifier: Apache-2.0
// Memory regions (ibv_reg_mr(3), ibv_rereg_mr(3)).
// Registration pins nothing and touches no byte; it checks that the range is mapped, and writable
// where LOCAL_WRITE asks for it.  Later changes are found by the engine's guarded copies.
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <memory>

#include "verbs/fault.hpp"
#include "verbs/guard.hpp"
#include "verbs/mappings.hpp"
#include "verbs/memory.hpp"
#include "verbs/objects.hpp"

namespace adverb::verbs {

int check_access(unsigned access) {
  access &= ~static_cast<unsigned>(IBV_ACCESS_OPTIONAL_RANGE);
  if (access & ~known_access)
    return refuse(EINVAL, "reg_mr: unknown access flags {:#x}", access & ~known_access);
  if ((access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) &&
      !(access & IBV_ACCESS_LOCAL_WRITE))
    return refuse(EINVAL, "reg_mr: REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE");
  return 0;
}

unsigned reachable(unsigned access, bool by_copies) {
  return by_copies ? access & ~unsigned{IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_ON_DEMAND} : access;
}

std::expected<ReachedMemory, std::string> reach(const SharedObjects& table,
                                                const SharedObject& object) {
  const bool write = object.kind == SharedKind::dm || object.access & IBV_ACCESS_LOCAL_WRITE;
  if (object.owner != getpid() && !table.held_by(object.owner))
    return std::unexpected(fmt::format(
        "process {} is gone, in another namespace, or not to be looked at", object.owner));
  return reach(object.owner, object.base, object.length, write);
}

namespace {

SharedObject shared_form(const Mr& mr) {
  return {.kind = SharedKind::mr,
          .pd = mr.pd->pd.handle,
          .access = mr.region->access,
          .base = reinterpret_cast<std::uintptr_t>(mr.region->base),
          .length = mr.region->length,
          .iova = mr.region->iova};
}

// What a NIC would pin of it: every page that it touches, unless it is paged on demand.
std::uint64_t pinned_bytes(const engine::MemoryRegion& r) {
  constexpr std::uint64_t page = 4096;
  if (r.access & engine::access_on_demand || r.indirect || r.length == 0) return 0;
  const auto begin = reinterpret_cast<std::uintptr_t>(r.base);
  return ((begin + r.length - 1) / page - begin / page + 1) * page;
}

// The object with its region, which is not in `live` yet; `pinned`: bytes that a NIC would pin.
std::unique_ptr<Mr> make_mr(Pd& pd, engine::MemoryRegion wanted, void* address, std::size_t length,
                            std::uint64_t pinned) {
  auto mr = std::make_unique<Mr>();
  Use& use = pd.context->use();
  if (const int error = mr->claim.hold(use, Limit::max_mr, 1, "reg_mr"))
    return errno = error, nullptr;
  if (const int error = mr->pinned.hold(use, Limit::memlock, pinned, "reg_mr"))
    return errno = error, nullptr;
  wanted.pd = pd.id;
  mr->region = pd.context->device->with_engine(
      [&](engine::Engine& e, Instant) { return e.keys().add(wanted); });
  if (!mr->region) return fail(ENOMEM, "reg_mr: no more keys");
  mr->pd = &pd;
  mr->mr = {.context = pd.pd.context,
            .pd = &pd.pd,
            .addr = address,
            .length = length,
            .lkey = mr->region->key,
            .rkey = mr->region->key};
  return mr;
}

ibv_mr* enter(std::unique_ptr<Mr> mr) {
  ++mr->pd->references;
  ++mr->pd->context->references;
  live().add(&mr->mr, Kind::mr);
  return &mr.release()->mr;
}

}  // namespace

ibv_mr* add_mr(Pd& pd, engine::MemoryRegion wanted, void* address, std::size_t length, Dm* dm) {
  auto mr = make_mr(pd, wanted, address, length, dm ? 0 : pinned_bytes(wanted));
  if (!mr) return nullptr;
  mr->dm = dm;
  if (dm) ++dm->references;
  mr->mr.handle =
      mr->region->indirect ? SharedObjects::private_handle() : share(*pd.context, shared_form(*mr));
  return enter(std::move(mr));
}

ibv_mr* add_mr(Pd& pd, engine::MemoryRegion wanted, void* address, std::size_t length,
               FileMapping mapping) {
  auto mr = make_mr(pd, wanted, address, length, 0);
  if (!mr) return nullptr;
  mr->mapping = std::move(mapping);
  mr->mr.handle = share(*pd.context, shared_form(*mr));
  return enter(std::move(mr));
}

namespace {

// Discards what is written to it, and is read as zeros; it has no rkey.
ibv_mr* do_alloc_null_mr(ibv_pd* p) {
  if (const int error = fault(Call::alloc_null_mr)) return errno = error, nullptr;
  Pd* pd = of(p);
  if (!pd->context->works()) return errno = EIO, nullptr;
  ibv_mr* mr = add_mr(
      *pd,
      {.length = SIZE_MAX, .access = IBV_ACCESS_LOCAL_WRITE, .indirect = &engine::null_memory()},
      nullptr, SIZE_MAX, nullptr);
  if (mr) mr->rkey = 0;
  return mr;
}

// The whole address space, whatever will be mapped there (implicit on-demand paging): a region
// from the first address that can be mapped to the last; the upper half is the kernel's.
ibv_mr* reg_implicit(Pd& pd, std::uint64_t iova, unsigned access) {
  constexpr std::uint64_t first_page = 4096, end = 1ull << 63;
  if (iova || access & IBV_ACCESS_ZERO_BASED)
    return fail(EINVAL, "reg_mr: addresses of an implicit on-demand region are the process's own");
  //= ibv_reg_mr(3): HUGETLB is for explicit on-demand regions
  if (access & IBV_ACCESS_HUGETLB)
    return fail(EINVAL, "reg_mr: an implicit on-demand region has no huge pages");
  return add_mr(pd,
                {.iova = first_page,
                 .length = end - first_page,
                 .base = reinterpret_cast<std::byte*>(first_page),
                 .access = access & known_access},
                nullptr, SIZE_MAX, nullptr);
}

// A region that is to consist of huge pages cannot begin with ordinary ones: 0 or EINVAL, as mlx5
// says when it looks at the pages that are there.  What is mapped later may be huge.
int check_huge(const void* address, unsigned access) {
  constexpr unsigned both = IBV_ACCESS_ON_DEMAND | IBV_ACCESS_HUGETLB;
  if ((access & both) != both || !on_ordinary_pages(address)) return 0;
  return refuse(EINVAL, "reg_mr: HUGETLB, but {} is mapped with ordinary pages", fmt::ptr(address));
}

// NICs translate whole pages: an address is at the same place of its page to the NIC as to the
// process, and a region has pages (uverbs and mlx5 refuse the others).  0 or EINVAL.
int check_pages(std::uint64_t address, std::size_t length, std::uint64_t iova) {
  constexpr std::uint64_t in_page = 4095;
  if ((address ^ iova) & in_page)
    return refuse(EINVAL, "reg_mr: address {:#x} and iova {:#x} have different page offsets",
                  address, iova);
  if (!length && !(address & in_page))
    return refuse(EINVAL, "reg_mr: 0 bytes at {:#x} are no page", address);
  return 0;
}

ibv_mr* reg_mr(ibv_pd* p, void* address, std::size_t length, std::uint64_t iova, unsigned access) {
  if (const int error = fault(Call::reg_mr)) return errno = error, nullptr;
  Pd* pd = of(p);
  if (!pd->context->works()) return errno = EIO, nullptr;
  if (const int error = live().check(p, Kind::pd)) return fail(error, "reg_mr: no such PD");
  if (const int error = check_access(access)) return errno = error, nullptr;
  const bool write = access & IBV_ACCESS_LOCAL_WRITE;
  const bool on_demand = access & IBV_ACCESS_ON_DEMAND;
  if (on_demand && !address && length == SIZE_MAX) return reg_implicit(*pd, iova, access);
  if (length > limit(Limit::max_mr_size))
    return fail(EINVAL, "reg_mr: {} bytes of at most {}", length, limit(Limit::max_mr_size));
  if (const int error = check_pages(reinterpret_cast<std::uintptr_t>(address), length, iova))
    return errno = error, nullptr;
  if (iova + length < iova)
    return fail(EINVAL, "reg_mr: {} bytes at {:#x} go past the end", length, iova);
  if (const int error = check_huge(address, access)) return errno = error, nullptr;
  if (const int error = on_demand ? 0 : check_mapped(address, length, write)) {
    return fail(error, "reg_mr: {} bytes at {} are not {}", length, address,
                write ? "mapped for writing" : "mapped");
  }
  return add_mr(*pd,
                {.iova = access & IBV_ACCESS_ZERO_BASED ? 0 : iova,
                 .length = length,
                 .base = static_cast<std::byte*>(address),
                 .access = access & known_access},
                address, length, nullptr);
}

// False: a window is bound to it.
bool remove_region(Mr& mr) {
  return mr.pd->context->device->with_engine([&](engine::Engine& e, Instant) {
    if (mr.region->windows) return false;
    e.keys().remove(*mr.region);
    return true;
  });
}

// Its region is removed.
void free(Mr* mr) {
  Context* context = mr->pd->context;
  if (!mr->imported) unshare(*context, mr->mr.handle);
  if (mr->dm) mr->dm->release();
  mr->pd->release();
  delete mr;
  context->release();
}

int dereg_mr(ibv_mr* m) {
  if (const int error = fault(Call::dereg_mr)) return error;
  if (const int error = live().check(m, Kind::mr)) return error;
  Mr* mr = of(m);
  Context* context = mr->pd->context;
  if (!context->alive()) return EIO;
  if (!remove_region(*mr)) return refuse(EBUSY, "dereg_mr: a memory window is bound to the region");
  live().remove(m, Kind::mr);
  free(mr);
  return 0;
}

ibv_mr* import_mr(ibv_pd* p, std::uint32_t handle) {
  if (const int error = fault(Call::import_mr)) return errno = error, nullptr;
  Pd* pd = of(p);
  Context* context = pd->context;
  if (!context->works()) return errno = EIO, nullptr;
  if (!context->shared) return fail(EOPNOTSUPP, "import_mr: nothing can be imported here");
  const auto object = context->shared->find(handle, SharedKind::mr);
  if (!object) return fail(ENOENT, "import_mr: there is no region with handle {}", handle);
  if (context->shared->domain(object->pd) != pd->id)
    return fail(EINVAL, "import_mr: the region with handle {} is another PD's", handle);
  auto memory = reach(*context->shared, *object);
  if (!memory) return fail(EOPNOTSUPP, "import_mr: {}", memory.error());
  auto mr = make_mr(*pd,
                    {.iova = object->iova,
                     .length = object->length,
                     .base = memory->base,
                     .access = reachable(object->access & known_access, memory->through != nullptr),
                     .indirect = memory->through.get()},
                    nullptr, object->length, 0);
  if (!mr) return nullptr;
  mr->imported = true;
  mr->through = std::move(memory->through);
  mr->mr.handle = handle;
  return enter(std::move(mr));
}

// With a window bound to it the region stays, since nobody can be told.
void unimport_mr(ibv_mr* m) {
  if (!live().contains(m, Kind::mr) || !of(m)->imported) return;
  Mr* mr = of(m);
  if (!mr->pd->context->alive()) return;
  if (!remove_region(*mr)) {
    refuse(EBUSY, "unimport_mr: a memory window is bound to the region");
    return;
  }
  live().remove(m, Kind::mr);
  free(mr);
}

// What the library itself finds wrong (IBV_REREG_MR_ERR_INPUT): 0 or EINVAL.
int check_rereg(const Mr& mr, int flags, const ibv_pd* new_pd, const void* address,
                std::size_t length, int access) {
  if (mr.region->indirect || mr.imported || mr.mapping)
    return refuse(EINVAL, "rereg_mr: only regions of ibv_reg_mr can be re-registered");
  if (flags & ~IBV_REREG_MR_FLAGS_SUPPORTED)
    return refuse(EINVAL, "rereg_mr: flags {:#x}", static_cast<unsigned>(flags));
  if (access && !(flags & IBV_REREG_MR_CHANGE_ACCESS))
    return refuse(EINVAL, "rereg_mr: access {:#x} without CHANGE_ACCESS", access);
  if ((flags & IBV_REREG_MR_CHANGE_TRANSLATION) && (!length || !address))
    return refuse(EINVAL, "rereg_mr: CHANGE_TRANSLATION to {} bytes at {}", length,
                  fmt::ptr(address));
  if ((flags & IBV_REREG_MR_CHANGE_PD) &&
      (!live().contains(new_pd, Kind::pd) || new_pd->context != mr.mr.context))
    return refuse(EINVAL, "rereg_mr: CHANGE_PD to no PD of the region's context");
  return 0;
}

// What is the kernel's to refuse (IBV_REREG_MR_ERR_CMD): 0 or EINVAL.
int check_rereg_command(const Mr& mr, int flags, int access) {
  if (!flags) return refuse(EINVAL, "rereg_mr: no flags");
  if (mr.dm) return refuse(EINVAL, "rereg_mr: device memory cannot be re-registered");
  return flags & IBV_REREG_MR_CHANGE_ACCESS ? check_access(static_cast<unsigned>(access)) : 0;
}

// The region as it is to be; false: it cannot become so.
bool change(const Mr& mr, int flags, const ibv_pd* new_pd, void* address, std::size_t length,
            int access, engine::MemoryRegion& changed) {
  const bool translation = flags & IBV_REREG_MR_CHANGE_TRANSLATION;
  const bool was_zero_based = changed.access & IBV_ACCESS_ZERO_BASED;
  if (flags & IBV_REREG_MR_CHANGE_ACCESS) {
    // Offsets stay offsets, and an implicit region's addresses stay addresses.
    const bool zero_based = access & IBV_ACCESS_ZERO_BASED;
    const bool implicit = !translation && !mr.mr.addr && mr.mr.length == SIZE_MAX;
    if (implicit && (zero_based || access & IBV_ACCESS_HUGETLB)) return false;
    changed.access = static_cast<unsigned>(access) & known_access;
  }
  if (flags & IBV_REREG_MR_CHANGE_PD) changed.pd = of(const_cast<ibv_pd*>(new_pd))->id;
  if (translation) {
    changed.base = static_cast<std::byte*>(address);
    changed.length = length;
  }
  if (changed.access & IBV_ACCESS_ZERO_BASED)
    changed.iova = 0;
  else if (translation || was_zero_based)
    changed.iova = reinterpret_cast<std::uintptr_t>(changed.base);
  return true;
}

// Changes in place: the keys stay what they are.  Whatever fails, the old region is valid.
int rereg_mr(ibv_mr* m, int flags, ibv_pd* new_pd, void* address, std::size_t length, int access) {
  if (const int error = fault(Call::rereg_mr)) return errno = error, IBV_REREG_MR_ERR_CMD;
  if (const int error = live().check(m, Kind::mr)) return errno = error, IBV_REREG_MR_ERR_INPUT;
  Mr* mr = of(m);
  if (const int error = check_rereg(*mr, flags, new_pd, address, length, access))
    return errno = error, IBV_REREG_MR_ERR_INPUT;
  Context* context = mr->pd->context;
  if (!context->works()) return errno = EIO, IBV_REREG_MR_ERR_CMD;
  if (const int error = check_rereg_command(*mr, flags, access))
    return errno = error, IBV_REREG_MR_ERR_CMD;
  engine::MemoryRegion changed = *mr->region;
  if (!change(*mr, flags, new_pd, address, length, access, changed))
    return errno = refuse(EINVAL, "rereg_mr: this region cannot be changed so"),
           IBV_REREG_MR_ERR_INPUT;
  if (flags & (IBV_REREG_MR_CHANGE_ACCESS | IBV_REREG_MR_CHANGE_TRANSLATION))
    if (const int error = check_huge(changed.base, changed.access))
      return errno = error, IBV_REREG_MR_ERR_CMD;
  const bool on_demand = changed.access & IBV_ACCESS_ON_DEMAND;
  const bool write = changed.access & IBV_ACCESS_LOCAL_WRITE;
  int error = on_demand ? 0 : check_mapped(changed.base, changed.length, write);
  const std::uint64_t held = mr->pinned.amount();
  if (!error)
    if (const int full =
            mr->pinned.hold(context->use(), Limit::memlock, pinned_bytes(changed), "rereg_mr"))
      return errno = full, IBV_REREG_MR_ERR_CMD;
  if (!error) {
    error = context->device->with_engine([&](engine::Engine&, Instant) {
      if (mr->region->windows) return EBUSY;
      *mr->region = changed;
      return 0;
    });
    if (error) mr->pinned.hold(context->use(), Limit::memlock, held, "rereg_mr");
  }
  if (error)
    return errno = refuse(error, "rereg_mr: {}",
                          error == EBUSY ? "a memory window is bound to the region"
                          : write        ? "the range is not mapped for writing"
                                         : "the range is not mapped"),
           IBV_REREG_MR_ERR_CMD;
  if (flags & IBV_REREG_MR_CHANGE_PD) {
    ++of(new_pd)->references;
    mr->pd->release();
    mr->pd = of(new_pd);
    m->pd = new_pd;
  }
  if (flags & IBV_REREG_MR_CHANGE_TRANSLATION) {
    m->addr = address;
    m->length = length;
  }
  if (context->shared) context->shared->change(m->handle, shared_form(*mr));
  return 0;
}

}  // namespace

ibv_mr* alloc_null_mr(ibv_pd* pd) {
  return guarded([&] { return do_alloc_null_mr(pd); });
}

}  // namespace adverb::verbs

using namespace adverb::verbs;

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

ADVERB_API ibv_mr* ibv_import_mr(ibv_pd* pd, std::uint32_t handle) {
  return guarded([&] { return import_mr(pd, handle); });
}

ADVERB_API void ibv_unimport_mr(ibv_mr* mr) {
  guarded([&] { unimport_mr(mr); });
}
