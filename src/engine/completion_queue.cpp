// SPDX-License-Identifier: Apache-2.0
#include "engine/completion_queue.hpp"

#include <bit>

#include "engine/queue_pair.hpp"

namespace adverb::engine {

CompletionQueue::CompletionQueue(std::uint32_t capacity)
    : capacity_(capacity), mask_(std::bit_ceil(capacity) - 1), ring_(make_ring(capacity)) {
  moderation_timer.owner = this;
}

CompletionQueue::Ring CompletionQueue::make_ring(std::uint32_t capacity) {
  return std::make_unique<Cqe[]>(std::bit_ceil(capacity));
}

// The cursors stay what they are, so that whoever looks whether the queue is empty is not misled.
bool CompletionQueue::resize(std::uint32_t capacity, Ring& ring) {
  const std::uint32_t head = head_.load(std::memory_order_relaxed);
  const std::uint32_t tail = tail_.load(std::memory_order_relaxed);
  if (tail - head > capacity) return false;
  const std::uint32_t mask = std::bit_ceil(capacity) - 1;
  for (std::uint32_t i = head; i != tail; ++i) ring[i & mask] = ring_[i & mask_];
  ring_.swap(ring);
  capacity_ = capacity;
  mask_ = mask;
  return true;
}

unsigned CompletionQueue::poll(unsigned n, Cqe* out) {
  std::uint32_t head = head_.load(std::memory_order_relaxed);
  std::uint32_t ready = tail_.load(std::memory_order_acquire) - head;
  unsigned taken = ready < n ? ready : n;
  for (unsigned i = 0; i < taken; ++i) {
    out[i] = ring_[(head + i) & mask_];
    if (out[i].sq_advance) out[i].qp->sq->reap(out[i].sq_advance);
  }
  head_.store(head + taken, std::memory_order_release);
  return taken;
}

bool CompletionQueue::empty() const {
  return head_.load(std::memory_order_acquire) == tail_.load(std::memory_order_seq_cst);
}

// arm() and push() are the two sides of Dekker's protocol: the application arms and then looks for
// entries, the engine adds an entry and then looks whether the queue is armed; at least one of them
// sees the other.
void CompletionQueue::arm(bool solicited_only) {
  Arm wanted = solicited_only ? Arm::solicited : Arm::any;
  Arm now = armed_.load(std::memory_order_relaxed);
  // A request for any completion is not weakened by a later one for solicited ones (IBTA 11.4.2.2).
  while (now < wanted && !armed_.compare_exchange_weak(now, wanted, std::memory_order_seq_cst)) {
  }
}

bool CompletionQueue::push(const Cqe& entry) {
  std::uint32_t tail = tail_.load(std::memory_order_relaxed);
  if (tail - head_.load(std::memory_order_acquire) >= capacity_) return false;
  ring_[tail & mask_] = entry;
  tail_.store(tail + 1, std::memory_order_seq_cst);
  return true;
}

bool CompletionQueue::armed_for(bool solicited) const {
  const Arm now = armed_.load(std::memory_order_seq_cst);
  return now == Arm::any || (now == Arm::solicited && solicited);
}

bool CompletionQueue::disarm_for(bool solicited) {
  if (!armed_for(solicited)) return false;
  return armed_.exchange(Arm::none, std::memory_order_seq_cst) != Arm::none;
}

template <class Goes>
void CompletionQueue::purge_if(Goes&& goes) {
  std::uint32_t head = head_.load(std::memory_order_relaxed);
  std::uint32_t tail = tail_.load(std::memory_order_relaxed);
  std::uint32_t kept = head;
  for (std::uint32_t i = head; i != tail; ++i)
    if (!goes(ring_[i & mask_])) ring_[kept++ & mask_] = ring_[i & mask_];
  tail_.store(kept, std::memory_order_seq_cst);
}

void CompletionQueue::purge(const QueuePair* qp) {
  purge_if([&](const Cqe& c) { return c.qp == qp; });
}

void CompletionQueue::purge(Qpn number) {
  purge_if([&](const Cqe& c) { return c.qp_num == number; });
}

}  // namespace adverb::engine
