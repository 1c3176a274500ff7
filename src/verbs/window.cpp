// SPDX-License-Identifier: Apache-2.0
// Memory windows (ibv_alloc_mw(3), ibv_bind_mw(3)), as mlx5 has them: type 1 is bound by the verb,
// type 2 (2B) by a work request.  A binding takes effect in its turn in the send queue; what is
// wrong with its key, rights or range is told by its completion.
#include <cerrno>
#include <memory>

#include "verbs/batch.hpp"
#include "verbs/fault.hpp"
#include "verbs/guard.hpp"

namespace adverb::verbs {
namespace {

constexpr std::uint64_t max_window = 1ull << 31;

ibv_mw* do_alloc_mw(ibv_pd* p, ibv_mw_type type) {
  if (const int error = fault(Call::alloc_mw)) return errno = error, nullptr;
  Pd* pd = of(p);
  if (!pd->context->works()) return errno = EIO, nullptr;
  if (!live().contains(p, Kind::pd)) return fail(EINVAL, "alloc_mw: no such PD");
  if (type != IBV_MW_TYPE_1 && type != IBV_MW_TYPE_2)
    return fail(EINVAL, "alloc_mw: unknown type {}", static_cast<unsigned>(type));
  const auto kind = type == IBV_MW_TYPE_1 ? engine::WindowType::type_1 : engine::WindowType::type_2;
  auto mw = std::make_unique<Mw>();
  if (const int error = mw->claim.hold(pd->context->use(), Limit::max_mw, 1, "alloc_mw"))
    return errno = error, nullptr;
  std::uint32_t rkey = 0;
  mw->window = pd->context->device->with_engine(
      [&](engine::Engine& e, Instant) { return e.keys().add_window(kind, pd->id, rkey); });
  if (!mw->window) return fail(ENOMEM, "alloc_mw: no more keys");
  mw->pd = pd;
  mw->mw = {.context = p->context, .pd = p, .rkey = rkey, .handle = next_handle(), .type = type};
  ++pd->references;
  ++pd->context->references;
  live().add(&mw->mw, Kind::mw);
  return &mw.release()->mw;
}

int do_dealloc_mw(ibv_mw* m) {
  if (const int error = fault(Call::dealloc_mw)) return error;
  if (const int error = live().check(m, Kind::mw)) return error;
  Mw* mw = of(m);
  Context* context = mw->pd->context;
  if (!context->alive()) return EIO;
  live().remove(m, Kind::mw);
  context->device->with_engine([&](engine::Engine& e, Instant) { e.keys().remove(*mw->window); });
  mw->pd->release();
  delete mw;
  context->release();
  return 0;
}

// Posting never meets the kernel, so that handles, which are the kernel's, are not looked at.  The
// look costs 0.05 us of the 1.5 us that a binding takes; without it, a window that was freed would
// be written to.
bool exists(const void* object, Kind kind) { return live().check(object, kind) != EINVAL; }

// What both types have in common.
Refusal check_region(const ibv_mw_bind_info& info) {
  if (info.length > max_window) return {EOPNOTSUPP, "a memory window of more than 2 GiB"};
  if (!info.mr) return {};
  if (!exists(info.mr, Kind::mr)) return {EINVAL, "no such memory region to bind to"};
  if (of(info.mr)->region->indirect) return {EOPNOTSUPP, "this memory region takes no windows"};
  return {};
}

void fill(const ibv_mw& mw, std::uint32_t rkey, const ibv_mw_bind_info& info, engine::SendWqe& w) {
  w.rkey = mw.rkey;
  w.imm_or_rkey = rkey;
  w.bind_lkey = info.mr ? info.mr->lkey : 0;
  w.bind_access = info.mw_access_flags;
  w.remote_addr = info.addr;
  w.bind_length = info.length;
}

// Type 1 has neither zero-based windows nor windows of zero-based or device memory.
Refusal check_type_1(const ibv_mw& mw, const ibv_mw_bind_info& info) {
  if (mw.type != IBV_MW_TYPE_1) return {EINVAL, "ibv_bind_mw of a window of type 2"};
  if (Refusal r = check_region(info)) return r;
  if (!info.mr && (info.addr || info.length)) return {EINVAL, "no memory region to bind to"};
  if (info.mr && of(info.mr)->dm) return {EOPNOTSUPP, "a window of type 1 on device memory"};
  if (info.mw_access_flags & IBV_ACCESS_ZERO_BASED ||
      (info.mr && of(info.mr)->region->access & IBV_ACCESS_ZERO_BASED))
    return {EINVAL, "a window of type 1 cannot be zero-based"};
  return {};
}

int do_bind_mw(ibv_qp* q, ibv_mw* mw, const ibv_mw_bind& bind) {
  if (const int error = fault(Call::bind_mw)) return error;
  Qp& qp = *of(q);
  if (!qp.context->works()) return EIO;
  if (!exists(mw, Kind::mw)) return EINVAL;
  Refusal refusal = check_type_1(*mw, bind.bind_info);
  if (!refusal) {
    engine::SendWqe w;
    w.wr_id = bind.wr_id;
    w.opcode = engine::WrOpcode::bind_mw;
    w.flags = static_cast<std::uint8_t>(bind.send_flags);
    const std::uint32_t rkey = ibv_inc_rkey(mw->rkey);
    fill(*mw, rkey, bind.bind_info, w);
    refusal = bind.send_flags > 0xf ? Refusal{EINVAL, "unsupported send flags"} : post_one(qp, w);
    if (!refusal) mw->rkey = rkey;
  }
  if (refusal) log_refusal(qp, refusal);
  return refusal.error;
}

}  // namespace

Refusal fill_binding(ibv_mw* mw, std::uint32_t rkey, const ibv_mw_bind_info& info,
                     engine::SendWqe& w) {
  if (!mw || !exists(mw, Kind::mw)) return {EINVAL, "no such memory window"};
  if (mw->type != IBV_MW_TYPE_2) return {EINVAL, "IBV_WR_BIND_MW of a window of type 1"};
  if (Refusal r = check_region(info)) return r;
  fill(*mw, rkey, info, w);
  // As ibv_bind_mw(3) does for type 1: programs read the new key there.
  mw->rkey = (mw->rkey & ~0xffu) | (rkey & 0xff);
  return {};
}

ibv_mw* alloc_mw(ibv_pd* pd, ibv_mw_type type) {
  return guarded([&] { return do_alloc_mw(pd, type); });
}

int dealloc_mw(ibv_mw* mw) {
  return guarded([&] { return do_dealloc_mw(mw); });
}

int bind_mw(ibv_qp* qp, ibv_mw* mw, ibv_mw_bind* bind) {
  return guarded([&] { return do_bind_mw(qp, mw, *bind); });
}

}  // namespace adverb::verbs
