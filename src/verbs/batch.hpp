// SPDX-License-Identifier: Apache-2.0
// Posting work requests.  What one may be is checked in one place for ibv_post_send and for the
// extended interface (ibv_wr_post(3)), whose requests are collected in a Batch from wr_start until
// wr_complete posts them all or none.
#pragma once

#include <algorithm>
#include <memory>
#include <mutex>

#include "engine/work_queue.hpp"
#include "verbs/domain.hpp"
#include "verbs/objects.hpp"

namespace adverb::verbs {

// Why a work request was refused; `why` is a line for the log, or null for what is no mistake (a
// full queue).
struct Refusal {
  int error = 0;
  const char* why = nullptr;
  explicit operator bool() const { return error != 0; }
};

Refusal check_state(const engine::QueuePair&);
// num_sge counts the elements of the list, or is 0 for inline data.
Refusal check_request(const Qp&, engine::WrOpcode, unsigned flags, std::uint64_t num_sge,
                      std::uint64_t length, std::uint64_t remote_addr = 0);
// What a BIND_MW of type 2 asks for (ibv_post_send(3)); what the engine finds is wrong with it is
// told by its completion.
Refusal fill_binding(ibv_mw*, std::uint32_t rkey, const ibv_mw_bind_info&, engine::SendWqe&);
// Posts one request that has no data.
Refusal post_one(Qp&, const engine::SendWqe&);
inline constexpr std::uint64_t longest_message = 1ull << 31;  // IBTA 9.7.4
// A message that is too long completes with LOC_LEN_ERR, so that the WQE must say that it is,
// however long it is.
inline std::uint32_t length_in_wqe(std::uint64_t length) {
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(length, UINT32_MAX));
}
void log_refusal(const Qp&, const Refusal&);
void ring(Qp&);  // the doorbell, after the queue's lock was let go
// Bytes of inline data that a WQE has room for: the operand of ATOMIC WRITE travels in the WQE,
// whatever max_inline_data is.
std::uint32_t inline_room(const ibv_qp_cap&, std::uint64_t ops);

struct Batch {
  Batch(Pd&, const ibv_qp_cap&, std::uint64_t ops);
  void start();
  // A new request of that kind with wr_id and flags from the public structure; null when there is
  // no room.
  engine::SendWqe* add(const ibv_qp_ex&, engine::WrOpcode);
  engine::SendWqe* last() { return count ? &wqes[count - 1] : nullptr; }
  engine::Sge* sges_of_last() { return &sges[std::size_t{count - 1} * max_sge]; }
  std::uint8_t* inline_of_last() { return &inline_data[std::size_t{count - 1} * max_inline]; }
  void refuse_with(int error, const char* why) {
    if (!refusal) refusal = {error, why};
  }

  std::mutex mutex;  // from wr_start to wr_complete or wr_abort
  std::uint32_t capacity, max_sge, max_inline, count = 0;
  Refusal refusal;
  DomainMemory memory;  // of the three arrays
  engine::SendWqe* wqes;
  engine::Sge* sges;
  std::uint8_t* inline_data;
};

}  // namespace adverb::verbs
