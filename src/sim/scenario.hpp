// SPDX-License-Identifier: Apache-2.0
// Everything that a run depends on, explicit: hosts, links, queue pairs and their work, faults and
// when they happen.  A seed draws one (swarm.cpp), a file spells one out (scenario_json.cpp,
// docs/sim.md).  Times are virtual nanoseconds from the start of the run.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "engine/types.hpp"

namespace adverb::sim {

using Nanoseconds = std::uint64_t;
inline constexpr Nanoseconds forever = std::numeric_limits<Nanoseconds>::max() / 4000;
inline constexpr int anybody = -1;

// --- faults of a link

// A fault rule in the words of docs/faults.md, for frames from host `from` to host `to`: drop,
// duplicate, delay, reorder, corrupt.  Its times count from the start of the run, its queue pair is
// the sender's.
struct Rule {
  int from = anybody, to = anybody;
  std::string rule;
  Nanoseconds late = 0;  // delayed frames, and the copies of duplicated ones, come at random up to
                         // so much later still
  friend bool operator==(const Rule&, const Rule&) = default;
};

// --- what happens to hosts, paths and queue pairs, once

enum class Happening : std::uint8_t {
  partition,   // nothing passes between host and peer (anybody: and all others), both ways
  blackhole,   // nothing passes from host to peer
  clog,        // what host sends to peer waits in the network until the end of `duration`
  pause,       // the host's process is stopped; frames wait in its receive buffer
  crash,       // the host's process dies, and starts anew after `duration`
  deregister,  // the region that `side` of `pair` is written in
  error,       // that queue pair is moved to the error state
  destroy,     // that queue pair is destroyed
  ghost,       // a stale ACK of PSNs never sent reaches that queue pair
};

struct Event {
  Happening what{};
  Nanoseconds at = 0, duration = 0;
  int host = 0, peer = anybody;
  int pair = 0, side = 0;
  friend bool operator==(const Event&, const Event&) = default;
};

// --- who is there

struct LinkSpec {  // of every ordered pair of hosts
  std::uint64_t megabits = 10'000;
  Nanoseconds delay = 2'000;
  std::uint32_t mtu = 9000;                // of IP; larger frames are dropped
  std::uint32_t queue_bytes = 256 * 1024;  // drops when full
  friend bool operator==(const LinkSpec&, const LinkSpec&) = default;
};

struct HostSpec {
  std::uint64_t window = 256 << 10, max_window = 4 << 20, read_budget = 1 << 20;
  std::uint32_t read_chunk = 64;
  bool credits = true;
  bool ipv6 = false;
  std::uint32_t receive_buffer = 4096;  // frames
  Nanoseconds step = 1'000;             // the process looks at its sockets no more often
  std::uint32_t burst_frames = 64;      // arena of a burst, in frames of the largest size
  std::uint32_t srq_depth = 32;
  friend bool operator==(const HostSpec&, const HostSpec&) = default;
};

// What the application asks for wrongly on purpose, and must be refused.
enum class Wrong : std::uint8_t {
  none,
  key,        // a key that nobody has
  domain,     // a region of another protection domain
  range,      // beyond the end of the region
  rights,     // a WRITE or atomic to a region that may only be read, a READ of one that may not
  alignment,  // an atomic on an odd address
  local_key,  // the scatter/gather list has a bad lkey
  long_send,  // longer than the receive buffer
};

// One or more operations, spelled out.
struct Work {
  engine::WrOpcode opcode = engine::WrOpcode::rdma_write;
  std::uint32_t length = 8, repeat = 1;
  std::uint8_t flags = engine::send_signaled;
  Wrong wrong = Wrong::none;
  friend bool operator==(const Work&, const Work&) = default;
};

struct SideSpec {
  std::uint32_t first_psn = 0;
  std::uint32_t operations = 100;  // drawn from the mix, unless `work` says which
  std::vector<Work> work;
  friend bool operator==(const SideSpec&, const SideSpec&) = default;
};

struct PairSpec {
  int host[2] = {0, 1};
  engine::QpType type = engine::QpType::rc;
  engine::Mtu mtu = engine::Mtu::mtu_1024;
  std::uint32_t depth = 16, receive_depth = 16, max_sge = 2, max_inline = 64;
  std::uint8_t rd_atomic = 4, timeout = 14, retry_cnt = 7, rnr_retry = 7, min_rnr_timer = 12;
  bool srq = false;
  std::uint32_t max_size = 4096;
  std::uint32_t mix = 0xffffffff;  // bit n: WrOpcode n may be drawn
  std::uint32_t unsignaled = 300, fence = 100, solicited = 100, inlined = 300;  // per mille
  std::uint32_t wrong = 0;        // in a million: operations that must be refused
  std::uint32_t receive_lag = 0;  // per mille: a receive WQE is not yet posted in a step
  Nanoseconds first_receive = 0;  // none is posted before
  Nanoseconds think = 0;          // mean pause between posts
  SideSpec side[2];
  friend bool operator==(const PairSpec&, const PairSpec&) = default;
};

// What a scenario's author expects of pair 0 beyond what always holds.
struct Expectation {
  bool says_error = false;
  // Of the first WQE of each side that failed; success: none did.  And when that was.
  engine::WcStatus error[2] = {};
  Nanoseconds error_after = 0, error_before = forever;
  Nanoseconds finish_after = 0, finish_before = forever;  // when all that was posted was complete
  friend bool operator==(const Expectation&, const Expectation&) = default;
};

struct Scenario {
  std::string name;  // what it is about, and its case
  std::uint64_t seed = 1;
  std::vector<HostSpec> hosts{2};
  LinkSpec link;
  Nanoseconds heal = 0;  // from here on there are no faults
  bool liveness = true;  // after it, every reliable pair must still work
  std::vector<PairSpec> pairs;
  std::vector<Rule> rules;
  std::vector<Event> events;
  Expectation expect;
  friend bool operator==(const Scenario&, const Scenario&) = default;
};

// The scenario that a seed chooses.
Scenario draw_scenario(std::uint64_t seed);

// As JSON, and back.  Throws std::runtime_error with one line that names the offending member.
std::string to_json(const Scenario&);
Scenario scenario_from_json(const std::string&);

}  // namespace adverb::sim
