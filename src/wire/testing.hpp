// SPDX-License-Identifier: Apache-2.0
// For tests only: packets of a given opcode with random fields, and the bytes of a whole transport
// packet in a buffer of exactly its size, so that AddressSanitizer sees every read beyond it.
#pragma once

#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "wire/icrc.hpp"
#include "wire/packet.hpp"

namespace adverb::wire::testing {

using Bytes = std::vector<std::uint8_t>;
using Random = std::mt19937_64;

inline std::vector<Opcode> legal_opcodes() {
  std::vector<Opcode> all;
  for (unsigned b = 0; b < 256; ++b)
    if (opcodes[b]) all.push_back(Opcode{static_cast<std::uint8_t>(b)});
  return all;
}

inline Bytes random_bytes(Random& random, std::size_t n) {
  Bytes b(n);
  for (auto& x : b) x = static_cast<std::uint8_t>(random());
  return b;
}

// Every header that the opcode has gets random fields; the others keep their defaults.  `payload`
// must outlive the packet.
inline Packet random_packet(Opcode opcode, Random& random, std::span<const std::uint8_t> payload) {
  auto u8 = [&] { return static_cast<std::uint8_t>(random()); };
  auto u24 = [&] { return static_cast<std::uint32_t>(random() & 0xffffff); };
  auto u32 = [&] { return static_cast<std::uint32_t>(random()); };
  Packet p;
  const OpcodeInfo& op = info_of(opcode);
  p.bth = {.opcode = opcode,
           .solicited = (random() & 1) != 0,
           .mig_req = true,
           .pad_count = static_cast<std::uint8_t>(pad_of(payload.size())),
           .pkey = static_cast<std::uint16_t>(random()),
           .fecn = (random() & 1) != 0,
           .becn = (random() & 1) != 0,
           .dest_qp = Qpn(u24()),
           .ack_request = (random() & 1) != 0,
           .psn = Psn(u24())};
  if (op.has(ext_xrceth)) p.xrc = {u24()};
  if (op.has(ext_deth)) p.deth = {u32(), Qpn(u24())};
  if (op.has(ext_feth))
    p.feth = {static_cast<std::uint8_t>(random() & 3), static_cast<std::uint8_t>(random() & 15)};
  if (op.has(ext_reth)) p.reth = {random(), u32(), u32()};
  if (op.has(ext_atomic_eth)) p.atomic = {random(), u32(), random(), random()};
  if (op.has(ext_aeth)) p.aeth = {u8(), u24()};
  if (op.has(ext_atomic_ack_eth)) p.atomic_ack = {random()};
  if (op.has(ext_imm_dt)) p.imm = {u32()};
  if (op.has(ext_ieth)) p.ieth = {u32()};
  p.payload = payload;
  return p;
}

// BTH to pad.
inline Bytes bytes_of(const Packet& p) {
  Bytes b(max_header_bytes);
  b.resize(encode_headers(p, b.data()));
  b.insert(b.end(), p.payload.begin(), p.payload.end());
  b.insert(b.end(), p.bth.pad_count, 0);
  return b;
}

// BTH to ICRC.
inline Bytes with_icrc(const Packet& p, const IcrcPath& path, std::uint16_t identification) {
  Bytes b = bytes_of(p);
  std::uint32_t icrc = IcrcPrefix(path, b.size()).icrc(b, identification);
  for (int i = 0; i < 4; ++i) b.push_back(static_cast<std::uint8_t>(icrc >> 8 * i));
  return b;
}

// A copy on the heap without a byte to spare.
class Exact {
 public:
  explicit Exact(std::span<const std::uint8_t> b)
      : data_(new std::uint8_t[b.size()]), size_(b.size()) {
    if (!b.empty()) std::memcpy(data_.get(), b.data(), b.size());
  }
  operator std::span<const std::uint8_t>() const { return {data_.get(), size_}; }

 private:
  std::unique_ptr<std::uint8_t[]> data_;
  std::size_t size_;
};

}  // namespace adverb::wire::testing
