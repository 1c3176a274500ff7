// SPDX-License-Identifier: Apache-2.0
// The opcode table (IBTA vol. 1, "BTH opcode encoding"; annexes A17, A19): 25 operations and five
// transports give all that is legal in the first byte of a BTH.  Everything else about an opcode
// (its headers, where they lie, what may follow it, its name) is derived from a row here.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace adverb::wire {

enum class Opcode : std::uint8_t {
};  // the raw byte: transport in the top three bits, operation below
inline constexpr Opcode cnp_opcode{0x81};  // congestion notification packet (annex A17)

// Extension headers in wire order.
enum Ext : std::uint16_t {
  ext_rdeth = 1 << 0,
  ext_xrceth = 1 << 1,
  ext_deth = 1 << 2,
  ext_feth = 1 << 3,
  ext_reth = 1 << 4,
  ext_atomic_eth = 1 << 5,
  ext_aeth = 1 << 6,
  ext_atomic_ack_eth = 1 << 7,
  ext_imm_dt = 1 << 8,
  ext_ieth = 1 << 9,
};
inline constexpr std::array<std::uint8_t, 10> ext_size{4, 4, 8, 4, 16, 28, 4, 8, 4, 4};

// Bytes taken by the members of `set` that precede `below` on the wire.
constexpr unsigned ext_bytes(unsigned set, unsigned below = ~0u) {
  unsigned n = 0;
  for (unsigned i = 0; i < ext_size.size() && (1u << i) < below; ++i)
    if (set & (1u << i)) n += ext_size[i];
  return n;
}

enum class Place : std::uint8_t { first, middle, last, only };  // of the packet in its message
enum class Verb : std::uint8_t {
  none,
  send,
  write,
  read,
  read_response,
  ack,
  atomic,
  atomic_ack,
  flush,
  atomic_write,
  cnp,
};
enum class Transport : std::uint8_t { rc = 0, uc = 1, rd = 2, ud = 3, cnp = 4, xrc = 5 };

// The low five bits.
enum class Operation : std::uint8_t {
  send_first = 0,
  send_middle = 1,
  send_last = 2,
  send_last_imm = 3,
  send_only = 4,
  send_only_imm = 5,
  write_first = 6,
  write_middle = 7,
  write_last = 8,
  write_last_imm = 9,
  write_only = 10,
  write_only_imm = 11,
  read_request = 12,
  read_response_first = 13,
  read_response_middle = 14,
  read_response_last = 15,
  read_response_only = 16,
  acknowledge = 17,
  atomic_acknowledge = 18,
  compare_swap = 19,
  fetch_add = 20,
  send_last_invalidate = 22,
  send_only_invalidate = 23,
  flush = 28,
  atomic_write = 29,
};

struct OperationRow {
  Operation code;
  Verb verb;
  Place place;
  std::uint16_t ext;
  bool payload;
  std::string_view name;
};
inline constexpr std::array operations = std::to_array<OperationRow>({
    {Operation::send_first, Verb::send, Place::first, 0, true, "SEND_FIRST"},
    {Operation::send_middle, Verb::send, Place::middle, 0, true, "SEND_MIDDLE"},
    {Operation::send_last, Verb::send, Place::last, 0, true, "SEND_LAST"},
    {Operation::send_last_imm, Verb::send, Place::last, ext_imm_dt, true, "SEND_LAST_IMM"},
    {Operation::send_only, Verb::send, Place::only, 0, true, "SEND_ONLY"},
    {Operation::send_only_imm, Verb::send, Place::only, ext_imm_dt, true, "SEND_ONLY_IMM"},
    {Operation::write_first, Verb::write, Place::first, ext_reth, true, "WRITE_FIRST"},
    {Operation::write_middle, Verb::write, Place::middle, 0, true, "WRITE_MIDDLE"},
    {Operation::write_last, Verb::write, Place::last, 0, true, "WRITE_LAST"},
    {Operation::write_last_imm, Verb::write, Place::last, ext_imm_dt, true, "WRITE_LAST_IMM"},
    {Operation::write_only, Verb::write, Place::only, ext_reth, true, "WRITE_ONLY"},
    {Operation::write_only_imm, Verb::write, Place::only, ext_reth | ext_imm_dt, true,
     "WRITE_ONLY_IMM"},
    {Operation::read_request, Verb::read, Place::only, ext_reth, false, "READ_REQUEST"},
    {Operation::read_response_first, Verb::read_response, Place::first, ext_aeth, true,
     "READ_RESPONSE_FIRST"},
    {Operation::read_response_middle, Verb::read_response, Place::middle, 0, true,
     "READ_RESPONSE_MIDDLE"},
    {Operation::read_response_last, Verb::read_response, Place::last, ext_aeth, true,
     "READ_RESPONSE_LAST"},
    {Operation::read_response_only, Verb::read_response, Place::only, ext_aeth, true,
     "READ_RESPONSE_ONLY"},
    {Operation::acknowledge, Verb::ack, Place::only, ext_aeth, false, "ACKNOWLEDGE"},
    {Operation::atomic_acknowledge, Verb::atomic_ack, Place::only, ext_aeth | ext_atomic_ack_eth,
     false, "ATOMIC_ACKNOWLEDGE"},
    {Operation::compare_swap, Verb::atomic, Place::only, ext_atomic_eth, false, "COMPARE_SWAP"},
    {Operation::fetch_add, Verb::atomic, Place::only, ext_atomic_eth, false, "FETCH_ADD"},
    {Operation::send_last_invalidate, Verb::send, Place::last, ext_ieth, true,
     "SEND_LAST_INVALIDATE"},
    {Operation::send_only_invalidate, Verb::send, Place::only, ext_ieth, true,
     "SEND_ONLY_INVALIDATE"},
    {Operation::flush, Verb::flush, Place::only, ext_feth | ext_reth, false, "FLUSH"},
    {Operation::atomic_write, Verb::atomic_write, Place::only, ext_reth, true, "ATOMIC_WRITE"},
});

// What a transport adds to every packet, and which operations it carries.  XRC requests carry the
// XRCETH, its responses do not (IBTA annex A14).
struct TransportRow {
  Transport transport;
  std::uint16_t added;
  std::uint32_t allowed;
  std::string_view name;
};
constexpr std::uint32_t operation_range(unsigned a, unsigned b) {
  return static_cast<std::uint32_t>(((std::uint64_t{1} << (b - a + 1)) - 1) << a);
}
inline constexpr std::array transports = std::to_array<TransportRow>({
    {Transport::rc, 0, operation_range(0, 20) | operation_range(22, 23) | operation_range(28, 29),
     "RC"},
    {Transport::uc, 0, operation_range(0, 11), "UC"},
    {Transport::ud, ext_deth, operation_range(4, 5), "UD"},
    {Transport::xrc, ext_xrceth,
     operation_range(0, 20) | operation_range(22, 23) | operation_range(28, 29), "XRC"},
});
constexpr bool is_response(Verb v) {
  return v == Verb::read_response || v == Verb::ack || v == Verb::atomic_ack;
}

struct OpcodeInfo {
  Verb verb{Verb::none};
  Place place{};
  Transport transport{};
  Operation operation{};
  std::uint16_t ext{};
  std::uint8_t header_bytes{};  // BTH and the extension headers
  bool payload{};               // may carry payload
  std::string_view name{};      // of the operation, without the transport
  constexpr explicit operator bool() const { return verb != Verb::none; }
  constexpr bool has(Ext e) const { return (ext & e) != 0; }
  constexpr bool starts() const { return place == Place::first || place == Place::only; }
  constexpr bool ends() const { return place == Place::last || place == Place::only; }
};

consteval auto make_opcodes() {
  std::array<OpcodeInfo, 256> t{};
  for (auto& tr : transports)
    for (auto& op : operations)
      if (tr.allowed >> static_cast<unsigned>(op.code) & 1) {
        auto added = tr.transport == Transport::xrc && is_response(op.verb) ? 0 : tr.added;
        auto ext = static_cast<std::uint16_t>(added | op.ext);
        auto& row = t[static_cast<unsigned>(tr.transport) << 5 | static_cast<unsigned>(op.code)];
        row.verb = op.verb;
        row.place = op.place;
        row.transport = tr.transport;
        row.operation = op.code;
        row.ext = ext;
        row.header_bytes = static_cast<std::uint8_t>(12 + ext_bytes(ext));
        row.payload = op.payload;
        row.name = op.name;
      }
  auto& cnp = t[static_cast<unsigned>(cnp_opcode)];  // BTH and 16 reserved bytes
  cnp.verb = Verb::cnp;
  cnp.place = Place::only;
  cnp.transport = Transport::cnp;
  cnp.header_bytes = 12;
  cnp.payload = true;
  cnp.name = "CNP";
  return t;
}
inline constexpr auto opcodes = make_opcodes();

constexpr const OpcodeInfo& info_of(Opcode o) { return opcodes[static_cast<std::uint8_t>(o)]; }
constexpr Opcode opcode_of(Transport t, Operation o) {
  return Opcode(
      static_cast<std::uint8_t>(static_cast<unsigned>(t) << 5 | static_cast<unsigned>(o)));
}
constexpr unsigned offset_of(const OpcodeInfo& op, Ext e) { return 12 + ext_bytes(op.ext, e); }

// May `cur` follow `prev` on one queue pair?  The whole of the opcode sequence rule for requests
// (IBTA 9.7.4.1.3 for RC, 9.8.2.1.1 for UC): a started message goes on with its own verb, and
// nothing goes on that was not started.  `prev` without a verb means that no message is open.
constexpr bool follows(const OpcodeInfo& prev, const OpcodeInfo& cur) {
  bool open = prev && !prev.ends();
  return open ? !cur.starts() && cur.verb == prev.verb : cur.starts();
}

}  // namespace adverb::wire
