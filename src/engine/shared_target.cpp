// SPDX-License-Identifier: Apache-2.0
#include "engine/shared_target.hpp"

#include <algorithm>
#include <utility>

#include "engine/engine.hpp"

namespace adverb::engine {

TargetTurn::TargetTurn(Engine& engine, QueuePair& qp) : e_(engine), q_(qp) {
  if (!q_.shared) return;
  TargetShare& share = *q_.shared;
  gone_ = share.target->qpn.load(std::memory_order_acquire) != q_.qpn.raw();
  can_ = !gone_ && share.store->lock(*share.target);
  if (!can_) return;
  gone_ = share.target->qpn.load(std::memory_order_acquire) != q_.qpn.raw();
  can_ = !gone_ && load();
  if (!can_) share.store->unlock(*share.target);
}

TargetTurn::~TargetTurn() {
  if (!q_.shared || !can_) return;
  TargetShare& share = *q_.shared;
  save();
  share.store->unlock(*share.target);
  if (share.event_count != events_before_) share.store->tell_others(*share.target);
}

// Other processes wrote it: what would lead beyond an array is not taken over.
static bool sound(const TargetState& s) {
  return s.state <= QpState::error && s.progress.dest_resources <= TargetState::max_resources &&
         s.attr.path_mtu >= Mtu::mtu_256 && s.attr.path_mtu <= Mtu::mtu_4096;
}

bool TargetTurn::load() {
  TargetShare& share = *q_.shared;
  const std::uint32_t generation = share.target->generation.load(std::memory_order_acquire);
  if (generation != share.seen) {
    const TargetState& s = share.target->copies[generation & 1];
    if (!sound(s)) return false;
    share.seen = generation;
    e_.adopt(q_, s);
  }
  events_before_ = share.event_count;
  return true;
}

void TargetTurn::save() {
  TargetShare& share = *q_.shared;
  const std::uint32_t next = share.target->generation.load(std::memory_order_relaxed) + 1;
  TargetState& s = share.target->copies[next & 1];
  const ResponderState& r = q_.resp;
  s.epoch = share.epoch;
  s.state = q_.state.load(std::memory_order_relaxed);
  s.comm_established = q_.comm_established;
  s.message_open = static_cast<bool>(r.previous);
  s.previous = wire::opcode_of(wire::Transport::xrc, r.previous.operation);
  s.attr = q_.attr;
  s.sgid = e_.gid(q_.attr.av.sgid_index);
  s.progress = r;
  s.event_count = share.event_count;
  s.events = share.events;
  std::copy_n(r.resources.get(), r.dest_resources, s.resources.begin());
  share.target->generation.store(next, std::memory_order_release);
  share.seen = next;
}

// --- the engine's side

// The target as another process left it.
void Engine::adopt(QueuePair& q, const TargetState& s) {
  TargetShare& share = *q.shared;
  ResponderState& r = q.resp;
  if (share.epoch != s.epoch) {
    share.epoch = s.epoch;
    forget_owed(q);
    r.recv_open = false;
  }
  const bool moved = s.attr.av.dgid != q.attr.av.dgid || s.attr.dest_qpn != q.attr.dest_qpn;
  q.attr = s.attr;
  q.attr.av.sgid_index = index_of(s.sgid);
  q.mtu = bytes_of(s.attr.path_mtu);
  q.comm_established = s.comm_established;
  r.previous = s.message_open ? wire::info_of(s.previous) : wire::OpcodeInfo{};
  const std::uint32_t resources = s.progress.dest_resources;
  if (resources != r.dest_resources) make_resources(q, resources);
  static_cast<ResponderProgress&>(r) = s.progress;
  std::copy_n(s.resources.begin(), r.dest_resources, r.resources.get());
  const QpState before = q.state.exchange(s.state, std::memory_order_seq_cst);
  const bool receives = s.state >= QpState::rtr && s.state != QpState::error;
  if (receives ? !q.destination || moved : s.state == QpState::reset) {
    if (receives)
      set_path(q);
    else
      leave_destination(q);
  }
  if (s.state == QpState::error && before != QpState::error) {
    forget_owed(q);
    flush_receives(q);
  }
  // Events that came of what others did.
  const std::uint32_t fresh = s.event_count - share.event_count;
  for (std::uint32_t i = std::min(fresh, TargetShare::events_kept); i > 0; --i) {
    const std::uint32_t n = s.event_count - i;
    raise_here(q, s.events[n % TargetShare::events_kept]);
  }
  share.event_count = s.event_count;
  share.events = s.events;
}

void Engine::forget_owed(QueuePair& q) {
  q.resp.pending_head = q.resp.pending_tail;
  q.resp.ack_owed = q.resp.nak_owed = q.resp.cnp_owed = false;
}

// The targets of one store that this engine knows.  f may drop the one that it is given, no other.
template <class F>
void Engine::for_each_of(const TargetStore* store, F&& f) {
  for (std::uint32_t i = 0; i < config_.max_qp; ++i)
    if (qps_[i] && qps_[i]->shared && qps_[i]->shared->store == store) f(*qps_[i]);
  for (std::size_t i = foreign_.size(); i-- > 0;)
    if (foreign_[i]->shared->store == store) f(*foreign_[i]);
}

void Engine::add_store(TargetStore* store) { stores_.push_back({store, store->news()}); }

void Engine::forget_store(const TargetStore* store) {
  std::erase_if(stores_, [&](const StoreEntry& s) { return s.store == store; });
  for_each_of(store, [&](QueuePair& q) { drop_qp(q); });
}

// The queue pair of a target that another process has made, as this engine's SRQs are named by it;
// null: there is none.  The first request of a target allocates, later ones do not.
QueuePair* Engine::find_target(XrcdId xrcd, TargetStore* store, Qpn qpn) {
  if (QueuePair* own = find(qpn); own && own->type == QpType::xrc_recv) return own;
  const auto place = place_of(qpn);
  if (place != foreign_.end() && (*place)->qpn == qpn) return place->get();
  SharedTarget* target = store ? store->find(qpn) : nullptr;
  if (!target) return nullptr;
  auto q = std::make_unique<QueuePair>();
  q->type = QpType::xrc_recv;
  q->qpn = qpn;
  q->xrcd = xrcd;
  q->sq = std::make_unique<SendQueue>(1, 1, 0);
  q->ack_timer.owner = q->rnr_timer.owner = q.get();
  share(*q, store, target);
  return foreign_.insert(place, std::move(q))->get();
}

std::vector<std::unique_ptr<QueuePair>>::iterator Engine::place_of(Qpn qpn) {
  return std::ranges::lower_bound(foreign_, qpn.raw(), {},
                                  [](const auto& q) { return q->qpn.raw(); });
}

void Engine::share(QueuePair& q, TargetStore* store, SharedTarget* target) {
  q.shared = std::make_unique<TargetShare>();
  q.shared->store = store;
  q.shared->target = target;
  const std::uint32_t generation = target->generation.load(std::memory_order_acquire);
  q.shared->event_count = target->copies[generation & 1].event_count;  // later ones are news
  q.shared->seen = generation - 1;
}

// A target that this engine makes; false: the domain has no room.
bool Engine::share_new(QueuePair& q, TargetStore* store) {
  SharedTarget* target = store->create(q.qpn);
  if (!target) return false;
  share(q, store, target);
  q.shared->held = true;
  refresh(q);  // says what it is
  return true;
}

std::uint8_t Engine::index_of(const Gid& gid) const {
  const auto at = std::ranges::find(gids_, gid);
  return at == gids_.end() ? std::uint8_t{0} : static_cast<std::uint8_t>(at - gids_.begin());
}

QueuePair* Engine::target_of(const wire::Packet& p) {
  const SharedReceiveQueue* srq = find_srq(Srqn(p.xrc.srqn));
  return srq && srq->store ? find_target(srq->xrcd, srq->store, p.bth.dest_qp) : nullptr;
}

QueuePair* Engine::open_target(XrcdId xrcd, TargetStore* store, Qpn qpn) {
  QueuePair* q = find_target(xrcd, store, qpn);
  if (!q || q->xrcd != xrcd) return nullptr;
  if (!q->shared) return q;
  if (!q->shared->held && !q->shared->store->hold(*q->shared->target)) return nullptr;
  q->shared->held = true;
  refresh(*q);
  return q;
}

void Engine::refresh(QueuePair& q) { TargetTurn turn(*this, q); }

// Others' news: events for the handles of this process; what has gone, goes here too.
void Engine::hear_news() {
  for (StoreEntry& s : stores_) {
    const std::uint32_t news = s.store->news();
    if (news == std::exchange(s.seen, news)) continue;
    for_each_of(s.store, [&](QueuePair& q) {
      const bool gone = TargetTurn(*this, q).gone();
      if (gone && !q.shared->held) drop_qp(q);
    });
  }
}

bool Engine::news_pending() const {
  return std::ranges::any_of(stores_,
                             [](const StoreEntry& s) { return s.store->news() != s.seen; });
}

}  // namespace adverb::engine
