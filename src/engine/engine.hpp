// SPDX-License-Identifier: Apache-2.0
// The transport engine of one device: a function from (state, now, packet) to (state, packets).  No
// socket, thread, clock, random source or environment is reached from here; they are arguments.  So
// the same engine runs in a process, in a service and in a simulator, bit for bit.
//
//   for (frame : received) engine.receive(now, frame);
//   do { tx.clear(); more = engine.transmit(now, tx); port.send(tx); } while (more);
//   wait until a frame, a doorbell or engine.next_deadline()
//
// All members except ring_doorbell() need the caller to be alone (the nic's engine lock).  Nothing
// on the path of receive() and transmit() allocates.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/prng.hpp"
#include "base/timer_wheel.hpp"
#include "engine/burst.hpp"
#include "engine/counters.hpp"
#include "engine/flow.hpp"
#include "engine/memory.hpp"
#include "engine/multicast.hpp"
#include "engine/number_pool.hpp"
#include "engine/queue_pair.hpp"
#include "engine/receive_work_queue.hpp"
#include "engine/shared_target.hpp"

namespace adverb::engine {

struct EngineConfig {
  unsigned slot = 1;             // upper bits of every QPN
  std::uint32_t max_qp = 16384;  // at most 2^14
  std::uint32_t max_mr = 65536, max_mw = 64;
  std::uint64_t seed = 1;  // keys, QPN order
  Mtu active_mtu = Mtu::mtu_1024;
  std::uint64_t initial_window = 256 << 10,
                max_window = 4 << 20;  // frame_cost bytes per destination
  // UC and UD to other hosts leave no faster than this: bytes per second on the wire, 0 for no
  // limit.
  std::uint64_t link_rate = 0;
  Duration
      min_ack_timeout{};  // a floor for the local ACK timeout, for ports with scheduling delays
  Duration cnp_interval =
      std::chrono::microseconds(50);            // at most one CNP per QP in this time (annex A17)
  std::uint32_t max_ethernet_frame = 1518;      // of raw packet QPs: header, VLAN tag, payload
  std::uint32_t max_responder_resources = 128;  // max_qp_rd_atom
  std::uint32_t read_chunk_packets =
      64;  // a READ WQE goes out as requests of at most this many response packets
  std::uint64_t read_budget = 1 << 20;  // response bytes that all QPs together may have asked for
  // The port's max_msg_sz: a message that is longer completes with LOC_LEN_ERR.
  std::uint32_t max_msg_size = 1u << 31;
  // A datagram above the MTU completes with LOC_LEN_ERR; else (IBTA C10-93.1.1) nothing leaves,
  // and it completes without an error.
  bool long_datagram_fails = true;
  // The completion of a received datagram says in `sl` what header came with it, as ConnectX has it
  // (8 for UDP, and 2 for IPv4 or 1 for IPv6; 0 for a GRH of RoCE v1); else it is 0.
  bool sl_tells_header = true;
  bool end_to_end_credits =
      true;  // AETH credit counts for QPs without an SRQ, and the limit as a requester
};

struct QpInit {
  QpType type = QpType::rc;
  PdId pd = 0;
  XrcdId xrcd = 0;               // of an XRC target, which has none of the next three queues
  TargetStore* store = nullptr;  // of a domain that processes share
  CompletionQueue *send_cq = nullptr, *recv_cq = nullptr;  // an XRC initiator has no receive CQ
  SharedReceiveQueue* srq = nullptr;
  std::uint32_t max_send_wr = 1, max_recv_wr = 1, max_send_sge = 1, max_recv_sge = 1,
                max_inline = 0;
  bool sq_sig_all = false;
  ReceiveScaling scaling;   // with a table: of raw packets, and without CQs
  bool strip_vlan = false;  // of raw packets
  void* user = nullptr;
};

// Why modify_qp refused.  ok() or one of: a transition error; or `what` with the offending value
// and the limit.
struct ModifyResult {
  TransitionError transition{};
  const char* what = nullptr;  // e.g. "path_mtu above active_mtu"
  std::uint64_t value = 0, limit = 0;
  bool ok() const { return transition.kind == TransitionError::none && !what; }
};

// Something to tell the application, after the engine was let go.
struct EventRecord {
  enum Kind : std::uint8_t { completion, cq, qp, srq, wq } kind{};
  AsyncEvent event{};  // unless completion
  void* user{};        // of the object
};

class Engine {
 public:
  explicit Engine(const EngineConfig&);
  ~Engine();
  Engine(const Engine&) = delete;

  // --- control path
  CompletionQueue* create_cq(std::uint32_t capacity, void* user);
  bool destroy_cq(CompletionQueue*);  // false: in use
  // An event for `count` entries, at most `period` after the first; none of them 0, else each entry
  // of an armed queue raises one (ibv_modify_cq(3)).
  void moderate_cq(CompletionQueue&, std::uint32_t count, Duration period);
  SharedReceiveQueue* create_srq(std::uint32_t depth, std::uint32_t max_sge, PdId, void* user);
  // One with a number, whose completions go to `cq`; null: there are no numbers left.
  SharedReceiveQueue* create_xrc_srq(std::uint32_t depth, std::uint32_t max_sge, PdId, XrcdId,
                                     CompletionQueue* cq, void* user, TargetStore* store = nullptr);
  bool destroy_srq(SharedReceiveQueue*);  // false: in use
  void arm_srq_limit(SharedReceiveQueue*, std::uint32_t limit);
  static constexpr std::uint32_t max_wqs = (1u << Qpn::index_bits) - 1;
  ReceiveWorkQueue* create_wq(const WqInit&);  // null: max_wqs are in use
  bool destroy_wq(ReceiveWorkQueue*);          // false: in use
  // Null, or why not.  `current`: the state that the caller takes it to have.
  const char* modify_wq(ReceiveWorkQueue&, std::optional<WqState> current,
                        std::optional<WqState> to);
  void flush(ReceiveWorkQueue&);  // if it is in ERROR: for receives that were posted since
  IndirectionTable* create_table(std::vector<ReceiveWorkQueue*>);  // as many as a power of two
  bool destroy_table(IndirectionTable*);                           // false: in use
  QueuePair* create_qp(const QpInit&);  // null: max_qp are in use, or as many shared targets
  // A target that others hold stays, without a user.
  void destroy_qp(QueuePair*);
  // An XRC target of that domain, whoever made it, for a handle of this process; null: none.
  QueuePair* open_target(XrcdId, TargetStore*, Qpn);
  void refresh(QueuePair&);  // as it is now, if it is shared
  void add_store(TargetStore*);
  void forget_store(const TargetStore*);  // nothing of this process is in the domain any more
  ModifyResult modify_qp(Instant now, QueuePair&, const QpAttributes&, std::uint32_t mask);
  // Whether modify_qp would take that now; changes nothing.
  ModifyResult check_modify(const QueuePair&, const QpAttributes&, std::uint32_t mask) const;
  // Would a packet find its way?  The GIDs of both ends are there and of one address family.
  ModifyResult check_path(const AddressVector&) const;
  KeyTable& keys() { return keys_; }
  MulticastTable& multicast() { return multicast_; }
  FlowTable& flows() { return flows_; }
  // The source addresses of the device; frames for others are dropped.  A zero GID is an empty
  // entry.
  void set_gid(unsigned index, const Gid&, Protocol = Protocol::roce_v2);
  // Same-host flow control: every address of this host, one line per slot, and the limit of
  // frame_cost bytes each.
  void set_local(std::span<const Gid> host_gids, std::span<CreditLine> lines, std::uint64_t limit);
  void set_host_gids(std::span<const Gid>);
  // Raises an event at every QP and CQ owner is the nic's business; this counts and configures
  // only.
  const EngineConfig& config() const { return config_; }
  void set_active_mtu(Mtu m) { config_.active_mtu = m; }
  void set_max_ethernet_frame(std::uint32_t bytes) { config_.max_ethernet_frame = bytes; }

  // --- fault rules
  QueuePair* find(Qpn) const;  // null: none of this engine
  SharedReceiveQueue* find_srq(Srqn) const;
  // Raises an event on the queue pair, its SRQ or that CQ of it (if there is one), as if the device
  // had found what the event tells: errors move queue pairs to ERROR.  Port and device events are
  // the nic's.
  // False: there is nothing to raise it for (an SRQ's event, and no SRQ).
  bool inject(AsyncEvent, QueuePair&, CompletionQueue*);
  // WQ_FATAL for the work queue of that number, or for all that are not in RESET: they are in ERROR
  // then.  False: there are none.
  bool inject_wq_fatal(std::optional<Qpn> only = {});
  // Calls f(QueuePair&) for each queue pair; f may change states, but not destroy.
  template <class F>
  void for_each_qp(F&& f) {
    for (std::uint32_t i = 0; i < config_.max_qp; ++i)
      if (qps_[i]) f(*qps_[i]);
    for (auto& q : foreign_) f(*q);
  }
  void fail_all();  // the device is dead: every queue pair and work queue to ERROR

  // --- data path
  void receive(Instant now, const RxFrame&);
  // Fires timers, then builds frames.  True: more is ready than the burst could hold, call again.
  bool transmit(Instant now, TxBurst&);
  Instant next_deadline() const;
  // Nothing to send and no doorbell: transmit() would only look at the timers.
  bool idle() const { return !ready_head_ && !waiting_ && !doorbells_pending() && !news_pending(); }
  // What the nic reads before it looks into all its sockets, and gives back when it found them all
  // empty.
  std::uint64_t credit_mark() const;
  void credit_settle(std::uint64_t mark);

  // --- any thread
  void ring_doorbell(QueuePair&);
  bool doorbells_pending() const { return doorbells_.load(std::memory_order_seq_cst) != nullptr; }

  // Takes up to events.size() records; returns how many.  Call until it returns fewer.
  unsigned take_events(std::span<EventRecord> events);
  bool events_pending() const { return cq_events_ || qp_events_ || srq_events_ || wq_events_; }

  const Counters& counters() const { return counters_; }
  Counters& counters() { return counters_; }

 private:
  friend class Requester;
  friend class Completer;
  friend class Responder;
  friend class TargetTurn;

  void receive_shared(QueuePair&, const RxFrame&);
  bool answer(QueuePair&, TxBurst&);
  QueuePair* target_of(const wire::Packet&);
  QueuePair* find_target(XrcdId, TargetStore*, Qpn);
  std::vector<std::unique_ptr<QueuePair>>::iterator place_of(Qpn);  // in foreign_
  void share(QueuePair&, TargetStore*, SharedTarget*);
  bool share_new(QueuePair&, TargetStore*);
  void adopt(QueuePair&, const TargetState&);
  void forget_owed(QueuePair&);
  void make_resources(QueuePair&, std::uint32_t count);
  template <class F>
  void for_each_of(const TargetStore*, F&&);
  void hear_news();
  bool news_pending() const;
  void raise_here(QueuePair&, AsyncEvent);
  void drop_qp(QueuePair&);
  const Gid& gid(unsigned index) const { return gids_[index]; }
  std::uint8_t index_of(const Gid&) const;

  void make_ready(QueuePair&);
  void drain_doorbells();
  void fire_timers(Instant now);
  void retry_waiting();
  void wait_for_room(QueuePair&);
  void complete(QueuePair&, CompletionQueue&, Cqe, bool solicited);
  void complete(ReceiveWorkQueue&, WcStatus, std::uint32_t bytes, std::uint16_t cvlan = 0);
  bool add_entry(CompletionQueue&, Cqe&, bool solicited);
  void note_entry(CompletionQueue&, bool solicited);
  void raise_completion(CompletionQueue&);
  void raise(QueuePair&, AsyncEvent);
  void raise_cq_error(CompletionQueue&);
  void list_cq(CompletionQueue&);
  void check_srq_limit(SharedReceiveQueue&);
  void list_qp(QueuePair&);
  void list_srq(SharedReceiveQueue&);
  void leave_lists(QueuePair&);
  void attach(QueuePair&, std::uint32_t by);
  void forget_srq(const SharedReceiveQueue&);
  void set_path(QueuePair&);
  void enter_rtr(QueuePair&);
  void enter_rts(QueuePair&);
  void receive_multicast(const RxFrame&);
  void receive_ethernet(const RxFrame&);
  void receive_into(ReceiveWorkQueue&, std::span<const std::uint8_t> bytes);
  void give(Instant now, QueuePair&, const RxFrame&);
  bool admit_frame(const QueuePair&, const RxFrame&);
  void account_credit(const RxFrame&);
  void to_error(QueuePair&, AsyncEvent why, bool raise_event);
  void to_sqe(QueuePair&);
  void flush_sends(QueuePair&);
  void flush_receives(QueuePair&);
  void reset(QueuePair&);
  void to_error(ReceiveWorkQueue&, bool raise_event);
  void raise_fatal(ReceiveWorkQueue&);
  void reset(ReceiveWorkQueue&);
  void check_drained(QueuePair&);
  bool is_local(const Gid&) const;
  CreditLine* line_of(const Gid&, Qpn);
  // Would `cost` more exceed the credit?  `seen`: where the caller keeps the last `consumed` that
  // it read.
  bool credit_exhausted(const CreditLine&, std::uint64_t& seen, std::uint64_t cost) const;
  // No credit has come back for so long that a sender without acknowledgements waits no more.
  bool credit_stalled(const CreditLine&);
  void credit_flows(const CreditLine& line) { stall_of(line).since = never; }
  void pace(std::uint64_t bytes);
  bool room_may_have_come(const QueuePair&) const;
  Destination* join_destination(const Gid&, Qpn);
  void leave_destination(QueuePair&);
  ModifyResult check_values(const QpAttributes&, std::uint32_t mask) const;
  void apply(Instant now, QueuePair&, const QpAttributes&, std::uint32_t mask);

  EngineConfig config_;
  Counters counters_;
  KeyTable keys_;
  MulticastTable multicast_;
  FlowTable flows_;
  Prng random_;
  TimerWheel wheel_;
  Instant now_{};
  std::unique_ptr<std::unique_ptr<QueuePair>[]> qps_;
  NumberPool free_qps_;
  // XRC SRQs by the index of their number.
  std::vector<SharedReceiveQueue*> xrc_srqs_;
  NumberPool free_srqns_;
  struct StoreEntry {
    TargetStore* store;
    std::uint32_t seen;  // of its news
  };
  std::vector<StoreEntry> stores_;
  std::vector<std::unique_ptr<QueuePair>> foreign_;  // shared targets of others, in order of QPN
  std::vector<std::unique_ptr<CompletionQueue>> cqs_;
  std::vector<std::unique_ptr<SharedReceiveQueue>> srqs_;
  std::vector<std::unique_ptr<ReceiveWorkQueue>> wqs_;
  NumberPool free_wqs_;  // made with the first one
  std::vector<std::unique_ptr<IndirectionTable>> tables_;
  std::vector<std::unique_ptr<Destination>> destinations_;
  std::array<Gid, 16> gids_{};
  std::array<Protocol, 16> protocols_{};  // of each GID
  std::vector<Gid> host_gids_;
  std::span<CreditLine> lines_;
  std::uint64_t credit_limit_ = 0;
  std::uint64_t settle_mark_ = 0;  // what is taken for lost
  Instant settle_at_ = never;      // then
  Instant settle_wake_ = never;    // look again then: not after settle_at_, perhaps before
  struct Stall {
    std::uint64_t consumed = 0;
    Instant since = never;
  };
  Stall& stall_of(const CreditLine& line) {
    return stalls_[static_cast<std::size_t>(&line - lines_.data())];
  }
  std::vector<Stall> stalls_;     // one for each line: since when `consumed` stands still
  Instant wire_free_{};           // when what was sent without acknowledgement has left the wire
  Instant pace_open_{};           // not before: more of it
  std::uint64_t read_bytes_ = 0;  // sum of RequesterState::read_bytes

  std::atomic<QueuePair*> doorbells_{nullptr};
  QueuePair *ready_head_ = nullptr, *ready_tail_ = nullptr;
  QueuePair* waiting_ = nullptr;
  bool room_freed_ = false;  // since waiting_ was last looked at
  CompletionQueue* cq_events_ = nullptr;
  QueuePair* qp_events_ = nullptr;
  SharedReceiveQueue* srq_events_ = nullptr;
  ReceiveWorkQueue* wq_events_ = nullptr;
};

}  // namespace adverb::engine
