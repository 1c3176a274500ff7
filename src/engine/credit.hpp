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
struct alignas(64) CreditLine {
  std::atomic<std::uint64_t> enqueued{0};  // senders add before they send
  std::atomic<std::uint64_t> consumed{
      0};  // the receiver adds, and settles up when its sockets are empty
};

// What a frame of this many bytes (with ICRC) takes of a receive buffer: an upper estimate of the
// skb's true size.
constexpr std::uint64_t frame_cost(std::uint64_t bytes) { return bytes + 704; }

}  // namespace adverb::engine
