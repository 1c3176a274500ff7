// SPDX-License-Identifier: Apache-2.0
// The transport headers of InfiniBand and RoCEv2 as plain values in host byte order (IBTA vol. 1,
// chapter 9 and the "Data packet format" tables; annex A17 for RoCEv2; annex A19 for FLUSH and
// ATOMIC WRITE). Where each member stands on the wire is said once, in header_layouts.hpp.
#pragma once

#include <cstdint>

#include "base/types.hpp"
#include "wire/opcode.hpp"

namespace adverb::wire {

// Base transport header, 12 bytes.  Reserved bits are sent as zero and ignored on receive.
struct Bth {
  Opcode opcode{};
  bool solicited{};
  bool mig_req{true};  // always set: we are never in migration (annex A17)
  std::uint8_t pad_count{};
  std::uint8_t tver{};
  std::uint16_t pkey{0xffff};
  bool fecn{}, becn{};
  Qpn dest_qp{};
  bool ack_request{};
  Psn psn{};
  friend bool operator==(const Bth&, const Bth&) = default;
};

struct Reth {  // RDMA extended transport header, 16 bytes
  std::uint64_t va{};
  std::uint32_t rkey{};
  std::uint32_t dma_length{};
  friend bool operator==(const Reth&, const Reth&) = default;
};

struct Aeth {  // ACK extended transport header, 4 bytes: see aeth.hpp for the syndrome
  std::uint8_t syndrome{};
  std::uint32_t msn{};  // 24 bits
  friend bool operator==(const Aeth&, const Aeth&) = default;
};

struct AtomicEth {  // 28 bytes
  std::uint64_t va{};
  std::uint32_t rkey{};
  std::uint64_t swap_add{};
  std::uint64_t compare{};
  friend bool operator==(const AtomicEth&, const AtomicEth&) = default;
};

struct AtomicAckEth {  // 8 bytes
  std::uint64_t original{};
  friend bool operator==(const AtomicAckEth&, const AtomicAckEth&) = default;
};

struct Deth {  // datagram extended transport header, 8 bytes
  std::uint32_t qkey{};
  Qpn src_qp{};
  friend bool operator==(const Deth&, const Deth&) = default;
};

struct ImmDt {  // 4 bytes; the value of the big-endian word (the verbs API has it in network order)
  std::uint32_t data{};
  friend bool operator==(const ImmDt&, const ImmDt&) = default;
};

struct Ieth {  // invalidate extended transport header, 4 bytes
  std::uint32_t rkey{};
  friend bool operator==(const Ieth&, const Ieth&) = default;
};

struct XrcEth {          // 4 bytes
  std::uint32_t srqn{};  // 24 bits
  friend bool operator==(const XrcEth&, const XrcEth&) = default;
};

struct Feth {                     // FLUSH extended transport header, annex A19, 4 bytes
  std::uint8_t selectivity{};     // 2 bits: 0 memory region range, 1 whole memory region
  std::uint8_t placement_type{};  // 4 bits: bit 0 global visibility, bit 1 persistence
  friend bool operator==(const Feth&, const Feth&) = default;
};

struct Lrh {  // local route header, native InfiniBand, 8 bytes
  std::uint8_t vl{}, lver{}, sl{}, lnh{};
  std::uint16_t dlid{};
  std::uint16_t length{};  // 11 bits: in 4-byte words, from LRH to before the VCRC
  std::uint16_t slid{};
  friend bool operator==(const Lrh&, const Lrh&) = default;
};

struct Grh {  // global route header, native InfiniBand and RoCE v1, 40 bytes
  std::uint8_t ip_version{6}, traffic_class{};
  std::uint32_t flow_label{};
  std::uint16_t payload_length{};
  std::uint8_t next_header{0x1b}, hop_limit{};
  Gid sgid{}, dgid{};
  friend bool operator==(const Grh&, const Grh&) = default;
};

}  // namespace adverb::wire
