// SPDX-License-Identifier: Apache-2.0
// Shared receive queues (ibv_create_srq(3), ibv_modify_srq(3), ibv_post_srq_recv(3)).
#include <cerrno>
#include <memory>

#include "verbs/fault.hpp"
#include "verbs/guard.hpp"
#include "verbs/objects.hpp"

namespace adverb::verbs {
namespace {

// What makes an SRQ one of XRC.
struct XrcPart {
  Xrcd* xrcd = nullptr;
  Cq* cq = nullptr;
};

ibv_srq* create_srq(ibv_pd* p, void* srq_context, ibv_srq_attr& attr, XrcPart xrc = {}) {
  static std::atomic<std::uint32_t> next_number{1};
  if (const int error = fault(Call::create_srq)) return errno = error, nullptr;
  Pd* pd = of(p);
  if (!pd->context->works()) return errno = EIO, nullptr;
  if (const int error = live().check(p, Kind::pd)) return fail(error, "create_srq: no such PD");
  const std::uint32_t most_wr = limit32(Limit::max_srq_wr), most_sge = limit32(Limit::max_srq_sge);
  if (attr.max_wr < 1 || attr.max_wr > most_wr)
    return fail(EINVAL, "create_srq: max_wr {} of at most {}", attr.max_wr, most_wr);
  if (attr.max_sge > most_sge)
    return fail(EINVAL, "create_srq: max_sge {} of at most {}", attr.max_sge, most_sge);
  auto srq = std::make_unique<Srq>();
  if (const int error = srq->claim.hold(pd->context->use(), Limit::max_srq, 1, "create_srq"))
    return errno = error, nullptr;
  attr.max_wr =
      nic::round_up(behaviour().get<nic::Rounding>(Point::srq_size), attr.max_wr, most_wr);
  srq->context = pd->context;
  srq->pd = pd;
  if (attr.max_sge == 0) attr.max_sge = 1;
  srq->xrcd = xrc.xrcd;
  srq->queue = pd->context->device->with_engine([&](engine::Engine& e, Instant) {
    if (!xrc.xrcd) return e.create_srq(attr.max_wr, attr.max_sge, pd->id, srq.get());
    return e.create_xrc_srq(attr.max_wr, attr.max_sge, pd->id, xrc.xrcd->domain->id, xrc.cq->queue,
                            srq.get(), xrc.xrcd->domain->store());
  });
  if (!srq->queue) return fail(ENOMEM, "create_srq: all XRC SRQs of this process are in use");
  srq->number = xrc.xrcd ? srq->queue->srqn.raw()
                         : next_number.fetch_add(1, std::memory_order_relaxed) & 0xffffff;
  srq->srq.context = p->context;
  srq->srq.srq_context = srq_context;
  srq->srq.pd = p;
  srq->srq.handle = srq->number;
  init_sync(srq->srq.mutex, srq->srq.cond);
  ++pd->references;
  if (xrc.xrcd) ++xrc.xrcd->references;
  ++pd->context->references;
  live().add(srq.get(), Kind::srq);
  return &srq.release()->srq;
}

int modify_srq(ibv_srq* s, const ibv_srq_attr& attr, int mask) {
  if (const int error = fault(Call::modify_srq)) return error;
  Srq& srq = *of(s);
  if (!srq.context->works()) return EIO;
  if (const int error = live().check(s, Kind::srq)) return error;
  if (mask & ~(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT)) return EINVAL;
  if (mask & IBV_SRQ_MAX_WR)
    return refuse(EINVAL, "modify_srq: the size of an SRQ cannot be changed");
  if (!(mask & IBV_SRQ_LIMIT)) return 0;
  if (attr.srq_limit > srq.queue->queue.depth())
    return refuse(EINVAL, "modify_srq: srq_limit {} > max_wr {}", attr.srq_limit,
                  srq.queue->queue.depth());
  srq.context->device->with_engine(
      [&](engine::Engine& e, Instant) { e.arm_srq_limit(srq.queue, attr.srq_limit); });
  return 0;
}

int detach_srq(ibv_srq* s, std::uint32_t& async) {
  if (const int error = fault(Call::destroy_srq)) return error;
  if (const int error = live().check(s, Kind::srq)) return error;
  Srq* srq = of(s);
  if (!srq->context->alive()) return EIO;
  if (!srq->context->device->destroy_srq(srq->queue)) return EBUSY;
  live().remove(s, Kind::srq);
  if (srq->async_events)
    srq->async_events -= srq->context->async.purge(reinterpret_cast<std::uintptr_t>(srq));
  async = srq->async_events;
  return 0;
}

void free_srq(ibv_srq* s) {
  Srq* srq = of(s);
  srq->pd->release();
  if (srq->xrcd) --srq->xrcd->references;
  Context* context = srq->context;
  delete srq;
  context->release();
}

}  // namespace

ibv_srq* create_srq_ex(ibv_context* c, ibv_srq_init_attr_ex* a) {
  return guarded([&]() -> ibv_srq* {
    constexpr std::uint32_t of_xrc = IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
                            known = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | of_xrc;
    const bool typed = a->comp_mask & IBV_SRQ_INIT_ATTR_TYPE;
    const ibv_srq_type type = typed ? a->srq_type : IBV_SRQT_BASIC;
    if (a->comp_mask & ~known || type > IBV_SRQT_XRC) return errno = EOPNOTSUPP, nullptr;
    if (!(a->comp_mask & IBV_SRQ_INIT_ATTR_PD)) return fail(EINVAL, "create_srq: no PD");
    if (type == IBV_SRQT_BASIC) return create_srq(a->pd, a->srq_context, a->attr);
    if ((a->comp_mask & of_xrc) != of_xrc)
      return fail(EINVAL, "create_srq: an XRC SRQ needs an XRC domain and a CQ");
    int error = live().check(a->xrcd, Kind::xrcd);
    if (!error) error = live().check(a->cq, Kind::cq);
    if (!error) error = live().check(a->pd, Kind::pd);
    if (error) return fail(error, "create_srq: no such PD, XRC domain or CQ");
    if (of(a->pd)->context != of(c) || of(a->xrcd)->context != of(c) || of(a->cq)->context != of(c))
      return fail(EINVAL, "create_srq: PD, XRC domain and CQ must be of one context");
    return create_srq(a->pd, a->srq_context, a->attr, {of(a->xrcd), of(a->cq)});
  });
}

int get_srq_num(ibv_srq* s, std::uint32_t* number) {
  *number = of(s)->number;
  return 0;
}

}  // namespace adverb::verbs

using namespace adverb::verbs;

ADVERB_API ibv_srq* ibv_create_srq(ibv_pd* pd, ibv_srq_init_attr* attr) {
  return guarded([&] { return create_srq(pd, attr->srq_context, attr->attr); });
}

ADVERB_API int ibv_modify_srq(ibv_srq* srq, ibv_srq_attr* attr, int mask) {
  return guarded([&] { return modify_srq(srq, *attr, mask); });
}

ADVERB_API int ibv_query_srq(ibv_srq* s, ibv_srq_attr* attr) {
  if (const int error = fault(Call::query_srq)) return error;
  Srq& srq = *of(s);
  if (!srq.context->works()) return EIO;
  if (const int error = live().check(s, Kind::srq)) return error;
  *attr = {.max_wr = srq.queue->queue.depth(),
           .max_sge = srq.queue->queue.max_sge(),
           .srq_limit = srq.queue->limit.load(std::memory_order_relaxed)};
  return 0;
}

ADVERB_API int ibv_destroy_srq(ibv_srq* srq) {
  std::uint32_t async = 0;
  if (const int error = guarded([&] { return detach_srq(srq, async); })) return error;
  wait_for_acks(srq->mutex, srq->cond, srq->events_completed, async);
  guarded([&] { free_srq(srq); });
  return 0;
}
