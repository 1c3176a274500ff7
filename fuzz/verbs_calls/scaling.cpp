// SPDX-License-Identifier: Apache-2.0
// Work queues of raw packets, indirection tables, and the queue pairs that spread frames over them:
// ibv_create_wq(3), ibv_modify_wq(3), ibv_create_rwq_ind_table(3), ibv_create_qp_ex(3).
#include <algorithm>
#include <vector>

#include "verbs_calls/steps.hpp"

namespace adverb::fuzz {
namespace {

bool offered(ibv_context* c) {
  ibv_device_attr device;
  REQUIRE(ibv_query_device(c, &device) == 0);
  return device.max_raw_ethy_qp > 0;
}

void make_wq(Session& s, WqPlace& p, Record& in) {
  PdPlace* pd = a_pd(s, in);
  CqPlace* cq = a_cq(s, in);
  if (!pd || !cq) return;
  const bool sane = in.chance(220);
  ibv_wq_init_attr a{};
  a.wq_type = sane ? IBV_WQT_RQ : any<ibv_wq_type>(in.byte() & 1);
  a.max_wr = sane ? 8 : size(in), a.max_sge = sane ? 4 : size(in) % 64;
  a.pd = pd->pd, a.cq = cq->cq;
  if (in.chance(64)) a.comp_mask = IBV_WQ_INIT_ATTR_FLAGS;
  if (in.chance(128)) a.create_flags = IBV_WQ_FLAGS_CVLAN_STRIPPING;
  if (!sane && in.chance(64)) a.comp_mask = in.word(), a.create_flags = in.word();
  const ibv_wq_init_attr asked = a;
  ibv_context* c = pd->pd->context;
  const bool foreign = cq->cq->context != c;
  p.wq = made([&] { return ibv_create_wq(c, &a); });
  if (!p.wq) return REQUIRE(!sane || foreign || !offered(c));
  REQUIRE(!foreign && offered(c));
  REQUIRE(a.max_wr >= asked.max_wr && a.max_sge >= asked.max_sge);
  REQUIRE(p.wq->state == IBV_WQS_RESET && p.wq->context == c && p.wq->cq == cq->cq);
  p.pd = pd, p.cq = cq, p.serial = ++s.serials;
  ++pd->users, ++cq->users;
}

// Each of the list is a queue that there is, or (not `sane`) none.
std::vector<ibv_wq*> queues(Session& s, std::size_t n, bool sane, Record& in) {
  std::vector<ibv_wq*> out;
  for (std::size_t i = 0; i < n; ++i) {
    WqPlace* p = pick(s.wqs, &WqPlace::wq, in);
    out.push_back(p && (sane || i % 5 != 3) ? p->wq : nullptr);
  }
  return out;
}

void make_table(Session& s, TablePlace& p, Record& in) {
  const WqPlace* one = pick(s.wqs, &WqPlace::wq, in);
  if (!one) return;
  const bool sane = in.chance(220);
  ibv_rwq_ind_table_init_attr a{};
  a.log_ind_tbl_size = sane ? in.below(4) : in.byte() % 40;
  if (!sane && in.chance(32)) a.comp_mask = in.word();
  auto list = queues(s, std::size_t{1} << std::min(a.log_ind_tbl_size, 12u), sane, in);
  a.ind_tbl = list.data();
  ibv_context* c = one->wq->context;
  const bool foreign =
      std::any_of(list.begin(), list.end(), [&](auto* wq) { return wq && wq->context != c; });
  p.table = made([&] { return ibv_create_rwq_ind_table(c, &a); });
  if (!p.table) return REQUIRE(!sane || foreign);
  REQUIRE(!foreign && a.comp_mask == 0);
  for (WqPlace& wq : s.wqs)
    if (wq.wq && std::count(list.begin(), list.end(), wq.wq)) p.wqs.push_back(&wq), ++wq.users;
}

void make_scaling(Session& s, ScalingPlace& p, Record& in) {
  PdPlace* pd = a_pd(s, in);
  TablePlace* table = pick(s.tables, &TablePlace::table, in);
  if (!pd || !table) return;
  constexpr std::uint32_t v4 = IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV4,
                          v6 = IBV_RX_HASH_SRC_IPV6 | IBV_RX_HASH_DST_IPV6,
                          udp = IBV_RX_HASH_SRC_PORT_UDP | IBV_RX_HASH_DST_PORT_UDP;
  constexpr std::uint32_t fields[] = {v4, v6, v4 | udp, v6 | udp, IBV_RX_HASH_SRC_IPV4};
  const bool sane = in.chance(220);
  std::uint8_t key[40] = {in.byte(), in.byte(), in.byte(), in.byte(), in.byte()};
  ibv_qp_init_attr_ex a{};
  a.qp_type = sane ? IBV_QPT_RAW_PACKET : any<ibv_qp_type>(2 + in.below(8));
  a.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH;
  if (!sane && in.chance(64)) a.comp_mask ^= 1u << in.below(16);
  a.pd = pd->pd, a.rwq_ind_tbl = table->table;
  a.rx_hash_conf = {.rx_hash_function = IBV_RX_HASH_FUNC_TOEPLITZ,
                    .rx_hash_key_len = sizeof key,
                    .rx_hash_key = key,
                    .rx_hash_fields_mask = in.one_of(fields)};
  if (!sane && in.chance(96)) a.rx_hash_conf.rx_hash_fields_mask = in.word();
  if (!sane && in.chance(64)) a.rx_hash_conf.rx_hash_key_len = in.byte();
  ibv_context* c = pd->pd->context;
  const bool foreign = table->table->context != c;
  p.qp = made([&] { return ibv_create_qp_ex(c, &a); });
  if (!p.qp) return REQUIRE(!sane || foreign || !offered(c));
  // Without both parts it is an ordinary queue pair, which then needs what is not given here.
  REQUIRE(!foreign && a.qp_type == IBV_QPT_RAW_PACKET && a.rx_hash_conf.rx_hash_key_len == 40);
  p.pd = pd, p.table = table;
  ++pd->users, ++table->users;
}

// Everything of an EtherType, or everything.
void make_rule(ScalingPlace& p, Record& in) {
  struct {
    ibv_flow_attr attr{};
    ibv_flow_spec_eth eth{};
  } rule;
  rule.attr.size = sizeof rule, rule.attr.num_of_specs = 1, rule.attr.port = 1;
  rule.eth.type = IBV_FLOW_SPEC_ETH, rule.eth.size = sizeof rule.eth;
  if (in.chance(128)) rule.eth.val.ether_type = 0x0008, rule.eth.mask.ether_type = 0xffff;
  p.flow = ibv_create_flow(p.qp, &rule.attr);
  REQUIRE(p.flow);
}

void use_scaling(ScalingPlace& p, Record& in) {
  ibv_qp_attr a{};
  ibv_qp_init_attr init;
  ibv_recv_wr receive{}, *bad_receive = nullptr;
  ibv_send_wr send{}, *bad_send = nullptr;
  switch (in.below(4)) {
    case 0:
      a.qp_state = any<ibv_qp_state>(in.below(8)), a.port_num = 1;
      return REQUIRE(ibv_modify_qp(p.qp, &a, IBV_QP_STATE | IBV_QP_PORT) == EOPNOTSUPP);
    case 1:
      return REQUIRE(ibv_query_qp(p.qp, &a, IBV_QP_STATE, &init) == EOPNOTSUPP);
    case 2:
      return REQUIRE(ibv_post_recv(p.qp, &receive, &bad_receive) && bad_receive == &receive);
    default:
      return REQUIRE(ibv_post_send(p.qp, &send, &bad_send) && bad_send == &send);
  }
}

// A work queue with receives for what will come.
void ready_wq(Session& s, WqPlace& p) {
  ibv_wq_init_attr a{};
  a.wq_type = IBV_WQT_RQ;
  a.max_wr = 8, a.max_sge = 1;
  a.pd = s.pds[0].pd, a.cq = s.cqs[0].cq;
  p.wq = made([&] { return ibv_create_wq(s.contexts[0], &a); });
  REQUIRE(p.wq);
  p.pd = &s.pds[0], p.cq = &s.cqs[0], p.serial = ++s.serials;
  ++p.pd->users, ++p.cq->users;
  ibv_wq_attr to{};
  to.attr_mask = IBV_WQ_ATTR_STATE, to.wq_state = IBV_WQS_RDY;
  REQUIRE(ibv_modify_wq(p.wq, &to) == 0);
  ibv_sge sge{reinterpret_cast<std::uintptr_t>(s.mrs[0].mr->addr), 2000, s.mrs[0].mr->lkey};
  for (unsigned i = 0; i < 4; ++i) {
    ibv_recv_wr wr{s.next_id(), nullptr, &sge, 1}, *bad = nullptr;
    REQUIRE(ibv_post_wq_recv(p.wq, &wr, &bad) == 0);
    s.enter(p.serial, true, true);
  }
}

}  // namespace

void spread_frames(Session& s) {
  for (unsigned i = 0; i < 2; ++i) ready_wq(s, s.wqs[i]);
  ibv_wq* list[] = {s.wqs[0].wq, s.wqs[1].wq};
  ibv_rwq_ind_table_init_attr a{.log_ind_tbl_size = 1, .ind_tbl = list, .comp_mask = 0};
  TablePlace& table = s.tables[0];
  table.table = made([&] { return ibv_create_rwq_ind_table(s.contexts[0], &a); });
  REQUIRE(table.table);
  for (unsigned i = 0; i < 2; ++i) table.wqs.push_back(&s.wqs[i]), ++s.wqs[i].users;
  const std::uint8_t zeros[32]{};
  Record plain(zeros);
  make_scaling(s, s.scaling[0], plain);
  REQUIRE(s.scaling[0].qp);
  make_rule(s.scaling[0], plain);
}

namespace step {

void wq(Session& s, Record& in) {
  WqPlace& p = s.wqs[in.below(3)];
  if (!p.wq) return make_wq(s, p, in);
  if (in.chance(64)) s.destroy(p);
}

void modify_wq(Session& s, Record& in) {
  WqPlace* p = pick(s.wqs, &WqPlace::wq, in);
  if (!p) return;
  ibv_wq_attr a{};
  a.attr_mask = IBV_WQ_ATTR_STATE;
  a.wq_state = in.chance(160) ? IBV_WQS_RDY : any<ibv_wq_state>(in.below(4));
  a.curr_wq_state = any<ibv_wq_state>(in.below(4));
  a.flags = in.byte(), a.flags_mask = IBV_WQ_FLAGS_CVLAN_STRIPPING;
  if (in.chance(48)) a.attr_mask = in.below(12);
  if (in.chance(8)) a.attr_mask = in.word(), a.flags_mask = in.word();
  const ibv_wq_state before = p->wq->state;
  const int error = checked(ibv_modify_wq(p->wq, &a));
  if (!a.attr_mask || a.attr_mask >= IBV_WQ_ATTR_RESERVED) REQUIRE(error == EINVAL);
  const bool moves = !error && a.attr_mask & IBV_WQ_ATTR_STATE;
  REQUIRE(p->wq->state == (moves ? a.wq_state : before));
  if (moves && a.wq_state == IBV_WQS_RESET) s.forget(p->serial);
}

void wq_receive(Session& s, Record& in) {
  WqPlace* p = pick(s.wqs, &WqPlace::wq, in);
  const MrPlace* m = pick(s.mrs, &MrPlace::mr, in);
  if (!p || !m) return;
  ibv_sge list[4]{};
  for (ibv_sge& e : list)
    e = {reinterpret_cast<std::uintptr_t>(inside(in)), in.chance(160) ? 2000u : in.byte(),
         m->mr->lkey};
  ibv_recv_wr wr{s.next_id(), nullptr, list, static_cast<int>(in.below(5))}, *bad = nullptr;
  const int error = checked(ibv_post_wq_recv(p->wq, &wr, &bad));
  REQUIRE(!error || bad == &wr);
  if (!error) s.enter(p->serial, true, true);
}

void table(Session& s, Record& in) {
  TablePlace& p = s.tables[in.below(2)];
  if (!p.table) return make_table(s, p, in);
  if (in.chance(64)) s.destroy(p);
}

void scaling_qp(Session& s, Record& in) {
  ScalingPlace& p = s.scaling[in.below(2)];
  if (!p.qp) make_scaling(s, p, in);
  if (!p.qp) return;
  if (in.chance(48)) return s.destroy(p);
  if (!p.flow) return make_rule(p, in);
  if (in.chance(64)) REQUIRE(ibv_destroy_flow(p.flow) == 0), p.flow = nullptr;
  use_scaling(p, in);
}

}  // namespace step
}  // namespace adverb::fuzz
