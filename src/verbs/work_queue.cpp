// SPDX-License-Identifier: Apache-2.0
// Receive work queues of raw packets (ibv_create_wq(3), ibv_modify_wq(3)).  Like raw packet queue
// pairs they are for those who have CAP_NET_RAW.
#include <cerrno>
#include <memory>
#include <optional>

#include "verbs/fault.hpp"
#include "verbs/guard.hpp"
#include "verbs/objects.hpp"

namespace adverb::verbs {
namespace {

// As raw_packet_caps of device_attr_ex has it: the FCS, delayed drops and padding are not there.
int check_flags(const char* who, std::uint32_t flags) {
  return flags & ~std::uint32_t{IBV_WQ_FLAGS_CVLAN_STRIPPING}
             ? refuse(EOPNOTSUPP, "{}: flags {:#x}, of which only CVLAN_STRIPPING is supported",
                      who, flags)
             : 0;
}

std::uint32_t flags_of(const ibv_wq_init_attr& a) {
  return a.comp_mask & IBV_WQ_INIT_ATTR_FLAGS ? a.create_flags : 0;
}

int check_init(const Context* context, const ibv_wq_init_attr& a) {
  if (a.wq_type != IBV_WQT_RQ)
    return refuse(EINVAL, "create_wq: unknown type {}", static_cast<unsigned>(a.wq_type));
  if (a.comp_mask >= IBV_WQ_INIT_ATTR_RESERVED)
    return refuse(EINVAL, "create_wq: comp_mask {:#x}", a.comp_mask);
  if (const int error = check_flags("create_wq", flags_of(a))) return error;
  int error = live().check(a.pd, Kind::pd);
  if (!error) error = live().check(a.cq, Kind::cq);
  if (error) return refuse(error, "create_wq: no such PD or CQ");
  if (of(a.pd)->context != context || of(a.cq)->context != context)
    return refuse(EINVAL, "create_wq: PD and CQ must be of its context");
  const std::uint32_t most_wr = limit32(Limit::max_qp_wr), most_sge = limit32(Limit::max_sge);
  if (a.max_wr < 1 || a.max_wr > most_wr)
    return refuse(EINVAL, "create_wq: max_wr {}, 1 to {} are possible", a.max_wr, most_wr);
  if (a.max_sge > most_sge)
    return refuse(EINVAL, "create_wq: max_sge {} of at most {}", a.max_sge, most_sge);
  return 0;
}

ibv_wq* do_create_wq(ibv_context* c, ibv_wq_init_attr& a) {
  if (const int error = fault(Call::create_wq)) return errno = error, nullptr;
  Context* context = of(c);
  if (!context->works()) return errno = EIO, nullptr;
  if (const int error = check_init(context, a)) return errno = error, nullptr;
  if (const int error = need_raw_packets(*context, "create_wq")) return errno = error, nullptr;
  auto wq = std::make_unique<Wq>();
  if (const int error = wq->claim.hold(context->use(), Limit::max_wq_type_rq, 1, "create_wq"))
    return errno = error, nullptr;
  wq->context = context;
  wq->pd = of(a.pd);
  const std::uint32_t wrs = nic::round_up(behaviour().get<nic::Rounding>(Point::recv_queue_size),
                                          a.max_wr, limit32(Limit::max_qp_wr)),
                      sges = std::max(a.max_sge, 1u);
  const engine::WqInit init{.max_wr = wrs,
                            .max_sge = sges,
                            .pd = wq->pd->id,
                            .cq = of(a.cq)->queue,
                            .strip_vlan = (flags_of(a) & IBV_WQ_FLAGS_CVLAN_STRIPPING) != 0,
                            .user = wq.get()};
  wq->queue =
      context->device->with_engine([&](engine::Engine& e, Instant) { return e.create_wq(init); });
  if (!wq->queue) return fail(ENOMEM, "create_wq: all WQs of this process are in use");
  a.max_wr = wrs;
  a.max_sge = sges;
  ibv_wq& pub = wq->wq;
  pub.context = c;
  pub.wq_context = a.wq_context;
  pub.pd = a.pd;
  pub.cq = a.cq;
  pub.wq_num = wq->queue->number.raw();
  pub.handle = next_handle();
  pub.state = IBV_WQS_RESET;
  pub.wq_type = a.wq_type;
  pub.post_recv = post_wq_recv;
  init_sync(pub.mutex, pub.cond);
  ++wq->pd->references;
  ++context->references;
  live().add(wq.get(), Kind::wq);
  return &wq.release()->wq;
}

int check_state(const char* what, std::uint32_t state) {
  return state <= IBV_WQS_ERR ? 0 : refuse(EINVAL, "modify_wq: {} {} is no state", what, state);
}

int check_attr(const ibv_wq_attr& a) {
  if (!a.attr_mask || a.attr_mask >= IBV_WQ_ATTR_RESERVED)
    return refuse(EINVAL, "modify_wq: attr_mask {:#x}", a.attr_mask);
  if (a.attr_mask & IBV_WQ_ATTR_FLAGS)
    if (const int error = check_flags("modify_wq", a.flags_mask)) return error;
  if (a.attr_mask & IBV_WQ_ATTR_CURR_STATE)
    if (const int error = check_state("curr_wq_state", a.curr_wq_state)) return error;
  return a.attr_mask & IBV_WQ_ATTR_STATE ? check_state("wq_state", a.wq_state) : 0;
}

// Null, or why not; nothing is changed then.
const char* change(engine::Engine& e, engine::ReceiveWorkQueue& wq, const ibv_wq_attr& a) {
  using engine::WqState;
  std::optional<WqState> current, next;
  if (a.attr_mask & IBV_WQ_ATTR_CURR_STATE) current = static_cast<WqState>(a.curr_wq_state);
  if (a.attr_mask & IBV_WQ_ATTR_STATE) next = static_cast<WqState>(a.wq_state);
  if (const char* refusal = e.modify_wq(wq, current, next)) return refusal;
  const bool has_flag =
      a.attr_mask & IBV_WQ_ATTR_FLAGS && a.flags_mask & IBV_WQ_FLAGS_CVLAN_STRIPPING;
  if (has_flag) wq.strip_vlan = a.flags & IBV_WQ_FLAGS_CVLAN_STRIPPING;
  return nullptr;
}

int do_modify_wq(Wq& wq, const ibv_wq_attr& a) {
  if (const int error = fault(Call::modify_wq)) return error;
  if (!wq.context->works()) return EIO;
  if (const int error = live().check(&wq, Kind::wq)) return error;
  if (const int error = check_attr(a)) return error;
  const char* refusal = wq.context->device->with_engine(
      [&](engine::Engine& e, Instant) { return change(e, *wq.queue, a); });
  if (refusal) return refuse(EINVAL, "modify_wq wq {:#x}: {}", wq.wq.wq_num, refusal);
  if (a.attr_mask & IBV_WQ_ATTR_STATE) wq.wq.state = a.wq_state;
  return 0;
}

int detach_wq(ibv_wq* w, std::uint32_t& async) {
  if (const int error = fault(Call::destroy_wq)) return error;
  if (const int error = live().check(w, Kind::wq)) return error;
  Wq* wq = of(w);
  if (!wq->context->alive()) return EIO;
  if (!wq->context->device->destroy_wq(wq->queue)) return EBUSY;
  live().remove(w, Kind::wq);
  if (wq->async_events)
    wq->async_events -= wq->context->async.purge(reinterpret_cast<std::uintptr_t>(wq));
  async = wq->async_events;
  return 0;
}

void free_wq(ibv_wq* w) {
  Wq* wq = of(w);
  wq->pd->release();
  Context* context = wq->context;
  delete wq;
  context->release();
}

}  // namespace

ibv_wq* create_wq(ibv_context* c, ibv_wq_init_attr* a) {
  return guarded([&] { return do_create_wq(c, *a); });
}

int modify_wq(ibv_wq* wq, ibv_wq_attr* a) {
  return guarded([&] { return do_modify_wq(*of(wq), *a); });
}

int destroy_wq(ibv_wq* wq) {
  std::uint32_t async = 0;
  if (const int error = guarded([&] { return detach_wq(wq, async); })) return error;
  wait_for_acks(wq->mutex, wq->cond, wq->events_completed, async);
  guarded([&] { free_wq(wq); });
  return 0;
}

}  // namespace adverb::verbs
