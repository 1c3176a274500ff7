// SPDX-License-Identifier: Apache-2.0
// XRC targets that processes share (docs/adr/0006): who opens an XRC domain by its inode may have
// SRQs there, and a target serves the SRQs of them all.  Each request comes to the process whose
// SRQ it names; that one executes it, with the target's state as the last one left it.
//
// The state is plain data in memory that all of them map.  It is written into the copy that is not
// in force, which then comes into force by one store: whoever is killed leaves the old state or the
// new one.  What is an engine's alone stays there: the receive WQE of an open message, and the
// answers that it owes.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <type_traits>

#include "engine/queue_pair.hpp"

namespace adverb::engine {

class Engine;

struct TargetState {
  static constexpr std::uint32_t max_resources = 128;
  std::uint32_t epoch = 0;  // as in TargetShare
  QpState state{};
  bool comm_established = false, message_open = false;
  wire::Opcode previous{};  // with message_open
  QpAttributes attr;        // but for av.sgid_index, which each engine counts by itself:
  Gid sgid{};
  ResponderProgress progress;
  std::uint32_t event_count = 0;
  std::array<AsyncEvent, TargetShare::events_kept> events{};
  std::array<ResponderResource, max_resources> resources{};
};
static_assert(std::is_trivially_copyable_v<TargetState>);

// As it lies in the shared memory.
struct SharedTarget {
  std::atomic<std::uint32_t> qpn{0};         // 0: none
  std::atomic<std::uint32_t> generation{0};  // its lowest bit says which copy is in force
  std::array<TargetState, 2> copies;
};

// The targets of one shared domain, as the engine's owner provides them.
class TargetStore {
 public:
  virtual ~TargetStore() = default;
  virtual SharedTarget* find(Qpn) = 0;    // null: there is none
  virtual SharedTarget* create(Qpn) = 0;  // held by this process; null: no room
  // This process has handles of the target.  hold is false when it has gone meanwhile; release is
  // true when nobody holds it any more: it has gone then.
  virtual bool hold(SharedTarget&) = 0;
  virtual bool release(SharedTarget&) = 0;
  // Alone with the target's state.  False: another process has it for too long.
  virtual bool lock(SharedTarget&) = 0;
  virtual void unlock(SharedTarget&) = 0;
  // Something happened to a target that all should see soon.
  virtual void tell_others(const SharedTarget&) = 0;
  virtual std::uint32_t news() const = 0;  // changes with each tell_others, anybody's
};

// While it lives, the queue pair is as the last process left it and this one is alone with it; then
// the others may go on.  Of a queue pair that is not shared it does nothing.
class TargetTurn {
 public:
  TargetTurn(Engine&, QueuePair&);
  ~TargetTurn();
  TargetTurn(const TargetTurn&) = delete;
  explicit operator bool() const { return can_; }  // false: nothing was loaded, do nothing
  bool gone() const { return gone_; }              // there is no such target any more

 private:
  bool load();
  void save();

  Engine& e_;
  QueuePair& q_;
  bool can_ = true, gone_ = false;
  std::uint32_t events_before_ = 0;
};

}  // namespace adverb::engine
