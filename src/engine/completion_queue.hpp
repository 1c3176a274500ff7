// SPDX-License-Identifier: Apache-2.0
// A completion queue: a ring that the engine fills and pollers empty (IBTA 11.2.8, 11.4.2).  One
// producer (whoever holds the engine), one consumer at a time (whoever holds `lock`).  Arming is
// one-shot; the engine reports a completion event when it adds an entry to an armed queue
// (ibv_req_notify_cq(3)), or, with moderation, when it has added several or some time has passed
// (ibv_modify_cq(3)).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/spin_lock.hpp"
#include "base/timer_wheel.hpp"
#include "engine/types.hpp"

namespace adverb::engine {

// Timer::kind of a completion queue's; a queue pair's are 0.
inline constexpr std::uint8_t timer_of_cq = 1;

enum class Arm : std::uint8_t { none, solicited, any };

class CompletionQueue {
 public:
  using Ring = std::unique_ptr<Cqe[]>;

  explicit CompletionQueue(std::uint32_t capacity);
  CompletionQueue(const CompletionQueue&) = delete;

  // Consumer side; the caller holds `lock`.  Polling an entry frees its send queue slots.
  unsigned poll(unsigned n, Cqe* out);
  // Consumer side, any thread, no lock: the caller must look for entries once more afterwards.
  void arm(bool solicited_only);
  bool empty() const;
  std::uint32_t capacity() const { return capacity_; }
  // A ring for resize(), made beforehand, since a large one takes a while.
  static Ring make_ring(std::uint32_t capacity);
  // Moves the entries, in order, to a ring that was made for `capacity`; the old one is left in
  // `ring`.  False: there are more entries than that.  The caller holds the engine and `lock`.
  bool resize(std::uint32_t capacity, Ring& ring);

  // Producer side.  False: no room (overrun; the entry is lost).
  bool push(const Cqe&);
  // After push: is a completion event due?  Takes the arming.  `solicited`: the entry counts for a
  // queue that is armed for solicited completions (IBTA 11.4.2.2: the SE bit of the message, or an
  // error).
  bool disarm_for(bool solicited);
  bool armed_for(bool solicited) const;
  // Takes out the entries of a QP that is reset or destroyed.  The caller holds the engine and
  // `lock`.
  void purge(const QueuePair*);
  // The same by the number that a work queue's entries have.
  void purge(Qpn number);

  SpinLock lock;
  void* user = nullptr;         // the shell's object
  bool overrun = false;         // engine: the CQ is in error, nothing is added any more
  bool ignore_overrun = false;  // entries that find no room are lost, and that is no error
  // Engine.  An event waits for `moderation_count` entries since the arming, at most
  // `moderation_period` after the first of them; without moderation the count is at most 1.
  std::uint32_t moderation_count = 0, moderated = 0;
  Duration moderation_period{};
  Timer moderation_timer;
  std::uint32_t attached = 0;  // QPs and WQs that use it (engine): not destroyed while not zero
  // Engine: on the list of objects with something to report.
  CompletionQueue* next_event = nullptr;
  bool event_pending = false, error_pending = false, listed = false;

 private:
  template <class Goes>
  void purge_if(Goes&&);
  std::uint32_t capacity_, mask_;
  Ring ring_;
  std::atomic<std::uint32_t> head_{0}, tail_{0};  // consumed, produced
  std::atomic<Arm> armed_{Arm::none};
};

}  // namespace adverb::engine
