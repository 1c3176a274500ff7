// SPDX-License-Identifier: Apache-2.0
#include "port/faulty_port.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "wire/icrc.hpp"

namespace adverb::port {

using engine::RxFrame;
using engine::TxBurst;
using engine::TxFrame;
using faults::Decision;
using faults::Direction;

namespace {

constexpr std::size_t arena_bytes = 256 << 10;

std::uint32_t size_of(const wire::Packet& p) {
  return static_cast<std::uint32_t>(p.info().header_bytes + p.payload.size() + p.bth.pad_count);
}

}  // namespace

// --- frames that wait

template <class F>
Instant FaultyPort::Waiting<F>::next() const {
  const Instant a = delayed.empty() ? never : delayed.begin()->first;
  const Instant b = behind.empty() ? never : behind.front().until;
  return std::min(a, b);
}

template <class F>
void FaultyPort::Waiting<F>::hold(F&& frame, const Decision& d, Instant now) {
  if (d.delay > Duration{}) {
    delayed.emplace(now + d.delay, std::move(frame));
  } else {
    behind.push_back({std::move(frame), now + most_holding, d.hold});
  }
}

template <class F>
template <class Give>
void FaultyPort::Waiting<F>::release_due(Instant now, Give&& give) {
  while (!delayed.empty() && delayed.begin()->first <= now)
    give(std::move(delayed.extract(delayed.begin()).mapped()));
  while (!behind.empty() && behind.front().until <= now) {
    F frame = std::move(behind.front().frame);
    behind.pop_front();
    give(std::move(frame));
  }
}

template <class F>
template <class Give>
void FaultyPort::Waiting<F>::went_by(Qpn qp, Give&& give) {
  for (auto at = behind.begin(); at != behind.end();) {
    const auto entry = at++;
    if (entry->frame.qp() != qp || --entry->others != 0) continue;
    F frame = std::move(entry->frame);
    behind.erase(entry);
    give(std::move(frame));
  }
}

// --- the port

FaultyPort::FaultyPort(std::unique_ptr<Port> inner, faults::Matcher matcher, FaultHost& host)
    : inner_(std::move(inner)),
      matcher_(std::move(matcher)),
      host_(host),
      arena_(new std::uint8_t[arena_bytes]()),
      out_(std::make_unique<TxBurst>(std::span(arena_.get(), arena_bytes))) {}

Instant FaultyPort::next_deadline() const {
  return std::min({matcher_.next_deadline(), up_at_, sent_.next(), received_.next()});
}

const PortCounters& FaultyPort::counters() const {
  merged_ = inner_->counters();
  merged_.drop_icrc += drops_.drop_icrc;
  for (const auto error : {wire::DecodeError::too_short, wire::DecodeError::unknown_opcode,
                           wire::DecodeError::bad_version, wire::DecodeError::bad_pad})
    drops_for(merged_, error) += drops_for(drops_, error);
  return merged_;
}

void FaultyPort::set_up(bool up) {
  if (std::exchange(up_, up) != up) host_.set_port_state(up);
}

void FaultyPort::timed(Instant now) {
  if (up_at_ <= now) {
    up_at_ = never;
    set_up(true);
  }
  while (const auto action = matcher_.take_due(now)) {
    switch (action->action) {
      case faults::Action::port_down:
        up_at_ = action->down_time == Duration{} ? never : now + action->down_time;
        set_up(false);
        break;
      case faults::Action::port_up:
        up_at_ = never;
        set_up(true);
        break;
      default:
        if (!host_.raise_timed(*action)) matcher_.take_back(action->rule);
    }
  }
}

// What of a decision is not about the frame itself.
void FaultyPort::consequences(const Decision& d, Qpn qp, bool receiving, Instant now) {
  for (unsigned events = d.events; events; events &= events - 1) {
    const auto event = static_cast<unsigned>(__builtin_ctz(events));
    if (!host_.raise(event, qp, receiving)) matcher_.take_back(d.event_rule[event]);
  }
  if (d.port_down) {
    up_at_ = d.down_time == Duration{} ? never : now + d.down_time;
    set_up(false);
  }
  if (d.port_up) set_up(true);
}

// --- sending

void FaultyPort::flush() {
  if (!out_->empty()) inner_->send(*out_);
  out_->clear();
}

void FaultyPort::put(const SentFrame& f) {
  if (!up_) {
    ++fault_counters_.port_down_drops;
    return;
  }
  if (!out_->has_room(
          std::max<std::size_t>(f.bytes.size() + TxBurst::icrc_bytes, TxBurst::max_frame)))
    flush();
  std::memcpy(out_->next(), f.bytes.data(), f.bytes.size());
  out_->commit(f.frame.size, f.frame.av, f.frame.dest_qp, f.frame.src_qp, Qpn::of(f.frame.slot, 0),
               f.frame.protocol);
  if (f.frame.icrc_error) out_->spoil_icrc(f.frame.icrc_error);
}

void FaultyPort::send(TxBurst& burst) {
  const Instant now = host_.now();
  for (const TxFrame& f : burst.frames()) {
    if (up_) {
      decide_sent(burst, f, now);
    } else {
      ++fault_counters_.port_down_drops;
    }
  }
  flush();
}

void FaultyPort::decide_sent(TxBurst& burst, const TxFrame& f, Instant now) {
  SentFrame copy{f, Bytes(burst.bytes(f), burst.bytes(f) + f.size)};
  if (f.protocol == engine::Protocol::ethernet) return put(copy);  // no packet: no rule is for it
  const auto packet = wire::decode({copy.bytes.data(), copy.bytes.size()});
  if (!packet) return put(copy);
  const auto facts = host_.facts(f.src_qp);
  const Decision d = matcher_.decide(now, Direction::tx,
                                     faults::fields_of(Direction::tx, *packet, f.src_qp, f.av.dgid,
                                                       f.size, facts ? &*facts : nullptr));
  const bool receiving = wire::is_response(packet->info().verb);
  consequences(d, f.src_qp, receiving, now);
  if (d.drop) return;
  damage(copy, d);
  for (std::uint32_t i = 0; i <= d.copies; ++i) {
    if (d.delay == Duration{} && !d.hold) {
      put(copy);
      sent_.went_by(f.src_qp, [&](SentFrame&& held) { put(held); });
    } else if (sent_.size() < most_held) {
      sent_.hold(SentFrame(copy), d, now);
    } else {
      ++fault_counters_.hold_overflows;
    }
  }
}

// The sum that the frame will get is that of its bytes then; `icrc_error` turns it into that of the
// bytes before they were damaged on the wire.  It depends on the damage alone: the CRC is linear.
void FaultyPort::damage(SentFrame& f, const Decision& d) {
  const std::size_t size = f.bytes.size();
  for (const auto& x : std::span(d.damage).first(d.damages))
    if (x.sealed) f.bytes[x.byte] ^= x.mask;
  Bytes before = f.bytes;
  std::uint32_t error = 0;
  bool on_wire = false;
  for (const auto& x : std::span(d.damage).first(d.damages)) {
    if (x.sealed) continue;
    on_wire = true;
    if (x.byte < size) {
      f.bytes[x.byte] ^= x.mask;
    } else {
      error ^= std::uint32_t{x.mask} << 8 * (x.byte - size);
    }
  }
  if (!on_wire) return;
  const wire::IcrcPrefix prefix({}, size);
  f.frame.icrc_error = error ^ prefix.icrc(before) ^ prefix.icrc(f.bytes);
}

// --- receiving

std::span<const RxFrame> FaultyPort::receive(bool& all_empty, Look look) {
  const Instant now = host_.now();
  in_.clear();
  payloads_.clear();
  timed(now);
  sent_.release_due(now, [&](SentFrame&& f) { put(f); });
  flush();
  received_.release_due(now, [&](ReceivedFrame&& f) { give(std::move(f)); });
  for (const RxFrame& f : inner_->receive(all_empty, look)) {
    if (up_) {
      decide_received(f, now);
    } else {
      ++fault_counters_.port_down_drops;
    }
  }
  return in_;
}

void FaultyPort::decide_received(const RxFrame& f, Instant now) {
  if (f.protocol == engine::Protocol::ethernet) return pass(f);
  const wire::Packet& p = f.packet;
  const Qpn qp = p.bth.dest_qp;
  const auto facts = host_.facts(qp);
  const Decision d = matcher_.decide(
      now, Direction::rx,
      faults::fields_of(Direction::rx, p, qp, f.source, size_of(p), facts ? &*facts : nullptr));
  if (d.harmless()) return pass(f);
  consequences(d, qp, !wire::is_response(p.info().verb), now);
  if (d.drop) return;
  ReceivedFrame copy{f, Bytes(p.payload.begin(), p.payload.end())};
  copy.frame.forced_syndrome = d.syndrome;
  if (!damage(copy, d)) return;
  for (std::uint32_t i = 0; i <= d.copies; ++i) {
    if (d.delay == Duration{} && !d.hold) {
      give(ReceivedFrame(copy));
      received_.went_by(qp, [&](ReceivedFrame&& held) { give(std::move(held)); });
    } else if (received_.size() < most_held) {
      received_.hold(ReceivedFrame(copy), d, now);
    } else {
      ++fault_counters_.hold_overflows;
    }
  }
}

void FaultyPort::pass(const RxFrame& f) {
  in_.push_back(f);
  received_.went_by(f.packet.bth.dest_qp, [&](ReceivedFrame&& held) { give(std::move(held)); });
}

void FaultyPort::give(ReceivedFrame&& f) {
  if (!up_) {
    ++fault_counters_.port_down_drops;
    return;
  }
  payloads_.push_back(std::move(f.payload));  // moving a vector leaves its bytes where they are
  in_.push_back(f.frame);
  in_.back().packet.payload = payloads_.back();
}

// False: it does not get past the checks of a receiver, and was counted there.
bool FaultyPort::damage(ReceivedFrame& f, const Decision& d) {
  const auto damages = std::span(d.damage).first(d.damages);
  if (damages.empty()) return true;
  if (std::ranges::any_of(damages, [](const auto& x) { return !x.sealed; }))
    return ++drops_.drop_icrc, false;
  wire::Packet& p = f.frame.packet;
  Bytes bytes(wire::max_header_bytes + f.payload.size() + p.bth.pad_count);
  const unsigned header = wire::encode_headers(p, bytes.data());
  std::ranges::copy(f.payload, bytes.begin() + header);
  bytes.resize(header + f.payload.size() + p.bth.pad_count);
  for (const auto& x : damages) bytes[x.byte] ^= x.mask;
  const auto damaged = wire::decode({bytes.data(), bytes.size()});
  if (!damaged) return ++drops_for(drops_, damaged.error()), false;
  p = *damaged;
  f.payload.assign(damaged->payload.begin(), damaged->payload.end());
  return true;
}

}  // namespace adverb::port
