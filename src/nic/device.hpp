// SPDX-License-Identifier: Apache-2.0
// A running device: joins the engine, a port, the clock and the threads (design D3).  One per
// process and device name, shared by every context that the process opens on it.
//
// Who makes progress: the thread that posts, transmits; the thread that polls an empty CQ,
// receives; one parked background thread takes over when nobody has called in for a while, or at
// once when a CQ is armed.  The engine lock is only tried on post and poll, never waited for;
// control calls wait for it, and pollers step back for them.
//
// fork(): in the child the inherited devices are dead (their descriptors are closed, calls do
// nothing); it may open its own.
#pragma once

#include <expected>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/engine.hpp"
#include "nic/enumerate.hpp"
#include "nic/xrc_domains.hpp"
#include "port/port.hpp"

namespace adverb::nic {

// Receives what the engine reports, after the engine was let go, from whatever thread made the
// progress.  Must not block and must not call back into the device.  When a destroy call of Device
// has returned, no call for that object runs or will run.
class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual void on_event(const engine::EventRecord&) = 0;
  // The port went up or down, or the addresses changed.
  virtual void on_port_event(engine::AsyncEvent) = 0;
};

// What the threads did; for tests of the bounds and for ADVERB_STATS.
struct ThreadCounters {
  std::uint64_t background_wakeups =
      0;                               // packets, doorbells or deadlines woke the background thread
  std::uint64_t background_ticks = 0;  // it looked whether the application still polls
  std::uint64_t background_bursts = 0, caller_bursts = 0;  // bursts received by each
  std::uint64_t kicks = 0;                                 // a caller woke it
};

class Device {
 public:
  // The process's device of that name, opened or shared.  `sink` outlives the returned pointer's
  // Attachment.
  static std::expected<std::shared_ptr<Device>, OpenError> open(const DeviceInfo&);
  // Those that this process has open.
  static std::vector<std::shared_ptr<Device>> opened();
  ~Device();

  // A copy: GIDs and MTU follow the netdev.
  DeviceInfo info() const;
  void attach(EventSink*);
  void detach(EventSink*);  // no call to the sink runs when it returns

  // --- control path: runs f(engine, now) alone with the engine; transmits and delivers what came
  // of it before it returns.
  template <class F>
  auto with_engine(F&& f);

  // Multicast groups (ibv_attach_mcast(3)); both return an errno.  ENOMEM: the table is full;
  // EINVAL from detach: it is not attached.
  int attach_mcast(engine::QueuePair&, const Gid& group);
  int detach_mcast(engine::QueuePair&, const Gid& group);

  // Raw packet queue pairs and work queues: 0, or EPERM without CAP_NET_RAW.
  int open_ethernet();
  // Flow rules of raw packet queue pairs.  Null with an errno in `error`.
  engine::FlowRule* create_flow(const engine::FlowRule&, int& error);
  void destroy_flow(engine::FlowRule*);

  // with_engine, with the guarantee of EventSink for what f takes out.
  void retire(const std::function<void(engine::Engine&)>& f);
  void destroy_qp(engine::QueuePair*);  // the same
  bool destroy_cq(engine::CompletionQueue*);
  bool destroy_srq(engine::SharedReceiveQueue*);
  bool destroy_wq(engine::ReceiveWorkQueue*);

  // ibv_open_xrcd(3), see XrcDomains.
  std::expected<XrcDomain*, OpenError> open_xrc_domain(int fd, int flags);
  void close_xrc_domain(XrcDomain*);

  // --- data path
  void doorbell(engine::QueuePair&);  // after a publish() to the send queue
  unsigned poll(engine::CompletionQueue&, unsigned n, engine::Cqe* out);
  void arm(engine::CompletionQueue&, bool solicited_only);
  void progress();  // one turn if the engine is free

  engine::Counters engine_counters() const;  // a snapshot
  port::PortCounters port_counters() const;
  ThreadCounters thread_counters() const;
  // The state of the netdev as last reported; info().up is that at open.
  bool link_up() const;
  // DEVICE_FATAL was raised: the device does no more work until its last user has closed it.
  bool failed() const;
  // True in a child of fork(): the device is the parent's.  Every call does nothing and returns an
  // empty result.
  bool dead() const;

  struct Impl;  // device_impl.hpp
  explicit Device(std::unique_ptr<Impl>);

 private:
  void run_locked(const std::function<void(engine::Engine&, Instant)>&);
  std::unique_ptr<Impl> impl_;
};

template <class F>
auto Device::with_engine(F&& f) {
  using R = std::invoke_result_t<F, engine::Engine&, Instant>;
  if constexpr (std::is_void_v<R>) {
    run_locked([&](engine::Engine& e, Instant now) { f(e, now); });
  } else {
    R result{};
    run_locked([&](engine::Engine& e, Instant now) { result = f(e, now); });
    return result;
  }
}

}  // namespace adverb::nic
