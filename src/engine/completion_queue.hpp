// SPDX-License-Identifier: Apache-2.0
// A completion queue: a ring that the engine fills and pollers empty (IBTA 11.2.8, 11.4.2).  One
// producer (whoever holds the engine), one consumer at a time (whoever holds `lock`).  Arming is
// one-shot; the engine reports a completion event when it adds an entry to an armed queue
// (ibv_req_notify_cq(3)).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/spin_lock.hpp"
#include "engine/types.hpp"

namespace adverb::engine {

enum class Arm : std::uint8_t { none, solicited, any };

class CompletionQueue {
 public:
  explicit CompletionQueue(std::uint32_t capacity);
  CompletionQueue(const CompletionQueue&) = delete;

  // Consumer side; the caller holds `lock`.  Polling an entry frees its send queue slots.
  unsigned poll(unsigned n, Cqe* out);
  // Consumer side, any thread, no lock: the caller must look for entries once more afterwards.
  void arm(bool solicited_only);
  bool empty() const;
  std::uint32_t capacity() const { return capacity_; }

  // Producer side.  False: no room (overrun; the entry is lost).
  bool push(const Cqe&);
  // After push: is a completion event due?  Takes the arming.  `solicited`: the entry counts for a
  // queue that is armed for solicited completions (IBTA 11.4.2.2: the SE bit of the message, or an
  // error).
  bool disarm_for(bool solicited);
  // Takes out the entries of a QP that is reset or destroyed.  The caller holds the engine and
  // `lock`.
  void purge(const QueuePair*);

  SpinLock lock;
  void* user = nullptr;        // the shell's object
  bool overrun = false;        // engine: the CQ is in error, nothing is added any more
  std::uint32_t attached = 0;  // QPs that use it (engine): destroy is refused while not zero
  // Engine: on the list of objects with something to report.
  CompletionQueue* next_event = nullptr;
  bool event_pending = false, error_pending = false, listed = false;

 private:
  std::uint32_t capacity_, mask_;
  std::unique_ptr<Cqe[]> ring_;
  std::atomic<std::uint32_t> head_{0}, tail_{0};  // consumed, produced
  std::atomic<Arm> armed_{Arm::none};
};

}  // namespace adverb::engine
