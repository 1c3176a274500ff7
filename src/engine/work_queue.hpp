// SPDX-License-Identifier: Apache-2.0
// Send, receive and shared receive queues: bounded rings between posters and the engine.  A poster
// holds `lock`, fills the next slot and publishes it; the engine reads up to `posted`.  Memory is
// laid out at creation.
//
// The send queue has four cursors, reaped <= acked <= sent <= posted: the application's poll moves
// the first (a slot is free when its completion was polled, as hardware has it), the completer the
// second, the requester the third, the poster the last.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "base/spin_lock.hpp"
#include "engine/types.hpp"

namespace adverb::engine {

struct SendWqe {
  // The poster's part.
  std::uint64_t wr_id{};
  WrOpcode opcode{};
  std::uint8_t flags{};  // SendFlags
  std::uint8_t num_sge{};
  std::uint32_t length{};       // bytes of payload; of the inline data when send_inline
  std::uint32_t imm_or_rkey{};  // immediate data (host order of the wire's word), or the rkey to
                                // invalidate; BIND_MW: the window's new rkey
  std::uint64_t remote_addr{};
  std::uint32_t rkey{};                 // BIND_MW: the window
  std::uint64_t compare_add{}, swap{};  // atomics; ATOMIC WRITE: the 8 bytes are payload
  std::uint8_t flush_type{}, flush_level{};
  std::uint32_t bind_lkey{}, bind_access{};  // BIND_MW, with the range at remote_addr
  std::uint64_t bind_length{};
  AddressVector av{};           // UD
  Qpn remote_qpn{};             // UD
  std::uint32_t remote_qkey{};  // UD
  PdId pd_of_ah{};              // UD: PD of the address handle
  Srqn srqn{};                  // XRC: whose receives, completions and keys the responder uses
  // The engine's part.
  Psn first_psn{};
  std::uint32_t packets{};   // PSNs it takes: for READ those of the response
  std::uint32_t received{};  // READ, atomics: response packets that arrived
  bool started{};            // PSNs are assigned
  bool executed{};           // BIND_MW, LOCAL_INV: what was asked for is done
};

class SendQueue {
 public:
  SendQueue(std::uint32_t depth, std::uint32_t max_sge, std::uint32_t max_inline);

  // Poster, holding `lock`.  Null when depth entries are not yet reaped.  The slot's engine part is
  // cleared.
  SendWqe* reserve();
  std::span<Sge> sges_of_reserved();   // room for max_sge
  std::uint8_t* inline_of_reserved();  // room for max_inline
  void publish();
  // How many more reserve() would grant; for a batch that is posted whole or not at all.
  std::uint32_t free_slots() const {
    return depth_ -
           (posted_.load(std::memory_order_relaxed) - reaped_.load(std::memory_order_acquire));
  }

  // Engine.
  std::uint32_t posted() const { return posted_.load(std::memory_order_seq_cst); }
  SendWqe& at(std::uint32_t cursor) { return wqes_[cursor & mask_]; }
  std::span<const Sge> sges(std::uint32_t cursor) const;
  const std::uint8_t* inline_data(std::uint32_t cursor) const;
  // Poller.
  void reap(std::uint32_t slots) { reaped_.fetch_add(slots, std::memory_order_release); }
  // RESET; the caller holds the engine and `lock`.
  void clear();

  std::uint32_t depth() const { return depth_; }
  std::uint32_t max_sge() const { return max_sge_; }
  std::uint32_t max_inline() const { return max_inline_; }

  SpinLock lock;

 private:
  std::uint32_t depth_, max_sge_, max_inline_, mask_;
  std::unique_ptr<SendWqe[]> wqes_;
  std::unique_ptr<Sge[]> sges_;
  std::unique_ptr<std::uint8_t[]> inline_;
  std::atomic<std::uint32_t> posted_{0}, reaped_{0};
};

inline constexpr unsigned max_sge_limit = 32;

// A receive WQE as the responder holds it.
struct RecvWqe {
  std::uint64_t wr_id{};
  std::uint32_t num_sge{};
  std::uint64_t length{};  // sum over the list
  Sge sge[max_sge_limit];
  std::span<const Sge> list() const { return {sge, num_sge}; }
};

// Receive queue of one QP, or shared (SRQ).  A slot is free as soon as the responder has taken its
// WQE.
class ReceiveQueue {
 public:
  ReceiveQueue(std::uint32_t depth, std::uint32_t max_sge);

  // Poster, holding `lock`: false when full.
  bool post(std::uint64_t wr_id, std::span<const Sge>);
  // Engine.
  bool take(RecvWqe& out);  // false when empty
  std::uint32_t available() const;
  // RESET; the caller holds the engine and `lock`.
  void clear();

  std::uint32_t depth() const { return depth_; }
  std::uint32_t max_sge() const { return max_sge_; }

  SpinLock lock;

 private:
  struct Slot {
    std::uint64_t wr_id;
    std::uint32_t num_sge;
  };
  std::uint32_t depth_, max_sge_, mask_;
  std::unique_ptr<Slot[]> slots_;
  std::unique_ptr<Sge[]> sges_;
  std::atomic<std::uint32_t> posted_{0}, taken_{0};
};

class CompletionQueue;
class TargetStore;

// SRQ: a receive queue that several QPs of one PD share, with a limit event (IBTA 10.2.9).  An XRC
// SRQ is named by each message instead, and has a completion queue (annex A14).
struct SharedReceiveQueue {
  SharedReceiveQueue(std::uint32_t depth, std::uint32_t max_sge, PdId pd)
      : queue(depth, max_sge), pd(pd) {}
  ReceiveQueue queue;
  PdId pd;
  XrcdId xrcd = 0;               // 0: no XRC SRQ, and without the next three
  TargetStore* store = nullptr;  // null: the domain is this engine's alone
  CompletionQueue* cq = nullptr;
  Srqn srqn{};
  std::atomic<std::uint32_t> limit{0};  // armed limit; 0 disarmed
  std::uint32_t attached = 0;
  void* user = nullptr;
  SharedReceiveQueue* next_event = nullptr;
  bool limit_pending = false, error_pending = false, listed = false;
};

}  // namespace adverb::engine
