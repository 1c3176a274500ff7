// SPDX-License-Identifier: Apache-2.0
// The world's inventory: hosts with their engine and memory; pairs of queue pairs, each with two
// ends; what each end was asked to do and what is known of it.  Behaviour is in world.hpp.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "engine/engine.hpp"
#include "sim/area.hpp"
#include "sim/event_queue.hpp"
#include "sim/scenario.hpp"

namespace adverb::sim {

// One operation as it was posted.  Payload always comes from the poster's library, so its bytes are
// known by their place there.
struct Op {
  engine::WrOpcode opcode{};
  std::uint8_t flags = 0;
  Wrong wrong{};
  std::uint32_t length = 0;
  std::uint32_t source = 0;             // in the poster's library
  std::uint32_t target = 0;             // in the peer's area; READ of the library: there
  std::uint32_t sink = 0;               // READ, atomics: in the poster's area
  std::uint32_t id = 0;                 // of the pair; immediate data of UC and UD
  std::uint32_t key = 0;                // SEND_WITH_INV: what it invalidates
  bool read_back = false;               // a READ of the peer's area
  bool shared = false;                  // a FETCH_ADD of the word that everybody adds to
  std::uint64_t before = 0, after = 0;  // of the word that an atomic changes
  Picoseconds posted = 0;
};

struct Host;
struct Pair;

// Receive WQEs' memory, of one queue pair or of an SRQ: slots of one size.
struct ReceivePool {
  Area area;
  engine::MemoryRegion* region = nullptr;
  engine::ReceiveQueue* queue = nullptr;
  std::uint32_t slot_bytes = 0;  // what a WQE offers; eight more bytes guard it
  std::uint64_t iova = 0;
  std::vector<std::uint32_t> free;
  std::vector<bool> posted;
  std::uint32_t stride() const { return (slot_bytes + 15) / 8 * 8; }
};

// What the wire and the attributes say of a reliable queue pair (monitor.cpp).
struct Watch {
  Psn una{}, sent{};           // sent: one past the highest PSN seen on the wire
  std::uint32_t sends = 0;     // of the packet at una
  std::uint32_t begun = 0;     // WQEs whose first packet was seen
  std::uint32_t rnr_naks = 0;  // since una moved
  Instant rnr_until{};
  Instant progress{};
  bool outstanding = false;
  bool ahead = false;   // as a responder: a request beyond the expected PSN came
  bool resend = false;  // a hole or NAK was seen: the packet at una must be sent again now
};

// One queue pair and the stream of requests that it makes.
struct End {
  static constexpr std::uint32_t guard = 64, word_count = 4;

  Pair* pair = nullptr;
  End* peer = nullptr;
  Host* host = nullptr;
  unsigned side = 0, index = 0;
  engine::QueuePair* qp = nullptr;
  Psn first_psn{};  // of its requests

  // Memory: guard, target, words, guard, sink, guard.  The peer writes target and words.
  Area area;
  std::uint32_t target = 0, target_bytes = 0, words = 0, sink = 0, sink_bytes = 0;
  std::uint64_t iova = 0;
  engine::MemoryRegion *target_region = nullptr, *sink_region = nullptr;
  engine::MemoryRegion* invalidatable = nullptr;
  std::uint32_t target_key = 0;      // as the peer was told
  bool invalidating = false;         // a SEND_WITH_INV is under way to this end
  std::vector<std::uint8_t> frozen;  // target and words when the region was deregistered
  Picoseconds deregistered = 0;

  // The stream, by cursor of the send queue since the queue pair was made.
  std::vector<Op> ops;
  std::uint32_t completed = 0;     // ops that have or need no completion any more
  std::uint32_t known = 0;         // ops that were done: they or a later one completed with success
  std::uint32_t verified = 0;      // ops whose data was seen in its place
  bool failed = false;             // one completed in error: what follows is flushed
  engine::WcStatus first_error{};  // ever
  Picoseconds first_error_at = 0, last_completion = 0;
  std::vector<std::uint32_t> messages;         // of ops: those that consume a receive WQE
  std::uint32_t received = 0;                  // messages of the peer's that arrived here
  std::uint32_t last_id = 0;                   // UC, UD: of the message received last
  std::uint32_t unsignaled = 0;                // posted since the last signaled one
  std::uint64_t sink_head = 0, sink_tail = 0;  // ring of `sink`: taken, free again
  std::vector<std::uint64_t> sink_ends;        // of each op

  std::uint64_t word_values[word_count] = {};  // in the peer's area when all that is posted is done
  std::uint32_t remaining = 0, drawn = 0;
  std::size_t work_item = 0;
  std::uint32_t work_done = 0;
  Picoseconds next_post = 0;
  ReceivePool own_pool;
  ReceivePool* pool = nullptr;
  Watch watch;

  const Op& op(std::uint32_t cursor) const { return ops[cursor]; }
  std::uint32_t posted() const { return static_cast<std::uint32_t>(ops.size()); }
};

struct Pair {
  const PairSpec* spec = nullptr;
  unsigned index = 0;
  End end[2];
  enum class State : std::uint8_t { up, breaking, down, over } state = State::down;
  bool tight = false;  // the ACK timeout may be shorter than an honest answer takes
  bool fresh = false;  // the operations that must succeed after healing were handed out
  std::uint32_t generation = 0;
  std::uint32_t next_id = 1;
  std::vector<Op> sent[2];  // UC and UD: every operation ever, by (id - 1) / 2 of each side
  Prng random{0};
  std::uint64_t lost_before_fresh = 0;
  Picoseconds finished = 0;
};

struct Host {
  unsigned index = 0;
  const HostSpec* spec = nullptr;
  Gid gid{};
  std::unique_ptr<engine::Engine> engine;
  engine::CompletionQueue *send_cq = nullptr, *recv_cq = nullptr;
  engine::SharedReceiveQueue* srq = nullptr;
  std::uint32_t generation = 0;
  Prng random{0};

  Area library;  // read-only to everybody
  Area shared;   // one word that everybody adds to, and a page of another protection domain
  engine::MemoryRegion *library_region = nullptr, *shared_region = nullptr,
                       *foreign_region = nullptr;
  ReceivePool srq_pool;
  std::vector<End*> ends;
  std::vector<End*> by_index;  // queue pair numbers

  std::deque<std::uint32_t> receive_buffer;
  bool was_paused = false;
  Picoseconds last_step = 0, step_at = ~Picoseconds{0}, paused_until = 0;
  bool down = false;

  // FETCH_ADDs of the shared word by all: values that came back, and how many may have been done.
  std::vector<bool> returned;
  std::uint64_t adds_known = 0, adds_posted = 0;
  std::uint64_t frames_in = 0;  // given to this engine
};

}  // namespace adverb::sim
