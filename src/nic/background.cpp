// SPDX-License-Identifier: Apache-2.0
// The background thread of a device; device_impl.hpp says when it does what.
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <utility>

#include "nic/device_impl.hpp"
#include "port/uncancelled.hpp"

namespace adverb::nic {

using namespace std::chrono_literals;

namespace {

// Blocks every signal that is the application's.  A blocked fault would kill, so faults stay open.
class BlockSignals {
 public:
  BlockSignals() {
    sigset_t all;
    sigfillset(&all);
    for (const int s : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS}) sigdelset(&all, s);
    pthread_sigmask(SIG_SETMASK, &all, &saved_);
  }
  ~BlockSignals() { pthread_sigmask(SIG_SETMASK, &saved_, nullptr); }

 private:
  sigset_t saved_;
};

// The thread runs for some microseconds at a time, and mostly beside a thread that spins.  With a
// short slice it need not wait until the spinner's ends (3 ms) when both want one CPU.  Kernels
// before 6.12 accept it and go on as they do.
void ask_for_short_slices() {
  struct {
    std::uint32_t size, policy;
    std::uint64_t flags;
    std::int32_t nice;
    std::uint32_t priority;
    std::uint64_t runtime, deadline, period;
  } attributes{};                              // struct sched_attr, sched_setattr(2)
  constexpr std::uint64_t keep_policy = 0x08;  // SCHED_FLAG_KEEP_POLICY
  attributes.size = sizeof attributes;
  attributes.flags = keep_policy;
  attributes.nice = getpriority(PRIO_PROCESS, 0);  // this thread's
  attributes.runtime = 100'000;                    // ns, the least there is
  if (::syscall(SYS_sched_setattr, 0, &attributes, 0) != 0) {
    // A real-time policy, or a sandbox: it stays as it is.
  }
}

void* thread_main(void* impl) {
  static_cast<Device::Impl*>(impl)->run_background();
  return nullptr;
}

}  // namespace

int Device::Impl::start() {
  if (kick_fd < 0) return EMFILE;
  waiting.push_back({kick_fd, POLLIN, 0});
  waiting.push_back({client ? client->watch_descriptor() : -1, POLLIN, 0});
  waiting.push_back({link_fd, POLLIN, 0});
  for (const int fd : port->wait_descriptors()) waiting.push_back({fd, POLLIN, 0});
  BlockSignals block;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 1 << 20);
  const int error = pthread_create(&thread, &attributes, thread_main, this);
  pthread_attr_destroy(&attributes);
  running = error == 0;
  if (running) pthread_setname_np(thread, "adverb");
  return error;
}

void Device::Impl::stop() {
  if (!running) return;
  stop_.store(true, std::memory_order_release);
  kick();
  pthread_join(thread, nullptr);
  running = false;
}

void Device::Impl::run_background() {
  ask_for_short_slices();
  prctl(PR_SET_TIMERSLACK, 10'000UL);  // ns; ticks and deadlines are short
  while (!stopping()) {
    switch (background_turn()) {
      case Look::busy:
        give_way();
        break;
      case Look::found:
        break;
      case Look::nothing:
        if (!lingers()) sleep_parked();
    }
  }
}

// A stream of bursts costs a wake-up each (18 us) when the thread sleeps between them: it looks on
// for a moment after a burst, for as long as that pays.
bool Device::Impl::lingers() {
  // Not beside a caller that polls: it is quicker.
  const std::uint64_t turns = caller_turns.load(std::memory_order_relaxed);
  if (std::exchange(turns_seen, turns) != turns || linger == Duration{}) return false;
  if (clock_now() - last_found < linger) {
    fruitless = 0;
    return true;
  }
  linger = linger > most_linger / 8 ? linger / 2 : Duration{};  // in vain: less the next time
  return false;
}

// Never waits for the engine, lest callers step back for a thread that must first wake.
Device::Impl::Look Device::Impl::background_turn() {
  if (!lock.try_lock()) return Look::busy;
  turn(Who::background, Receive::all);
  const bool found = received_frames || more_to_send;
  finish(Who::background);
  fruitless = found ? 0 : fruitless + 1;
  if (found) {
    const Instant now = clock_now();
    // Two bursts that close: the stream is worth waiting for.
    if (now - last_found < most_linger) linger = most_linger;
    last_found = now;
  }
  return found ? Look::found : Look::nothing;
}

// A caller has the engine.  One that polls has it most of the time: the thread may never find it
// free, and must not wake every 20 us to find that out.
void Device::Impl::give_way() {
  const std::uint64_t arms_seen = arms.load(std::memory_order_seq_cst);
  if (!leave_to_poller(arms_seen)) nap(20us);
}

// False: not enough speaks for a polling caller (yet).
bool Device::Impl::leave_to_poller(std::uint64_t arms_seen) {
  evidence = caller_is_receiving() ? evidence + 1 : 0;
  if (evidence < polling_evidence) return false;
  evidence = 0;
  watch_polling(arms_seen);
  return true;
}

void Device::Impl::sleep_parked() {
  const std::uint64_t arms_seen = arms.load(std::memory_order_seq_cst);
  const Duration planned(planned_wake.load(std::memory_order_relaxed));
  wait(waiting, Instant(planned));
  planned_wake.store(Instant::min().time_since_epoch().count(), std::memory_order_relaxed);
  if (stopping()) return;
  counts.wakeups.add();
  serve_control();
  const auto packets = std::span(waiting).subspan(control_descriptors);
  if (std::ranges::none_of(packets, [](const pollfd& p) { return p.revents != 0; })) {
    fruitless = 0;
    return;
  }
  // A descriptor that stays readable although the port finds nothing must not cost a core.
  if (!leave_to_poller(arms_seen) && evidence == 0 && fruitless > 64) nap(1ms);
}

// Leaves the work to the callers until they stop, or until a CQ is armed.
void Device::Impl::watch_polling(std::uint64_t arms_seen) {
  polling.store(true, std::memory_order_seq_cst);
  for (Duration tick = first_tick; !stopping(); tick = std::min(2 * tick, last_tick)) {
    if (arms.load(std::memory_order_seq_cst) != arms_seen) break;
    const std::int64_t seen = last_receive.load(std::memory_order_relaxed);
    wait(control(), Instant(Duration(seen)) + tick);
    serve_control();
    counts.ticks.add();
    if (last_receive.load(std::memory_order_relaxed) == seen) break;
  }
  polling.store(false, std::memory_order_seq_cst);
}

// Is some caller receiving at this very moment?  Pollers take a turn about every microsecond.
bool Device::Impl::caller_is_receiving() const {
  const std::uint64_t before = caller_turns.load(std::memory_order_relaxed);
  if (before & 1) return true;
  for (const Instant end = clock_now() + 2us; clock_now() < end;)
    if (caller_turns.load(std::memory_order_relaxed) != before) return true;
  return false;
}

// --- sleeping

void Device::Impl::wait(std::span<pollfd> descriptors, Instant until) {
  until = std::min(until, recover_at);
  timespec left{};
  if (until != never) {
    const Instant now = clock_now();
    if (until > now) {
      const auto ns = (until - now).count();
      left = {.tv_sec = ns / 1'000'000'000, .tv_nsec = ns % 1'000'000'000};
    }
  }
  for (pollfd& p : descriptors) p.revents = 0;
  if (ppoll(descriptors.data(), descriptors.size(), until == never ? nullptr : &left, nullptr) < 0)
    for (pollfd& p : descriptors) p.revents = 0;
}

void Device::Impl::nap(Duration d) {
  wait(std::span(waiting).first(1), clock_now() + d);
  serve_control();
}

void Device::Impl::kick() {
  counts.kicks.fetch_add(1, std::memory_order_relaxed);
  const std::uint64_t one = 1;
  if (port::uncancelled::write(kick_fd, &one, sizeof one) < 0) {
    // EAGAIN: 2^64 - 2 kicks are pending; it is awake.
  }
}

// --- what is not packets

void Device::Impl::serve_control() {
  if (waiting[0].revents) {
    std::uint64_t kicks;
    if (::read(kick_fd, &kicks, sizeof kicks) < 0) {
      // Somebody else's wake-up of the same kick; nothing to do.
    }
  }
  if (waiting[1].revents && recover_at == never) {
    recover_at = clock_now();
    waiting[1].fd = -1;
  }
  if (recover_at != never && clock_now() >= recover_at) recover_daemon();
  if (waiting[2].revents) follow_network();
  for (pollfd& p : control()) p.revents = 0;
}

void Device::Impl::recover_daemon() {
  if (client->recover()) {
    recover_at = never;
    waiting[1].fd = client->watch_descriptor();
    return;
  }
  recover_at = clock_now() + 20ms;
}

}  // namespace adverb::nic
