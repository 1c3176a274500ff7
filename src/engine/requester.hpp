// SPDX-License-Identifier: Apache-2.0
// The requester: turns posted send WQEs into packets (IBTA 9.7.2, 9.7.3, 9.8, 9.8.3 for datagrams).
// It owns the `sent` cursor; everything that moves it back is here too.
#pragma once

#include "engine/engine.hpp"

namespace adverb::engine {

class Requester {
 public:
  Requester(Engine& engine, QueuePair& qp) : e_(engine), q_(qp) {}

  // Builds at most `limit` request packets, until the burst is full, or nothing may be sent now.
  // True: it stopped for want of room only, give it another turn.
  bool send(Instant now, TxBurst&, unsigned limit);

  // Go-back-N: the next packet is the oldest unacknowledged one (completer's una).
  void rewind();
  // Moves forward after an acknowledgement overtook a rewound cursor.
  void skip_acknowledged();
  // Gives a share of the window back; when for an acknowledgement, the window grows.
  void release(std::uint64_t cost);
  void acknowledged(std::uint64_t cost);
  // The same for all that is on its way, responses that were asked for included.
  void release_all();
  // Halves the destination's window, once per window of losses.
  void note_loss();

  static std::uint32_t packets_of(const SendWqe&, std::uint32_t mtu);
  static bool needs_response(WrOpcode);  // READ, atomics, FLUSH, ATOMIC WRITE
  static bool consumes_receive(WrOpcode);
  static bool is_local(WrOpcode);  // LOCAL_INV, BIND_MW: no packet, hence no PSN
  // What one packet of the WQE counts against the window.
  std::uint64_t cost_of(const SendWqe&) const;
  // One past the last packet of the READ request that packet k of the WQE belongs to.
  std::uint32_t chunk_end(const SendWqe&, std::uint32_t k) const;
  std::uint64_t response_bytes(const SendWqe&, std::uint32_t from, std::uint32_t to) const;

 private:
  enum class Gate { open, wait_event, wait_room };
  Gate gate(SendWqe&);
  Gate gate_start(const SendWqe&) const;
  Gate gate_room(const SendWqe&);
  Gate gate_credit(const SendWqe&, const CreditLine&);
  CreditLine* line_for(const SendWqe&) const;
  void start(SendWqe&);
  bool supported(WrOpcode) const;
  bool emit(TxBurst&, SendWqe&);
  bool emit_payload(TxBurst&, SendWqe&);
  bool emit_read(TxBurst&, SendWqe&);
  bool emit_single(TxBurst&, SendWqe&);
  bool emit_ethernet(TxBurst&, SendWqe&);
  std::size_t room_of(const SendWqe&) const;
  bool emit_datagram(TxBurst&, SendWqe&);
  bool execute_local(SendWqe&);
  WcStatus fetch(std::uint64_t offset, std::uint8_t* to, std::uint32_t n) const;
  void commit(TxBurst&, wire::Packet&, std::uint32_t payload, const AddressVector&, Qpn dest);
  void advance(SendWqe&, std::uint32_t psns);
  void request_ack(TxBurst&);
  bool wants_ack(const SendWqe&, bool last) const;
  void fail(WcStatus);
  void complete_unacknowledged();
  void seek(Psn);

  Engine& e_;
  QueuePair& q_;
};

}  // namespace adverb::engine
