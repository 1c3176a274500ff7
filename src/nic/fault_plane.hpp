// SPDX-License-Identifier: Apache-2.0
// Fault rules on a running device: what its FaultyPort asks for is done to the engine and the
// port's state here.  Exists only where there are rules; written by whoever holds the engine.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "nic/device_impl.hpp"
#include "nic/fault_rules.hpp"
#include "port/faulty_port.hpp"

namespace adverb::nic {

class FaultPlane final : public port::FaultHost {
 public:
  FaultPlane(Device::Impl& device, FaultRules& rules) : device_(device), rules_(rules) {}

  // Puts the rules in front of a port.
  std::unique_ptr<port::Port> wrap(std::unique_ptr<port::Port>);
  Instant next_deadline() const { return port_->next_deadline(); }
  // Events of the port and the device, for after the engine was let go.
  bool pending() const { return !events_.empty(); }
  std::vector<engine::AsyncEvent> take_events() { return std::exchange(events_, {}); }
  const port::FaultCounters& counters() const { return port_->fault_counters(); }
  // A JSON array: one object a rule.
  std::string json();

  // --- FaultHost
  Instant now() override { return clock_now(); }
  std::optional<faults::QpFacts> facts(Qpn) override;
  bool raise(unsigned event, Qpn, bool receiving) override;
  bool raise_timed(const faults::TimedAction&) override;
  void set_port_state(bool up) override;

 private:
  // False: it is a queue pair's.
  bool raise_at_device(engine::AsyncEvent);

  Device::Impl& device_;
  FaultRules& rules_;
  port::FaultyPort* port_ = nullptr;  // the device's
  std::vector<engine::AsyncEvent> events_;
};

}  // namespace adverb::nic
