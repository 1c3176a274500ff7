// SPDX-License-Identifier: Apache-2.0
// Raw packet queue pairs, and whole Ethernet frames on them.  What is sent on lo also reaches the
// kernel's stack, and the device itself as packets of somebody who knows no ICRC.
#include <arpa/inet.h>

#include <algorithm>

#include "verbs_calls/steps.hpp"

namespace adverb::fuzz {
namespace {

constexpr std::size_t ethernet_bytes = 14, most_header_bytes = 62;

// Writes an Ethernet header and what may stand behind it.
void write_header(std::uint8_t* to, Record& in) {
  std::fill_n(to, most_header_bytes, std::uint8_t{0});
  if (in.chance(64)) to[0] = in.byte();  // a group, or no one here
  const std::uint8_t kind = in.byte();
  std::uint8_t* type = to + 12;
  if (kind & 0x80) type[0] = 0x81, type[3] = in.byte(), type += 4;
  std::uint8_t* ip = type + 2;
  switch (kind % 5) {
    case 0:  // local experimental
      type[0] = 0x88, type[1] = 0xb5;
      break;
    case 1: {  // IPv4, UDP to RoCE's port
      type[0] = 0x08;
      const std::uint8_t header[] = {0x45, 0, 0, 60,  0, 0, 0, 0,    64, 17,   0,    0, 127,
                                     0,    0, 1, 127, 0, 0, 1, 0xc0, 0,  0x12, 0xb7, 0, 40};
      std::copy(std::begin(header), std::end(header), ip);
      if (in.chance(64)) ip[in.below(28)] = in.byte();
      for (unsigned i = 28; i < 36; ++i) ip[i] = in.byte();
      break;
    }
    case 2: {  // IPv6
      type[0] = 0x86, type[1] = 0xdd;
      ip[0] = 0x60, ip[5] = 8, ip[6] = 17, ip[7] = 64, ip[23] = ip[39] = 1;
      if (in.chance(64)) ip[in.below(40)] = in.byte();
      break;
    }
    case 3:  // RoCE v1
      type[0] = 0x89, type[1] = 0x15;
      ip[0] = 0x60, ip[6] = 0x1b;
      break;
    default:
      type[0] = in.byte(), type[1] = in.byte();
  }
}

std::uint32_t frame_length(Record& in) {
  constexpr std::uint32_t all[] = {60,    64,    74,    102,   1514,  1518,   4000,  0,
                                   1,     13,    14,    15,    18,    9014,   65535, 65536,
                                   65549, 65550, 65551, 65554, 65555, 100000, 134000};
  return in.one_of(all);
}

QpPlace* a_raw_qp(Session& s, Record& in) {
  QpPlace* p = &s.qps[in.below(4)];
  for (QpPlace& q : s.qps)
    if (!is_raw(*p) && is_raw(q)) p = &q;
  return is_raw(*p) ? p : nullptr;
}

// A list of elements in one region, which together have that length; its number of elements.
unsigned fill_list(ibv_sge (&list)[33], const MrPlace& m, std::uint8_t* at, std::uint32_t length,
                   Record& in) {
  const std::uint32_t cut = in.chance(128) ? 4080 : 1 + in.byte();
  const unsigned most = 33;
  unsigned n = 0;
  while (length && n < most) {
    const std::uint32_t left = n + 1 == most ? length : std::min(length, std::max(cut, 64u));
    const std::uint32_t part = std::min(left, 4080u);
    list[n++] = {reinterpret_cast<std::uintptr_t>(at), part, m.mr->lkey};
    length -= part;
  }
  return n;
}

ibv_qp* create_with_batch(PdPlace& pd, const ibv_qp_init_attr& a) {
  ibv_qp_init_attr_ex ex{};
  ex.send_cq = a.send_cq, ex.recv_cq = a.recv_cq, ex.srq = a.srq;
  ex.cap = a.cap, ex.qp_type = a.qp_type, ex.sq_sig_all = a.sq_sig_all;
  ex.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  ex.pd = pd.pd;
  ex.send_ops_flags = every_operation(a.qp_type);
  return ibv_create_qp_ex(pd.pd->context, &ex);
}

}  // namespace

bool is_raw(const QpPlace& p) { return p.qp && p.qp->qp_type == IBV_QPT_RAW_PACKET; }

namespace step {

void raw_qp(Session& s, Record& in) {
  QpPlace& p = s.qps[in.below(4)];
  PdPlace* pd = a_pd(s, in);
  CqPlace *send = a_cq(s, in), *receive = a_cq(s, in);
  if (p.qp || !pd || !send) return;
  SrqPlace* srq = in.chance(32) ? pick(s.srqs, &SrqPlace::srq, in) : nullptr;
  const bool sane = in.chance(230);
  ibv_qp_init_attr a{};
  a.send_cq = send->cq, a.recv_cq = receive->cq, a.srq = srq ? srq->srq : nullptr;
  a.cap = {sane ? 8 : size(in), sane ? 8 : size(in), sane ? 32 : size(in) % 64, 4, in.byte()};
  a.qp_type = IBV_QPT_RAW_PACKET;
  a.sq_sig_all = in.byte() & 1;
  const bool extended = in.chance(96);  // has memory for a batch
  p.qp = made([&] { return extended ? create_with_batch(*pd, a) : ibv_create_qp(pd->pd, &a); });
  const ibv_context* c = pd->pd->context;
  const bool foreign = send->cq->context != c || receive->cq->context != c ||
                       (srq && (srq->srq->context != c || srq->xrcd));
  const bool starved = extended && gives_no_memory(*pd);
  ibv_device_attr device;
  REQUIRE(ibv_query_device(pd->pd->context, &device) == 0);
  if (!p.qp) return REQUIRE(!sane || foreign || starved || device.max_raw_ethy_qp == 0);
  REQUIRE(!foreign && !starved && device.max_raw_ethy_qp > 0);
  p.ex = extended ? ibv_qp_to_qp_ex(p.qp) : nullptr;
  p.pd = pd, p.send = send, p.receive = receive, p.srq = srq;
  p.sig_all = a.sq_sig_all;
  p.serial = ++s.serials;
  s.count(p, 1);
  const unsigned as_far_as = in.chance(230) ? unsigned{IBV_QPS_RTS} : in.below(3);
  for (unsigned state = IBV_QPS_INIT; state <= as_far_as; ++state) {
    ibv_qp_attr to{};
    to.qp_state = any<ibv_qp_state>(state), to.port_num = 1;
    const int mask = IBV_QP_STATE | (state == IBV_QPS_INIT ? IBV_QP_PORT : 0);
    REQUIRE(ibv_modify_qp(p.qp, &to, mask) == 0);
  }
}

void frame(Session& s, Record& in) {
  QpPlace* p = a_raw_qp(s, in);
  MrPlace* m = pick(s.mrs, &MrPlace::mr, in);
  if (!p || !m) return;
  std::uint8_t* at = inside(in);
  const std::uint32_t length = frame_length(in);
  ibv_sge list[33]{};
  ibv_send_wr wr{}, *bad = nullptr;
  wr.num_sge = static_cast<int>(fill_list(list, *m, at, length, in));
  wr.wr_id = s.next_id();
  wr.sg_list = list;
  wr.opcode = IBV_WR_SEND;
  wr.send_flags = in.below(16) & ~IBV_SEND_INLINE;
  if (in.chance(32)) wr.send_flags |= IBV_SEND_INLINE;
  write_header(at, in);
  const ibv_qp_attr before = current(*p);
  const int error = checked(ibv_post_send(p->qp, &wr, &bad));
  if (length < ethernet_bytes || before.qp_state < IBV_QPS_RTS) REQUIRE(error != 0);
  REQUIRE(!error || bad == &wr);
  if (!error) s.enter(p->serial, false, p->sig_all || wr.send_flags & IBV_SEND_SIGNALED);
}

// What a frame may need: elements that are long together, or short.
void frame_receive(Session& s, Record& in) {
  QpPlace* p = a_raw_qp(s, in);
  MrPlace* m = pick(s.mrs, &MrPlace::mr, in);
  if (!p || !m || p->srq) return;
  ibv_sge list[4]{};
  for (ibv_sge& e : list)
    e = {reinterpret_cast<std::uintptr_t>(inside(in)), in.chance(128) ? 2000u : in.byte(),
         m->mr->lkey};
  ibv_recv_wr wr{s.next_id(), nullptr, list, static_cast<int>(in.below(5))}, *bad = nullptr;
  const bool reset = current(*p).qp_state == IBV_QPS_RESET;
  const int error = checked(ibv_post_recv(p->qp, &wr, &bad));
  REQUIRE(error ? bad == &wr : !reset);
  if (!error) s.enter(p->serial, true, true);
}

}  // namespace step
}  // namespace adverb::fuzz
