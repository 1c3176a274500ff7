// SPDX-License-Identifier: Apache-2.0
// Completion channels and completion queues (ibv_create_cq(3), ibv_create_cq_ex(3), ibv_poll_cq(3),
// ibv_req_notify_cq(3), ibv_resize_cq(3), ibv_modify_cq(3)).
#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "verbs/fault.hpp"
#include "verbs/guard.hpp"
#include "verbs/objects.hpp"

namespace adverb::verbs {
namespace {

ibv_comp_channel* create_channel(ibv_context* c) {
  if (const int error = fault(Call::create_comp_channel)) return errno = error, nullptr;
  Context* context = of(c);
  if (!context->works()) return errno = EIO, nullptr;
  auto channel = std::make_unique<Channel>();
  if (const int error = channel->events.open()) return errno = error, nullptr;
  channel->context = context;
  channel->channel = {.context = c, .fd = channel->events.fd(), .refcnt = 0};
  ++context->references;
  live().add(&channel->channel, Kind::channel);
  return &channel.release()->channel;
}

int destroy_channel(ibv_comp_channel* c) {
  if (const int error = fault(Call::destroy_comp_channel)) return error;
  if (const int error = live().check(c, Kind::channel)) return error;
  Context* context = of(c)->context;
  pthread_mutex_lock(&context->context()->mutex);
  const int references = c->refcnt;
  pthread_mutex_unlock(&context->context()->mutex);
  if (references) return EBUSY;
  live().remove(c, Kind::channel);
  delete of(c);
  context->release();
  return 0;
}

void change_references(Channel* channel, int by) {
  if (!channel) return;
  pthread_mutex_t& mutex = channel->context->context()->mutex;
  pthread_mutex_lock(&mutex);
  channel->channel.refcnt += by;
  pthread_mutex_unlock(&mutex);
}

int check_entries(const char* who, std::int64_t cqe) {
  const auto most = static_cast<std::int64_t>(limit(Limit::max_cqe));
  if (cqe >= 1 && cqe <= most) return 0;
  return refuse(EINVAL, "{}: {} entries asked for, 1 to {} are possible", who, cqe, most);
}

std::uint32_t entries_given(std::int64_t cqe) {
  return nic::round_up(behaviour().get<nic::Rounding>(Point::cq_size),
                       static_cast<std::uint32_t>(cqe), limit32(Limit::max_cqe));
}

std::unique_ptr<Cq> make_cq(ibv_context* c, std::int64_t cqe, void* cq_context,
                            ibv_comp_channel* channel, std::int64_t vector) {
  if (const int error = fault(Call::create_cq)) return errno = error, nullptr;
  Context* context = of(c);
  if (!context->works()) return errno = EIO, nullptr;
  if (const int error = check_entries("create_cq", cqe)) return errno = error, nullptr;
  if (vector < 0 || vector >= c->num_comp_vectors)
    return fail(EINVAL, "create_cq: comp_vector {} of {}", vector, c->num_comp_vectors);
  if (channel && (!live().contains(channel, Kind::channel) || of(channel)->context != context))
    return fail(EINVAL, "create_cq: the completion channel is another context's");
  auto cq = std::make_unique<Cq>();
  cq->context = context;
  cq->channel = channel ? of(channel) : nullptr;
  if (const int error = cq->claim.hold(context->use(), Limit::max_cq, 1, "create_cq"))
    return errno = error, nullptr;
  const std::uint32_t entries = entries_given(cqe);
  cq->queue = context->device->with_engine(
      [&](engine::Engine& e, Instant) { return e.create_cq(entries, cq.get()); });
  if (!cq->queue) return errno = ENOMEM, nullptr;
  ibv_cq& pub = cq->cq;
  pub.context = c;
  pub.channel = channel;
  pub.cq_context = cq_context;
  pub.cqe = static_cast<int>(entries);
  pub.handle = next_handle();
  init_sync(pub.mutex, pub.cond);
  change_references(cq->channel, 1);
  ++context->references;
  live().add(cq.get(), Kind::cq);
  return cq;
}

// Traffic goes on meanwhile: only the moment of the swap keeps pollers and the engine out.
int resize_cq(Cq& cq, int cqe) {
  if (const int error = fault(Call::resize_cq)) return error;
  if (!cq.context->works()) return EIO;
  if (const int error = live().check(&cq.cq, Kind::cq)) return error;
  if (const int error = check_entries("resize_cq", cqe)) return error;
  const std::uint32_t capacity = entries_given(cqe);
  engine::CompletionQueue::Ring ring = engine::CompletionQueue::make_ring(capacity);
  const bool fits = cq.context->device->with_engine([&](engine::Engine&, Instant) {
    std::lock_guard hold(cq.queue->lock);
    return cq.queue->resize(capacity, ring);
  });
  if (!fits) return refuse(EINVAL, "resize_cq: more than {} entries wait to be polled", capacity);
  cq.cq.cqe = static_cast<int>(capacity);
  return 0;
}

int do_modify_cq(Cq& cq, const ibv_modify_cq_attr& a) {
  if (const int error = fault(Call::modify_cq)) return error;
  if (!cq.context->works()) return EIO;
  if (const int error = live().check(&cq.cq, Kind::cq)) return error;
  if (a.attr_mask & ~static_cast<std::uint32_t>(IBV_CQ_ATTR_RESERVED - 1) || !a.attr_mask)
    return refuse(EINVAL, "modify_cq: attr_mask {:#x}", a.attr_mask);
  if (a.moderate.cq_period > max_moderation_us)
    return refuse(EINVAL, "modify_cq: cq_period {} of at most {}", a.moderate.cq_period,
                  max_moderation_us);
  cq.context->device->with_engine([&](engine::Engine& e, Instant) {
    e.moderate_cq(*cq.queue, a.moderate.cq_count, std::chrono::microseconds(a.moderate.cq_period));
  });
  return 0;
}

// In two parts: the wait for the application's acknowledgements between them must be cancellable.
int detach_cq(ibv_cq* c, std::uint32_t& comp, std::uint32_t& async) {
  if (const int error = fault(Call::destroy_cq)) return error;
  if (const int error = live().check(c, Kind::cq)) return error;
  Cq* cq = of(c);
  if (!cq->context->alive()) return EIO;
  if (!cq->context->device->destroy_cq(cq->queue)) return EBUSY;
  live().remove(c, Kind::cq);
  const auto handle = reinterpret_cast<std::uintptr_t>(cq);
  if (cq->channel) cq->comp_events -= cq->channel->events.purge(handle);
  if (cq->async_events) cq->async_events -= cq->context->async.purge(handle);
  comp = cq->comp_events;
  async = cq->async_events;
  return 0;
}

void free_cq(ibv_cq* c) {
  Cq* cq = of(c);
  change_references(cq->channel, -1);
  if (cq->domain) cq->domain->release();
  Context* context = cq->context;
  delete cq;
  context->release();
}

void fill_wc(const engine::Cqe& e, ibv_wc& wc) {
  wc.wr_id = e.wr_id;
  wc.status = static_cast<ibv_wc_status>(e.status);
  wc.opcode = static_cast<ibv_wc_opcode>(e.opcode);
  wc.vendor_err = e.vendor_err;
  wc.byte_len = e.byte_len;
  // Immediate data stays in network order, an invalidated rkey is a number.
  wc.imm_data = e.wc_flags & engine::wc_with_inv ? e.imm_or_rkey : htonl(e.imm_or_rkey);
  wc.qp_num = e.qp_num.raw();
  wc.src_qp = e.src_qp.raw();
  wc.wc_flags = e.wc_flags;
  wc.pkey_index = 0;
  wc.slid = 0;
  wc.sl = e.sl;
  wc.dlid_path_bits = 0;
}

// --- extended polling (ibv_create_cq_ex(3)): one entry at a time, looked at by the read functions

int fetch(Cq& cq) {
  if (!cq.context->alive() || cq.context->device->poll(*cq.queue, 1, &cq.current) == 0)
    return cq.context->works() ? ENOENT : EIO;
  cq.ex.status = static_cast<ibv_wc_status>(cq.current.status);
  cq.ex.wr_id = cq.current.wr_id;
  return 0;
}

// CLOCK_REALTIME when CLOCK_MONOTONIC, which completions are stamped with, was 0.
std::uint64_t wallclock_at_zero() {
  timespec real, mono;
  clock_gettime(CLOCK_REALTIME, &real);
  clock_gettime(CLOCK_MONOTONIC, &mono);
  const auto ns = [](const timespec& t) {
    return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
  };
  return ns(real) - ns(mono);
}

int start_poll(ibv_cq_ex* c, ibv_poll_cq_attr* attr) {
  if (const int error = fault(Call::start_poll)) return error;
  Cq& cq = *of(c);
  if (attr && attr->comp_mask) return EINVAL;
  if (!cq.single_threaded) cq.poll_lock.lock();
  // Once, so that entries that are polled together keep their order.
  if (cq.has_wallclock) cq.wallclock_at_zero = wallclock_at_zero();
  const int result = fetch(cq);
  if (result && !cq.single_threaded) cq.poll_lock.unlock();
  return result;
}

int next_poll(ibv_cq_ex* c) { return fetch(*of(c)); }

void end_poll(ibv_cq_ex* c) {
  if (!of(c)->single_threaded) of(c)->poll_lock.unlock();
}

void set_readers(ibv_cq_ex& c) {
  c.start_poll = start_poll;
  c.next_poll = next_poll;
  c.end_poll = end_poll;
  c.read_opcode = [](ibv_cq_ex* q) { return static_cast<ibv_wc_opcode>(of(q)->current.opcode); };
  c.read_vendor_err = [](ibv_cq_ex* q) { return of(q)->current.vendor_err; };
  c.read_byte_len = [](ibv_cq_ex* q) { return of(q)->current.byte_len; };
  c.read_imm_data = [](ibv_cq_ex* q) -> __be32 {
    const engine::Cqe& e = of(q)->current;
    return e.wc_flags & engine::wc_with_inv ? e.imm_or_rkey : htonl(e.imm_or_rkey);
  };
  c.read_qp_num = [](ibv_cq_ex* q) { return of(q)->current.qp_num.raw(); };
  c.read_src_qp = [](ibv_cq_ex* q) { return of(q)->current.src_qp.raw(); };
  c.read_wc_flags = [](ibv_cq_ex* q) -> unsigned { return of(q)->current.wc_flags; };
  c.read_slid = [](ibv_cq_ex*) -> std::uint32_t { return 0; };
  c.read_sl = [](ibv_cq_ex* q) { return of(q)->current.sl; };
  c.read_dlid_path_bits = [](ibv_cq_ex*) -> std::uint8_t { return 0; };
  c.read_completion_ts = [](ibv_cq_ex* q) { return of(q)->current.completed_at; };
  c.read_cvlan = [](ibv_cq_ex* q) { return of(q)->current.cvlan; };
  c.read_flow_tag = [](ibv_cq_ex*) -> std::uint32_t { return 0; };
  c.read_tm_info = [](ibv_cq_ex*, ibv_wc_tm_info* info) { *info = {}; };
  c.read_completion_wallclock_ns = [](ibv_cq_ex* q) {
    return of(q)->wallclock_at_zero + of(q)->current.completed_at;
  };
}

// No rule tags a flow, so that 0 is the truth about it; tag matching is not there.
constexpr std::uint64_t supported_wc_flags =
    std::uint64_t{IBV_WC_STANDARD_FLAGS} | IBV_WC_EX_WITH_CVLAN | IBV_WC_EX_WITH_FLOW_TAG |
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

bool is_parent_domain(ibv_pd* p, const Context* context) {
  return p && live().contains(p, Kind::pd) && of(p)->domain && of(p)->context == context;
}

ibv_cq_ex* do_create_cq_ex(ibv_context* c, const ibv_cq_init_attr_ex& a) {
  if (a.wc_flags & ~supported_wc_flags) return errno = EOPNOTSUPP, nullptr;
  constexpr std::uint32_t known = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
  if (a.comp_mask & ~known) return fail(EINVAL, "create_cq: comp_mask {:#x}", a.comp_mask);
  const bool in_domain = a.comp_mask & IBV_CQ_INIT_ATTR_MASK_PD;
  if (in_domain && !is_parent_domain(a.parent_domain, of(c)))
    return fail(EINVAL, "create_cq: parent_domain is no parent domain of this context");
  const std::uint32_t flags = a.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS ? a.flags : 0;
  constexpr std::uint32_t known_flags =
      IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
  if (flags & ~known_flags) return fail(EINVAL, "create_cq: flags {:#x}", flags);
  auto cq = make_cq(c, a.cqe, a.cq_context, a.channel, a.comp_vector);
  if (!cq) return nullptr;
  cq->single_threaded = flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED;
  cq->queue->ignore_overrun = flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
  if (in_domain) {
    cq->domain = of(a.parent_domain);
    ++cq->domain->references;
    // Whoever names a thread domain promises not to poll from two threads at once.
    if (cq->domain->td) cq->single_threaded = true;
  }
  cq->has_wallclock = a.wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
  set_readers(cq->ex);
  return &cq.release()->ex;
}

}  // namespace

ibv_cq_ex* create_cq_ex(ibv_context* c, ibv_cq_init_attr_ex* a) {
  return guarded([&] { return do_create_cq_ex(c, *a); });
}

int modify_cq(ibv_cq* cq, ibv_modify_cq_attr* a) {
  return guarded([&] { return do_modify_cq(*of(cq), *a); });
}

// A device that failed has flushed its queues: those entries can still be had.
int poll_cq(ibv_cq* c, int wanted, ibv_wc* wc) {
  if (const int error = fault(Call::poll_cq)) return -error;
  Cq& cq = *of(c);
  if (!cq.context->alive()) return -EIO;
  constexpr int batch = 32;
  engine::Cqe entries[batch];
  int done = 0;
  while (done < wanted) {
    const auto n = static_cast<unsigned>(std::min(batch, wanted - done));
    const unsigned got = cq.context->device->poll(*cq.queue, n, entries);
    for (unsigned i = 0; i < got; ++i) fill_wc(entries[i], wc[done++]);
    if (got < n) break;
  }
  if (done == 0 && !cq.context->works()) return -EIO;
  return done;
}

int req_notify_cq(ibv_cq* c, int solicited_only) {
  if (const int error = fault(Call::req_notify_cq)) return error;
  Cq& cq = *of(c);
  if (!cq.context->works()) return EIO;
  cq.context->device->arm(*cq.queue, solicited_only != 0);
  return 0;
}

}  // namespace adverb::verbs

using namespace adverb::verbs;

ADVERB_API ibv_comp_channel* ibv_create_comp_channel(ibv_context* c) {
  return guarded([&] { return create_channel(c); });
}

ADVERB_API int ibv_destroy_comp_channel(ibv_comp_channel* c) {
  return guarded([&] { return destroy_channel(c); });
}

ADVERB_API ibv_cq* ibv_create_cq(ibv_context* c, int cqe, void* cq_context,
                                 ibv_comp_channel* channel, int vector) {
  return guarded([&]() -> ibv_cq* {
    auto cq = make_cq(c, cqe, cq_context, channel, vector);
    return cq ? &cq.release()->cq : nullptr;
  });
}

ADVERB_API int ibv_resize_cq(ibv_cq* cq, int cqe) {
  return guarded([&] { return resize_cq(*of(cq), cqe); });
}

ADVERB_API int ibv_destroy_cq(ibv_cq* cq) {
  std::uint32_t comp = 0, async = 0;
  if (const int error = guarded([&] { return detach_cq(cq, comp, async); })) return error;
  wait_for_acks(cq->mutex, cq->cond, cq->comp_events_completed, comp);
  wait_for_acks(cq->mutex, cq->cond, cq->async_events_completed, async);
  guarded([&] { free_cq(cq); });
  return 0;
}
