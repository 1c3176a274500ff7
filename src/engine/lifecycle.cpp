// SPDX-License-Identifier: Apache-2.0
// The control path of the engine: objects come and go, queue pairs change state
// (IBTA 10.2, 10.3.1, 11.2).
#include <mutex>
#include <utility>

#include "base/assert.hpp"
#include "engine/completer.hpp"
#include "engine/engine.hpp"
#include "engine/lists.hpp"
#include "engine/requester.hpp"

namespace adverb::engine {

Engine::Engine(const EngineConfig& config)
    : config_(config),
      keys_(config.max_mr, SplitMix(config.seed).next(), config.max_mw),
      random_(config.seed),
      qps_(std::make_unique<std::unique_ptr<QueuePair>[]>(config.max_qp)),
      free_qps_(config.max_qp, random_) {
  ASSERT(config_.max_qp >= 1 && config_.max_qp <= 1u << Qpn::index_bits);
}

Engine::~Engine() = default;

QueuePair* Engine::find(Qpn qpn) const {
  if (qpn.slot() != config_.slot || qpn.index() >= config_.max_qp) return nullptr;
  return qps_[qpn.index()].get();
}

SharedReceiveQueue* Engine::find_srq(Srqn n) const {
  return n.slot() == config_.slot && n.index() < xrc_srqs_.size() ? xrc_srqs_[n.index()] : nullptr;
}

CompletionQueue* Engine::create_cq(std::uint32_t capacity, void* user) {
  auto& cq = cqs_.emplace_back(std::make_unique<CompletionQueue>(capacity));
  cq->user = user;
  cq->moderation_timer.kind = timer_of_cq;
  return cq.get();
}

void Engine::moderate_cq(CompletionQueue& cq, std::uint32_t count, Duration period) {
  const bool off = count == 0 || period == Duration{};
  cq.moderation_count = off ? 0 : count;
  cq.moderation_period = period;
  if (cq.moderated) raise_completion(cq);  // what waited by the old rule waits no longer
}

bool Engine::destroy_cq(CompletionQueue* cq) {
  if (cq->attached) return false;
  wheel_.cancel(cq->moderation_timer);
  remove_from(cq_events_, cq, &CompletionQueue::next_event);
  erase_owned(cqs_, cq);
  return true;
}

SharedReceiveQueue* Engine::create_srq(std::uint32_t depth, std::uint32_t max_sge, PdId pd,
                                       void* user) {
  auto& srq = srqs_.emplace_back(std::make_unique<SharedReceiveQueue>(depth, max_sge, pd));
  srq->user = user;
  return srq.get();
}

SharedReceiveQueue* Engine::create_xrc_srq(std::uint32_t depth, std::uint32_t max_sge, PdId pd,
                                           XrcdId xrcd, CompletionQueue* cq, void* user,
                                           TargetStore* store) {
  constexpr std::uint32_t most = 1u << Srqn::index_bits;
  if (xrc_srqs_.empty()) {
    xrc_srqs_.resize(most);
    free_srqns_ = NumberPool(most, random_);
  }
  if (free_srqns_.empty()) return nullptr;
  SharedReceiveQueue* srq = create_srq(depth, max_sge, pd, user);
  srq->xrcd = xrcd;
  srq->store = store;
  srq->cq = cq;
  ++cq->attached;
  srq->srqn = Srqn::of(config_.slot, free_srqns_.take());
  xrc_srqs_[srq->srqn.index()] = srq;
  return srq;
}

// XRC targets hold no SRQ: a message that is on its way into this one finds it gone.
void Engine::forget_srq(const SharedReceiveQueue& srq) {
  for_each_qp([&](QueuePair& q) {
    if (q.type != QpType::xrc_recv || q.srq != &srq) return;
    q.srq = nullptr;
    q.rq = nullptr;
    q.recv_cq = nullptr;
    q.resp.recv_open = false;
  });
  --srq.cq->attached;
  xrc_srqs_[srq.srqn.index()] = nullptr;
  free_srqns_.give(srq.srqn.index());
}

bool Engine::destroy_srq(SharedReceiveQueue* srq) {
  if (srq->attached) return false;
  if (srq->xrcd) forget_srq(*srq);
  remove_from(srq_events_, srq, &SharedReceiveQueue::next_event);
  erase_owned(srqs_, srq);
  return true;
}

void Engine::arm_srq_limit(SharedReceiveQueue* srq, std::uint32_t limit) {
  srq->limit.store(limit, std::memory_order_relaxed);
}

void Engine::set_gid(unsigned index, const Gid& gid, Protocol protocol) {
  ASSERT(index < gids_.size());
  gids_[index] = gid;
  protocols_[index] = protocol;
}

void Engine::set_host_gids(std::span<const Gid> host_gids) {
  host_gids_.assign(host_gids.begin(), host_gids.end());
}

void Engine::set_local(std::span<const Gid> host_gids, std::span<CreditLine> lines,
                       std::uint64_t limit) {
  set_host_gids(host_gids);
  lines_ = lines;
  stalls_.assign(lines.size(), {});
  credit_limit_ = limit;
}

QueuePair* Engine::create_qp(const QpInit& init) {
  if (free_qps_.empty()) return nullptr;
  const bool target = init.type == QpType::xrc_recv;
  std::uint16_t index = free_qps_.take();
  auto q = std::make_unique<QueuePair>();
  q->type = init.type;
  q->qpn = Qpn::of(config_.slot, index);
  q->pd = init.pd;
  q->xrcd = init.xrcd;
  q->sq_sig_all = init.sq_sig_all;
  q->strip_vlan = init.strip_vlan;
  q->user = init.user;
  q->sq = std::make_unique<SendQueue>(init.max_send_wr, init.max_send_sge, init.max_inline);
  q->srq = init.srq;
  if (init.scaling.table) {
    ASSERT(init.type == QpType::raw_packet && !init.recv_cq);
    q->scaling = std::make_unique<ReceiveScaling>(init.scaling);
  } else if (!q->srq && !target && init.type != QpType::xrc_send) {
    q->own_rq = std::make_unique<ReceiveQueue>(init.max_recv_wr, init.max_recv_sge);
  }
  q->rq = q->srq ? &q->srq->queue : q->own_rq.get();
  q->send_cq = init.send_cq;
  q->recv_cq = init.recv_cq;
  attach(*q, 1);
  q->ack_timer.owner = q->rnr_timer.owner = q.get();
  if (init.store && !share_new(*q, init.store)) {
    free_qps_.give(index);
    return nullptr;
  }
  return (qps_[index] = std::move(q)).get();
}

// Counts the QP among the users of its queues, or out.
void Engine::attach(QueuePair& q, std::uint32_t by) {
  if (q.type == QpType::xrc_recv) return;
  if (q.send_cq) q.send_cq->attached += by;
  if (q.recv_cq) q.recv_cq->attached += by;
  if (q.srq) q.srq->attached += by;
  if (q.scaling) q.scaling->table->users += by;
}

void Engine::destroy_qp(QueuePair* q) {
  if (q->shared) {
    q->shared->held = false;
    if (!q->shared->store->release(*q->shared->target)) {
      q->user = nullptr;
      if (std::exchange(q->listed, false)) remove_from(qp_events_, q, &QueuePair::next_event);
      q->pending_events = 0;
      return;
    }
  }
  drop_qp(*q);
}

void Engine::drop_qp(QueuePair& q) {
  reset(q);
  multicast_.forget(q);
  flows_.forget(q);
  attach(q, ~0u);
  const unsigned index = q.qpn.index();
  if (const auto place = place_of(q.qpn); place != foreign_.end() && place->get() == &q) {
    foreign_.erase(place);
    return;
  }
  qps_[index].reset();
  free_qps_.give(index);
}

void Engine::leave_lists(QueuePair& q) {
  drain_doorbells();
  if (std::exchange(q.ready, false)) {
    remove_from(ready_head_, &q, &QueuePair::next_ready);
    ready_tail_ = ready_head_;
    while (ready_tail_ && ready_tail_->next_ready) ready_tail_ = ready_tail_->next_ready;
  }
  if (std::exchange(q.req.waiting, false)) remove_from(waiting_, &q, &QueuePair::next_waiting);
  if (std::exchange(q.listed, false)) remove_from(qp_events_, &q, &QueuePair::next_event);
  q.pending_events = 0;
}

// To RESET: nothing of the past is left, neither WQEs nor their completions (IBTA 10.3.1.1).
void Engine::reset(QueuePair& q) {
  leave_lists(q);
  q.state.store(QpState::reset, std::memory_order_seq_cst);
  wheel_.cancel(q.ack_timer);
  wheel_.cancel(q.rnr_timer);
  Requester(*this, q).release_all();
  leave_destination(q);
  {
    std::lock_guard sq(q.sq->lock);
    q.sq->clear();
  }
  if (q.own_rq) {
    std::lock_guard rq(q.own_rq->lock);
    q.own_rq->clear();
  }
  if (q.type == QpType::xrc_recv) {
    q.srq = nullptr;
    q.rq = nullptr;
    q.recv_cq = nullptr;
  }
  for (CompletionQueue* cq : {q.send_cq, q.recv_cq}) {
    if (!cq) continue;
    std::lock_guard lock(cq->lock);
    cq->purge(&q);
  }
  q.req = {};
  q.comp = {};
  q.resp = {};
  q.draining = q.comm_established = false;
  q.attr = {};
  if (q.shared) ++q.shared->epoch;
}

// --- destinations

Destination* Engine::join_destination(const Gid& gid, Qpn qpn) {
  for (auto& d : destinations_)
    if (d->gid == gid && d->slot == qpn.slot()) return ++d->users, d.get();
  auto& d = destinations_.emplace_back(std::make_unique<Destination>());
  d->gid = gid;
  d->slot = qpn.slot();
  d->users = 1;
  d->window = config_.initial_window;
  d->line = line_of(gid, qpn);
  return d.get();
}

void Engine::leave_destination(QueuePair& q) {
  Destination* d = std::exchange(q.destination, nullptr);
  if (d && --d->users == 0) erase_owned(destinations_, d);
}

void Engine::set_path(QueuePair& q) {
  if (q.destination) q.destination->in_flight -= q.req.in_flight;
  leave_destination(q);
  q.destination = join_destination(q.attr.av.dgid, q.attr.dest_qpn);
  q.destination->in_flight += q.req.in_flight;
  room_freed_ = true;
}

// --- modify_qp

ModifyResult Engine::modify_qp(Instant now, QueuePair& q, const QpAttributes& attr,
                               std::uint32_t mask) {
  now_ = now;
  TargetTurn turn(*this, q);
  if (!turn) return {{}, "another process has the target, or it is gone", 0, 0};
  mask &= ~attr_kernel_only;
  const ModifyResult result = check_modify(q, attr, mask);
  if (result.ok()) apply(now, q, attr, mask);
  return result;
}

ModifyResult Engine::check_modify(const QueuePair& q, const QpAttributes& attr,
                                  std::uint32_t mask) const {
  mask &= ~attr_kernel_only;
  QpState from = q.state.load(std::memory_order_relaxed);
  QpState to = mask & attr_state ? attr.state : from;
  ModifyResult result;
  if ((mask & attr_cur_state) && attr.cur_state != from) {
    result.what = "cur_qp_state is not the QP's state";
    result.value = static_cast<std::uint64_t>(attr.cur_state);
    result.limit = static_cast<std::uint64_t>(from);
    return result;
  }
  result.transition = check_transition(q.type, from, to, mask);
  return result.ok() ? check_values(attr, mask) : result;
}

ModifyResult Engine::check_values(const QpAttributes& a, std::uint32_t mask) const {
  struct Bound {
    std::uint32_t bit;
    const char* what;
    std::uint64_t value, limit;
  };
  const Bound bounds[] = {
      {attr_path_mtu, "path_mtu above active_mtu", bytes_of(a.path_mtu),
       bytes_of(config_.active_mtu)},
      {attr_timeout, "timeout above 31", a.timeout, 31},
      {attr_retry_cnt, "retry_cnt above 7", a.retry_cnt, 7},
      {attr_rnr_retry, "rnr_retry above 7", a.rnr_retry, 7},
      {attr_min_rnr_timer, "min_rnr_timer above 31", a.min_rnr_timer, 31},
      {attr_max_qp_rd_atomic, "max_rd_atomic above max_qp_init_rd_atom", a.max_rd_atomic,
       config_.max_responder_resources},
      {attr_max_dest_rd_atomic, "max_dest_rd_atomic above max_qp_rd_atom", a.max_dest_rd_atomic,
       config_.max_responder_resources},
      {attr_pkey_index, "pkey_index outside the table", a.pkey_index, 0},
      {attr_port, "port_num above the number of ports", a.port, 1},
  };
  for (const Bound& b : bounds)
    if ((mask & b.bit) && b.value > b.limit) return {{}, b.what, b.value, b.limit};
  if ((mask & attr_port) && a.port == 0) return {{}, "port_num 0: ports count from", 0, 1};
  if ((mask & attr_path_mtu) && a.path_mtu < Mtu::mtu_256)
    return {{}, "path_mtu is no ibv_mtu", static_cast<std::uint64_t>(a.path_mtu), 5};
  return mask & attr_av ? check_path(a.av) : ModifyResult{};
}

ModifyResult Engine::check_path(const AddressVector& av) const {
  if (av.sgid_index >= gids_.size() || gids_[av.sgid_index].is_zero())
    return {{}, "sgid_index names an empty GID", av.sgid_index, 0};
  if (av.dgid.is_zero()) return {{}, "dgid is zero: the peer's GID is missing", 0, 0};
  const bool in_ip = protocols_[av.sgid_index] == Protocol::roce_v2;
  if (in_ip && av.dgid.is_v4() != gids_[av.sgid_index].is_v4())
    return {{}, "dgid and sgid_index are of different address families", av.sgid_index, 0};
  return {};
}

void Engine::apply(Instant now, QueuePair& q, const QpAttributes& a, std::uint32_t mask) {
  QpState from = q.state.load(std::memory_order_relaxed);
  QpState to = mask & attr_state ? a.state : from;
  if (to == QpState::reset) return reset(q);
  QpAttributes& d = q.attr;
  if (mask & attr_access_flags) d.access_flags = a.access_flags;
  if (mask & attr_pkey_index) d.pkey_index = a.pkey_index;
  if (mask & attr_port) d.port = a.port;
  if (mask & attr_qkey) d.qkey = a.qkey;
  if (mask & attr_av) d.av = a.av;
  if (mask & attr_path_mtu) d.path_mtu = a.path_mtu;
  if (mask & attr_timeout) d.timeout = a.timeout;
  if (mask & attr_retry_cnt) d.retry_cnt = a.retry_cnt;
  if (mask & attr_rnr_retry) d.rnr_retry = a.rnr_retry;
  if (mask & attr_rq_psn) d.rq_psn = a.rq_psn;
  if (mask & attr_max_qp_rd_atomic) d.max_rd_atomic = a.max_rd_atomic;
  if (mask & attr_min_rnr_timer) d.min_rnr_timer = a.min_rnr_timer;
  if (mask & attr_sq_psn) d.sq_psn = a.sq_psn;
  if (mask & attr_max_dest_rd_atomic) d.max_dest_rd_atomic = a.max_dest_rd_atomic;
  if (mask & attr_path_mig_state) d.path_mig_state = a.path_mig_state;
  if (mask & attr_dest_qpn) d.dest_qpn = a.dest_qpn;

  if (to == QpState::error) {
    forget_owed(q);
    return to_error(q, AsyncEvent::qp_fatal, false);
  }
  if (to == QpState::rtr && from != QpState::rtr) enter_rtr(q);
  if (to == QpState::rts && from == QpState::rtr) enter_rts(q);
  if ((mask & attr_av) && from == QpState::sqd && q.type != QpType::ud) set_path(q);
  if ((mask & (attr_retry_cnt | attr_rnr_retry)) && from != QpState::rtr) {
    q.comp.retries_left = d.retry_cnt;
    q.comp.rnr_retries_left = d.rnr_retry;
  }
  if (to == QpState::sqd && from == QpState::rts)
    q.draining = (mask & attr_en_sqd_async_notify) && a.en_sqd_async_notify;
  q.state.store(to, std::memory_order_seq_cst);
  (void)now;
  if (to == QpState::sqd) check_drained(q);
  if (to == QpState::rts) make_ready(q);
}

void Engine::enter_rtr(QueuePair& q) {
  const bool datagrams = q.type == QpType::ud || q.type == QpType::raw_packet;
  q.mtu = datagrams ? bytes_of(config_.active_mtu) : bytes_of(q.attr.path_mtu);
  if (datagrams) return;
  q.resp.expected = q.attr.rq_psn;
  if (is_reliable(q.type) && q.attr.max_dest_rd_atomic) {
    make_resources(q, q.attr.max_dest_rd_atomic);
  }
  set_path(q);
}

void Engine::make_resources(QueuePair& q, std::uint32_t count) {
  q.resp.dest_resources = count;
  q.resp.resources = std::make_unique<ResponderResource[]>(count);
  q.resp.pending = std::make_unique<PendingResponse[]>(count);
  q.resp.pending_head = q.resp.pending_tail = 0;
}

void Engine::enter_rts(QueuePair& q) {
  q.req.psn = q.req.highest = q.comp.una = q.attr.sq_psn;
  q.comp.retries_left = q.attr.retry_cnt;
  q.comp.rnr_retries_left = q.attr.rnr_retry;
}

//= IBTA 10.3.1.5: drained when every WQE that was started is complete
void Engine::check_drained(QueuePair& q) {
  if (!q.draining || q.state.load(std::memory_order_relaxed) != QpState::sqd) return;
  std::uint32_t oldest = q.comp.acked;
  if (oldest != q.sq->posted() && q.sq->at(oldest).started) return;
  q.draining = false;
  raise(q, AsyncEvent::sq_drained);
}

// --- errors and flushes: IBTA 10.3.1.6, 10.3.1.7

void Engine::to_error(QueuePair& q, AsyncEvent why, bool raise_event) {
  QpState from = q.state.load(std::memory_order_relaxed);
  if (from == QpState::error || from == QpState::reset) return;
  q.state.store(QpState::error, std::memory_order_seq_cst);
  if (raise_event) raise(q, why);
  flush_sends(q);
  flush_receives(q);
  if (q.srq || q.type == QpType::xrc_recv) raise(q, AsyncEvent::qp_last_wqe_reached);
}

bool Engine::inject(AsyncEvent event, QueuePair& q, CompletionQueue* cq) {
  TargetTurn turn(*this, q);
  if (!turn) return false;
  switch (event) {
    case AsyncEvent::qp_fatal:
    case AsyncEvent::qp_req_err:
    case AsyncEvent::qp_access_err:
      if (q.state.load(std::memory_order_relaxed) == QpState::error)
        raise(q, event);
      else
        to_error(q, event, true);
      return true;
    case AsyncEvent::cq_err:
      if (!cq || cq->overrun) return false;
      raise_cq_error(*cq);
      return true;
    case AsyncEvent::srq_err:
    case AsyncEvent::srq_limit_reached:
      if (!q.srq) return false;
      (event == AsyncEvent::srq_err ? q.srq->error_pending : q.srq->limit_pending) = true;
      list_srq(*q.srq);
      return true;
    default:
      raise(q, event);
      return true;
  }
}

void Engine::fail_all() {
  for_each_qp([&](QueuePair& q) {
    if (q.shared && !q.shared->held) return;
    TargetTurn turn(*this, q);
    if (turn) to_error(q, AsyncEvent::qp_fatal, false);
  });
  for (auto& wq : wqs_) to_error(*wq, false);
}

// UC and UD: a failed send stops the send queue only.
void Engine::to_sqe(QueuePair& q) {
  q.state.store(QpState::sqe, std::memory_order_seq_cst);
  flush_sends(q);
}

void Engine::flush_sends(QueuePair& q) {
  wheel_.cancel(q.ack_timer);
  wheel_.cancel(q.rnr_timer);
  Requester(*this, q).release_all();
  // As far as was posted until now.  A CQ that overruns takes the QP to the error state, which
  // flushes in here, perhaps further: who posts does not wait.
  for (std::uint32_t posted = q.sq->posted(); static_cast<std::int32_t>(posted - q.comp.acked) > 0;)
    Completer(*this, q).finish(WcStatus::wr_flush_err);
  q.req.next = q.comp.acked;
  q.req.offset = 0;
  q.req.reads_outstanding = 0;
  q.req.blocked_on_error = q.req.waiting_rnr = false;
  q.req.psn = q.comp.una = q.req.highest;
  q.comp.ack_deadline = never;
}

void Engine::flush_receives(QueuePair& q) {
  auto flush_one = [&] {
    Cqe c;
    c.wr_id = q.resp.recv.wr_id;
    c.status = WcStatus::wr_flush_err;
    c.opcode = WcOpcode::recv;
    ++counters_.resp_cqe_flush_error;
    complete(q, *q.recv_cq, c, true);
  };
  if (std::exchange(q.resp.recv_open, false)) flush_one();
  if (!q.own_rq) return;
  while (q.own_rq->take(q.resp.recv)) flush_one();
}

}  // namespace adverb::engine
