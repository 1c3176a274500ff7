// SPDX-License-Identifier: Apache-2.0
// The inside of a Device: one engine behind one lock, its port, and the background thread.
//
// The background thread is in one of two states:
//
//   parked    it sleeps on the sockets and until the engine's next deadline; it makes all progress.
//   polling   the application polls: it sleeps on neither, and looks every now and then (a tick)
//             whether a caller has received since the last look.  A tick that finds nothing parks
//             it.
//
// parked -> polling: `polling_evidence` looks in a row (when it woke, or wanted the engine and a
// caller had it) found a caller receiving at that very moment.  polling -> parked: a tick, or at
// once when a CQ is armed.  Ticks start short and double
// while the application keeps polling, so a program that polls in short spells is taken over from
// soon, and one that always polls is hardly disturbed.
//
// Deadlines: before it sleeps, the thread writes down until when (planned_wake, under the lock).
// Whoever makes progress compares it with the engine's next deadline and wakes the thread when that
// is earlier: rare, since ACK deadlines mostly move later.
#pragma once

#include <poll.h>
#include <pthread.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "daemon/client.hpp"
#include "nic/clock.hpp"
#include "nic/device.hpp"
#include "nic/engine_lock.hpp"

namespace adverb::nic {

struct Link;
class FaultPlane;

// A counter with one writer at a time and readers anywhere.
class Tally {
 public:
  void add(std::uint64_t n = 1) { value_.store(value() + n, std::memory_order_relaxed); }
  std::uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

struct Device::Impl {
  static constexpr std::size_t arena_size = 256 << 10;
  static constexpr unsigned events_at_once = 64;
  static constexpr unsigned transmit_rounds = 64;  // bursts that one call may send
  static constexpr unsigned bursts_at_once = 4;    // bursts that one turn receives
  static constexpr unsigned drain_calls = 4096;    // and when a deadline has passed
  static constexpr unsigned polling_evidence = 4;
  static constexpr Duration first_tick = std::chrono::microseconds(50);
  static constexpr Duration last_tick = std::chrono::microseconds(500);

  static constexpr Duration hold_time = std::chrono::microseconds(3);

  enum class Who { caller, background };
  // How much a turn receives: nothing (unless a timer is due); until it has something to tell;
  // until the sockets are empty.
  enum class Receive { none, some, all };
  // What a turn of the background thread came to; busy: somebody else has the engine.
  enum class Look { busy, found, nothing };

  explicit Impl(DeviceInfo);
  ~Impl();

  // Makes the background thread; client, port and engine are set.  Returns an errno.
  int start();
  void stop();

  // --- turns; the caller holds `lock`, finish() lets it go
  // `reader`: a CQ that the caller is about to read.  If the turn brings it entries, what is owed
  // to the peers (ACKs) waits a moment: a program that answers at once takes the ACK along in one
  // send.
  void turn(Who, Receive, const engine::CompletionQueue* reader = nullptr);
  void receive(Instant& now, Who, unsigned bursts, bool until_empty);
  void transmit(Instant now);
  void finish(Who);
  bool unlock_and_tell(bool wake);
  bool plan(Who);
  Instant next_deadline() const;  // of the engine, and of the fault rules
  void deliver(std::span<const engine::EventRecord>);

  // --- background thread
  void run_background();
  void sleep_parked();
  void give_way();
  bool leave_to_poller(std::uint64_t arms_seen);
  void watch_polling(std::uint64_t arms_seen);
  Look background_turn();
  bool lingers();
  bool caller_is_receiving() const;
  void wait(std::span<pollfd>, Instant until);
  std::span<pollfd> control() { return {waiting.data(), control_descriptors}; }
  void serve_control();
  void recover_daemon();
  // network_changes.cpp
  void follow_network();
  void report_link(const Link&);
  void report(engine::AsyncEvent);
  void follow_mtu(const Link&);
  void follow_addresses();
  Gid change_gid(unsigned index, const Gid& from, const Gid& to);
  void kick();
  void nap(Duration);
  bool stopping() const { return stop_.load(std::memory_order_acquire); }

  // In a forked child: closes the descriptors.
  void abandon();

  DeviceInfo info;
  mutable std::mutex info_mutex;  // its MTU and GIDs, which only the background thread changes
  std::shared_ptr<daemon::Client> client;
  XrcDomains xrc_domains;
  std::unique_ptr<port::Port> port;
  std::unique_ptr<engine::Engine> engine;
  EngineLock lock;
  std::atomic<bool> dead{false};  // a forked child's copy; `lock` stays held in it for ever
  std::mutex delivery;            // taken before the engine is let go; guards `sinks`
  std::vector<EventSink*> sinks;
  std::atomic<bool> link_up{true};      // the netdev's
  std::atomic<bool> fault_down{false};  // by a fault rule
  std::atomic<bool> failed{false};      // DEVICE_FATAL, by a fault rule
  std::unique_ptr<FaultPlane> faults;   // null without fault rules

  // Written under `lock`.
  std::unique_ptr<std::uint8_t[]> arena;
  std::unique_ptr<engine::TxBurst> tx;
  bool more_to_send = false;
  bool received_frames = false;  // by the last turn
  unsigned looks = 0;            // of callers
  bool deferred = false;         // something owed waits, since then
  Instant deferred_since{};

  // Between callers and the background thread.
  std::atomic<std::int64_t> planned_wake;      // ns; min: awake or polling, needs no kick
  std::atomic<std::uint64_t> caller_turns{0};  // odd while a caller receives
  std::atomic<std::int64_t> last_receive{0};   // ns, by a caller
  std::atomic<std::uint64_t> arms{0};
  std::atomic<bool> polling{false}, stop_{false};
  int kick_fd = -1, link_fd = -1;
  pthread_t thread{};
  bool running = false;

  // The background thread's own.
  std::vector<pollfd> waiting;  // control descriptors first, then the port's
  static constexpr unsigned control_descriptors = 3;
  unsigned evidence = 0, fruitless = 0;
  static constexpr Duration most_linger = std::chrono::microseconds(20);
  Duration linger{};
  Instant last_found{};
  std::uint64_t turns_seen = 0;
  Instant recover_at = never;

  struct {
    Tally wakeups, ticks, background_bursts, caller_bursts;
    std::atomic<std::uint64_t> kicks{0};
  } counts;
};

}  // namespace adverb::nic
