// SPDX-License-Identifier: Apache-2.0
#include "engine/requester.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/assert.hpp"
#include "engine/completer.hpp"
#include "wire/header_layouts.hpp"

namespace adverb::engine {

using wire::Operation;
using wire::Transport;

namespace {

constexpr std::int32_t max_outstanding =
    1 << 22;  // PSNs; half the circle is the protocol's bound (IBTA 9.7.2)
// With go-back-N a lost packet costs the window, so the floor must stay low where losses are many.
constexpr std::uint64_t min_window = 16 << 10, window_step = 2 << 10;

// The operations that a message is cut into (IBTA 9.7.3, packet opcodes).
struct MessageRow {
  Operation first, middle, last, only;
};
constexpr MessageRow row_of(WrOpcode o) {
  switch (o) {
    case WrOpcode::rdma_write:
      return {Operation::write_first, Operation::write_middle, Operation::write_last,
              Operation::write_only};
    case WrOpcode::rdma_write_with_imm:
      return {Operation::write_first, Operation::write_middle, Operation::write_last_imm,
              Operation::write_only_imm};
    case WrOpcode::send_with_imm:
      return {Operation::send_first, Operation::send_middle, Operation::send_last_imm,
              Operation::send_only_imm};
    case WrOpcode::send_with_inv:
      return {Operation::send_first, Operation::send_middle, Operation::send_last_invalidate,
              Operation::send_only_invalidate};
    default:
      return {Operation::send_first, Operation::send_middle, Operation::send_last,
              Operation::send_only};
  }
}

constexpr std::uint32_t atomic_length = 8;

}  // namespace

std::uint32_t Requester::packets_of(const SendWqe& wqe, std::uint32_t mtu) {
  if (is_local(wqe.opcode)) return 0;
  bool single = wqe.opcode == WrOpcode::atomic_cmp_and_swp ||
                wqe.opcode == WrOpcode::atomic_fetch_and_add || wqe.opcode == WrOpcode::flush ||
                wqe.opcode == WrOpcode::atomic_write;
  if (single || wqe.length == 0) return 1;
  return (wqe.length - 1) / mtu + 1;
}

bool Requester::needs_response(WrOpcode o) {
  return o == WrOpcode::rdma_read || o == WrOpcode::atomic_cmp_and_swp ||
         o == WrOpcode::atomic_fetch_and_add || o == WrOpcode::flush || o == WrOpcode::atomic_write;
}

bool Requester::consumes_receive(WrOpcode o) {
  return o == WrOpcode::send || o == WrOpcode::send_with_imm || o == WrOpcode::send_with_inv ||
         o == WrOpcode::rdma_write_with_imm;
}

bool Requester::is_local(WrOpcode o) { return o == WrOpcode::local_inv || o == WrOpcode::bind_mw; }

// Requests that a response answers are bounded by max_rd_atomic and the read budget, not by the
// window.
std::uint64_t Requester::cost_of(const SendWqe& wqe) const {
  if (needs_response(wqe.opcode)) return 0;
  return frame_cost(std::min(wqe.length, q_.mtu) + 32);
}

std::uint32_t Requester::chunk_end(const SendWqe& wqe, std::uint32_t k) const {
  std::uint32_t chunk = e_.config_.read_chunk_packets;
  return std::min(wqe.packets, (k / chunk + 1) * chunk);
}

std::uint64_t Requester::response_bytes(const SendWqe& wqe, std::uint32_t from,
                                        std::uint32_t to) const {
  std::uint64_t end = std::min<std::uint64_t>(std::uint64_t{to} * q_.mtu, wqe.length);
  return end - std::min<std::uint64_t>(std::uint64_t{from} * q_.mtu, end);
}

bool Requester::send(Instant now, TxBurst& tx, unsigned limit) {
  bool more = true;
  for (unsigned turn = 0; turn < limit && more; ++turn) {
    if (q_.req.next == q_.sq->posted()) {
      more = false;
      break;
    }
    SendWqe& wqe = q_.sq->at(q_.req.next);
    if (!tx.has_room(room_of(wqe))) break;
    Gate g = gate(wqe);
    if (g == Gate::wait_room) e_.wait_for_room(q_);
    more = g == Gate::open;
    if (!more) break;
    if (!wqe.started) start(wqe);
    more = emit(tx, wqe);
  }
  ASSERT(q_.req.next - q_.comp.acked <= q_.sq->posted() - q_.comp.acked);  // acked, sent, posted
  if (is_reliable(q_.type)) {
    if (q_.req.unrequested) request_ack(tx);
    Completer(e_, q_).set_timer(now);
  }
  return more;
}

// A turn that sent something leaves an answer to wait for, whatever stops the next one (window,
// credits, a fence, SQD, a local error): the last packet asks for an ACK after all.
void Requester::request_ack(TxBurst& tx) {
  const TxFrame& last = tx.frames().back();
  ASSERT(last.src_qp == q_.qpn);
  wire::Bth bth;
  wire::load(tx.bytes(last), bth);
  bth.ack_request = true;
  wire::store(bth, tx.bytes(last));
  q_.req.unrequested = 0;
}

// Whole Ethernet frames may be longer than any packet.
std::size_t Requester::room_of(const SendWqe& wqe) const {
  if (q_.type != QpType::raw_packet || wqe.length > e_.config_.max_ethernet_frame)
    return TxBurst::max_frame;
  return std::max<std::size_t>(TxBurst::max_frame, wqe.length + TxBurst::icrc_bytes);
}

Requester::Gate Requester::gate(SendWqe& wqe) {
  QpState state = q_.state.load(std::memory_order_relaxed);
  bool may_start = state == QpState::rts;
  bool may_continue =
      may_start || state == QpState::sqd;  // SQD finishes what was started (IBTA 10.3.1.5)
  if (!(wqe.started ? may_continue : may_start)) return Gate::wait_event;
  if (q_.req.waiting_rnr || q_.req.blocked_on_error) return Gate::wait_event;
  if (is_reliable(q_.type) && q_.req.psn - q_.comp.una >= max_outstanding) return Gate::wait_event;
  if (!wqe.started) {
    if (gate_start(wqe) != Gate::open) return Gate::wait_event;
    wqe.packets = packets_of(wqe, q_.mtu);  // room is asked for by packets
  }
  if (is_local(wqe.opcode)) return Gate::open;
  if (needs_response(wqe.opcode) && q_.req.psn == q_.req.highest &&
      q_.req.reads_outstanding >= q_.attr.max_rd_atomic && q_.attr.max_rd_atomic)
    return Gate::wait_event;
  return gate_room(wqe);
}

Requester::Gate Requester::gate_start(const SendWqe& wqe) const {
  //= IBTA 10.8.3.3: a fenced WQE waits for all prior READs and atomics
  if ((wqe.flags & send_fence) && q_.req.reads_outstanding) return Gate::wait_event;
  //= IBTA 9.7.7.2.5: beyond the credits, one message at a time asks for more
  bool limited = q_.comp.credits_valid && consumes_receive(wqe.opcode) &&
                 Psn(q_.req.ssn + 1) - Psn(q_.comp.limit_ssn) > 0;
  if (limited && q_.req.psn != q_.comp.una) return Gate::wait_event;
  // Two processes of the target's host have a socket each, and nothing keeps the order between the
  // two: what goes to the one is acknowledged before something goes to the other.
  bool elsewhere = q_.type == QpType::xrc_send && wqe.srqn.slot() != q_.req.srq_slot;
  if (elsewhere && !is_local(wqe.opcode) && q_.req.psn != q_.comp.una) return Gate::wait_event;
  return Gate::open;
}

Requester::Gate Requester::gate_room(const SendWqe& wqe) {
  CreditLine* line = line_for(wqe);
  if (line && gate_credit(wqe, *line) != Gate::open) return Gate::wait_room;
  if (!is_reliable(q_.type)) return line || e_.now_ >= e_.pace_open_ ? Gate::open : Gate::wait_room;
  if (wqe.opcode == WrOpcode::rdma_read) {
    std::uint32_t from = q_.req.offset;
    std::uint64_t bytes = response_bytes(wqe, from, chunk_end(wqe, from));
    bool full = e_.read_bytes_ && e_.read_bytes_ + bytes > e_.config_.read_budget;
    return full ? Gate::wait_room : Gate::open;
  }
  const Destination& d = *q_.destination;
  bool full = d.in_flight && d.in_flight + cost_of(wqe) > d.window;
  return full ? Gate::wait_room : Gate::open;
}

// The receiver's: of the process that the next packet is steered to.
CreditLine* Requester::line_for(const SendWqe& wqe) const {
  if (q_.type == QpType::ud) return e_.line_of(wqe.av.dgid, wqe.remote_qpn);
  if (q_.type == QpType::xrc_send) return e_.line_of(q_.attr.av.dgid, wqe.srqn);
  return q_.destination ? q_.destination->line : nullptr;
}

Requester::Gate Requester::gate_credit(const SendWqe& wqe, const CreditLine& line) {
  // With nothing outstanding RC sends one packet in any case: its timer then watches over a
  // receiver that died with the credit.
  if (is_reliable(q_.type) && q_.req.psn == q_.comp.una) return Gate::open;
  std::uint64_t unknown = line.enqueued.load(std::memory_order_relaxed) - e_.credit_limit_;
  bool own_line = q_.destination && q_.destination->line == &line;
  std::uint64_t& seen = own_line ? q_.destination->seen_consumed : unknown;
  const bool exhausted = e_.credit_exhausted(line, seen, frame_cost(std::min(wqe.length, q_.mtu)));
  if (is_reliable(q_.type)) return exhausted ? Gate::wait_room : Gate::open;
  if (!exhausted) return e_.credit_flows(line), Gate::open;
  if (!e_.credit_stalled(line)) return Gate::wait_room;
  ++e_.counters_.sent_without_credit;
  return Gate::open;
}

void Requester::start(SendWqe& wqe) {
  wqe.first_psn = q_.req.psn;
  wqe.started = true;
  if (!is_local(wqe.opcode)) q_.req.srq_slot = wqe.srqn.slot();
}

// Operations by service (IBTA table "Work request operation types"): UC has no responses, UD no
// more than SENDs.
bool Requester::supported(WrOpcode o) const {
  if (is_reliable(q_.type)) return true;
  if (o == WrOpcode::send) return true;
  if (o == WrOpcode::send_with_imm) return q_.type != QpType::raw_packet;
  return q_.type == QpType::uc &&
         (o == WrOpcode::rdma_write || o == WrOpcode::rdma_write_with_imm || is_local(o));
}

bool Requester::emit(TxBurst& tx, SendWqe& wqe) {
  if (!supported(wqe.opcode)) return fail(WcStatus::loc_qp_op_err), false;
  if (wqe.length > e_.config_.max_msg_size) return fail(WcStatus::loc_len_err), false;
  bool sent = false;
  if (q_.type == QpType::raw_packet) return emit_ethernet(tx, wqe);
  switch (wqe.opcode) {
    case WrOpcode::rdma_read:
      sent = emit_read(tx, wqe);
      break;
    case WrOpcode::atomic_cmp_and_swp:
    case WrOpcode::atomic_fetch_and_add:
    case WrOpcode::flush:
    case WrOpcode::atomic_write:
      sent = emit_single(tx, wqe);
      break;
    case WrOpcode::local_inv:
    case WrOpcode::bind_mw:
      sent = execute_local(wqe);
      break;
    default:
      sent = q_.type == QpType::ud ? emit_datagram(tx, wqe) : emit_payload(tx, wqe);
  }
  return sent;
}

// One packet of a SEND or RDMA WRITE on a connected QP.
bool Requester::emit_payload(TxBurst& tx, SendWqe& wqe) {
  std::uint32_t k = q_.req.offset;
  bool first = k == 0, last = k + 1 == wqe.packets;
  std::uint64_t offset = std::uint64_t{k} * q_.mtu;
  auto bytes = static_cast<std::uint32_t>(std::min<std::uint64_t>(wqe.length - offset, q_.mtu));

  MessageRow row = row_of(wqe.opcode);
  Operation operation = first ? (last ? row.only : row.first) : (last ? row.last : row.middle);
  wire::Packet p;
  p.bth.opcode = wire::opcode_of(transport_of(q_.type), operation);
  p.bth.solicited = last && (wqe.flags & send_solicited) && consumes_receive(wqe.opcode);
  p.bth.ack_request = wants_ack(wqe, last);
  p.reth = {wqe.remote_addr, wqe.rkey, wqe.length};
  p.imm.data = p.ieth.rkey = wqe.imm_or_rkey;
  WcStatus fetched = fetch(offset, tx.next() + p.info().header_bytes, bytes);
  if (fetched != WcStatus::success) return fail(fetched), false;
  commit(tx, p, bytes, q_.attr.av, q_.attr.dest_qpn);
  if (first && q_.req.psn == q_.req.highest) ++q_.req.ssn;
  advance(wqe, 1);
  if (q_.type == QpType::uc && last) complete_unacknowledged();
  return true;
}

// The request for the packets from `offset` to the end of their chunk: a READ of any length keeps
// the bytes on their way within our own receive buffer.  After a loss it starts at the first packet
// that is missing.
bool Requester::emit_read(TxBurst& tx, SendWqe& wqe) {
  if (!q_.attr.max_rd_atomic) return fail(WcStatus::loc_qp_op_err), false;
  std::uint32_t from = q_.req.offset, to = chunk_end(wqe, from);
  std::uint64_t bytes = response_bytes(wqe, from, to);
  wire::Packet p;
  p.bth.opcode = wire::opcode_of(transport_of(q_.type), Operation::read_request);
  p.bth.ack_request = true;
  p.reth = {wqe.remote_addr + std::uint64_t{from} * q_.mtu, wqe.rkey,
            static_cast<std::uint32_t>(bytes)};
  commit(tx, p, 0, q_.attr.av, q_.attr.dest_qpn);
  if (q_.req.psn == q_.req.highest) ++q_.req.reads_outstanding, ++q_.req.ssn;
  q_.req.read_bytes += bytes;
  e_.read_bytes_ += bytes;
  advance(wqe, to - from);
  return true;
}

// Atomics, FLUSH, ATOMIC WRITE: one request packet, one response packet.
bool Requester::emit_single(TxBurst& tx, SendWqe& wqe) {
  if (!q_.attr.max_rd_atomic) return fail(WcStatus::loc_qp_op_err), false;
  wire::Packet p;
  std::uint32_t payload = 0;
  Operation operation = Operation::fetch_add;
  p.atomic = {wqe.remote_addr, wqe.rkey, wqe.compare_add, 0};
  p.reth = {wqe.remote_addr, wqe.rkey, wqe.length};
  if (wqe.opcode == WrOpcode::atomic_cmp_and_swp) {
    operation = Operation::compare_swap;
    p.atomic.swap_add = wqe.swap;
    p.atomic.compare = wqe.compare_add;
  } else if (wqe.opcode == WrOpcode::flush) {
    operation = Operation::flush;
    p.feth = {wqe.flush_level, wqe.flush_type};
  } else if (wqe.opcode == WrOpcode::atomic_write) {
    operation = Operation::atomic_write;
    payload = atomic_length;
    p.reth.dma_length = atomic_length;
  }
  p.bth.opcode = wire::opcode_of(transport_of(q_.type), operation);
  p.bth.ack_request = true;
  if (payload) {
    WcStatus fetched = fetch(0, tx.next() + p.info().header_bytes, payload);
    if (fetched != WcStatus::success) return fail(fetched), false;
  }
  commit(tx, p, payload, q_.attr.av, q_.attr.dest_qpn);
  if (q_.req.psn == q_.req.highest) ++q_.req.reads_outstanding, ++q_.req.ssn;
  advance(wqe, 1);
  return true;
}

bool Requester::emit_datagram(TxBurst& tx, SendWqe& wqe) {
  //= IBTA 9.8.3: a message is one packet
  if (wqe.length > q_.mtu && e_.config_.long_datagram_fails)
    return fail(WcStatus::loc_len_err), false;
  if (wqe.pd_of_ah != q_.pd)
    return fail(WcStatus::loc_qp_op_err), false;  //= IBTA 10.2.2.2: PD of the address handle
  if (wqe.length > q_.mtu) {                      // IBTA C10-93.1.1: no packet, and no error
    advance(wqe, wqe.packets);
    complete_unacknowledged();
    return true;
  }
  wire::Packet p;
  bool imm = wqe.opcode == WrOpcode::send_with_imm;
  p.bth.opcode =
      wire::opcode_of(Transport::ud, imm ? Operation::send_only_imm : Operation::send_only);
  p.bth.solicited = (wqe.flags & send_solicited) != 0;
  //= IBTA 10.2.5: with the high bit set, the QP's own Q_Key is sent (controlled Q_Keys)
  p.deth.qkey = wqe.remote_qkey & 0x80000000u ? q_.attr.qkey : wqe.remote_qkey;
  p.deth.src_qp = q_.qpn;
  p.imm.data = wqe.imm_or_rkey;
  WcStatus fetched = fetch(0, tx.next() + p.info().header_bytes, wqe.length);
  if (fetched != WcStatus::success) return fail(fetched), false;
  commit(tx, p, wqe.length, wqe.av, wqe.remote_qpn);
  advance(wqe, 1);
  complete_unacknowledged();
  return true;
}

//= IBTA 10.8.3.3: BIND_MW and LOCAL_INV take effect in their turn: before what is posted after
// them,
// and not before the READs and atomics of a fenced one are complete.  A go-back-N that comes by
// later does not execute them again.
bool Requester::execute_local(SendWqe& wqe) {
  if (!wqe.executed) {
    wqe.executed = wqe.opcode == WrOpcode::bind_mw
                       ? e_.keys_.bind({.key = wqe.rkey,
                                        .new_key = wqe.imm_or_rkey,
                                        .pd = q_.pd,
                                        .qpn = q_.qpn,
                                        .lkey = wqe.bind_lkey,
                                        .access = wqe.bind_access,
                                        .address = wqe.remote_addr,
                                        .length = wqe.bind_length})
                       : e_.keys_.invalidate(wqe.imm_or_rkey, q_.pd, q_.qpn);
    //= IBTA 11.6.2: "memory management operation error", which the verbs API calls MW_BIND_ERR
    if (!wqe.executed) return fail(WcStatus::mw_bind_err), false;
  }
  ++q_.req.next;
  Completer(e_, q_).finish_executed();
  e_.check_drained(q_);
  return true;
}

// The frame as the application made it (ibv_create_qp(3), IBV_QPT_RAW_PACKET).
bool Requester::emit_ethernet(TxBurst& tx, SendWqe& wqe) {
  if (wqe.length > e_.config_.max_ethernet_frame) return fail(WcStatus::loc_len_err), false;
  WcStatus fetched = fetch(0, tx.next(), wqe.length);
  if (fetched != WcStatus::success) return fail(fetched), false;
  tx.commit(wqe.length, {}, {}, q_.qpn, {}, Protocol::ethernet);
  e_.pace(wqe.length);
  ++e_.counters_.sent_pkts;
  e_.counters_.sent_bytes += wqe.length;
  advance(wqe, wqe.packets);  // as many as packets would carry it: the whole request
  complete_unacknowledged();
  return true;
}

WcStatus Requester::fetch(std::uint64_t offset, std::uint8_t* to, std::uint32_t n) const {
  if (n == 0) return WcStatus::success;
  const SendWqe& wqe = q_.sq->at(q_.req.next);
  if (wqe.flags & send_inline) {
    std::memcpy(to, q_.sq->inline_data(q_.req.next) + offset, n);
    return WcStatus::success;
  }
  switch (gather(e_.keys_, q_.pd, q_.sq->sges(q_.req.next), offset, to, n)) {
    case SgStatus::ok:
      return WcStatus::success;
    case SgStatus::fault:
      ++e_.counters_.memory_faults;
      return WcStatus::loc_prot_err;
    case SgStatus::protection:
      return WcStatus::loc_prot_err;
    case SgStatus::too_short:
      break;
  }
  return WcStatus::loc_len_err;
}

void Requester::commit(TxBurst& tx, wire::Packet& p, std::uint32_t payload, const AddressVector& av,
                       Qpn dest) {
  unsigned pad = wire::pad_of(payload);
  const SendWqe& wqe = q_.sq->at(q_.req.next);
  p.bth.dest_qp = dest;
  p.bth.psn = q_.req.psn;
  p.xrc.srqn = wqe.srqn.raw();
  p.bth.pad_count = static_cast<std::uint8_t>(pad);
  std::uint8_t* out = tx.next();
  unsigned header = wire::encode_headers(p, out);
  std::memset(out + header + payload, 0, pad);
  std::uint32_t size = header + payload + pad;
  tx.commit(size, av, dest, q_.qpn, wire::steering_number(p), e_.protocols_[av.sgid_index]);

  if (CreditLine* line = line_for(wqe))
    line->enqueued.fetch_add(frame_cost(size + TxBurst::icrc_bytes), std::memory_order_relaxed);
  else if (!is_reliable(q_.type))
    e_.pace(size + TxBurst::icrc_bytes);
  ++e_.counters_.sent_pkts;
  e_.counters_.sent_bytes += size;
  if (is_reliable(q_.type) && q_.req.psn - q_.req.highest < 0) ++e_.counters_.retransmitted_pkts;
  q_.req.unrequested = p.bth.ack_request ? 0 : q_.req.unrequested + 1;
}

// Moves the `sent` cursor over `psns` packet sequence numbers of the WQE.
void Requester::advance(SendWqe& wqe, std::uint32_t psns) {
  std::uint64_t cost = is_reliable(q_.type) ? cost_of(wqe) : 0;
  q_.req.in_flight += cost;
  if (q_.destination) q_.destination->in_flight += cost;
  q_.req.psn = q_.req.psn + psns;
  if (q_.req.psn - q_.req.highest > 0) q_.req.highest = q_.req.psn;
  q_.req.offset += psns;
  if (q_.req.offset == wqe.packets) ++q_.req.next, q_.req.offset = 0;
}

// An ACK is asked for at the end of every message (one ACK answers a bundle, so this costs
// nothing), every so often within a long one, and before the window closes: whatever the requester
// then waits for, an answer is on its way.
bool Requester::wants_ack(const SendWqe& wqe, bool last) const {
  if (!is_reliable(q_.type)) return false;
  if (last || q_.req.unrequested >= 31) return true;
  if (q_.req.psn - q_.req.highest < 0)
    return q_.req.unrequested >= 15 || q_.req.psn + 1 == q_.req.highest;
  const Destination& d = *q_.destination;
  return q_.req.unrequested >= 7 && d.in_flight + 2 * cost_of(wqe) > d.window / 2;
}

void Requester::fail(WcStatus status) {
  q_.req.blocked_on_error = true;
  q_.req.local_error = status;
  Completer(e_, q_).report_local_error();
}

// UC and UD: a WQE is complete when its last packet was handed over (IBTA 9.8.2.3, 9.8.3).
void Requester::complete_unacknowledged() {
  q_.comp.una = q_.req.psn;
  Completer(e_, q_).finish(WcStatus::success);
  e_.check_drained(q_);
}

void Requester::rewind() {
  release_all();
  seek(q_.comp.una);
}

void Requester::release_all() {
  release(q_.req.in_flight);
  ASSERT(q_.req.read_bytes <= e_.read_bytes_);
  e_.read_bytes_ -= std::exchange(q_.req.read_bytes, 0);
  e_.room_freed_ = true;
}

void Requester::skip_acknowledged() {
  if (q_.comp.una - q_.req.psn <= 0) return;
  ASSERT(q_.req.in_flight == 0 && q_.req.read_bytes == 0);  // both count [una, psn)
  seek(q_.comp.una);
}

void Requester::seek(Psn psn) {
  q_.req.psn = psn;
  q_.req.offset = 0;
  q_.req.unrequested = 0;
  q_.req.blocked_on_error = false;  // found again when the cursor comes back to that WQE
  std::uint32_t posted = q_.sq->posted();
  for (q_.req.next = q_.comp.acked; q_.req.next != posted; ++q_.req.next) {
    const SendWqe& wqe = q_.sq->at(q_.req.next);
    if (!wqe.started || (is_local(wqe.opcode) && !wqe.executed)) return;
    std::int32_t k = psn - wqe.first_psn;
    if (k >= 0 && k < static_cast<std::int32_t>(wqe.packets)) {
      q_.req.offset = static_cast<std::uint32_t>(k);
      return;
    }
  }
}

void Requester::release(std::uint64_t cost) {
  if (!cost) return;
  Destination& d = *q_.destination;
  ASSERT(cost <= q_.req.in_flight && q_.req.in_flight <= d.in_flight);
  q_.req.in_flight -= cost;
  d.in_flight -= cost;
  e_.room_freed_ = true;
}

void Requester::acknowledged(std::uint64_t cost) {
  release(cost);
  Destination& d = *q_.destination;
  d.grown += cost;
  if (d.grown < d.window) return;
  d.grown = 0;  // additive increase, once per window
  d.window = std::min(d.window + window_step, std::max(d.window, e_.config_.max_window));
}

void Requester::note_loss() {
  if (q_.comp.loss_marked && q_.comp.una - q_.comp.loss_mark < 0) return;
  q_.comp.loss_marked = true;
  q_.comp.loss_mark = q_.req.highest;
  Destination& d = *q_.destination;
  d.window = std::max(d.window / 2, std::min(d.window, min_window));
  d.grown = 0;
}

}  // namespace adverb::engine
