// SPDX-License-Identifier: Apache-2.0
// A queue pair: the state machine's attributes, and one owner for each byte of what moves: the
// requester (what was sent), the completer (what was acknowledged), the responder (what was
// received and is to be answered). The logic lives in requester.cpp, completer.cpp and
// responder.cpp; this file is the state.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "base/timer_wheel.hpp"
#include "engine/completion_queue.hpp"
#include "engine/credit.hpp"
#include "engine/qp_state.hpp"
#include "engine/receive_work_queue.hpp"
#include "engine/work_queue.hpp"
#include "wire/opcode.hpp"

namespace adverb::engine {

constexpr wire::Transport transport_of(QpType type) {
  switch (type) {
    case QpType::rc:
    case QpType::raw_packet:  // has none
      break;
    case QpType::uc:
      return wire::Transport::uc;
    case QpType::ud:
      return wire::Transport::ud;
    case QpType::xrc_send:
    case QpType::xrc_recv:
      return wire::Transport::xrc;
  }
  return wire::Transport::rc;
}
// Acknowledged, in order, once.
constexpr bool is_reliable(QpType type) {
  return type != QpType::uc && type != QpType::ud && type != QpType::raw_packet;
}

// Are such packets for a queue pair of that type?  The initiator of XRC takes responses, its target
// requests (annex A14).
constexpr bool carries(QpType type, const wire::OpcodeInfo& packet) {
  if (type == QpType::raw_packet || packet.transport != transport_of(type)) return false;
  if (type == QpType::xrc_send) return wire::is_response(packet.verb);
  return type != QpType::xrc_recv || !wire::is_response(packet.verb);
}

// Where packets of a connected QP go: the window of D7 is shared by all QPs to one address and
// slot.
struct Destination {
  Gid gid{};
  unsigned slot{};
  std::uint32_t users = 0;
  std::uint64_t window = 0;  // bytes of frame_cost that may be unacknowledged
  std::uint64_t in_flight = 0;
  std::uint64_t grown = 0;          // acknowledged since the window last grew
  CreditLine* line = nullptr;       // same host
  std::uint64_t seen_consumed = 0;  // of the line
};

// What the requester keeps: the next packet to send is packet `offset` of the WQE at `next`.
struct RequesterState {
  std::uint32_t next = 0;       // cursor into the send queue: `sent` of work_queue.hpp
  std::uint32_t offset = 0;     // packets of that WQE that were sent (since the last rewind)
  Psn psn{};                    // of the next packet
  Psn highest{};                // one past the highest PSN ever sent
  std::uint64_t in_flight = 0;  // this QP's share of its destination's
  std::uint32_t reads_outstanding = 0;  // READ requests and atomics sent and not completed
  std::uint64_t read_bytes = 0;         // response bytes asked for and not arrived
  std::uint32_t ssn = 0;                // send sequence number: messages started
  std::uint32_t unrequested = 0;        // packets since the last AckReq
  unsigned srq_slot = 0;                // XRC: of the SRQ that the latest WQE names
  WcStatus local_error{};  // of the WQE at `next`; reported when all before it are complete
  bool blocked_on_error = false;
  bool waiting_rnr = false;  // an RNR NAK's timer runs
  bool waiting = false;  // on the engine's list of QPs that wait for window, credit or read budget
};

// What the completer keeps.
struct CompleterState {
  std::uint32_t acked = 0;     // cursor: the oldest WQE that is not complete
  std::uint32_t reported = 0;  // cursor: send queue slots whose completion (if any) was pushed
  Psn una{};                   // oldest PSN not acknowledged
  std::uint8_t retries_left = 0, rnr_retries_left = 0;
  bool rewound = false;  // a hole was acted on; until progress, later ones do not rewind again
  Psn loss_mark{};       // the window was halved for losses before this PSN
  bool loss_marked = false;
  std::uint32_t limit_ssn = 0;  // end-to-end credits: messages up to this SSN may be sent
  bool credits_valid = false;
  Instant ack_deadline = never;  // the wheel's timer may be earlier, and is then re-armed (lazily)
};

// A READ, atomic, FLUSH or ATOMIC WRITE that was executed, kept for replay (IBTA 9.7.5.1.1,
// responder resources).
struct ResponderResource {
  wire::Verb verb{};
  Psn first{};
  std::uint32_t packets{};
  std::uint32_t msn{};
  std::uint64_t va{}, original{};
  std::uint32_t rkey{}, length{};
  PdId pd{};    // in which rkey is looked up
  Srqn srqn{};  // XRC: which the request named
  bool valid{};
  bool answered{};  // the whole response was sent once
};

// A response to be sent: packets [next, end) of a resource.
struct PendingResponse {
  std::uint32_t resource{};
  std::uint32_t next{}, end{};
  bool first_of_run{};  // AETH goes on the first packet of every (re)started response
};

// How far the requests of the peer were executed: plain data, which the processes of a shared XRC
// target pass on to each other (shared_target.hpp).
struct ResponderProgress {
  Psn expected{};
  std::uint32_t msn = 0;
  Srqn srqn{};                 // XRC: that the latest message names
  std::uint64_t received = 0;  // bytes of the open message
  std::uint64_t write_va = 0;  // of the open RDMA WRITE
  std::uint64_t write_left = 0, write_length = 0;
  std::uint32_t write_rkey = 0;
  bool nak_sent = false;             // a sequence NAK is out; silence until `expected` arrives
  std::uint32_t dest_resources = 0;  // max_dest_rd_atomic at creation of the ring
  std::uint32_t resource_head = 0;   // of the ring: next to overwrite
};

struct ResponderState : ResponderProgress {
  wire::OpcodeInfo previous{};  // last request opcode of the open message
  RecvWqe recv{};               // the WQE being filled
  bool recv_open = false;
  bool dropping = false;                           // UC: until the next FIRST or ONLY
  std::unique_ptr<ResponderResource[]> resources;  // ring
  std::unique_ptr<PendingResponse[]> pending;      // FIFO ring of the same size
  std::uint32_t pending_head = 0, pending_tail = 0;
  bool ack_owed = false;  // an ACK of expected - 1
  bool nak_owed = false;  // a NAK with `nak_syndrome` at nak_psn
  std::uint8_t nak_syndrome = 0;
  Psn nak_psn{};
  bool cnp_owed = false;
  Instant next_cnp{};  // not before
};

class TargetStore;
struct SharedTarget;

// A queue pair's part in an XRC target that processes share (shared_target.hpp).
struct TargetShare {
  static constexpr std::uint32_t events_kept = 8;
  TargetStore* store{};
  SharedTarget* target{};
  bool held = false;              // this process has handles
  std::uint32_t seen = 0;         // the generation that the queue pair has
  std::uint32_t epoch = 0;        // counts resets: what was owed before one is void
  std::uint32_t event_count = 0;  // asynchronous events so far; the latest are kept
  std::array<AsyncEvent, events_kept> events{};
};

class QueuePair {
 public:
  QpType type{};
  Qpn qpn{};
  PdId pd{};
  XrcdId xrcd{};  // of an XRC target
  bool sq_sig_all = false;
  std::atomic<QpState> state{QpState::reset};
  QpAttributes attr{};
  std::uint32_t mtu = 1024;  // bytes of path MTU (UD: active MTU)
  Destination* destination = nullptr;

  // An XRC target has none of the next but an empty send queue: while it executes a message, pd,
  // srq, rq and recv_cq are those of the SRQ that the message names.  An XRC initiator receives
  // nothing.
  std::unique_ptr<SendQueue> sq;
  std::unique_ptr<ReceiveQueue> own_rq;  // null with an SRQ
  SharedReceiveQueue* srq = nullptr;
  ReceiveQueue* rq = nullptr;  // own_rq or the SRQ's
  CompletionQueue *send_cq = nullptr, *recv_cq = nullptr;
  // Receive side scaling: such a queue pair has nothing of the above but an empty send queue, no
  // state but RESET, and gives frames to the work queues of a table.
  std::unique_ptr<ReceiveScaling> scaling;
  bool strip_vlan = false;  // of raw packets

  //= IBTA 10.2.9: the lists of an SRQ's receive WQEs are of the SRQ's protection domain
  PdId receive_pd() const { return srq ? srq->pd : pd; }

  std::unique_ptr<TargetShare> shared;  // null: this engine's alone

  RequesterState req;
  CompleterState comp;
  ResponderState resp;
  Timer ack_timer, rnr_timer;
  bool draining = false;  // SQD entered, SQ_DRAINED not yet reported
  bool comm_established = false;

  // The lists it can stand on.
  std::atomic<QueuePair*> next_doorbell{nullptr};
  std::atomic<bool> doorbell{false};
  QueuePair* next_ready = nullptr;
  bool ready = false;
  QueuePair* next_waiting = nullptr;
  QueuePair* next_event = nullptr;
  std::uint32_t pending_events = 0;  // bits of AsyncEvent
  bool listed = false;

  void* user = nullptr;  // the shell's object
};

}  // namespace adverb::engine
