// SPDX-License-Identifier: Apache-2.0
// The responder: checks and executes requests in order, and owes answers
// (IBTA 9.7.4, 9.7.5, 9.8.2, 9.8.3, 9.9.3).
#pragma once

#include "engine/engine.hpp"

namespace adverb::engine {

// What becomes of a request packet.  The meaning of each is one row of a table in responder.cpp.
enum class Verdict : std::uint8_t {
  ok,
  out_of_sequence,     // PSN ahead of the expected one
  invalid_opcode,      // not allowed after the previous one, or by the QP's configuration
  invalid_length,      // a packet's or message's length is wrong
  message_too_long,    // for the receive WQE
  misaligned,          // atomics
  wrong_srq,           // XRC: none of that number in the target's XRC domain
  too_many_reads,      // no responder resource
  no_receive,          // RNR
  remote_access,       // rkey, rights or range
  memory_fault,        // the application took the target memory away
  receive_protection,  // the receive WQE's own list is bad
  invalidate_failed,   // SEND_WITH_INV of a key that may not be invalidated
  operational,         // the responder itself cannot
};

class Responder {
 public:
  Responder(Engine& engine, QueuePair& qp) : e_(engine), q_(qp) {}

  void receive(const RxFrame&);       // a request
  void note_congestion(Instant now);  // a packet that had CE in its IP header
  // Builds what is owed: CNP, responses, then ACK or NAK.  True: stopped for want of room in the
  // burst.
  bool respond(TxBurst&);
  bool owes() const;

 private:
  void receive_reliable(const RxFrame&);
  void receive_unreliable(const RxFrame&);
  void receive_datagram(const RxFrame&);
  void receive_ethernet(const RxFrame&);
  void duplicate(const wire::Packet&);
  bool replay_read(const wire::Packet&, ResponderResource&, std::uint32_t index);

  Verdict admit(const wire::Packet&);
  Verdict check_operation(const wire::OpcodeInfo&) const;
  Verdict check_length(const wire::Packet&, const wire::OpcodeInfo&) const;
  Verdict bind_srq(const wire::Packet&, const wire::OpcodeInfo&);
  Verdict execute(const wire::Packet&, const wire::OpcodeInfo&);
  Verdict execute_send(const wire::Packet&, const wire::OpcodeInfo&);
  Verdict execute_write(const wire::Packet&, const wire::OpcodeInfo&);
  Verdict execute_read(const wire::Packet&);
  Verdict execute_atomic(const wire::Packet&, const wire::OpcodeInfo&);
  Verdict execute_flush(const wire::Packet&);
  Verdict execute_atomic_write(const wire::Packet&);
  // What a request may reach with its rkey.
  std::expected<Grant, KeyError> target(std::uint32_t rkey, std::uint64_t va, std::uint64_t length,
                                        std::uint32_t access) const {
    return e_.keys_.resolve(rkey, q_.pd, va, length, access, q_.qpn);
  }
  Verdict open_receive();
  bool open_receive_of_datagram();
  void complete_receive(const wire::Packet&, const wire::OpcodeInfo&);
  void refuse(Verdict, const wire::Packet&);
  void refuse_with(std::uint8_t syndrome, const wire::Packet&);
  void fail_receive(WcStatus);
  void deliver_datagram(const RxFrame&);
  void established();

  ResponderResource* new_resource(std::uint32_t& index);
  Verdict answer(std::uint32_t resource, std::uint32_t packets);
  void queue_response(std::uint32_t resource, std::uint32_t from, std::uint32_t to);
  void replay(std::uint32_t resource, std::uint32_t from, std::uint32_t to);
  PendingResponse& pending_at(std::uint32_t cursor);
  bool emit_response(TxBurst&, PendingResponse&);
  bool emit_read_packet(TxBurst&, ResponderResource&, PendingResponse&);
  void emit_acknowledge(TxBurst&, Psn, std::uint8_t syndrome);
  void emit_cnp(TxBurst&);
  void commit(TxBurst&, wire::Packet&, std::uint32_t payload);
  std::uint8_t ack_syndrome() const;

  Engine& e_;
  QueuePair& q_;
};

}  // namespace adverb::engine
