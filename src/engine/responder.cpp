// SPDX-License-Identifier: Apache-2.0
#include "engine/responder.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>

#include "base/assert.hpp"
#include "base/guarded.hpp"
#include "engine/raw_frame.hpp"
#include "wire/aeth.hpp"

namespace adverb::engine {

using wire::Operation;
using wire::Place;
using wire::Verb;

namespace {

constexpr unsigned responses_per_turn = 64;
constexpr std::uint32_t grh_bytes = 40;
constexpr std::uint32_t atomic_bytes = 8;
constexpr std::uint32_t max_message = 1u << 31;  //= IBTA 9.7.1.1: a message has at most 2^31 bytes

// What a refused request means for the reliable transports (IBTA 9.9.3, responder error behaviour).
struct VerdictRow {
  Verdict verdict;
  std::uint8_t syndrome;    // of the NAK; 0: none of this kind
  WcStatus receive_status;  // of the open receive WQE, if any; success: it stays open
  bool to_error;
  AsyncEvent event;
};
constexpr std::uint8_t nak_of(wire::NakCode c) { return wire::make_nak(c); }
constexpr VerdictRow rows[] = {
    {Verdict::out_of_sequence, nak_of(wire::NakCode::psn_sequence_error), WcStatus::success, false,
     AsyncEvent::qp_req_err},
    {Verdict::invalid_opcode, nak_of(wire::NakCode::invalid_request), WcStatus::rem_inv_req_err,
     true, AsyncEvent::qp_req_err},
    {Verdict::invalid_length, nak_of(wire::NakCode::invalid_request), WcStatus::rem_inv_req_err,
     true, AsyncEvent::qp_req_err},
    {Verdict::message_too_long, nak_of(wire::NakCode::invalid_request), WcStatus::loc_len_err, true,
     AsyncEvent::qp_req_err},
    {Verdict::wrong_srq, nak_of(wire::NakCode::invalid_request), WcStatus::rem_inv_req_err, true,
     AsyncEvent::qp_req_err},
    {Verdict::misaligned, nak_of(wire::NakCode::invalid_request), WcStatus::rem_inv_req_err, true,
     AsyncEvent::qp_req_err},
    {Verdict::too_many_reads, nak_of(wire::NakCode::invalid_request), WcStatus::rem_inv_req_err,
     true, AsyncEvent::qp_req_err},
    {Verdict::remote_access, nak_of(wire::NakCode::remote_access_error), WcStatus::loc_access_err,
     true, AsyncEvent::qp_access_err},
    {Verdict::memory_fault, nak_of(wire::NakCode::remote_access_error), WcStatus::loc_access_err,
     true, AsyncEvent::qp_access_err},
    {Verdict::receive_protection, nak_of(wire::NakCode::remote_operational_error),
     WcStatus::loc_prot_err, true, AsyncEvent::qp_fatal},
    //= IBTA 9.9.6.3: class J, no NAK; the requester's retries find the queue pair gone
    {Verdict::invalidate_failed, 0, WcStatus::loc_access_err, true, AsyncEvent::qp_access_err},
    {Verdict::operational, nak_of(wire::NakCode::remote_operational_error), WcStatus::loc_qp_op_err,
     true, AsyncEvent::qp_fatal},
};
const VerdictRow* row_of(Verdict v) {
  for (const auto& r : rows)
    if (r.verdict == v) return &r;
  return nullptr;
}

// What ConnectX puts where an InfiniBand completion has the service level, and what programs that
// know it find the length of the header's addresses by.
std::uint8_t header_type(const RxFrame& f) {
  if (f.protocol == Protocol::roce_v1) return 0;
  constexpr std::uint8_t udp = 8, ipv6 = 1, ipv4 = 2;
  return udp | (f.source.is_v4() ? ipv4 : ipv6);
}

// The IP header that a datagram's receiver finds in the first 40 bytes of its buffer: an IPv6
// header, or for IPv4 twenty unspecified bytes and an IPv4 header (annex A17.9.3).
void write_network_header(const RxFrame& f, std::uint32_t transport_bytes, std::uint8_t* out) {
  std::memset(out, 0, grh_bytes);
  auto be16 = [](std::uint8_t* p, unsigned v) {
    p[0] = static_cast<std::uint8_t>(v >> 8), p[1] = static_cast<std::uint8_t>(v);
  };
  if (f.source.is_v4() && f.protocol == Protocol::roce_v2) {
    std::uint8_t* ip = out + 20;
    ip[0] = 0x45;
    ip[1] = f.traffic_class;
    be16(ip + 2, 28 + transport_bytes);
    ip[6] = 0x40;  // DF
    ip[8] = f.hop_limit;
    ip[9] = 17;
    std::memcpy(ip + 12, &f.source.bytes[12], 4);
    std::memcpy(ip + 16, &f.destination.bytes[12], 4);
    std::uint32_t sum = 0;
    for (int i = 0; i < 20; i += 2) sum += static_cast<std::uint32_t>(ip[i] << 8 | ip[i + 1]);
    sum = (sum & 0xffff) + (sum >> 16);
    be16(ip + 10, ~(sum + (sum >> 16)) & 0xffff);
    return;
  }
  out[0] = static_cast<std::uint8_t>(0x60 | f.traffic_class >> 4);
  out[1] = static_cast<std::uint8_t>(f.traffic_class << 4 | (f.flow_label >> 16 & 15));
  be16(out + 2, f.flow_label & 0xffff);
  const bool v1 = f.protocol == Protocol::roce_v1;  // a GRH, without UDP (annex A16)
  be16(out + 4, (v1 ? 0 : 8) + transport_bytes);
  out[6] = v1 ? 0x1b : 17;
  out[7] = f.hop_limit;
  std::memcpy(out + 8, f.source.bytes.data(), 16);
  std::memcpy(out + 24, f.destination.bytes.data(), 16);
}

}  // namespace

void Responder::receive(const RxFrame& f) {
  QpState state = q_.state.load(std::memory_order_relaxed);
  bool open = state == QpState::rtr || state == QpState::rts || state == QpState::sqd ||
              state == QpState::sqe;
  if (!open) {
    ++e_.counters_.drop_qp_state;
    return;
  }
  established();
  switch (q_.type) {
    case QpType::rc:
    case QpType::xrc_recv:
      receive_reliable(f);
      break;
    case QpType::uc:
      receive_unreliable(f);
      break;
    case QpType::ud:
      receive_datagram(f);
      break;
    case QpType::raw_packet:
      receive_ethernet(f);
      break;
    case QpType::xrc_send:  // Engine::admit_frame lets no request through
      break;
  }
  if (owes()) e_.make_ready(q_);
}

void Responder::note_congestion(Instant now) {
  ++e_.counters_.np_ecn_marked_roce_packets;
  //= annex A17.9.3: a CNP answers, no more often than the interval
  if (q_.type == QpType::ud || now < q_.resp.next_cnp) return;
  q_.resp.next_cnp = now + e_.config_.cnp_interval;
  q_.resp.cnp_owed = true;
  e_.make_ready(q_);
}

void Responder::established() {
  if (q_.comm_established || q_.state.load(std::memory_order_relaxed) != QpState::rtr) return;
  q_.comm_established = true;
  e_.raise(q_, AsyncEvent::comm_est);
}

// --- reliable: IBTA 9.7.4.1, in the order of its checks

void Responder::receive_reliable(const RxFrame& f) {
  const wire::Packet& p = f.packet;
  std::int32_t ahead = p.bth.psn - q_.resp.expected;
  if (ahead > 0) {
    ++e_.counters_.out_of_sequence;
    //= IBTA 9.7.5.2.8: one NAK, then silence until the expected PSN arrives
    if (!q_.resp.nak_sent) refuse(Verdict::out_of_sequence, p);
    return;
  }
  if (ahead < 0) return duplicate(p);
  q_.resp.nak_sent = q_.resp.nak_owed = false;
  if (f.forced_syndrome) return refuse_with(f.forced_syndrome, p);
  Verdict v = admit(p);
  if (v == Verdict::ok && q_.state.load(std::memory_order_relaxed) == QpState::error) {
    // Executed, but its completion overran the CQ: the application will never hear of it.
    refuse(Verdict::operational, p);
    q_.resp.nak_psn = p.bth.psn;
    return;
  }
  if (v != Verdict::ok) return refuse(v, p);
  bool answered_by_ack = p.info().verb == Verb::send || p.info().verb == Verb::write;
  if (p.bth.ack_request && answered_by_ack) q_.resp.ack_owed = true;
}

Verdict Responder::admit(const wire::Packet& p) {
  const wire::OpcodeInfo& info = p.info();
  if (!wire::follows(q_.resp.previous, info)) return Verdict::invalid_opcode;
  if (Verdict v = check_operation(info); v != Verdict::ok) return v;
  if (Verdict v = check_length(p, info); v != Verdict::ok) return v;
  if (Verdict v = bind_srq(p, info); v != Verdict::ok) return v;
  if (Verdict v = execute(p, info); v != Verdict::ok) return v;
  q_.resp.previous = info.ends() ? wire::OpcodeInfo{} : info;
  return Verdict::ok;
}

// XRC: the receives, completions and keys are those of the SRQ that the request names; it must be
// of the target's XRC domain, and the same throughout a message (annex A14).
Verdict Responder::bind_srq(const wire::Packet& p, const wire::OpcodeInfo& info) {
  if (q_.type != QpType::xrc_recv) return Verdict::ok;
  const Srqn srqn(p.xrc.srqn);
  if (!info.starts()) return q_.srq && q_.resp.srqn == srqn ? Verdict::ok : Verdict::wrong_srq;
  SharedReceiveQueue* srq = e_.find_srq(srqn);
  if (!srq || srq->xrcd != q_.xrcd) return Verdict::wrong_srq;
  q_.srq = srq;
  q_.rq = &srq->queue;
  q_.recv_cq = srq->cq;
  q_.pd = srq->pd;
  q_.resp.srqn = srqn;
  return Verdict::ok;
}

// Is the operation enabled on this QP?  (IBTA 9.7.4.1.4: otherwise NAK invalid request)
Verdict Responder::check_operation(const wire::OpcodeInfo& info) const {
  std::uint32_t needed = 0;
  if (info.verb == Verb::write || info.verb == Verb::atomic_write) needed = access_remote_write;
  if (info.verb == Verb::read) needed = access_remote_read;
  if (info.verb == Verb::atomic) needed = access_remote_atomic;
  if (needed & ~q_.attr.access_flags) return Verdict::invalid_opcode;
  return Verdict::ok;
}

//= IBTA 9.7.4.1.6: FIRST and MIDDLE are full, LAST is not empty, ONLY is at most full
Verdict Responder::check_length(const wire::Packet& p, const wire::OpcodeInfo& info) const {
  std::size_t n = p.payload.size();
  bool right = !info.has(wire::ext_reth) || p.reth.dma_length <= max_message;
  if (info.verb == Verb::send || info.verb == Verb::write) {
    if (info.place == Place::first || info.place == Place::middle) right &= n == q_.mtu;
    if (info.place == Place::last) right &= n >= 1 && n <= q_.mtu;
    if (info.place == Place::only) right &= n <= q_.mtu;
  }
  if (info.verb == Verb::atomic_write)  //= annex A19.4.2
    right = n == atomic_bytes && p.reth.dma_length == atomic_bytes;
  return right ? Verdict::ok : Verdict::invalid_length;
}

Verdict Responder::execute(const wire::Packet& p, const wire::OpcodeInfo& info) {
  switch (info.verb) {
    case Verb::send:
      return execute_send(p, info);
    case Verb::write:
      e_.counters_.rx_write_requests += info.starts();
      return execute_write(p, info);
    case Verb::read:
      ++e_.counters_.rx_read_requests;
      return execute_read(p);
    case Verb::atomic:
      ++e_.counters_.rx_atomic_requests;
      return execute_atomic(p, info);
    case Verb::flush:
      return execute_flush(p);
    case Verb::atomic_write:
      return execute_atomic_write(p);
    default:
      return Verdict::invalid_opcode;
  }
}

// Takes the next receive WQE, unless one is open.
Verdict Responder::open_receive() {
  if (q_.resp.recv_open) return Verdict::ok;
  if (!q_.rq) return Verdict::no_receive;                // an XRC target before its first message
  if (q_.recv_cq->overrun) return Verdict::operational;  // no completion would be seen
  if (!q_.rq->take(q_.resp.recv)) {
    ++e_.counters_.out_of_buffer;
    return Verdict::no_receive;
  }
  q_.resp.recv_open = true;
  if (q_.srq) e_.check_srq_limit(*q_.srq);
  return Verdict::ok;
}

// Nobody is told of a datagram that has no place to go: it is counted here.
bool Responder::open_receive_of_datagram() {
  const Verdict v = open_receive();
  if (v == Verdict::operational) ++e_.counters_.out_of_buffer;
  return v == Verdict::ok;
}

Verdict Responder::execute_send(const wire::Packet& p, const wire::OpcodeInfo& info) {
  ResponderState& r = q_.resp;
  if (info.starts()) {
    if (Verdict v = open_receive(); v != Verdict::ok) return v;
    r.received = 0;
  }
  if (r.received + p.payload.size() > r.recv.length) return Verdict::message_too_long;
  switch (scatter(e_.keys_, q_.receive_pd(), r.recv.list(), r.received, p.payload.data(),
                  p.payload.size())) {
    case SgStatus::ok:
      break;
    case SgStatus::fault:
      ++e_.counters_.memory_faults;
      return Verdict::receive_protection;
    default:
      return Verdict::receive_protection;
  }
  if (info.has(wire::ext_ieth) && !e_.keys_.invalidate(p.ieth.rkey, q_.pd, q_.qpn))
    return Verdict::invalidate_failed;  //= IBTA 9.9.6.3
  r.received += p.payload.size();
  r.expected = r.expected + 1;
  if (info.ends()) complete_receive(p, info);
  return Verdict::ok;
}

Verdict Responder::execute_write(const wire::Packet& p, const wire::OpcodeInfo& info) {
  ResponderState& r = q_.resp;
  if (info.starts()) {
    r.write_va = p.reth.va;
    r.write_rkey = p.reth.rkey;
    r.write_left = r.write_length = p.reth.dma_length;
    bool one = info.place == Place::only;
    if (one ? p.payload.size() != r.write_left : r.write_left <= q_.mtu)
      return Verdict::invalid_length;
    //= IBTA 9.7.4.1.5: the key of a zero-length WRITE is not checked; else the whole range, at once
    if (r.write_left && !target(r.write_rkey, r.write_va, r.write_left, access_remote_write))
      return Verdict::remote_access;
  } else if (info.ends() ? p.payload.size() != r.write_left : p.payload.size() >= r.write_left) {
    return Verdict::invalid_length;
  }
  bool imm = info.has(wire::ext_imm_dt);
  if (imm) {  // before the data, so that an RNR NAK leaves nothing half done
    if (Verdict v = open_receive(); v != Verdict::ok) return v;
  }
  if (!p.payload.empty()) {
    auto grant = target(r.write_rkey, r.write_va, p.payload.size(), access_remote_write);
    if (!grant) return Verdict::remote_access;
    if (!grant->copy_in(0, p.payload.data(), p.payload.size())) {
      ++e_.counters_.memory_faults;
      return Verdict::memory_fault;
    }
  }
  r.write_va += p.payload.size();
  r.write_left -= p.payload.size();
  r.expected = r.expected + 1;
  if (imm) {
    r.received = r.write_length;
    complete_receive(p, info);
  } else if (info.ends()) {
    ++r.msn;
  }
  return Verdict::ok;
}

Verdict Responder::execute_read(const wire::Packet& p) {
  if (p.reth.dma_length && !target(p.reth.rkey, p.reth.va, p.reth.dma_length, access_remote_read))
    return Verdict::remote_access;
  std::uint32_t index = 0;
  ResponderResource* res = new_resource(index);
  if (!res) return Verdict::too_many_reads;
  res->verb = Verb::read;
  res->va = p.reth.va;
  res->rkey = p.reth.rkey;
  res->length = p.reth.dma_length;
  return answer(index, res->length ? (res->length - 1) / q_.mtu + 1 : 1);
}

Verdict Responder::execute_atomic(const wire::Packet& p, const wire::OpcodeInfo& info) {
  if (p.atomic.va % atomic_bytes) return Verdict::misaligned;  //= IBTA 9.4.5
  auto grant = target(p.atomic.rkey, p.atomic.va, atomic_bytes, access_remote_atomic);
  if (!grant) return Verdict::remote_access;
  if (reinterpret_cast<std::uintptr_t>(grant->data) % atomic_bytes) return Verdict::misaligned;
  std::uint32_t index = 0;
  ResponderResource* res = new_resource(index);
  if (!res) return Verdict::too_many_reads;
  auto* target = reinterpret_cast<std::uint64_t*>(grant->data);
  bool done =
      info.operation == Operation::compare_swap
          ? guarded_compare_swap(target, p.atomic.compare, p.atomic.swap_add, &res->original)
          : guarded_fetch_add(target, p.atomic.swap_add, &res->original);
  if (!done) {
    res->valid = false;
    ++e_.counters_.memory_faults;
    return Verdict::memory_fault;
  }
  res->verb = Verb::atomic;
  return answer(index, 1);
}

// FLUSH: what was written before is globally visible by the CPU's coherence; persistence is asked
// of memory that was registered for it (annex A19.4.3).
Verdict Responder::execute_flush(const wire::Packet& p) {
  std::uint32_t needed = 0;
  if (p.feth.placement_type & 1) needed |= access_flush_global;
  if (p.feth.placement_type & 2) needed |= access_flush_persistent;
  if (!needed) return Verdict::invalid_opcode;
  bool whole = p.feth.selectivity == 1;
  std::uint64_t length = whole ? 0 : p.reth.dma_length;
  std::uint64_t address = p.reth.va;
  if (whole) {
    const MemoryRegion* mr = e_.keys_.find(p.reth.rkey);
    if (!mr) return Verdict::remote_access;
    address = mr->iova;
  }
  if (!target(p.reth.rkey, address, length, needed)) return Verdict::remote_access;
  std::uint32_t index = 0;
  ResponderResource* res = new_resource(index);
  if (!res) return Verdict::too_many_reads;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  res->verb = Verb::flush;
  return answer(index, 1);
}

Verdict Responder::execute_atomic_write(const wire::Packet& p) {
  if (p.reth.va % atomic_bytes) return Verdict::misaligned;  //= annex A19.4.2
  auto grant = target(p.reth.rkey, p.reth.va, atomic_bytes, access_remote_write);
  if (!grant) return Verdict::remote_access;
  std::uint32_t index = 0;
  ResponderResource* res = new_resource(index);
  if (!res) return Verdict::too_many_reads;
  if (!grant->copy_in(0, p.payload.data(), atomic_bytes)) {
    res->valid = false;
    ++e_.counters_.memory_faults;
    return Verdict::memory_fault;
  }
  res->verb = Verb::atomic_write;
  return answer(index, 1);
}

// The last packet of a message that consumes a receive WQE.
void Responder::complete_receive(const wire::Packet& p, const wire::OpcodeInfo& info) {
  ResponderState& r = q_.resp;
  Cqe c;
  c.wr_id = r.recv.wr_id;
  c.status = WcStatus::success;
  c.opcode = info.verb == Verb::write ? WcOpcode::recv_rdma_with_imm : WcOpcode::recv;
  c.byte_len = static_cast<std::uint32_t>(r.received);
  if (info.has(wire::ext_imm_dt)) c.wc_flags |= wc_with_imm, c.imm_or_rkey = p.imm.data;
  if (info.has(wire::ext_ieth)) c.wc_flags |= wc_with_inv, c.imm_or_rkey = p.ieth.rkey;
  c.src_qp = q_.attr.dest_qpn;
  r.recv_open = false;
  ++r.msn;
  ++e_.counters_.recvs;
  e_.complete(q_, *q_.recv_cq, c, p.bth.solicited);
}

void Responder::fail_receive(WcStatus status) {
  if (!q_.resp.recv_open) return;
  q_.resp.recv_open = false;
  Cqe c;
  c.wr_id = q_.resp.recv.wr_id;
  c.status = status;
  c.opcode = WcOpcode::recv;
  ++e_.counters_.resp_cqe_error;
  if (status == WcStatus::loc_len_err) ++e_.counters_.resp_local_length_error;
  e_.complete(q_, *q_.recv_cq, c, true);
}

// Reliable: what a refused request costs, as the table has it.
void Responder::refuse(Verdict v, const wire::Packet& p) {
  ResponderState& r = q_.resp;
  r.nak_owed = true;
  r.nak_sent = true;  // later PSNs are dropped in silence until the expected one comes
  r.nak_psn = r.expected;
  r.ack_owed = false;
  if (v == Verdict::no_receive) {
    r.nak_syndrome = wire::make_rnr_nak(q_.attr.min_rnr_timer);
    return;
  }
  const VerdictRow* row = row_of(v);
  ASSERT(row);
  r.nak_syndrome = row->syndrome;
  r.nak_owed = row->syndrome != 0;
  if (!row->to_error) return;
  if (row->event == AsyncEvent::qp_access_err) ++e_.counters_.resp_remote_access_errors;
  //= IBTA 11.6.2: a WRITE with immediate data that may not write ends its receive WQE with a local
  // access error
  if (row->receive_status == WcStatus::loc_access_err && p.info().verb == Verb::write &&
      p.info().has(wire::ext_imm_dt))
    open_receive();
  fail_receive(row->receive_status);
  e_.to_error(q_, row->event, true);
}

// As if a check had failed that is answered with this syndrome.
void Responder::refuse_with(std::uint8_t syndrome, const wire::Packet& p) {
  if (wire::aeth_kind(syndrome) == wire::AethKind::rnr_nak) {
    refuse(Verdict::no_receive, p);
    q_.resp.nak_syndrome = syndrome;  // with the rule's timer
    return;
  }
  switch (wire::nak_code(syndrome)) {
    case wire::NakCode::psn_sequence_error:
      return refuse(Verdict::out_of_sequence, p);
    case wire::NakCode::invalid_request:
      return refuse(Verdict::invalid_opcode, p);
    case wire::NakCode::remote_access_error:
      return refuse(Verdict::remote_access, p);
    default:
      return refuse(Verdict::operational, p);
  }
}

// --- duplicates: IBTA 9.7.4.1.2 and 9.7.5.1.1

void Responder::duplicate(const wire::Packet& p) {
  ++e_.counters_.duplicate_request;
  Verb verb = p.info().verb;
  if (verb == Verb::send || verb == Verb::write) {
    q_.resp.ack_owed = true;
    return;
  }
  for (std::uint32_t i = 0; i < q_.resp.dest_resources; ++i) {
    ResponderResource& res = q_.resp.resources[i];
    if (!res.valid || res.verb != verb || res.srqn.raw() != p.xrc.srqn) continue;
    std::int32_t k = p.bth.psn - res.first;
    if (k < 0 || k >= static_cast<std::int32_t>(res.packets)) continue;
    if (verb != Verb::read) return replay(i, 0, 1);
    if (replay_read(p, res, i)) return;
  }
  ++e_.counters_.drop_duplicate_resource;
}

// A READ that asks again for the whole or the rest of a response.
bool Responder::replay_read(const wire::Packet& p, ResponderResource& res, std::uint32_t index) {
  auto k = static_cast<std::uint32_t>(p.bth.psn - res.first);
  std::uint64_t skipped = std::uint64_t{k} * q_.mtu;
  if (p.reth.va < res.va + skipped || p.reth.rkey != res.rkey) return false;
  if (p.reth.va != res.va + skipped || p.reth.dma_length + skipped > res.length) return false;
  std::uint32_t n = p.reth.dma_length ? (p.reth.dma_length - 1) / q_.mtu + 1 : 1;
  replay(index, k, std::min(k + n, res.packets));
  return true;
}

// Answers once more.  The FIFO stays in PSN order; a response that waits there unsent and is the
// same serves both requests, one that is on its way starts anew.
void Responder::replay(std::uint32_t resource, std::uint32_t from, std::uint32_t to) {
  ResponderState& r = q_.resp;
  PendingResponse again{resource, from, to, true};
  for (std::uint32_t i = r.pending_head; i != r.pending_tail; ++i)
    if (pending_at(i).resource == resource) {
      pending_at(i) = again;
      return;
    }
  ASSERT(r.pending_tail - r.pending_head < r.dest_resources);
  std::uint32_t at = r.pending_tail++;
  for (; at != r.pending_head; --at) {
    const PendingResponse& before = pending_at(at - 1);
    if (r.resources[before.resource].first - r.resources[resource].first < 0) break;
    pending_at(at) = before;
  }
  pending_at(at) = again;
}

// --- responses

PendingResponse& Responder::pending_at(std::uint32_t cursor) {
  return q_.resp.pending[cursor % q_.resp.dest_resources];
}

// The oldest resource makes room; null when its response was never sent, or there are none: the
// requester exceeds what was agreed (IBTA 9.7.4.1.7: NAK invalid request).  A replay that waits is
// dropped instead: a requester that goes on has no use for it, the network doubled its request.
ResponderResource* Responder::new_resource(std::uint32_t& index) {
  ResponderState& r = q_.resp;
  if (!r.dest_resources) return nullptr;
  index = r.resource_head % r.dest_resources;
  for (std::uint32_t i = r.pending_head; i != r.pending_tail; ++i)
    if (pending_at(i).resource == index) {
      if (!r.resources[index].answered) return nullptr;
      for (; i + 1 != r.pending_tail; ++i) pending_at(i) = pending_at(i + 1);
      --r.pending_tail;
      break;
    }
  ++r.resource_head;
  r.resources[index] = ResponderResource{};
  r.resources[index].valid = true;
  r.resources[index].first = r.expected;
  r.resources[index].pd = q_.pd;
  if (q_.type == QpType::xrc_recv) r.resources[index].srqn = q_.srq->srqn;
  return &r.resources[index];
}

// The request was executed: its response takes `packets` PSNs and is owed whole.
Verdict Responder::answer(std::uint32_t resource, std::uint32_t packets) {
  ResponderResource& res = q_.resp.resources[resource];
  res.packets = packets;
  q_.resp.expected = q_.resp.expected + packets;
  res.msn = ++q_.resp.msn;
  queue_response(resource, 0, packets);
  return Verdict::ok;
}

void Responder::queue_response(std::uint32_t resource, std::uint32_t from, std::uint32_t to) {
  ResponderState& r = q_.resp;
  ASSERT(r.pending_tail - r.pending_head < r.dest_resources);
  pending_at(r.pending_tail++) = {resource, from, to, true};
  r.ack_owed = false;  // the response acknowledges all before it
}

bool Responder::owes() const {
  const ResponderState& r = q_.resp;
  return r.cnp_owed || r.ack_owed || r.nak_owed || r.pending_head != r.pending_tail;
}

bool Responder::respond(TxBurst& tx) {
  ResponderState& r = q_.resp;
  if (r.cnp_owed) {
    if (!tx.has_room()) return true;
    emit_cnp(tx);
  }
  for (unsigned turn = 0; r.pending_head != r.pending_tail; ++turn) {
    if (!tx.has_room() || turn == responses_per_turn) return true;
    Destination& d = *q_.destination;
    if (d.line && e_.credit_exhausted(*d.line, d.seen_consumed, frame_cost(q_.mtu))) {
      e_.wait_for_room(q_);
      return false;
    }
    PendingResponse& next = pending_at(r.pending_head);
    // Another process that shares the target took the resource: its response is not awaited.
    if (q_.shared && !e_.find_srq(r.resources[next.resource].srqn)) {
      ++r.pending_head;
      continue;
    }
    if (!emit_response(tx, next)) break;
    if (++next.next < next.end) continue;
    r.resources[next.resource].answered = true;
    ++r.pending_head;
  }
  if (!r.nak_owed && !r.ack_owed) return false;
  if (!tx.has_room()) return true;
  if (r.nak_owed) {
    ++(wire::aeth_kind(r.nak_syndrome) == wire::AethKind::rnr_nak ? e_.counters_.sent_rnr_naks
                                                                  : e_.counters_.sent_naks);
    emit_acknowledge(tx, r.nak_psn, r.nak_syndrome);
  } else {
    ++e_.counters_.sent_acks;
    emit_acknowledge(tx, r.expected - 1, ack_syndrome());
  }
  r.nak_owed = r.ack_owed = false;
  return false;
}

// False: the source of a READ is gone; the NAK that says so is owed instead.
bool Responder::emit_response(TxBurst& tx, PendingResponse& pending) {
  ResponderResource& res = q_.resp.resources[pending.resource];
  if (res.verb == Verb::read) return emit_read_packet(tx, res, pending);
  wire::Packet p;
  bool atomic = res.verb == Verb::atomic;
  //= annex A19.4: FLUSH and ATOMIC WRITE are answered by an empty READ response
  p.bth.opcode = wire::opcode_of(transport_of(q_.type), atomic ? Operation::atomic_acknowledge
                                                               : Operation::read_response_only);
  p.bth.psn = res.first;
  p.aeth = {ack_syndrome(), res.msn};
  p.atomic_ack.original = res.original;
  commit(tx, p, 0);
  return true;
}

bool Responder::emit_read_packet(TxBurst& tx, ResponderResource& res, PendingResponse& pending) {
  std::uint32_t k = pending.next;
  std::uint64_t offset = std::uint64_t{k} * q_.mtu;
  auto n = static_cast<std::uint32_t>(std::min<std::uint64_t>(q_.mtu, res.length - offset));
  bool first = pending.first_of_run, last = k + 1 == pending.end;
  wire::Packet p;
  Operation operation =
      first ? (last ? Operation::read_response_only : Operation::read_response_first)
            : (last ? Operation::read_response_last : Operation::read_response_middle);
  p.bth.opcode = wire::opcode_of(transport_of(q_.type), operation);
  p.bth.psn = res.first + k;
  p.aeth = {ack_syndrome(), res.msn};
  if (n) {
    auto grant = e_.keys_.resolve(res.rkey, res.pd, res.va + offset, n, access_remote_read, q_.qpn);
    bool copied = grant && grant->copy_out(0, tx.next() + p.info().header_bytes, n);
    if (!copied) {
      if (grant) ++e_.counters_.memory_faults;
      q_.resp.pending_head = q_.resp.pending_tail;
      refuse(grant ? Verdict::memory_fault : Verdict::remote_access, p);
      q_.resp.nak_psn = p.bth.psn;
      return false;
    }
  }
  commit(tx, p, n);
  pending.first_of_run = false;
  return true;
}

std::uint8_t Responder::ack_syndrome() const {
  //= IBTA 9.7.7.2: credits of a QP's own receive queue; none are told for an SRQ.  An empty queue
  // tells "no limit"
  // instead of zero: the RNR protocol then governs, and a requester is not left waiting for an
  // update.
  std::uint32_t credits = wire::no_credit_limit;
  if (q_.own_rq && e_.config_.end_to_end_credits && q_.own_rq->available())
    credits = q_.own_rq->available();
  return wire::make_ack(credits);
}

void Responder::emit_acknowledge(TxBurst& tx, Psn psn, std::uint8_t syndrome) {
  wire::Packet p;
  p.bth.opcode = wire::opcode_of(transport_of(q_.type), Operation::acknowledge);
  p.bth.psn = psn;
  p.aeth = {syndrome, q_.resp.msn & 0xffffff};
  commit(tx, p, 0);
}

// Annex A17.9.3: BTH with BECN set, PSN zero, and 16 reserved bytes.
void Responder::emit_cnp(TxBurst& tx) {
  constexpr std::uint32_t reserved_bytes = 16;
  wire::Packet p;
  p.bth.opcode = wire::cnp_opcode;
  p.bth.becn = true;
  std::memset(tx.next() + p.info().header_bytes, 0, reserved_bytes);
  commit(tx, p, reserved_bytes);
  q_.resp.cnp_owed = false;
  ++e_.counters_.np_cnp_sent;
}

void Responder::commit(TxBurst& tx, wire::Packet& p, std::uint32_t payload) {
  unsigned pad = wire::pad_of(payload);
  p.bth.dest_qp = q_.attr.dest_qpn;
  p.bth.pad_count = static_cast<std::uint8_t>(pad);
  p.aeth.msn &= 0xffffff;
  std::uint8_t* out = tx.next();
  unsigned header = wire::encode_headers(p, out);
  std::memset(out + header + payload, 0, pad);
  std::uint32_t size = header + payload + pad;
  tx.commit(size, q_.attr.av, q_.attr.dest_qpn, q_.qpn, q_.attr.dest_qpn,
            e_.protocols_[q_.attr.av.sgid_index]);
  if (CreditLine* line = q_.destination->line)
    line->enqueued.fetch_add(frame_cost(size + TxBurst::icrc_bytes), std::memory_order_relaxed);
  ++e_.counters_.sent_pkts;
  e_.counters_.sent_bytes += size;
}

// --- unreliable connected: IBTA 9.8.2.2

void Responder::receive_unreliable(const RxFrame& f) {
  const wire::Packet& p = f.packet;
  const wire::OpcodeInfo& info = p.info();
  ResponderState& r = q_.resp;
  bool in_sequence = p.bth.psn == r.expected;
  if (!in_sequence) ++e_.counters_.out_of_sequence;
  r.expected = p.bth.psn;  // the execution moves it on
  if (info.starts()) {
    // A message that was cut short leaves its receive WQE to the next one.
    r.dropping = false;
    r.previous = {};
  } else if (!in_sequence || r.dropping) {
    r.dropping = true;
    r.previous = {};
    r.expected = r.expected + 1;
    ++e_.counters_.drop_psn;
    return;
  }
  Verdict v = admit(p);
  if (v == Verdict::ok) return;
  r.dropping = true;
  r.previous = {};
  r.expected = p.bth.psn + 1;
  //= IBTA 9.9.3.1.2: an unreliable responder drops the message; its own receive WQE's faults are
  // local errors
  if (v == Verdict::message_too_long || v == Verdict::receive_protection) {
    fail_receive(v == Verdict::message_too_long ? WcStatus::loc_len_err : WcStatus::loc_prot_err);
    e_.to_error(q_, AsyncEvent::qp_fatal, false);
    return;
  }
  if (v != Verdict::no_receive) ++e_.counters_.drop_sequence;
}

// --- datagrams: IBTA 9.8.3.2

void Responder::receive_datagram(const RxFrame& f) {
  const wire::Packet& p = f.packet;
  if (p.deth.qkey != q_.attr.qkey) {
    ++e_.counters_.drop_qkey;
    return;
  }
  if (p.payload.size() > q_.mtu) {
    ++e_.counters_.drop_length;
    return;
  }
  if (!open_receive_of_datagram()) return;
  if (grh_bytes + p.payload.size() > q_.resp.recv.length) {  // the WQE stays for the next
    ++e_.counters_.drop_length;
    return;
  }
  deliver_datagram(f);
}

void Responder::deliver_datagram(const RxFrame& f) {
  const wire::Packet& p = f.packet;
  ResponderState& r = q_.resp;
  std::uint8_t header[grh_bytes];
  auto pad = static_cast<std::uint32_t>(wire::pad_of(p.payload.size()));
  write_network_header(
      f, p.info().header_bytes + static_cast<std::uint32_t>(p.payload.size()) + pad + 4, header);
  SgStatus s = scatter(e_.keys_, q_.receive_pd(), r.recv.list(), 0, header, grh_bytes);
  if (s == SgStatus::ok)
    s = scatter(e_.keys_, q_.receive_pd(), r.recv.list(), grh_bytes, p.payload.data(),
                p.payload.size());
  if (s != SgStatus::ok) {
    if (s == SgStatus::fault) ++e_.counters_.memory_faults;
    fail_receive(WcStatus::loc_prot_err);
    e_.to_error(q_, AsyncEvent::qp_fatal, false);
    return;
  }
  Cqe c;
  c.wr_id = r.recv.wr_id;
  c.opcode = WcOpcode::recv;
  c.byte_len = static_cast<std::uint32_t>(grh_bytes + p.payload.size());
  c.wc_flags = wc_grh;
  if (e_.config_.sl_tells_header) c.sl = header_type(f);
  if (p.info().has(wire::ext_imm_dt)) c.wc_flags |= wc_with_imm, c.imm_or_rkey = p.imm.data;
  c.src_qp = p.deth.src_qp;
  r.recv_open = false;
  ++e_.counters_.recvs;
  e_.complete(q_, *q_.recv_cq, c, p.bth.solicited);
}

// --- raw packets: the whole frame, without its FCS and perhaps its VLAN tag

void Responder::receive_ethernet(const RxFrame& f) {
  const RawFrame frame(f.packet.payload, q_.strip_vlan);
  if (!open_receive_of_datagram()) return;
  ResponderState& r = q_.resp;
  const SgStatus s = frame.scatter_to(e_.keys_, q_.receive_pd(), r.recv);
  if (s != SgStatus::ok) {
    if (s == SgStatus::fault) ++e_.counters_.memory_faults;
    fail_receive(s == SgStatus::too_short ? WcStatus::loc_len_err : WcStatus::loc_prot_err);
    e_.to_error(q_, AsyncEvent::qp_fatal, true);
    return;
  }
  Cqe c;
  c.wr_id = r.recv.wr_id;
  c.opcode = WcOpcode::recv;
  c.byte_len = static_cast<std::uint32_t>(frame.size());
  c.cvlan = frame.cvlan;
  r.recv_open = false;
  ++e_.counters_.recvs;
  e_.complete(q_, *q_.recv_cq, c, false);
}

}  // namespace adverb::engine
