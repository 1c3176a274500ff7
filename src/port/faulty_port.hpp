// SPDX-License-Identifier: Apache-2.0
// A port that does to frames what fault rules say, in front of another port.  Installed only where
// there are rules.
//
// What is held (delayed, or held back for reordering) is copied and leaves with a later receive():
// next_deadline() says when one is due.  The space is bounded; a frame that finds none is lost, and
// counted.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "faults/matcher.hpp"
#include "port/port.hpp"

namespace adverb::port {

// What the wrapper has to ask, and what it cannot do itself.  Called by whoever holds the engine,
// never from inside it.
class FaultHost {
 public:
  virtual ~FaultHost() = default;
  virtual Instant now() = 0;
  virtual std::optional<faults::QpFacts> facts(Qpn) = 0;
  // An event (ibv_event_type) for a queue pair of ours.  `receiving`: a request of its peer brought
  // it about.  False, as below: there is nothing that it could be raised for.
  virtual bool raise(unsigned event, Qpn, bool receiving) = 0;
  virtual bool raise_timed(const faults::TimedAction&) = 0;
  virtual void set_port_state(bool up) = 0;
};

struct FaultCounters {
  std::uint64_t port_down_drops = 0;  // frames that met a port that was down
  std::uint64_t hold_overflows = 0;   // lost, because too many were held
};

class FaultyPort final : public Port {
 public:
  static constexpr std::size_t most_held = 16384;                          // frames
  static constexpr Duration most_holding = std::chrono::milliseconds(10);  // for reordering

  FaultyPort(std::unique_ptr<Port> inner, faults::Matcher, FaultHost&);

  std::span<const engine::RxFrame> receive(bool& all_empty, Look look = Look::everywhere) override;
  void send(engine::TxBurst&) override;
  std::vector<int> wait_descriptors() const override { return inner_->wait_descriptors(); }
  void add_address(const LocalAddress& a) override { inner_->add_address(a); }
  void remove_address(unsigned gid_index) override { inner_->remove_address(gid_index); }
  int join(const Gid& group) override { return inner_->join(group); }
  void leave(const Gid& group) override { inner_->leave(group); }
  int open_ethernet() override { return inner_->open_ethernet(); }
  int watch_ethernet(bool on) override { return inner_->watch_ethernet(on); }
  const PortCounters& counters() const override;

  // When receive() has something to do although no frame comes.
  Instant next_deadline() const;
  const faults::Matcher& matcher() const { return matcher_; }
  const FaultCounters& fault_counters() const { return fault_counters_; }

 private:
  using Bytes = std::vector<std::uint8_t>;
  struct SentFrame {
    engine::TxFrame frame;
    Bytes bytes;  // from the BTH to the pad
    Qpn qp() const { return frame.src_qp; }
  };
  struct ReceivedFrame {
    engine::RxFrame frame;
    Bytes payload;
    Qpn qp() const { return frame.packet.bth.dest_qp; }
  };
  // Frames that wait: for a time, or until so many others of their queue pair went by.
  template <class F>
  struct Waiting {
    struct Behind {
      F frame;
      Instant until;
      std::uint32_t others;
    };
    std::multimap<Instant, F> delayed;
    std::list<Behind> behind;  // oldest first
    std::size_t size() const { return delayed.size() + behind.size(); }
    Instant next() const;
    void hold(F&&, const faults::Decision&, Instant now);
    // Takes what is due, or what waited for one more frame of this queue pair.
    template <class Give>
    void release_due(Instant now, Give&&);
    template <class Give>
    void went_by(Qpn, Give&&);
  };

  void timed(Instant now);
  void set_up(bool up);
  void consequences(const faults::Decision&, Qpn, bool receiving, Instant now);
  void put(const SentFrame&);
  void flush();
  void decide_sent(engine::TxBurst&, const engine::TxFrame&, Instant now);
  void damage(SentFrame&, const faults::Decision&);
  void decide_received(const engine::RxFrame&, Instant now);
  bool damage(ReceivedFrame&, const faults::Decision&);
  void give(ReceivedFrame&&);
  void pass(const engine::RxFrame&);

  std::unique_ptr<Port> inner_;
  faults::Matcher matcher_;
  FaultHost& host_;
  bool up_ = true;
  Instant up_at_ = never;

  Waiting<SentFrame> sent_;
  Waiting<ReceivedFrame> received_;
  std::unique_ptr<std::uint8_t[]> arena_;
  std::unique_ptr<engine::TxBurst> out_;
  std::vector<engine::RxFrame> in_;
  std::vector<Bytes> payloads_;  // of frames of in_ that the inner port does not keep

  FaultCounters fault_counters_;
  mutable PortCounters drops_;
  mutable PortCounters merged_;
};

}  // namespace adverb::port
