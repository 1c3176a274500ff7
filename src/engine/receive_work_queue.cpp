// SPDX-License-Identifier: Apache-2.0
#include "engine/receive_work_queue.hpp"

#include <bit>
#include <mutex>
#include <utility>

#include "base/assert.hpp"
#include "engine/engine.hpp"
#include "engine/lists.hpp"
#include "engine/raw_frame.hpp"

namespace adverb::engine {

ReceiveWorkQueue* Engine::create_wq(const WqInit& init) {
  if (!free_wqs_.made()) free_wqs_ = NumberPool(max_wqs, random_);
  if (free_wqs_.empty()) return nullptr;
  auto& wq = wqs_.emplace_back(std::make_unique<ReceiveWorkQueue>(init));
  wq->number = Qpn(free_wqs_.take() + 1u);
  ++wq->cq->attached;
  return wq.get();
}

bool Engine::destroy_wq(ReceiveWorkQueue* wq) {
  if (wq->users) return false;
  reset(*wq);
  --wq->cq->attached;
  free_wqs_.give(wq->number.raw() - 1);
  erase_owned(wqs_, wq);
  return true;
}

IndirectionTable* Engine::create_table(std::vector<ReceiveWorkQueue*> entries) {
  ASSERT(std::has_single_bit(entries.size()));
  for (ReceiveWorkQueue* wq : entries) ++wq->users;
  return tables_.emplace_back(std::make_unique<IndirectionTable>(std::move(entries))).get();
}

bool Engine::destroy_table(IndirectionTable* table) {
  if (table->users) return false;
  for (ReceiveWorkQueue* wq : table->entries()) --wq->users;
  erase_owned(tables_, table);
  return true;
}

// --- the states

const char* Engine::modify_wq(ReceiveWorkQueue& wq, std::optional<WqState> current,
                              std::optional<WqState> to) {
  const WqState from = wq.state.load(std::memory_order_relaxed);
  if (current && *current != from) return "curr_wq_state is not its state";
  if (!to) return nullptr;
  if (!can_go(from, *to)) return "there is no such transition";
  if (*to == WqState::reset) {
    reset(wq);
  } else if (*to == WqState::error) {
    to_error(wq, false);
  } else {
    wq.state.store(*to, std::memory_order_seq_cst);
  }
  return nullptr;
}

// Nothing of the past is left, neither receives nor their completions.
void Engine::reset(ReceiveWorkQueue& wq) {
  wq.state.store(WqState::reset, std::memory_order_seq_cst);
  {
    std::lock_guard hold(wq.queue.lock);
    wq.queue.clear();
  }
  {
    std::lock_guard hold(wq.cq->lock);
    wq.cq->purge(wq.number);
  }
  if (std::exchange(wq.listed, false)) remove_from(wq_events_, &wq, &ReceiveWorkQueue::next_event);
}

void Engine::to_error(ReceiveWorkQueue& wq, bool raise_event) {
  if (wq.state.load(std::memory_order_relaxed) != WqState::ready) return;
  wq.state.store(WqState::error, std::memory_order_seq_cst);
  if (raise_event) raise_fatal(wq);
  flush(wq);
}

void Engine::raise_fatal(ReceiveWorkQueue& wq) {
  if (!std::exchange(wq.listed, true)) wq.next_event = std::exchange(wq_events_, &wq);
}

bool Engine::inject_wq_fatal(std::optional<Qpn> only) {
  bool raised = false;
  for (auto& wq : wqs_) {
    const WqState state = wq->state.load(std::memory_order_relaxed);
    if ((only && wq->number != *only) || state == WqState::reset) continue;
    if (state == WqState::error) raise_fatal(*wq);
    to_error(*wq, true);
    raised = true;
  }
  return raised;
}

void Engine::flush(ReceiveWorkQueue& wq) {
  if (wq.state.load(std::memory_order_seq_cst) != WqState::error) return;
  while (wq.queue.take(wq.taken)) {
    ++counters_.resp_cqe_flush_error;
    complete(wq, WcStatus::wr_flush_err, 0);
  }
}

// --- frames

void Engine::receive_into(ReceiveWorkQueue& wq, std::span<const std::uint8_t> bytes) {
  if (wq.state.load(std::memory_order_relaxed) != WqState::ready) {
    ++counters_.drop_qp_state;
    return;
  }
  if (wq.cq->overrun || !wq.queue.take(wq.taken)) {
    ++counters_.out_of_buffer;
    return;
  }
  const RawFrame frame(bytes, wq.strip_vlan);
  const SgStatus s = frame.scatter_to(keys_, wq.pd, wq.taken);
  if (s == SgStatus::ok) {
    ++counters_.recvs;
    return complete(wq, WcStatus::success, static_cast<std::uint32_t>(frame.size()), frame.cvlan);
  }
  const bool long_frame = s == SgStatus::too_short;
  if (s == SgStatus::fault) ++counters_.memory_faults;
  ++counters_.resp_cqe_error;
  if (long_frame) ++counters_.resp_local_length_error;
  complete(wq, long_frame ? WcStatus::loc_len_err : WcStatus::loc_prot_err, 0);
  to_error(wq, true);
}

// The receive that was taken last is done.
void Engine::complete(ReceiveWorkQueue& wq, WcStatus status, std::uint32_t bytes,
                      std::uint16_t cvlan) {
  if (wq.cq->overrun) return;
  Cqe c;
  c.wr_id = wq.taken.wr_id;
  c.status = status;
  c.opcode = WcOpcode::recv;
  c.byte_len = bytes;
  c.qp_num = wq.number;
  c.cvlan = cvlan;
  if (!add_entry(*wq.cq, c, status != WcStatus::success) && !wq.cq->ignore_overrun)
    raise_cq_error(*wq.cq);  // which has this queue among its own
}

}  // namespace adverb::engine
