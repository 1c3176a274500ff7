// SPDX-License-Identifier: Apache-2.0
// Back-pressure where the network gives none.  lo and veth accept every datagram and drop at the
// receiver's full socket.  On one host the receiver publishes, in memory that its senders share,
// what was put into its sockets and what it took out; senders of every transport stop when the
// difference reaches the limit.
#pragma once

#include <atomic>
#include <cstdint>

namespace adverb::engine {

// One receiver (slot).  Wrong values cost throughput or packets, never safety.
struct CreditLine {
  alignas(64) std::atomic<std::uint64_t> enqueued{0};  // senders add before they send
  // The receiver adds, and settles up when its sockets are empty.  On a cache line of its own: in
  // the steady state neither side touches the other's.
  alignas(64) std::atomic<std::uint64_t> consumed{0};
};

// What a frame of this many bytes (with ICRC) takes of a receive buffer: an upper estimate of the
// skb's true size.
constexpr std::uint64_t frame_cost(std::uint64_t bytes) { return bytes + 704; }

}  // namespace adverb::engine
