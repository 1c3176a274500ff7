// SPDX-License-Identifier: Apache-2.0
// A receive work queue (WQ) of raw packets, that lives apart from queue pairs (ibv_create_wq(3)):
// its own receive queue, protection domain and completion queue, and a state machine of three
// states.  Queue pairs without a receive queue of their own spread what flow rules give them over
// the work queues of an indirection table, by a hash of the frame (receive side scaling,
// ibv_create_rwq_ind_table(3)).
//
// Always true: a queue that stands in a table is not destroyed, nor a table that a queue pair has.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "engine/completion_queue.hpp"
#include "engine/rx_hash.hpp"
#include "engine/types.hpp"
#include "engine/work_queue.hpp"

namespace adverb::engine {

// Numbered as ibv_wq_state.
enum class WqState : std::uint8_t { reset, ready, error };

// Who goes where: READY takes frames, ERROR flushes what is posted, RESET forgets everything.
// From ERROR the way to READY is through RESET, and what was not ready does not fail.
constexpr bool can_go(WqState from, WqState to) {
  return !(from == WqState::error && to == WqState::ready) &&
         !(from == WqState::reset && to == WqState::error);
}

struct WqInit {
  std::uint32_t max_wr = 1, max_sge = 1;
  PdId pd = 0;
  CompletionQueue* cq = nullptr;
  bool strip_vlan = false;
  void* user = nullptr;
};

struct ReceiveWorkQueue {
  explicit ReceiveWorkQueue(const WqInit& i)
      : queue(i.max_wr, i.max_sge), pd(i.pd), cq(i.cq), strip_vlan(i.strip_vlan), user(i.user) {}
  ReceiveQueue queue;
  PdId pd;
  CompletionQueue* cq;
  bool strip_vlan;  // take the VLAN tag out of frames
  // What its completions have as their QP number.  Of slot 0, which is no process's: it is no queue
  // pair's number.
  Qpn number{};
  std::atomic<WqState> state{WqState::reset};
  std::uint32_t users = 0;  // entries of indirection tables
  RecvWqe taken;            // the receive that a frame is put into
  void* user;               // the shell's object
  ReceiveWorkQueue* next_event = nullptr;
  bool listed = false;  // WQ_FATAL is to be told
};

class IndirectionTable {
 public:
  // As many as a power of two.
  explicit IndirectionTable(std::vector<ReceiveWorkQueue*> entries)
      : entries_(std::move(entries)) {}
  ReceiveWorkQueue& pick(std::uint32_t hash) const {
    return *entries_[hash & (entries_.size() - 1)];
  }
  const std::vector<ReceiveWorkQueue*>& entries() const { return entries_; }
  std::uint32_t users = 0;  // queue pairs

 private:
  std::vector<ReceiveWorkQueue*> entries_;
};

// What a queue pair has in place of a receive queue.
struct ReceiveScaling {
  IndirectionTable* table = nullptr;  // null: no scaling
  RxHash hash;
};

}  // namespace adverb::engine
