// SPDX-License-Identifier: Apache-2.0
// Thread domains, and parent domains that bring functions to allocate memory by.
#include <cstdlib>

#include "verbs_calls/steps.hpp"

namespace adverb::fuzz {
namespace {

enum Allocator : std::uint8_t { none, own, passes_on, fails, most_allocators };

void* allocate(ibv_pd*, void* context, std::size_t size, std::size_t alignment, std::uint64_t) {
  auto& p = *static_cast<PdPlace*>(context);
  if (p.allocator == passes_on) return IBV_ALLOCATOR_USE_DEFAULT;
  if (p.allocator == fails) return nullptr;
  ++p.allocations;
  return std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}

void give_back(ibv_pd*, void* context, void* memory, std::uint64_t) {
  auto& p = *static_cast<PdPlace*>(context);
  REQUIRE(p.allocations-- > 0);
  std::free(memory);
}

void make(PdPlace& p, PdPlace& domain, TdPlace* td, ibv_context* c, Allocator how,
          decltype(ibv_parent_domain_init_attr::free) free) {
  ibv_parent_domain_init_attr a{};
  a.pd = domain.pd;
  a.td = td ? td->td : nullptr;
  a.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
  a.pd_context = &p;
  if (how != none) {
    a.comp_mask |= IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS;
    a.alloc = allocate, a.free = free;
  }
  p.pd = made([&] { return ibv_alloc_parent_domain(c, &a); });
  if (!p.pd) return;
  p.allocator = how;
  p.domain = &domain, ++domain.users;
  p.td = td;
  if (td) ++td->users;
}

}  // namespace

void own_allocators(PdPlace& p, PdPlace& domain, TdPlace* td, ibv_context* c) {
  make(p, domain, td, c, own, give_back);
}

bool gives_no_memory(const PdPlace& p) { return p.allocator == fails; }

namespace step {

void td(Session& s, Record& in) {
  TdPlace& p = s.tds[in.below(2)];
  if (p.td) return s.destroy(p);
  ibv_td_init_attr a{in.chance(240) ? 0 : in.word()};
  p.td = made([&] { return ibv_alloc_td(context(s, in), &a); });
  REQUIRE((p.td != nullptr) == (a.comp_mask == 0));
}

void parent_domain(Session& s, Record& in) {
  PdPlace& p = s.pds[in.below(3)];
  PdPlace* domain = a_pd(s, in);
  if (p.pd || p.users || !domain) return;
  ibv_context* c = context(s, in);
  TdPlace* td = in.chance(128) ? pick(s.tds, &TdPlace::td, in) : nullptr;
  const auto how = static_cast<Allocator>(in.below(most_allocators));
  const bool frees = in.chance(240);
  make(p, *domain, td, c, how, frees ? give_back : nullptr);
  REQUIRE((p.pd != nullptr) ==
          (domain->pd->context == c && (!td || td->td->context == c) && (how == none || frees)));
}

}  // namespace step
}  // namespace adverb::fuzz
