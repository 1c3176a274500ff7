// SPDX-License-Identifier: Apache-2.0
// Writes frames of every opcode for referees.py: DIR/roce.pcap (IPv4 and IPv6), DIR/native.pcap
// (with and without GRH) and DIR/frames.json, which says what was put into each, in the order of
// the files.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "wire/native.hpp"
#include "wire/pcap.hpp"
#include "wire/testing.hpp"

namespace {

using namespace adverb;
using namespace adverb::wire;
using namespace adverb::wire::testing;

class File {
 public:
  explicit File(const std::string& path) : file_(std::fopen(path.c_str(), "wb")) {
    if (!file_) {
      std::perror(path.c_str());
      std::exit(1);
    }
  }
  ~File() {
    if (std::fclose(file_) != 0) std::abort();
  }
  void write(std::span<const std::uint8_t> b) {
    if (std::fwrite(b.data(), 1, b.size(), file_) != b.size()) std::abort();
  }
  void write(const std::string& s) {
    write({reinterpret_cast<const std::uint8_t*>(s.data()), s.size()});
  }

 private:
  std::FILE* file_;
};

std::string hex(std::span<const std::uint8_t> bytes) {
  std::string s;
  for (std::uint8_t b : bytes) {
    s += "0123456789abcdef"[b >> 4];
    s += "0123456789abcdef"[b & 15];
  }
  return s;
}

// One flat JSON object, built member by member.
class Object {
 public:
  void add(const char* name, std::uint64_t value) { add_raw(name, std::to_string(value)); }
  void add(const char* name, std::string_view value) {
    add_raw(name, '"' + std::string(value) + '"');
  }
  std::string text() const { return "{" + text_ + "}"; }

 private:
  void add_raw(const char* name, const std::string& value) {
    if (!text_.empty()) text_ += ", ";
    text_ += '"' + std::string(name) + "\": " + value;
  }
  std::string text_;
};

void describe(Object& o, const Packet& p) {
  const OpcodeInfo& op = p.info();
  o.add("opcode", static_cast<std::uint8_t>(p.bth.opcode));
  o.add("name", op.name);
  o.add("transport", static_cast<unsigned>(op.transport));
  o.add("se", p.bth.solicited);
  o.add("m", p.bth.mig_req);
  o.add("pad", p.bth.pad_count);
  o.add("pkey", p.bth.pkey);
  o.add("fecn", p.bth.fecn);
  o.add("becn", p.bth.becn);
  o.add("destqp", p.bth.dest_qp.raw());
  o.add("a", p.bth.ack_request);
  o.add("psn", p.bth.psn.raw());
  if (op.has(ext_xrceth)) o.add("xrcsrq", p.xrc.srqn);
  if (op.has(ext_deth)) o.add("qkey", p.deth.qkey), o.add("srcqp", p.deth.src_qp.raw());
  if (op.has(ext_feth)) o.add("sel", p.feth.selectivity), o.add("plt", p.feth.placement_type);
  if (op.has(ext_reth))
    o.add("va", p.reth.va), o.add("rkey", p.reth.rkey), o.add("dmalen", p.reth.dma_length);
  if (op.has(ext_atomic_eth)) {
    o.add("va", p.atomic.va), o.add("rkey", p.atomic.rkey);
    o.add("swap", p.atomic.swap_add), o.add("compare", p.atomic.compare);
  }
  if (op.has(ext_aeth)) o.add("syndrome", p.aeth.syndrome), o.add("msn", p.aeth.msn);
  if (op.has(ext_atomic_ack_eth)) o.add("original", p.atomic_ack.original);
  if (op.has(ext_imm_dt)) o.add("imm", p.imm.data);
  if (op.has(ext_ieth)) o.add("ieth", p.ieth.rkey);
  o.add("payload", hex(p.payload));
}

// Payload lengths: none, every pad count, a whole path MTU.
std::vector<std::size_t> payload_sizes(const OpcodeInfo& op) {
  if (op.verb == Verb::cnp) return {16};
  if (op.verb == Verb::atomic_write) return {8};
  if (!op.payload) return {0};
  return {0, 1, 2, 3, 4, 61, 1024};
}

class Maker {
 public:
  explicit Maker(const std::string& directory)
      : roce_(directory + "/roce.pcap"),
        native_(directory + "/native.pcap"),
        json_(directory + "/frames.json") {
    std::uint8_t header[pcap_file_header_bytes];
    pcap_header(header, LinkType::raw_ip);
    roce_.write(header);
    pcap_header(header, LinkType::erf);
    native_.write(header);
  }
  ~Maker() { json_.write("[\n" + list_ + "\n]\n"); }

  void make(Opcode opcode) {
    for (std::size_t n : payload_sizes(info_of(opcode)))
      for (bool big : {false, true}) {  // IPv6, or with a GRH
        Bytes payload = info_of(opcode).verb == Verb::cnp ? Bytes(16) : random_bytes(random_, n);
        Packet p = random_packet(opcode, random_, payload);
        put_roce(p, big);
        put_native(p, big);
      }
  }

 private:
  Gid random_gid(bool v6) {
    Gid g = Gid::from_v4(static_cast<std::uint32_t>(random_()) | 0x0a);
    if (!v6) return g;
    for (auto& b : g.bytes) b = static_cast<std::uint8_t>(random_());
    g.bytes[0] = 0xfd;
    return g;
  }

  void put_roce(const Packet& p, bool v6) {
    static constexpr std::uint16_t identifications[]{0, 1, 0xbeef, 0xffff, 0x0100};
    IpPath path{.source = random_gid(v6),
                .destination = random_gid(v6),
                .source_port = static_cast<std::uint16_t>(0xc000 | (random_() & 0x3fff)),
                .identification = v6 ? std::uint16_t{0} : identifications[count_ % 5],
                .traffic_class = static_cast<std::uint8_t>(random_()),
                .hop_limit = static_cast<std::uint8_t>(random_() | 1),
                .flow_label = static_cast<std::uint32_t>(random_() & 0xfffff)};
    Bytes transport =
        with_icrc(p, {path.source, path.destination, path.source_port}, path.identification);
    Bytes record(pcap_record_header_bytes + ip_udp_bytes(path) + transport.size());
    record.resize(pcap_record(record.data(), ++count_ * 1000, path, transport));
    roce_.write(record);
    Object o;
    o.add("file", "roce.pcap");
    o.add("v6", v6);
    o.add("id", path.identification);
    o.add("tos", path.traffic_class);
    o.add("source_port", path.source_port);
    o.add("icrc", hex(std::span(transport).last(4)));
    add(o, p);
  }

  void put_native(const Packet& p, bool global) {
    NativeFrame f{.lrh = {.vl = static_cast<std::uint8_t>(random_() & 7),
                          .sl = static_cast<std::uint8_t>(random_() & 15),
                          .dlid = static_cast<std::uint16_t>(random_() % 0xbfff + 1),
                          .slid = static_cast<std::uint16_t>(random_() % 0xbfff + 1)},
                  .grh = {},
                  .packet = p};
    if (global)
      f.grh = Grh{.traffic_class = static_cast<std::uint8_t>(random_()),
                  .flow_label = static_cast<std::uint32_t>(random_() & 0xfffff),
                  .hop_limit = static_cast<std::uint8_t>(random_()),
                  .sgid = random_gid(true),
                  .dgid = random_gid(true)};
    Bytes frame(native_bytes(f));
    frame.resize(encode_native(f, frame.data()));
    Bytes record(pcap_record_header_bytes + erf_header_bytes + frame.size());
    pcap_native_record(record.data(), count_ * 1000, frame);
    native_.write(record);
    Object o;
    o.add("file", "native.pcap");
    o.add("vl", f.lrh.vl), o.add("sl", f.lrh.sl);
    o.add("dlid", f.lrh.dlid), o.add("slid", f.lrh.slid);
    if (global) o.add("tclass", f.grh->traffic_class), o.add("flowlabel", f.grh->flow_label);
    o.add("frame", hex(frame));
    add(o, p);
  }

  void add(Object& o, const Packet& p) {
    describe(o, p);
    if (!list_.empty()) list_ += ",\n";
    list_ += o.text();
  }

  File roce_, native_, json_;
  std::string list_;
  std::uint64_t count_{};
  Random random_{20240};
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: make_frames DIRECTORY\n");
    return 2;
  }
  Maker maker(argv[1]);
  for (Opcode opcode : legal_opcodes()) maker.make(opcode);
}
