// SPDX-License-Identifier: Apache-2.0
// The calls of a Device and the turns that they make.  background.cpp has the thread, registry.cpp
// open, close and fork.
#include "nic/device.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "nic/device_impl.hpp"
#include "nic/fault_plane.hpp"
#include "nic/netlink.hpp"

namespace adverb::nic {

using engine::EventRecord;

Device::Impl::Impl(DeviceInfo device)
    : info(std::move(device)),
      arena(new std::uint8_t[arena_size]()),
      tx(std::make_unique<engine::TxBurst>(std::span(arena.get(), arena_size))),
      planned_wake(Instant::min().time_since_epoch().count()),
      kick_fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      link_fd(open_monitor()) {
  link_up = info.up;
}

Device::Impl::~Impl() {
  stop();
  abandon();
}

void Device::Impl::abandon() {
  port.reset();
  for (int* fd : {&kick_fd, &link_fd}) {
    if (*fd >= 0) ::close(*fd);
    *fd = -1;
  }
}

// --- turns

// One turn with the engine held.  Received frames go before timers: when a deadline has passed,
// perhaps because the process was stopped, the ACK may lie in the socket, so all is drained first
// (design D3, Time).
void Device::Impl::turn(Who who, Receive how, const engine::CompletionQueue* reader) {
  Instant now = clock_now();
  received_frames = false;
  const bool due = next_deadline() <= now;
  if (how != Receive::none && who == Who::caller) {
    caller_turns.store(caller_turns.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    last_receive.store(now.time_since_epoch().count(), std::memory_order_relaxed);
  }
  const bool holds = who == Who::caller && how == Receive::some && !due && deferred &&
                     now - deferred_since < hold_time;
  if (std::exchange(deferred, holds) && !holds && how != Receive::none) transmit(now);
  if (due)
    receive(now, who, drain_calls, true);
  else if (how == Receive::all)
    receive(now, who, 4 * bursts_at_once, true);
  else if (how == Receive::some)
    receive(now, who, bursts_at_once, false);
  // Only while the background thread ticks beside a polling caller: it sends what the caller
  // forgets.
  if (!deferred && reader && !due && received_frames && !reader->empty() &&
      polling.load(std::memory_order_relaxed)) {
    deferred = true;
    deferred_since = now;
  }
  if (!deferred && (due || !engine->idle())) transmit(now);
  if (how != Receive::none && who == Who::caller)
    caller_turns.store(caller_turns.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

void Device::Impl::receive(Instant& now, Who who, unsigned bursts, bool until_empty) {
  constexpr std::size_t big_burst = 8;  // after a smaller one, answer and report first: latency
  // Settling the credit reads what senders write: a spinning poller leaves it alone most times.
  constexpr unsigned looks_per_settling = 64;
  const bool thorough = until_empty || ++looks % looks_per_settling == 0;
  const std::uint64_t mark = thorough ? engine->credit_mark() : 0;
  bool all_empty = false;
  for (unsigned calls = 0; bursts != 0 && calls < drain_calls; ++calls) {
    using Look = port::Port::Look;
    const auto frames = port->receive(all_empty, thorough ? Look::everywhere : Look::once);
    if (frames.empty()) {
      if (all_empty || !thorough) break;
      continue;
    }
    if (calls != 0) now = clock_now();  // else the turn has just read it
    for (const engine::RxFrame& frame : frames) engine->receive(now, frame);
    received_frames = true;
    --bursts;
    (who == Who::caller ? counts.caller_bursts : counts.background_bursts).add();
    if (!until_empty && frames.size() < big_burst) break;
  }
  if (all_empty && thorough) engine->credit_settle(mark);
}

void Device::Impl::transmit(Instant now) {
  more_to_send = true;
  for (unsigned round = 0; more_to_send && round < transmit_rounds; ++round) {
    tx->clear();
    more_to_send = engine->transmit(now, *tx);
    if (!tx->empty()) port->send(*tx);
  }
}

// Lets the engine go, then tells what happened.  The delivery mutex is taken first, so that events
// leave in order and a destroy call can wait for those that are on their way.
void Device::Impl::finish(Who who) {
  for (;;) {
    const bool wake = plan(who);
    bool all = true;
    if (engine->events_pending() || (faults && faults->pending())) {
      all = unlock_and_tell(wake);
    } else {
      lock.unlock();
      if (wake) kick();
    }
    // Doorbells that rang while we held the engine are ours to see to, unless somebody else has it
    // now.
    if (all && !engine->doorbells_pending()) return;
    if (!lock.try_lock()) return;
    turn(who, Receive::none);
  }
}

// False: there is more to tell.
bool Device::Impl::unlock_and_tell(bool wake) {
  std::array<EventRecord, events_at_once> events;
  const unsigned count = engine->take_events(events);
  const bool all = !engine->events_pending();
  const auto port_events = faults ? faults->take_events() : std::vector<engine::AsyncEvent>();
  delivery.lock();
  lock.unlock();
  if (wake) kick();
  deliver({events.data(), count});
  for (const engine::AsyncEvent event : port_events)
    for (EventSink* sink : sinks) sink->on_port_event(event);
  delivery.unlock();
  return all;
}

Instant Device::Impl::next_deadline() const {
  const Instant deadline = engine->next_deadline();
  return faults ? std::min(deadline, faults->next_deadline()) : deadline;
}

// Writes down when the background thread has to look again; true: it must be woken to learn that.
bool Device::Impl::plan(Who who) {
  const Instant deadline = more_to_send ? Instant{} : next_deadline();
  const std::int64_t ns = deadline.time_since_epoch().count();
  const std::int64_t awake = Instant::min().time_since_epoch().count();
  if (who == Who::background) {
    planned_wake.store(ns, std::memory_order_relaxed);
    return false;
  }
  if (ns >= planned_wake.load(std::memory_order_relaxed)) return false;
  planned_wake.store(awake, std::memory_order_relaxed);
  return true;
}

void Device::Impl::deliver(std::span<const EventRecord> events) {
  for (const EventRecord& event : events)
    for (EventSink* sink : sinks) sink->on_event(event);
}

// --- Device

Device::Device(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

DeviceInfo Device::info() const {
  std::lock_guard hold(impl_->info_mutex);
  return impl_->info;
}
bool Device::link_up() const {
  return impl_->link_up.load(std::memory_order_relaxed) &&
         !impl_->fault_down.load(std::memory_order_relaxed);
}
bool Device::failed() const { return impl_->failed.load(std::memory_order_relaxed); }
bool Device::dead() const { return impl_->dead.load(std::memory_order_relaxed); }

void Device::attach(EventSink* sink) {
  if (dead()) return;
  std::lock_guard hold(impl_->delivery);
  impl_->sinks.push_back(sink);
}

void Device::detach(EventSink* sink) {
  if (dead()) return;
  std::lock_guard hold(impl_->delivery);
  std::erase(impl_->sinks, sink);
}

void Device::run_locked(const std::function<void(engine::Engine&, Instant)>& f) {
  if (dead()) return;
  impl_->lock.lock();
  // What a turn held back leaves before the object that owes it may go.
  if (std::exchange(impl_->deferred, false)) impl_->transmit(clock_now());
  try {
    f(*impl_->engine, clock_now());
  } catch (...) {
    impl_->finish(Impl::Who::caller);
    throw;
  }
  impl_->turn(Impl::Who::caller, Impl::Receive::none);
  impl_->finish(Impl::Who::caller);
}

// The port is in a group as long as the table has members for it.
int Device::attach_mcast(engine::QueuePair& qp, const Gid& group) {
  using Result = engine::MulticastTable::Result;
  return with_engine([&](engine::Engine& e, Instant) {
    engine::MulticastTable& table = e.multicast();
    const bool first = table.members(group).empty();
    const Result result = table.attach(qp, group);
    if (result == Result::full) return ENOMEM;
    const int error = first ? impl_->port->join(group) : 0;
    if (error) table.detach(qp, group);
    return error;
  });
}

int Device::detach_mcast(engine::QueuePair& qp, const Gid& group) {
  using Result = engine::MulticastTable::Result;
  return with_engine([&](engine::Engine& e, Instant) {
    engine::MulticastTable& table = e.multicast();
    if (table.detach(qp, group) == Result::unchanged) return EINVAL;
    if (table.members(group).empty()) impl_->port->leave(group);
    return 0;
  });
}

int Device::open_ethernet() {
  return with_engine([&](engine::Engine&, Instant) {
    const int error = impl_->port->open_ethernet();
    return error == EOPNOTSUPP ? EPERM : error;
  });
}

// Frames are received as long as there are rules.
engine::FlowRule* Device::create_flow(const engine::FlowRule& rule, int& error) {
  error = EIO;
  return with_engine([&](engine::Engine& e, Instant) -> engine::FlowRule* {
    error = impl_->port->watch_ethernet(true);
    if (error) return nullptr;
    engine::FlowRule* made = e.flows().add(rule);
    if (!made) error = ENOMEM;
    return made;
  });
}

void Device::destroy_flow(engine::FlowRule* rule) {
  with_engine([&](engine::Engine& e, Instant) {
    e.flows().remove(rule);
    if (e.flows().empty()) impl_->port->watch_ethernet(false);
  });
}

// Whoever took events for the object held the engine before us and holds `delivery` since: wait for
// it.
static void wait_for_delivery(std::mutex& delivery) { std::lock_guard hold(delivery); }

void Device::retire(const std::function<void(engine::Engine&)>& f) {
  if (dead()) return;
  run_locked([&](engine::Engine& e, Instant) { f(e); });
  wait_for_delivery(impl_->delivery);
}

void Device::destroy_qp(engine::QueuePair* qp) {
  retire([&](engine::Engine& e) { e.destroy_qp(qp); });
}

bool Device::destroy_cq(engine::CompletionQueue* cq) {
  if (dead()) return true;
  const bool done = with_engine([&](engine::Engine& e, Instant) { return e.destroy_cq(cq); });
  wait_for_delivery(impl_->delivery);
  return done;
}

bool Device::destroy_srq(engine::SharedReceiveQueue* srq) {
  if (dead()) return true;
  const bool done = with_engine([&](engine::Engine& e, Instant) { return e.destroy_srq(srq); });
  wait_for_delivery(impl_->delivery);
  return done;
}

bool Device::destroy_wq(engine::ReceiveWorkQueue* wq) {
  if (dead()) return true;
  const bool done = with_engine([&](engine::Engine& e, Instant) { return e.destroy_wq(wq); });
  wait_for_delivery(impl_->delivery);
  return done;
}

std::expected<XrcDomain*, OpenError> Device::open_xrc_domain(int fd, int flags) {
  if (dead()) return std::unexpected(OpenError{EIO, "the device is the parent process's"});
  return impl_->xrc_domains.open(fd, flags, *impl_->client, info().ifindex,
                                 [&](const auto& f) { retire(f); });
}

void Device::close_xrc_domain(XrcDomain* domain) {
  if (dead()) return;
  impl_->xrc_domains.close(domain, *impl_->client, [&](const auto& f) { retire(f); });
}

void Device::doorbell(engine::QueuePair& qp) {
  if (dead()) return;
  impl_->engine->ring_doorbell(qp);
  if (!impl_->lock.try_lock()) return;
  impl_->turn(Impl::Who::caller, Impl::Receive::none);
  impl_->finish(Impl::Who::caller);
}

static unsigned take(engine::CompletionQueue& cq, unsigned n, engine::Cqe* out) {
  if (cq.empty()) return 0;
  std::lock_guard hold(cq.lock);
  return cq.poll(n, out);
}

unsigned Device::poll(engine::CompletionQueue& cq, unsigned n, engine::Cqe* out) {
  // A program that always finds entries must still receive now and then.
  constexpr unsigned polls_per_turn = 64;
  thread_local unsigned successes = 0;
  if (dead()) return 0;  // the parent's; another thread may have held the CQ's lock at the fork
  const unsigned got = take(cq, n, out);
  if (got != 0 && ++successes % polls_per_turn != 0) return got;
  if (!impl_->lock.try_lock()) {
    if (got == 0) impl_->lock.failed_to_poll();
    return got != 0 ? got : take(cq, n, out);
  }
  impl_->turn(Impl::Who::caller, Impl::Receive::some, got == 0 ? &cq : nullptr);
  impl_->finish(Impl::Who::caller);
  return got != 0 ? got : take(cq, n, out);
}

void Device::arm(engine::CompletionQueue& cq, bool solicited_only) {
  if (dead()) return;
  cq.arm(solicited_only);
  impl_->arms.fetch_add(1, std::memory_order_seq_cst);
  if (impl_->polling.exchange(false, std::memory_order_seq_cst)) impl_->kick();
}

void Device::progress() {
  if (dead()) return;
  if (!impl_->lock.try_lock()) return;
  impl_->turn(Impl::Who::caller, Impl::Receive::some);
  impl_->finish(Impl::Who::caller);
}

// The counters have one writer, whoever holds the engine.
engine::Counters Device::engine_counters() const {
  if (dead()) return {};
  std::lock_guard hold(impl_->lock);
  return impl_->engine->counters();
}

port::PortCounters Device::port_counters() const {
  if (dead()) return {};
  std::lock_guard hold(impl_->lock);
  return impl_->port->counters();
}

ThreadCounters Device::thread_counters() const {
  const auto& c = impl_->counts;
  return {.background_wakeups = c.wakeups.value(),
          .background_ticks = c.ticks.value(),
          .background_bursts = c.background_bursts.value(),
          .caller_bursts = c.caller_bursts.value(),
          .kicks = c.kicks.load(std::memory_order_relaxed)};
}

}  // namespace adverb::nic
