// SPDX-License-Identifier: Apache-2.0
#include "sim/trace.hpp"

#include <cstring>

#include "wire/aeth.hpp"
#include "wire/layout.hpp"

namespace adverb::sim {

using wire::Verb;

void Trace::write(Picoseconds now, const std::string& text) {
  fmt::print(lines, "{:>13.3f} us  {}\n", static_cast<double>(now) / 1e6, text);
}

void Trace::begin_pcap() {
  std::uint8_t header[wire::pcap_file_header_bytes];
  std::fwrite(header, 1, wire::pcap_header(header, wire::LinkType::ethernet), pcap);
}

void Trace::capture(Picoseconds now, const wire::IpPath& path,
                    std::span<const std::uint8_t> transport) {
  constexpr std::size_t mac_bytes = 14;
  std::uint8_t head[wire::pcap_record_header_bytes + mac_bytes + 48] = {};
  const std::size_t bytes = mac_bytes + wire::ip_udp_bytes(path) + transport.size();
  std::uint8_t* at = head + wire::pcap_record_header(head, now / 1000, bytes);
  at[0] = at[6] = 2;  // locally administered; the last byte is the host's
  at[5] = path.destination.bytes[15];
  at[11] = path.source.bytes[15];
  wire::store_be16(at + 12, path.source.is_v4() ? 0x0800 : 0x86dd);
  at += mac_bytes;
  at += wire::put_ip_udp(at, path, transport);
  std::fwrite(head, 1, static_cast<std::size_t>(at - head), pcap);
  std::fwrite(transport.data(), 1, transport.size(), pcap);
}

std::string describe(const wire::Packet& p) {
  const wire::OpcodeInfo& info = p.info();
  std::string s =
      fmt::format("{} psn {:#08x} to qp {:#08x}{}{}", info.name, p.bth.psn.raw(),
                  p.bth.dest_qp.raw(), p.bth.ack_request ? " A" : "", p.bth.solicited ? " S" : "");
  if (!p.payload.empty()) s += fmt::format(", {} bytes", p.payload.size());
  if (info.has(wire::ext_reth))
    s += fmt::format(", va {:#x} rkey {:#x} length {}", p.reth.va, p.reth.rkey, p.reth.dma_length);
  if (info.has(wire::ext_atomic_eth))
    s += fmt::format(", va {:#x} rkey {:#x}", p.atomic.va, p.atomic.rkey);
  if (info.has(wire::ext_imm_dt)) s += fmt::format(", imm {:#x}", p.imm.data);
  if (info.has(wire::ext_aeth)) {
    const unsigned value = wire::aeth_value(p.aeth.syndrome);
    switch (wire::aeth_kind(p.aeth.syndrome)) {
      case wire::AethKind::ack:
        s += fmt::format(", ACK msn {}", p.aeth.msn);
        break;
      case wire::AethKind::rnr_nak:
        s += fmt::format(", RNR NAK timer {} msn {}", value, p.aeth.msn);
        break;
      default:
        s += fmt::format(", NAK {} msn {}", value, p.aeth.msn);
    }
  }
  return s;
}

const char* name_of(engine::WcStatus status) {
  constexpr const char* names[] = {
      "SUCCESS",        "LOC_LEN_ERR", "LOC_QP_OP_ERR", "LOC_EEC_OP_ERR",   "LOC_PROT_ERR",
      "WR_FLUSH_ERR",   "MW_BIND_ERR", "BAD_RESP_ERR",  "LOC_ACCESS_ERR",   "REM_INV_REQ_ERR",
      "REM_ACCESS_ERR", "REM_OP_ERR",  "RETRY_EXC_ERR", "RNR_RETRY_EXC_ERR"};
  const auto i = static_cast<std::size_t>(status);
  return i < std::size(names) ? names[i] : "(another status)";
}

const char* name_of(engine::WrOpcode opcode) {
  switch (opcode) {
    case engine::WrOpcode::rdma_write:
      return "RDMA_WRITE";
    case engine::WrOpcode::rdma_write_with_imm:
      return "RDMA_WRITE_WITH_IMM";
    case engine::WrOpcode::send:
      return "SEND";
    case engine::WrOpcode::send_with_imm:
      return "SEND_WITH_IMM";
    case engine::WrOpcode::rdma_read:
      return "RDMA_READ";
    case engine::WrOpcode::atomic_cmp_and_swp:
      return "ATOMIC_CMP_AND_SWP";
    case engine::WrOpcode::atomic_fetch_and_add:
      return "ATOMIC_FETCH_AND_ADD";
    case engine::WrOpcode::send_with_inv:
      return "SEND_WITH_INV";
    case engine::WrOpcode::flush:
      return "FLUSH";
    case engine::WrOpcode::atomic_write:
      return "ATOMIC_WRITE";
    default:
      return "(another opcode)";
  }
}

}  // namespace adverb::sim
