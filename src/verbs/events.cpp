// SPDX-License-Identifier: Apache-2.0
// Event delivery: the pipes behind completion channels and asynchronous events, and the waits of
// the destroy calls (ibv_get_cq_event(3), ibv_get_async_event(3)).  The records are those of the
// kernel: eight bytes that name the CQ, or sixteen of which the first eight name the object and the
// next four the event.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "port/uncancelled.hpp"
#include "verbs/fault.hpp"
#include "verbs/guard.hpp"
#include "verbs/objects.hpp"

namespace adverb::verbs {

EventPipe::~EventPipe() {
  for (int fd : {read_fd_, write_fd_, purge_fd_})
    if (fd >= 0) close(fd);
}

int EventPipe::open() {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC)) return errno;
  read_fd_ = fds[0];
  write_fd_ = fds[1];
  fcntl(write_fd_, F_SETFL, O_NONBLOCK);
  // A second description of the reading end, whose O_NONBLOCK is ours alone.
  char path[32];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", read_fd_);
  purge_fd_ = ::open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  return 0;
}

bool EventPipe::put(const Record& r) {
  return port::uncancelled::write(write_fd_, &r, record_size_) ==
         static_cast<ssize_t>(record_size_);
}

void EventPipe::write(const void* record, std::uint64_t element) {
  Record r{};
  std::memcpy(&r, record, record_size_);
  r.words[0] = element;
  std::lock_guard lock(mutex_);
  if (!waiting_.empty() || !put(r)) waiting_.push_back(r);
}

void EventPipe::refill() {
  std::lock_guard lock(mutex_);
  while (!waiting_.empty() && put(waiting_.front())) waiting_.pop_front();
}

unsigned EventPipe::purge(std::uint64_t element) {
  std::lock_guard lock(mutex_);
  std::deque<Record> kept;
  unsigned purged = 0;
  Record r{};
  while (purge_fd_ >= 0 &&
         ::read(purge_fd_, &r, record_size_) == static_cast<ssize_t>(record_size_)) {
    if (r.words[0] == element) {
      ++purged;
    } else {
      kept.push_back(r);
    }
  }
  for (const Record& w : waiting_) {
    if (w.words[0] == element) {
      ++purged;
    } else {
      kept.push_back(w);
    }
  }
  waiting_.swap(kept);
  while (!waiting_.empty() && put(waiting_.front())) waiting_.pop_front();
  return purged;
}

void init_sync(pthread_mutex_t& mutex, pthread_cond_t& cond) {
  pthread_mutex_init(&mutex, nullptr);
  pthread_cond_init(&cond, nullptr);
}

void wait_for_acks(pthread_mutex_t& mutex, pthread_cond_t& cond, const std::uint32_t& completed,
                   std::uint32_t delivered) {
  pthread_mutex_lock(&mutex);
  while (completed != delivered) pthread_cond_wait(&cond, &mutex);
  pthread_mutex_unlock(&mutex);
}

std::mutex& handles_mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

// --- from the device, in whatever thread made the progress

void Context::raise(std::uint64_t element, engine::AsyncEvent event) {
  struct {
    std::uint64_t element;
    std::uint32_t type, reserved;
  } record{element, static_cast<std::uint32_t>(event), 0};
  async.write(&record, element);
}

void Context::on_event(const engine::EventRecord& r) {
  switch (r.kind) {
    case engine::EventRecord::completion: {
      auto* cq = static_cast<Cq*>(r.user);
      if (cq->context != this || !cq->channel) return;
      ++cq->comp_events;
      const std::uint64_t handle = reinterpret_cast<std::uintptr_t>(cq);
      cq->channel->events.write(&handle, handle);
      return;
    }
    case engine::EventRecord::cq: {
      auto* cq = static_cast<Cq*>(r.user);
      if (cq->context != this) return;
      ++cq->async_events;
      return raise(reinterpret_cast<std::uintptr_t>(cq), r.event);
    }
    case engine::EventRecord::qp: {
      std::lock_guard hold(handles_mutex());
      for (auto* qp = static_cast<Qp*>(r.user); qp; qp = qp->next_handle) {
        if (qp->context != this) continue;
        ++qp->async_events;
        raise(reinterpret_cast<std::uintptr_t>(qp), r.event);
      }
      return;
    }
    case engine::EventRecord::srq: {
      auto* srq = static_cast<Srq*>(r.user);
      if (srq->context != this) return;
      ++srq->async_events;
      return raise(reinterpret_cast<std::uintptr_t>(srq), r.event);
    }
    case engine::EventRecord::wq: {
      auto* wq = static_cast<Wq*>(r.user);
      if (wq->context != this) return;
      ++wq->async_events;
      return raise(reinterpret_cast<std::uintptr_t>(wq), r.event);
    }
  }
}

void Context::on_port_event(engine::AsyncEvent event) {
  if (event == engine::AsyncEvent::device_fatal) failed.store(true, std::memory_order_relaxed);
  raise(1, event);
}

}  // namespace adverb::verbs

using namespace adverb::verbs;

namespace {

// Adds `n` to a public counter and wakes the destroy call that may wait for it.
void acknowledge(pthread_mutex_t& mutex, pthread_cond_t& cond, std::uint32_t& completed,
                 std::uint32_t n) {
  pthread_mutex_lock(&mutex);
  completed += n;
  pthread_cond_signal(&cond);
  pthread_mutex_unlock(&mutex);
}

}  // namespace

ADVERB_API int ibv_get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** cq_context) {
  if (const int error = fault(Call::get_cq_event)) return errno = error, -1;
  std::uint64_t handle;
  const ssize_t n = read(channel->fd, &handle, sizeof handle);
  if (n != sizeof handle) {
    if (n >= 0) errno = EIO;
    return -1;
  }
  of(channel)->events.refill();
  *cq = reinterpret_cast<ibv_cq*>(handle);
  *cq_context = (*cq)->cq_context;
  return 0;
}

ADVERB_API void ibv_ack_cq_events(ibv_cq* cq, unsigned n) {
  acknowledge(cq->mutex, cq->cond, cq->comp_events_completed, n);
}

ADVERB_API int ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
  if (const int error = fault(Call::get_async_event)) return errno = error, -1;
  struct {
    std::uint64_t element;
    std::uint32_t type, reserved;
  } record;
  const ssize_t n = read(context->async_fd, &record, sizeof record);
  if (n != sizeof record) {
    if (n >= 0) errno = EIO;
    return -1;
  }
  of(context)->async.refill();
  *event = {};
  event->event_type = static_cast<ibv_event_type>(record.type);
  switch (event->event_type) {
    case IBV_EVENT_CQ_ERR:
      event->element.cq = reinterpret_cast<ibv_cq*>(record.element);
      break;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      event->element.qp = reinterpret_cast<ibv_qp*>(record.element);
      break;
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED:
      event->element.srq = reinterpret_cast<ibv_srq*>(record.element);
      break;
    case IBV_EVENT_WQ_FATAL:
      event->element.wq = reinterpret_cast<ibv_wq*>(record.element);
      break;
    default:
      event->element.port_num = static_cast<int>(record.element);
      break;
  }
  return 0;
}

ADVERB_API void ibv_ack_async_event(ibv_async_event* event) {
  switch (event->event_type) {
    case IBV_EVENT_CQ_ERR: {
      ibv_cq* cq = event->element.cq;
      return acknowledge(cq->mutex, cq->cond, cq->async_events_completed, 1);
    }
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED: {
      ibv_qp* qp = event->element.qp;
      return acknowledge(qp->mutex, qp->cond, qp->events_completed, 1);
    }
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED: {
      ibv_srq* srq = event->element.srq;
      return acknowledge(srq->mutex, srq->cond, srq->events_completed, 1);
    }
    case IBV_EVENT_WQ_FATAL: {
      ibv_wq* wq = event->element.wq;
      return acknowledge(wq->mutex, wq->cond, wq->events_completed, 1);
    }
    default:
      return;
  }
}
