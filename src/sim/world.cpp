// SPDX-License-Identifier: Apache-2.0
#include "sim/world.hpp"

#include <algorithm>

#include "base/assert.hpp"
#include "sim/random.hpp"

namespace adverb::sim {

using engine::EventRecord;
using engine::TxFrame;

namespace {

constexpr std::uint64_t max_events = 20'000'000;
constexpr Picoseconds tick = picoseconds(1024);  // of the timer wheel

Gid address_of(unsigned host, bool ipv6) {
  if (!ipv6) return Gid::from_v4(0x0000000a + ((host + 1) << 24));
  Gid g;
  g.bytes[0] = 0xfd;
  g.bytes[15] = static_cast<std::uint8_t>(host + 1);
  return g;
}

}  // namespace

World::World(const Scenario& s, Trace& trace) : s_(s), trace_(trace), network_(s_, queue_, trace) {
  std::uint32_t library = 1 << 16, frames = 1;
  for (const PairSpec& p : s_.pairs) library = std::max(library, (1u << 16) + p.max_size);
  for (unsigned h = 0; h < s_.hosts.size(); ++h) {
    auto host = std::make_unique<Host>();
    host->index = h;
    host->spec = &s_.hosts[h];
    host->gid = address_of(h, s_.hosts[0].ipv6);
    host->random = stream(s_.seed, Purpose::host, h);
    host->library.make(library);
    Prng fill = stream(s_.seed, Purpose::library, h);
    for (std::size_t i = 0; i + 8 <= library; i += 8) {
      const std::uint64_t word = fill.next();
      std::memcpy(host->library.bytes() + i, &word, 8);
    }
    host->library.adopt(0, library);
    host->shared.make(4096);
    std::memset(host->shared.bytes(), 0, 8);
    host->shared.adopt(0, 8);
    network_.set_address(h, host->gid);
    frames = std::max(frames, host->spec->burst_frames);
    hosts_.push_back(std::move(host));
  }
  arena_.resize(std::size_t{frames} * engine::TxBurst::max_frame);
  burst_ = std::make_unique<engine::TxBurst>(arena_);
  for (unsigned i = 0; i < s_.pairs.size(); ++i) {
    auto pair = std::make_unique<Pair>();
    pair->spec = &s_.pairs[i];
    pair->index = i;
    pair->random = stream(s_.seed, Purpose::pair, i);
    for (unsigned side = 0; side < 2; ++side) {
      End& e = pair->end[side];
      e.pair = pair.get();
      e.peer = &pair->end[1 - side];
      e.side = side;
      e.index = 2 * i + side;
      e.host = hosts_[static_cast<unsigned>(pair->spec->host[side])].get();
      e.remaining = pair->spec->side[side].operations;
      for (const Work& w : pair->spec->side[side].work) e.remaining += w.repeat;
      e.host->ends.push_back(&e);
    }
    pairs_.push_back(std::move(pair));
  }
}

Result World::run() {
  try {
    for (auto& h : hosts_) boot(*h);
    for (auto& p : pairs_) build(*p);
    for (std::uint32_t i = 0; i < s_.events.size(); ++i)
      queue_.add(picoseconds(s_.events[i].at), Due::event, i);
    queue_.add(picoseconds(s_.heal), Due::heal, 0);
    deadline_ = forever * 1000;
    while (!done()) {
      if (queue_.empty() && !rescue())
        violated("nothing is left to happen, but not all is done{}", undone());
      const Item item = queue_.take();
      now_ = item.at;
      dispatch(item);
      if (++result_.events > max_events) violated("still busy after {} events", max_events);
    }
    finish();
  } catch (const Violation& v) {
    result_.violation = fmt::format("at {:.3f} us: {}", static_cast<double>(now_) / 1e6, v.what());
  }
  result_.end = now_;
  result_.frames = network_.sent();
  for (auto& p : pairs_) result_.generations += p->generation;
  for (auto& h : hosts_) trace_.note(h->engine ? h->engine->counters().sent_bytes : 0, now_);
  result_.hash = trace_.hash();
  return result_;
}

void World::dispatch(const Item& item) {
  switch (item.due) {
    case Due::arrival:
      return arrive(*hosts_[item.who], item.frame);
    case Due::release:
      return network_.release(now_, item.frame);
    case Due::step: {
      Host& h = *hosts_[item.who];
      if (item.at != h.step_at) return;  // planned again since
      h.step_at = ~Picoseconds{0};
      return step(h);
    }
    case Due::event:
      return happen(s_.events[item.who]);
    case Due::pair:
      return pair_due(*pairs_[item.who]);
    case Due::boot:
      return boot(*hosts_[item.who]);
    case Due::heal:
      return heal();
  }
}

void World::happen(const Event& e) {
  if (healed_) return;
  const Picoseconds until = now_ + picoseconds(e.duration);
  Host& host = *hosts_[static_cast<unsigned>(e.host)];
  trace_.note(0xe0 + static_cast<std::uint64_t>(e.what), now_);
  trace_.line(now_, "EVENT {} host {} peer {} pair {} side {} for {} ns", static_cast<int>(e.what),
              e.host, e.peer, e.pair, e.side, e.duration);
  switch (e.what) {
    case Happening::partition:
      return network_.partition(host.index, e.peer, until, true);
    case Happening::blackhole:
      return network_.partition(host.index, e.peer, until, false);
    case Happening::clog:
      return network_.clog(host.index, e.peer, until);
    case Happening::pause:
      host.was_paused = true;
      host.paused_until = std::max(host.paused_until, until);
      return;
    case Happening::crash:
      return crash(host, e.duration);
    default:
      break;
  }
  Pair& pair = *pairs_[static_cast<unsigned>(e.pair)];
  End& end = pair.end[e.side];
  if (pair.state != Pair::State::up || !end.qp || end.host->paused_until > now_) return;
  if (e.what == Happening::deregister) return deregister(end);
  if (e.what == Happening::ghost) return ghost(end);
  collect(*end.host);
  if (e.what == Happening::destroy) {
    forget(end);
  } else {
    engine::QpAttributes a;
    a.state = engine::QpState::error;
    end.host->engine->modify_qp(instant(), *end.qp, a, engine::attr_state);
    end.failed = true;
    plan_step(*end.host, now_);
  }
  break_pair(pair);
}

// --- a host

void World::arrive(Host& h, std::uint32_t frame) {
  Frame& f = network_.frames().at(frame);
  if (h.down || h.receive_buffer.size() >= h.spec->receive_buffer) {
    trace_.line(now_, "{} -> {} LOST: {}", f.from, f.to, h.down ? "host is down" : "buffer full");
    network_.arrived(f, false);
    return network_.frames().give(frame);
  }
  h.receive_buffer.push_back(frame);
  plan_step(h, now_);
}

void World::plan_step(Host& h, Picoseconds at) {
  at = std::max({at, h.last_step + picoseconds(h.spec->step), h.paused_until});
  if (at >= h.step_at) return;
  h.step_at = at;
  queue_.add(at, Due::step, h.index);
}

// What the real loop does: receive all, let the application work, send all.
void World::step(Host& h) {
  if (h.down) return;
  if (h.paused_until > now_) return plan_step(h, h.paused_until);
  h.last_step = now_;
  while (!h.receive_buffer.empty()) {
    const std::uint32_t frame = h.receive_buffer.front();
    h.receive_buffer.pop_front();
    receive(h, frame);
    network_.frames().give(frame);
  }
  collect(h);
  work(h);
  transmit(h);
  if (collect(h)) plan_step(h, now_ + 1);
  EventRecord events[16];
  while (h.engine->take_events(events) == std::size(events)) {
  }
  watch_step(h);
  plan_next(h);
}

void World::receive(Host& h, std::uint32_t frame) {
  const Frame& f = network_.frames().at(frame);
  network_.arrived(f, true);
  const bool valid = network_.valid(f);
  auto packet = wire::decode({f.bytes, f.size - engine::TxBurst::icrc_bytes});
  trace_.note(now_ ^ (valid ? 0x5a : 0xa5), f.size);
  if (!valid || !packet) {
    trace_.line(now_, "{} -> {} bad ICRC", f.from, f.to);
    return;
  }
  if (trace_.wants_lines())
    trace_.line(now_, "{} -> {} received {}", f.from, f.to, describe(*packet));
  engine::RxFrame rx;
  rx.packet = *packet;
  rx.source = network_.address(f.from);
  rx.destination = f.av.dgid;
  rx.flow_label = f.av.flow_label;
  rx.traffic_class = f.av.traffic_class;
  rx.hop_limit = f.av.hop_limit;
  const Qpn qpn = packet->bth.dest_qp;
  End* end = qpn.index() < h.by_index.size() ? h.by_index[qpn.index()] : nullptr;
  const Psn una = end ? end->qp->comp.una : Psn{};
  const bool was_running = end && running(*end), was_waiting = end && end->qp->req.waiting_rnr;
  const Psn expected = end ? end->qp->resp.expected : Psn{};
  ++h.frames_in;
  h.engine->receive(instant(), rx);
  if (!was_running || end->qp->type != engine::QpType::rc || rx.source != end->peer->host->gid)
    return;
  if (!wire::is_response(packet->info().verb))
    watch_request_in(*end, *packet, expected);
  else
    watch_received(*end, *packet, una, was_waiting);
}

void World::transmit(Host& h) {
  engine::TxBurst& tx = *burst_;
  bool more = true;
  for (unsigned turns = 0; more; ++turns) {
    tx.clear();
    more = h.engine->transmit(instant(), tx);
    for (const TxFrame& f : tx.frames()) {
      network_.send(now_, h.index, f, tx.bytes(f), watch_sent(h, f, tx.bytes(f)));
    }
    if (turns > 100'000) violated("host {}: transmit() never comes to an end", h.index);
  }
}

void World::plan_next(Host& h) {
  const Instant deadline = h.engine->next_deadline();
  if (deadline != never) {
    const auto ns =
        static_cast<std::uint64_t>(std::max<std::int64_t>(deadline.time_since_epoch().count(), 0));
    plan_step(h, std::max(picoseconds(ns), now_ + tick));
  }
  if (!h.send_cq->empty() || !h.recv_cq->empty()) plan_step(h, now_ + tick);
}

// Everything that was to be done is done, and no frame is under way.
bool World::done() {
  if (!healed_) return false;
  if (now_ > deadline_) {
    violated("not done long after everything was healed{}", undone());
  }
  if (network_.frames().in_use()) return false;
  bool all = true;
  for (auto& p : pairs_) {
    if (p->state == Pair::State::over) continue;
    if (p->state != Pair::State::up) return false;
    for (End& e : p->end)
      if (e.remaining || e.completed != e.posted()) all = false;
    if (!all) return false;
    if (!p->finished) p->finished = now_;
  }
  for (auto& p : pairs_) {
    if (p->state != Pair::State::up || p->fresh || !s_.liveness) continue;
    if (p->spec->type != engine::QpType::rc) continue;
    all = false;
    p->fresh = true;
    p->lost_before_fresh = network_.losses(p->end[0].host->index, p->end[1].host->index);
    for (End& e : p->end) {
      e.remaining = std::min<std::uint32_t>(4, p->spec->depth);
      plan_step(*e.host, now_);
    }
  }
  return all;
}

// Nothing happens any more.  That is right where something was lost and no timer watches.
bool World::rescue() {
  bool any = false;
  for (auto& p : pairs_) {
    if (p->state != Pair::State::up || p->spec->type != engine::QpType::rc || p->spec->timeout)
      continue;
    if (!network_.losses(p->end[0].host->index, p->end[1].host->index)) continue;
    for (const End& e : p->end)
      if (e.remaining || e.completed != e.posted()) any = true, break_pair(*p);
  }
  return any;
}

// Who still has something to do.
std::string World::undone() const {
  std::string who;
  for (auto& p : pairs_)
    for (End& e : p->end)
      if (p->state != Pair::State::over && (e.remaining || e.completed != e.posted()))
        who += fmt::format("; {}: {} of {} completed, {} not posted, state {}", name(e),
                           e.completed, e.posted(), e.remaining, static_cast<int>(p->state));
  return who;
}

std::string World::name(const End& e) const {
  return fmt::format("pair {} side {} (host {}, qp {:#x}, generation {})", e.pair->index, e.side,
                     e.host->index, e.qp ? e.qp->qpn.raw() : 0, e.pair->generation);
}

}  // namespace adverb::sim
