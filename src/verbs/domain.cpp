// SPDX-License-Identifier: Apache-2.0
// Protection domains, thread domains and parent domains (ibv_alloc_pd(3), ibv_alloc_td(3),
// ibv_alloc_parent_domain(3)).  A parent domain is a Pd with the number of the protection domain
// that it stands for: to keys and queue pairs the two are the same.
#include "verbs/domain.hpp"

#include <cerrno>
#include <cstdlib>
#include <new>

#include "verbs/fault.hpp"
#include "verbs/guard.hpp"

namespace adverb::verbs {

void DomainFree::operator()(void* p) const {
  if (!domain) return std::free(p);
  const Allocators& a = domain->allocators;
  a.free(&domain->pd, a.context, p, resource_type);
}

DomainMemory allocate(Pd& pd, std::size_t size, std::size_t alignment,
                      std::uint64_t resource_type) {
  const Allocators& a = pd.allocators;
  void* p = IBV_ALLOCATOR_USE_DEFAULT;
  if (a.alloc) p = a.alloc(&pd.pd, a.context, size, alignment, resource_type);
  const bool own = p != IBV_ALLOCATOR_USE_DEFAULT;
  if (!own) p = std::aligned_alloc(alignment, (size + alignment - 1) & ~(alignment - 1));
  if (!p) throw std::bad_alloc();
  return DomainMemory(p, DomainFree{own ? &pd : nullptr, resource_type});
}

namespace {

std::unique_ptr<Pd> make_pd(Context* context, engine::PdId id) {
  auto pd = std::make_unique<Pd>();
  pd->context = context;
  pd->id = id;
  pd->pd = {.context = context->context(), .handle = 0};
  return pd;
}

engine::PdId next_id() {
  static std::atomic<engine::PdId> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

ibv_pd* enter(std::unique_ptr<Pd> pd) {
  ++pd->context->references;
  live().add(&pd->pd, Kind::pd);
  return &pd.release()->pd;
}

ibv_pd* alloc_pd(ibv_context* c) {
  if (const int error = fault(Call::alloc_pd)) return errno = error, nullptr;
  Context* context = of(c);
  if (!context->works()) return errno = EIO, nullptr;
  auto pd = make_pd(context, next_id());
  if (const int error = pd->claim.hold(context->use(), Limit::max_pd, 1, "alloc_pd"))
    return errno = error, nullptr;
  pd->pd.handle = share(*context, {.kind = SharedKind::pd});
  if (context->shared) context->shared->name_domain(pd->pd.handle, pd->id);
  return enter(std::move(pd));
}

// The object that `handle` names on this context's table.
ibv_pd* do_import_pd(ibv_context* c, std::uint32_t handle) {
  if (const int error = fault(Call::import_pd)) return errno = error, nullptr;
  Context* context = of(c);
  if (!context->works()) return errno = EIO, nullptr;
  if (!context->shared) return fail(EOPNOTSUPP, "import_pd: nothing can be imported here");
  if (!context->shared->find(handle, SharedKind::pd))
    return fail(ENOENT, "import_pd: there is no PD with handle {}", handle);
  auto pd = make_pd(context, context->shared->name_domain(handle, next_id()));
  pd->pd.handle = handle;
  pd->imported = true;
  return enter(std::move(pd));
}

// The program may unimport a PD before what was made in it.
void unimport_pd(ibv_pd* p) {
  if (!live().contains(p, Kind::pd) || !of(p)->imported) return;
  live().remove(p, Kind::pd);
  ++of(p)->references;
  of(p)->unimported = true;
  of(p)->release();
}

void free_pd(Pd* pd) {
  Context* context = pd->context;
  if (!pd->imported && !pd->domain) unshare(*context, pd->pd.handle);
  if (pd->domain) pd->domain->release();
  if (pd->td) --pd->td->references;
  delete pd;
  context->release();
}

int dealloc_pd(ibv_pd* p) {
  if (const int error = fault(Call::dealloc_pd)) return error;
  if (const int error = live().check(p, Kind::pd)) return error;
  Pd* pd = of(p);
  if (pd->references) return EBUSY;
  live().remove(p, Kind::pd);
  free_pd(pd);
  return 0;
}

ibv_td* do_alloc_td(ibv_context* c, const ibv_td_init_attr* attr) {
  if (const int error = fault(Call::alloc_td)) return errno = error, nullptr;
  Context* context = of(c);
  if (!context->works()) return errno = EIO, nullptr;
  if (!attr || attr->comp_mask)
    return fail(EINVAL, "alloc_td: comp_mask {:#x}", attr ? attr->comp_mask : 0);
  auto td = std::make_unique<Td>();
  td->td.context = c;
  td->context = context;
  ++context->references;
  live().add(&td->td, Kind::td);
  return &td.release()->td;
}

int do_dealloc_td(ibv_td* t) {
  if (const int error = fault(Call::dealloc_td)) return error;
  if (const int error = live().check(t, Kind::td)) return error;
  Td* td = of(t);
  if (td->references) return EBUSY;
  live().remove(t, Kind::td);
  Context* context = td->context;
  delete td;
  context->release();
  return 0;
}

// 0 or EINVAL.
int check_parent_domain(const Context* context, const ibv_parent_domain_init_attr& a) {
  constexpr std::uint32_t known =
      IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
  if (a.comp_mask & ~known)
    return refuse(EINVAL, "alloc_parent_domain: comp_mask {:#x}", a.comp_mask);
  if (!a.pd || !live().contains(a.pd, Kind::pd) || of(a.pd)->context != context)
    return refuse(EINVAL, "alloc_parent_domain: pd is no protection domain of this context");
  if (a.td && (!live().contains(a.td, Kind::td) || of(a.td)->context != context))
    return refuse(EINVAL, "alloc_parent_domain: td is no thread domain of this context");
  if (a.comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS && (!a.alloc || !a.free))
    return refuse(EINVAL, "alloc_parent_domain: allocators come in pairs");
  return 0;
}

ibv_pd* do_alloc_parent_domain(ibv_context* c, const ibv_parent_domain_init_attr& a) {
  if (const int error = fault(Call::alloc_parent_domain)) return errno = error, nullptr;
  Context* context = of(c);
  if (!context->works()) return errno = EIO, nullptr;
  if (const int error = check_parent_domain(context, a)) return errno = error, nullptr;
  auto pd = make_pd(context, of(a.pd)->id);
  pd->pd.handle = a.pd->handle;
  pd->domain = of(a.pd);
  pd->td = a.td ? of(a.td) : nullptr;
  if (a.comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS) {
    pd->allocators.alloc = a.alloc;
    pd->allocators.free = a.free;
  }
  if (a.comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT) pd->allocators.context = a.pd_context;
  ++pd->domain->references;
  if (pd->td) ++pd->td->references;
  return enter(std::move(pd));
}

}  // namespace

void Pd::release() {
  if (references.fetch_sub(1, std::memory_order_acq_rel) == 1 && unimported) free_pd(this);
}

ibv_td* alloc_td(ibv_context* c, ibv_td_init_attr* attr) {
  return guarded([&] { return do_alloc_td(c, attr); });
}

int dealloc_td(ibv_td* td) {
  return guarded([&] { return do_dealloc_td(td); });
}

ibv_pd* alloc_parent_domain(ibv_context* c, ibv_parent_domain_init_attr* attr) {
  return guarded([&] { return do_alloc_parent_domain(c, *attr); });
}

}  // namespace adverb::verbs

using namespace adverb::verbs;

ADVERB_API ibv_pd* ibv_alloc_pd(ibv_context* c) {
  return guarded([&] { return alloc_pd(c); });
}

ADVERB_API int ibv_dealloc_pd(ibv_pd* pd) {
  return guarded([&] { return dealloc_pd(pd); });
}

ADVERB_API ibv_pd* ibv_import_pd(ibv_context* context, std::uint32_t handle) {
  return guarded([&] { return do_import_pd(context, handle); });
}

ADVERB_API void ibv_unimport_pd(ibv_pd* pd) {
  guarded([&] { unimport_pd(pd); });
}
