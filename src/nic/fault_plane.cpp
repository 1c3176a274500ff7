// SPDX-License-Identifier: Apache-2.0
#include "nic/fault_plane.hpp"

#include <fmt/format.h>

#include <utility>

#include "nic/log.hpp"

namespace adverb::nic {

using engine::AsyncEvent;
using engine::QueuePair;

std::unique_ptr<port::Port> FaultPlane::wrap(std::unique_ptr<port::Port> inner) {
  auto wrapped = std::make_unique<port::FaultyPort>(
      std::move(inner), faults::Matcher(rules_.rules(), clock_now(), rules_.total()), *this);
  port_ = wrapped.get();
  return wrapped;
}

std::optional<faults::QpFacts> FaultPlane::facts(Qpn qpn) {
  const QueuePair* q = device_.engine->find(qpn);
  if (!q) return std::nullopt;
  return faults::QpFacts{
      .peer_qp = q->attr.dest_qpn, .first_sent = q->attr.sq_psn, .first_received = q->attr.rq_psn};
}

bool FaultPlane::raise_at_device(AsyncEvent event) {
  switch (event) {
    case AsyncEvent::device_fatal:
      device_.engine->fail_all();
      device_.failed.store(true, std::memory_order_relaxed);
      [[fallthrough]];
    case AsyncEvent::port_active:
    case AsyncEvent::port_err:
    case AsyncEvent::lid_change:
    case AsyncEvent::pkey_change:
    case AsyncEvent::sm_change:
    case AsyncEvent::client_reregister:
    case AsyncEvent::gid_change:
      events_.push_back(event);
      return true;
    default:
      return false;
  }
}

bool FaultPlane::raise(unsigned number, Qpn qpn, bool receiving) {
  const auto event = static_cast<AsyncEvent>(number);
  if (raise_at_device(event)) return true;
  // Work queues take Ethernet frames, which rules do not see: packets of others bring it about.
  if (event == AsyncEvent::wq_fatal) return device_.engine->inject_wq_fatal();
  QueuePair* q = device_.engine->find(qpn);
  return q && device_.engine->inject(event, *q, receiving ? q->recv_cq : q->send_cq);
}

bool FaultPlane::raise_timed(const faults::TimedAction& action) {
  const auto event = static_cast<AsyncEvent>(action.event);
  if (raise_at_device(event)) return true;
  if (event == AsyncEvent::wq_fatal)
    return !action.transport && device_.engine->inject_wq_fatal(action.qp);
  bool raised = false;
  device_.engine->for_each_qp([&](QueuePair& q) {
    if (action.qp && q.qpn != *action.qp) return;
    if (action.transport && engine::transport_of(q.type) != *action.transport) return;
    raised |= device_.engine->inject(event, q, q.send_cq);
    if (event == AsyncEvent::cq_err && q.recv_cq != q.send_cq)
      raised |= device_.engine->inject(event, q, q.recv_cq);
  });
  return raised;
}

void FaultPlane::set_port_state(bool up) {
  device_.fault_down.store(!up, std::memory_order_relaxed);
  log(LogLevel::info, "a fault rule takes the port of {} {}", device_.info.name,
      up ? "up" : "down");
  if (device_.link_up.load(std::memory_order_relaxed))
    events_.push_back(up ? AsyncEvent::port_active : AsyncEvent::port_err);
}

// Rules of verbs are the process's: each hit is told once, by whichever device tells first.
std::string FaultPlane::json() {
  const auto calls = rules_.take_call_counts();
  const auto counts = port_->matcher().counts();
  std::string text = "[";
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const faults::Rule& r = rules_.rules()[i];
    const faults::RuleCount& c = r.of_calls() ? calls[i] : counts[i];
    std::string quoted;
    for (const char x : r.text) {
      if (x == '"' || x == '\\') quoted += '\\';
      quoted += x == '\t' ? ' ' : x;
    }
    text += fmt::format("{}{{\"rule\":\"{}\",\"line\":{},\"matched\":{},\"hits\":{}}}",
                        i ? "," : "", quoted, r.line, c.matched, c.hits);
  }
  return text + "]";
}

}  // namespace adverb::nic
