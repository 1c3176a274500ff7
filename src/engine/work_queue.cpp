// SPDX-License-Identifier: Apache-2.0
#include "engine/work_queue.hpp"

#include <bit>

namespace adverb::engine {

SendQueue::SendQueue(std::uint32_t depth, std::uint32_t max_sge, std::uint32_t max_inline)
    : depth_(depth),
      max_sge_(max_sge),
      max_inline_(max_inline),
      mask_(std::bit_ceil(depth ? depth : 1) - 1),
      wqes_(std::make_unique<SendWqe[]>(mask_ + 1)),
      sges_(std::make_unique<Sge[]>(std::size_t{mask_ + 1} * max_sge)),
      inline_(std::make_unique<std::uint8_t[]>(std::size_t{mask_ + 1} * max_inline)) {}

SendWqe* SendQueue::reserve() {
  std::uint32_t posted = posted_.load(std::memory_order_relaxed);
  if (posted - reaped_.load(std::memory_order_acquire) >= depth_) return nullptr;
  SendWqe& wqe = wqes_[posted & mask_];
  wqe = SendWqe{};
  return &wqe;
}

std::span<Sge> SendQueue::sges_of_reserved() {
  std::uint32_t slot = posted_.load(std::memory_order_relaxed) & mask_;
  return {sges_.get() + std::size_t{slot} * max_sge_, max_sge_};
}

std::uint8_t* SendQueue::inline_of_reserved() {
  std::uint32_t slot = posted_.load(std::memory_order_relaxed) & mask_;
  return inline_.get() + std::size_t{slot} * max_inline_;
}

// Sequentially consistent, as a poster then reads the QP's state while the engine sets the state
// and then reads the cursor: no WQE escapes a flush.
void SendQueue::publish() {
  posted_.store(posted_.load(std::memory_order_relaxed) + 1, std::memory_order_seq_cst);
}

std::span<const Sge> SendQueue::sges(std::uint32_t cursor) const {
  std::uint32_t slot = cursor & mask_;
  return {sges_.get() + std::size_t{slot} * max_sge_, wqes_[slot].num_sge};
}

const std::uint8_t* SendQueue::inline_data(std::uint32_t cursor) const {
  return inline_.get() + std::size_t{cursor & mask_} * max_inline_;
}

void SendQueue::clear() {
  posted_.store(0, std::memory_order_seq_cst);
  reaped_.store(0, std::memory_order_seq_cst);
}

ReceiveQueue::ReceiveQueue(std::uint32_t depth, std::uint32_t max_sge)
    : depth_(depth),
      max_sge_(max_sge),
      mask_(std::bit_ceil(depth ? depth : 1) - 1),
      slots_(std::make_unique<Slot[]>(mask_ + 1)),
      sges_(std::make_unique<Sge[]>(std::size_t{mask_ + 1} * max_sge)) {}

bool ReceiveQueue::post(std::uint64_t wr_id, std::span<const Sge> list) {
  std::uint32_t posted = posted_.load(std::memory_order_relaxed);
  if (posted - taken_.load(std::memory_order_acquire) >= depth_) return false;
  std::uint32_t slot = posted & mask_;
  slots_[slot] = {wr_id, static_cast<std::uint32_t>(list.size())};
  for (std::size_t i = 0; i < list.size(); ++i) sges_[std::size_t{slot} * max_sge_ + i] = list[i];
  posted_.store(posted + 1, std::memory_order_seq_cst);
  return true;
}

bool ReceiveQueue::take(RecvWqe& out) {
  std::uint32_t taken = taken_.load(std::memory_order_relaxed);
  if (taken == posted_.load(std::memory_order_seq_cst)) return false;
  std::uint32_t slot = taken & mask_;
  out.wr_id = slots_[slot].wr_id;
  out.num_sge = slots_[slot].num_sge;
  out.length = 0;
  for (std::uint32_t i = 0; i < out.num_sge; ++i) {
    out.sge[i] = sges_[std::size_t{slot} * max_sge_ + i];
    out.length += out.sge[i].length;
  }
  taken_.store(taken + 1, std::memory_order_release);
  return true;
}

std::uint32_t ReceiveQueue::available() const {
  return posted_.load(std::memory_order_acquire) - taken_.load(std::memory_order_acquire);
}

void ReceiveQueue::clear() {
  posted_.store(0, std::memory_order_seq_cst);
  taken_.store(0, std::memory_order_seq_cst);
}

}  // namespace adverb::engine
