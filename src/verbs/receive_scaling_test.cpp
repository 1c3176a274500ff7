// SPDX-License-Identifier: Apache-2.0
// Work queues, indirection tables and RSS queue pairs of raw packets (ibv_create_wq(3),
// ibv_create_rwq_ind_table(3), ibv_create_qp_ex(3)), on the loopback interface.
#include <arpa/inet.h>
#include <linux/capability.h>
#include <sys/syscall.h>

#include "engine/toeplitz_testing.hpp"
#include "verbs/raw_testing.hpp"

namespace {

using adverb::verbs::Frame;
using adverb::verbs::Loopback;
using adverb::verbs::run_alone;

// Microsoft's verification suite of the RSS hash.
adverb::engine::ToeplitzKey suite_key = adverb::engine::suite_key;
struct Row {
  const char* destination;
  unsigned destination_port;
  const char* source;
  unsigned source_port;
  std::uint32_t hash;
};
constexpr Row suite_ipv4[] = {
    {"161.142.100.80", 1766, "66.9.149.187", 2794, 0x51ccc178},
    {"65.69.140.83", 4739, "199.92.111.2", 14230, 0xc626b0ea},
    {"209.142.163.6", 2217, "38.27.205.30", 48228, 0xafc7327f},
};
constexpr Row suite_ipv6[] = {
    {"3ffe:2501:200:3::1", 1766, "3ffe:2501:200:1fff::7", 2794, 0x40207d3d},
    {"ff02::1", 4739, "3ffe:501:8::260:97ff:fe40:efab", 14230, 0xdde51bbf},
};
constexpr std::uint64_t ipv4_udp = IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV4 |
                                   IBV_RX_HASH_SRC_PORT_UDP | IBV_RX_HASH_DST_PORT_UDP,
                        ipv6_tcp = IBV_RX_HASH_SRC_IPV6 | IBV_RX_HASH_DST_IPV6 |
                                   IBV_RX_HASH_SRC_PORT_TCP | IBV_RX_HASH_DST_PORT_TCP;

struct ReceiveScaling : adverb::verbs::Raw {
  ibv_cq* rx = nullptr;
  void SetUp() override {
    Raw::SetUp();
    rx = ibv_create_cq(context, 64, nullptr, nullptr, 0);
    ASSERT_TRUE(rx);
  }
  void TearDown() override {
    EXPECT_EQ(ibv_destroy_cq(rx), 0);
    Raw::TearDown();
  }

  ibv_wq_init_attr wq_attr() {
    return {.wq_context = this,
            .wq_type = IBV_WQT_RQ,
            .max_wr = 8,
            .max_sge = 2,
            .pd = pd,
            .cq = rx,
            .comp_mask = 0,
            .create_flags = 0};
  }
  static int to(ibv_wq* wq, ibv_wq_state state) {
    ibv_wq_attr a{};
    a.attr_mask = IBV_WQ_ATTR_STATE;
    a.wq_state = state;
    return ibv_modify_wq(wq, &a);
  }
  ibv_wq* make_wq() {
    ibv_wq_init_attr a = wq_attr();
    ibv_wq* wq = ibv_create_wq(context, &a);
    EXPECT_TRUE(wq) << std::strerror(errno);
    return wq;
  }
  ibv_wq* make_ready() {
    ibv_wq* wq = make_wq();
    EXPECT_EQ(to(wq, IBV_WQS_RDY), 0);
    return wq;
  }
  ibv_rwq_ind_table* table_of(std::vector<ibv_wq*> wqs) {
    ibv_rwq_ind_table_init_attr a{};
    a.ind_tbl = wqs.data();
    while (1u << a.log_ind_tbl_size < wqs.size()) ++a.log_ind_tbl_size;
    return ibv_create_rwq_ind_table(context, &a);
  }
  ibv_qp_init_attr_ex qp_attr(ibv_rwq_ind_table* table, std::uint64_t fields) {
    ibv_qp_init_attr_ex a{};
    a.qp_type = IBV_QPT_RAW_PACKET;
    a.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH;
    a.pd = pd;
    a.rwq_ind_tbl = table;
    a.rx_hash_conf = {.rx_hash_function = IBV_RX_HASH_FUNC_TOEPLITZ,
                      .rx_hash_key_len = sizeof suite_key,
                      .rx_hash_key = suite_key.data(),
                      .rx_hash_fields_mask = fields};
    return a;
  }
  ibv_qp* make_rss(ibv_rwq_ind_table* table, std::uint64_t fields) {
    ibv_qp_init_attr_ex a = qp_attr(table, fields);
    ibv_qp* qp = ibv_create_qp_ex(context, &a);
    EXPECT_TRUE(qp) << std::strerror(errno);
    return qp;
  }
  int post(ibv_wq* wq, std::uint64_t id, std::uint32_t length = 2000) {
    ibv_sge sge = sge_of(buffer.data() + 4096, length, mr);
    ibv_recv_wr wr{.wr_id = id, .next = nullptr, .sg_list = &sge, .num_sge = 1}, *bad = nullptr;
    const int error = ibv_post_wq_recv(wq, &wr, &bad);
    EXPECT_EQ(bad, error ? &wr : nullptr);
    return error;
  }
  // A frame to 02:00:00:00:00:`to`.
  static Frame ip_frame(char to, const Row& row, char protocol) {
    const bool six = std::strchr(row.source, ':');
    const std::size_t size = six ? 16 : 4;
    std::uint8_t source[16], destination[16];
    EXPECT_EQ(inet_pton(six ? AF_INET6 : AF_INET, row.source, source), 1);
    EXPECT_EQ(inet_pton(six ? AF_INET6 : AF_INET, row.destination, destination), 1);
    Frame f = frame(to, 0).substr(0, 12);
    if (six) {
      f += {'\x86', '\xdd', 0x60, 0, 0, 0, 0, 20, protocol, 64};
    } else {
      f += {8, 0, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, protocol, 0, 0};
    }
    f.append(reinterpret_cast<char*>(source), size);
    f.append(reinterpret_cast<char*>(destination), size);
    for (const unsigned port : {row.source_port, row.destination_port})
      f += {static_cast<char>(port >> 8), static_cast<char>(port)};
    return f + Frame(16, '\0');
  }
  void send_alone(ibv_qp* from, const Frame& f) {
    ASSERT_EQ(send(from, f), 0);
    completions(1);
  }
  ibv_wc received() {
    ibv_wc wc{};
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    int n = 0;
    while (n == 0 && std::chrono::steady_clock::now() < end) n = ibv_poll_cq(rx, 1, &wc);
    EXPECT_EQ(n, 1);
    return wc;
  }
  Frame got(std::size_t n) const { return Frame(buffer.data() + 4096, n); }
  int refused(const ibv_qp_init_attr_ex& attr) {
    ibv_qp_init_attr_ex a = attr;
    errno = 0;
    return error_of(ibv_create_qp_ex(context, &a));
  }
};

constexpr char udp = 17, tcp = 6;

TEST_F(ReceiveScaling, MicrosoftsHashPicksTheQueueOfEachFamily) {
  if (!permitted) return;
  ibv_qp* from = make_raw();
  std::vector<ibv_wq*> wqs;
  for (int i = 0; i < 4; ++i) {
    wqs.push_back(make_ready());
    for (int n = 0; n < 4; ++n) ASSERT_EQ(post(wqs[i], static_cast<std::uint64_t>(i)), 0);
  }
  ibv_rwq_ind_table* table = table_of(wqs);
  ASSERT_TRUE(table);
  ibv_qp *four = make_rss(table, ipv4_udp), *six = make_rss(table, ipv6_tcp);
  EthRule of_four = rule_to(4), of_six = rule_to(4);
  of_four.eth.val.ether_type = htons(0x0800), of_six.eth.val.ether_type = htons(0x86dd);
  of_four.eth.mask.ether_type = of_six.eth.mask.ether_type = 0xffff;
  ibv_flow *first = ibv_create_flow(four, &of_four.attr),
           *second = ibv_create_flow(six, &of_six.attr);
  ASSERT_TRUE(first && second) << std::strerror(errno);
  const auto expect = [&](const Row& row, char protocol, std::uint32_t hash) {
    const Frame f = ip_frame(4, row, protocol);
    send_alone(from, f);
    const ibv_wc wc = received();
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.opcode, IBV_WC_RECV);
    EXPECT_EQ(wc.wr_id, hash % 4) << row.source;
    EXPECT_EQ(wc.qp_num, wqs[hash % 4]->wq_num) << row.source;
    EXPECT_EQ(got(wc.byte_len), f);
  };
  for (const Row& row : suite_ipv4) expect(row, udp, row.hash);
  for (const Row& row : suite_ipv6) expect(row, tcp, row.hash);
  // What has not all the fields goes to the first.
  expect(suite_ipv4[1], tcp, 0);
  expect(suite_ipv6[0], udp, 0);
  EXPECT_EQ(ibv_destroy_qp(four), EBUSY);
  for (ibv_flow* flow : {first, second}) EXPECT_EQ(ibv_destroy_flow(flow), 0);
  EXPECT_EQ(ibv_destroy_rwq_ind_table(table), EBUSY);
  for (ibv_qp* qp : {from, four, six}) EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_EQ(ibv_destroy_wq(wqs[0]), EBUSY);
  EXPECT_EQ(ibv_destroy_rwq_ind_table(table), 0);
  EXPECT_EQ(ibv_destroy_cq(rx), EBUSY);
  EXPECT_EQ(ibv_dealloc_pd(pd), EBUSY);
  for (ibv_wq* wq : wqs) EXPECT_EQ(ibv_destroy_wq(wq), 0);
}

TEST_F(ReceiveScaling, WhatTheDeviceSaysOfIt) {
  ibv_device_attr_ex a;
  ASSERT_EQ(ibv_query_device_ex(context, nullptr, &a), 0);
  if (!permitted) {
    EXPECT_EQ(a.rss_caps.supported_qpts, 0u);
    return;
  }
  EXPECT_EQ(a.rss_caps.supported_qpts, 1u << IBV_QPT_RAW_PACKET);
  EXPECT_EQ(a.rss_caps.rx_hash_function, IBV_RX_HASH_FUNC_TOEPLITZ);
  EXPECT_EQ(a.rss_caps.rx_hash_fields_mask, 0xffu);
  EXPECT_EQ(a.rss_caps.max_rwq_indirection_table_size, 2048u);
  EXPECT_GT(a.rss_caps.max_rwq_indirection_tables, 0u);
  EXPECT_GT(a.max_wq_type_rq, 0u);
  EXPECT_EQ(a.raw_packet_caps, unsigned{IBV_RAW_PACKET_CAP_CVLAN_STRIPPING});
  ibv_wq* wq = make_wq();
  ibv_rwq_ind_table* table = table_of(std::vector<ibv_wq*>(2048, wq));
  EXPECT_TRUE(table) << std::strerror(errno);
  EXPECT_EQ(error_of(table_of(std::vector<ibv_wq*>(4096, wq))), EINVAL);
  EXPECT_EQ(ibv_destroy_rwq_ind_table(table), 0);
  EXPECT_EQ(ibv_destroy_wq(wq), 0);
}

TEST_F(ReceiveScaling, AWorkQueueIsAsItWasAskedFor) {
  if (!permitted) return;
  ibv_wq_init_attr a = wq_attr();
  a.max_wr = 5, a.max_sge = 0;
  ibv_wq* wq = ibv_create_wq(context, &a);
  ASSERT_TRUE(wq) << std::strerror(errno);
  EXPECT_GE(a.max_wr, 5u);
  EXPECT_EQ(a.max_sge, 1u);
  EXPECT_EQ(wq->wq_context, this);
  EXPECT_EQ(wq->pd, pd);
  EXPECT_EQ(wq->cq, rx);
  EXPECT_EQ(wq->wq_type, IBV_WQT_RQ);
  EXPECT_EQ(wq->state, IBV_WQS_RESET);
  ASSERT_EQ(to(wq, IBV_WQS_RDY), 0);
  for (unsigned i = 0; i < a.max_wr; ++i) EXPECT_EQ(post(wq, i), 0);
  EXPECT_EQ(post(wq, a.max_wr), ENOMEM);
  EXPECT_EQ(ibv_destroy_wq(wq), 0);
}

TEST_F(ReceiveScaling, WorkQueuesThatAreRefused) {
  if (!permitted) return;
  const auto refused_wq = [&](auto&& change) {
    ibv_wq_init_attr a = wq_attr();
    change(a);
    errno = 0;
    return error_of(ibv_create_wq(context, &a));
  };
  using Attr = ibv_wq_init_attr;
  EXPECT_EQ(refused_wq([](Attr& a) { a.wq_type = ibv_wq_type(1); }), EINVAL);
  EXPECT_EQ(refused_wq([](Attr& a) { a.max_wr = 0; }), EINVAL);
  EXPECT_EQ(refused_wq([](Attr& a) { a.max_wr = 32769; }), EINVAL);
  EXPECT_EQ(refused_wq([](Attr& a) { a.max_sge = 33; }), EINVAL);
  EXPECT_EQ(refused_wq([](Attr& a) { a.pd = nullptr; }), EINVAL);
  EXPECT_EQ(refused_wq([](Attr& a) { a.cq = nullptr; }), EINVAL);
  EXPECT_EQ(refused_wq([](Attr& a) { a.comp_mask = IBV_WQ_INIT_ATTR_RESERVED; }), EINVAL);
  for (const std::uint32_t flag : {IBV_WQ_FLAGS_SCATTER_FCS, IBV_WQ_FLAGS_DELAY_DROP,
                                   IBV_WQ_FLAGS_PCI_WRITE_END_PADDING, IBV_WQ_FLAGS_RESERVED})
    EXPECT_EQ(
        refused_wq([&](Attr& a) { a.comp_mask = IBV_WQ_INIT_ATTR_FLAGS, a.create_flags = flag; }),
        EOPNOTSUPP)
        << flag;
}

TEST_F(ReceiveScaling, TheStatesOfAWorkQueue) {
  if (!permitted) return;
  ibv_wq* wq = make_wq();
  EXPECT_EQ(post(wq, 1), EINVAL);
  EXPECT_EQ(to(wq, IBV_WQS_ERR), EINVAL);
  EXPECT_EQ(wq->state, IBV_WQS_RESET);
  ASSERT_EQ(to(wq, IBV_WQS_RDY), 0);
  EXPECT_EQ(post(wq, 1), 0);
  ASSERT_EQ(to(wq, IBV_WQS_ERR), 0);
  EXPECT_EQ(wq->state, IBV_WQS_ERR);
  EXPECT_EQ(post(wq, 2), 0);
  for (const std::uint64_t id : {1, 2}) {
    const ibv_wc wc = received();
    EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(wc.wr_id, id);
    EXPECT_EQ(wc.qp_num, wq->wq_num);
  }
  EXPECT_EQ(to(wq, IBV_WQS_RDY), EINVAL);
  EXPECT_EQ(post(wq, 3), 0);
  ASSERT_EQ(to(wq, IBV_WQS_RESET), 0);  // takes the completion with it
  ibv_wc wc;
  EXPECT_EQ(ibv_poll_cq(rx, 1, &wc), 0);
  const auto modify = [&](std::uint32_t mask, ibv_wq_state from, ibv_wq_state next,
                          std::uint32_t flags = 0) {
    ibv_wq_attr a{.attr_mask = mask,
                  .wq_state = next,
                  .curr_wq_state = from,
                  .flags = flags,
                  .flags_mask = flags};
    return ibv_modify_wq(wq, &a);
  };
  constexpr std::uint32_t both = IBV_WQ_ATTR_STATE | IBV_WQ_ATTR_CURR_STATE;
  EXPECT_EQ(modify(both, IBV_WQS_RDY, IBV_WQS_RDY), EINVAL);
  EXPECT_EQ(modify(both, IBV_WQS_RESET, IBV_WQS_RDY), 0);
  EXPECT_EQ(modify(IBV_WQ_ATTR_STATE, IBV_WQS_RDY, IBV_WQS_UNKNOWN), EINVAL);
  EXPECT_EQ(modify(both, IBV_WQS_UNKNOWN, IBV_WQS_RDY), EINVAL);
  EXPECT_EQ(modify(0, IBV_WQS_RDY, IBV_WQS_RDY), EINVAL);
  EXPECT_EQ(modify(IBV_WQ_ATTR_RESERVED, IBV_WQS_RDY, IBV_WQS_RDY), EINVAL);
  EXPECT_EQ(modify(IBV_WQ_ATTR_FLAGS, IBV_WQS_RDY, IBV_WQS_RDY, IBV_WQ_FLAGS_DELAY_DROP),
            EOPNOTSUPP);
  EXPECT_EQ(wq->state, IBV_WQS_RDY);
  ibv_recv_wr wr{.wr_id = 1, .next = nullptr, .sg_list = nullptr, .num_sge = 3}, *bad = nullptr;
  EXPECT_EQ(ibv_post_wq_recv(wq, &wr, &bad), EINVAL);
  EXPECT_EQ(bad, &wr);
  EXPECT_EQ(ibv_destroy_wq(wq), 0);
}

TEST_F(ReceiveScaling, AFailureIsToldByAnEvent) {
  if (!permitted) return;
  ibv_qp* from = make_raw();
  ibv_wq* wq = make_ready();
  ibv_rwq_ind_table* table = table_of({wq});
  ibv_qp* qp = make_rss(table, 0);
  EthRule rule = rule_to(6);
  ibv_flow* flow = ibv_create_flow(qp, &rule.attr);
  ASSERT_TRUE(flow);
  ASSERT_EQ(post(wq, 1, 20), 0);
  send_alone(from, frame(6, 50));
  EXPECT_EQ(received().status, IBV_WC_LOC_LEN_ERR);
  ibv_async_event event;
  ASSERT_EQ(ibv_get_async_event(context, &event), 0);
  EXPECT_EQ(event.event_type, IBV_EVENT_WQ_FATAL);
  EXPECT_EQ(event.element.wq, wq);
  ibv_ack_async_event(&event);
  EXPECT_EQ(to(wq, IBV_WQS_RDY), EINVAL);
  ASSERT_EQ(to(wq, IBV_WQS_RESET), 0);
  ASSERT_EQ(to(wq, IBV_WQS_RDY), 0);
  ASSERT_EQ(post(wq, 2), 0);
  send_alone(from, frame(6, 50));
  EXPECT_EQ(received().wr_id, 2u);
  EXPECT_EQ(ibv_destroy_flow(flow), 0);
  for (ibv_qp* q : {from, qp}) EXPECT_EQ(ibv_destroy_qp(q), 0);
  EXPECT_EQ(ibv_destroy_rwq_ind_table(table), 0);
  EXPECT_EQ(ibv_destroy_wq(wq), 0);
}

TEST_F(ReceiveScaling, AFaultRuleFailsWorkQueues) {
  if (!run_alone({"ADVERB_FAULT=event WQ_FATAL tx SEND nth 1"})) return;
  if (!permitted) return;
  ibv_wq *wq = make_ready(), *unused = make_wq();
  ASSERT_EQ(post(wq, 1), 0);
  ibv_qp* qp = make_connected();
  ASSERT_EQ(post_receive(qp, 2), 0);
  ASSERT_EQ(post_send(qp, 3, nullptr), 0);
  for (const ibv_wc& wc : completions(2)) EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  ibv_async_event event;
  ASSERT_EQ(ibv_get_async_event(context, &event), 0);
  EXPECT_EQ(event.event_type, IBV_EVENT_WQ_FATAL);
  EXPECT_EQ(event.element.wq, wq);
  ibv_ack_async_event(&event);
  const ibv_wc flushed = received();
  EXPECT_EQ(flushed.status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(flushed.wr_id, 1u);
  ibv_wq_attr in_error{.attr_mask = IBV_WQ_ATTR_CURR_STATE,
                       .wq_state = {},
                       .curr_wq_state = IBV_WQS_ERR,
                       .flags = 0,
                       .flags_mask = 0};
  EXPECT_EQ(ibv_modify_wq(wq, &in_error), 0);
  EXPECT_EQ(to(unused, IBV_WQS_RDY), 0);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  for (ibv_wq* w : {wq, unused}) EXPECT_EQ(ibv_destroy_wq(w), 0);
}

TEST_F(ReceiveScaling, QueuePairsThatAreRefused) {
  if (!permitted) return;
  ibv_wq* wq = make_wq();
  ibv_rwq_ind_table *table = table_of({wq, wq}), *single = table_of({wq});
  const ibv_qp_init_attr_ex good = qp_attr(table, ipv4_udp);
  using Attr = ibv_qp_init_attr_ex;
  const auto with = [&](auto&& change) {
    Attr a = good;
    change(a);
    return refused(a);
  };
  EXPECT_EQ(with([](Attr& a) { a.comp_mask &= ~IBV_QP_INIT_ATTR_RX_HASH; }), EINVAL);
  EXPECT_EQ(with([](Attr& a) { a.comp_mask &= ~IBV_QP_INIT_ATTR_IND_TABLE; }), EINVAL);
  EXPECT_EQ(with([](Attr& a) { a.comp_mask &= ~IBV_QP_INIT_ATTR_PD; }), EINVAL);
  EXPECT_EQ(with([](Attr& a) { a.comp_mask |= IBV_QP_INIT_ATTR_MAX_TSO_HEADER; }), EOPNOTSUPP);
  EXPECT_EQ(with([](Attr& a) { a.qp_type = IBV_QPT_UD; }), EOPNOTSUPP);
  EXPECT_EQ(with([](Attr& a) { a.rwq_ind_tbl = nullptr; }), EINVAL);
  EXPECT_EQ(with([&](Attr& a) { a.recv_cq = rx; }), EINVAL);
  EXPECT_EQ(with([](Attr& a) { a.cap.max_recv_wr = 1; }), EINVAL);
  EXPECT_EQ(with([](Attr& a) { a.cap.max_send_wr = 1; }), EINVAL);
  EXPECT_EQ(with([](Attr& a) {
              a.comp_mask |= IBV_QP_INIT_ATTR_CREATE_FLAGS;
              a.create_flags = IBV_QP_CREATE_CVLAN_STRIPPING;
            }),
            EINVAL);
  EXPECT_EQ(with([](Attr& a) { a.rx_hash_conf.rx_hash_function = 2; }), EOPNOTSUPP);
  EXPECT_EQ(with([](Attr& a) { a.rx_hash_conf.rx_hash_key_len = 39; }), EINVAL);
  EXPECT_EQ(with([](Attr& a) { a.rx_hash_conf.rx_hash_key = nullptr; }), EINVAL);
  const auto fields = [&](std::uint64_t mask) {
    return with([&](Attr& a) { a.rx_hash_conf.rx_hash_fields_mask = mask; });
  };
  EXPECT_EQ(fields(0), EINVAL);  // of more than one WQ
  EXPECT_EQ(fields(IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV6), EINVAL);
  EXPECT_EQ(fields(IBV_RX_HASH_SRC_PORT_TCP | IBV_RX_HASH_SRC_PORT_UDP), EINVAL);
  EXPECT_EQ(fields(IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_INNER), EOPNOTSUPP);
  EXPECT_EQ(fields(IBV_RX_HASH_IPSEC_SPI), EOPNOTSUPP);
  EXPECT_EQ(ibv_destroy_qp(make_rss(single, 0)), 0);
  for (ibv_rwq_ind_table* t : {table, single}) EXPECT_EQ(ibv_destroy_rwq_ind_table(t), 0);
  EXPECT_EQ(ibv_destroy_wq(wq), 0);
}

TEST_F(ReceiveScaling, AnRssQueuePairHasNeitherQueuesNorStates) {
  if (!permitted) return;
  ibv_wq* wq = make_wq();
  ibv_rwq_ind_table* table = table_of({wq});
  ibv_qp* qp = make_rss(table, ipv4_udp);
  EXPECT_EQ(qp->qp_type, IBV_QPT_RAW_PACKET);
  EXPECT_EQ(qp->recv_cq, nullptr);
  EXPECT_EQ(post_receive(qp, 1), EINVAL);
  EXPECT_EQ(send(qp, frame(1, 50)), EINVAL);
  ibv_qp_attr a{};
  ibv_qp_init_attr init;
  a.qp_state = IBV_QPS_INIT;
  a.port_num = 1;
  EXPECT_EQ(ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PORT), EOPNOTSUPP);
  EXPECT_EQ(ibv_query_qp(qp, &a, IBV_QP_STATE, &init), EOPNOTSUPP);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_EQ(ibv_destroy_rwq_ind_table(table), 0);
  EXPECT_EQ(ibv_destroy_wq(wq), 0);
}

TEST_F(ReceiveScaling, AnotherContextsObjectsAndAlteredHandles) {
  if (!permitted) return;
  ibv_context* other = ibv_open_device(list[0]);
  ASSERT_TRUE(other);
  ibv_wq *wq = make_wq(), *none = nullptr;
  ibv_rwq_ind_table* table = table_of({wq});
  const auto table_in = [&](ibv_context* in, ibv_wq** entries, std::uint32_t comp_mask = 0) {
    ibv_rwq_ind_table_init_attr a{
        .log_ind_tbl_size = 0, .ind_tbl = entries, .comp_mask = comp_mask};
    errno = 0;
    return error_of(ibv_create_rwq_ind_table(in, &a));
  };
  EXPECT_EQ(table_in(other, &wq), EINVAL);
  EXPECT_EQ(table_in(context, &none), EINVAL);
  EXPECT_EQ(table_in(context, nullptr), EINVAL);
  EXPECT_EQ(table_in(context, &wq, IBV_CREATE_IND_TABLE_RESERVED), EINVAL);
  ibv_wq_init_attr a = wq_attr();
  EXPECT_EQ(error_of(ibv_create_wq(other, &a)), EINVAL);
  ibv_qp_init_attr_ex q = qp_attr(table, ipv4_udp);
  EXPECT_EQ(error_of(ibv_create_qp_ex(other, &q)), EINVAL);
  wq->handle ^= 1;
  EXPECT_EQ(to(wq, IBV_WQS_RDY), ENOENT);
  EXPECT_EQ(table_in(context, &wq), ENOENT);
  wq->handle ^= 1;
  table->ind_tbl_handle ^= 1;
  EXPECT_EQ(ibv_destroy_rwq_ind_table(table), ENOENT);
  table->ind_tbl_handle ^= 1;
  EXPECT_EQ(ibv_destroy_rwq_ind_table(table), 0);
  EXPECT_EQ(ibv_destroy_wq(wq), 0);
  EXPECT_EQ(ibv_close_device(other), 0);
}

TEST_F(ReceiveScaling, StrippedVlanTagsAreInTheExtendedCompletion) {
  if (!permitted) return;
  ibv_cq_init_attr_ex extended{};
  extended.cqe = 8;
  extended.wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_CVLAN;
  ibv_cq_ex* ex = ibv_create_cq_ex(context, &extended);
  ASSERT_TRUE(ex);
  ibv_qp* from = make_raw();
  ibv_wq_init_attr a = wq_attr();
  a.cq = ibv_cq_ex_to_cq(ex);
  a.comp_mask = IBV_WQ_INIT_ATTR_FLAGS, a.create_flags = IBV_WQ_FLAGS_CVLAN_STRIPPING;
  ibv_wq* wq = ibv_create_wq(context, &a);
  ASSERT_TRUE(wq) << std::strerror(errno);
  ASSERT_EQ(to(wq, IBV_WQS_RDY), 0);
  ibv_rwq_ind_table* table = table_of({wq});
  ibv_qp* rss = make_rss(table, 0);
  ibv_qp_init_attr_ex plain{};
  plain.qp_type = IBV_QPT_RAW_PACKET;
  plain.send_cq = plain.recv_cq = a.cq;
  plain.cap = init_attr().cap;
  plain.pd = pd;
  plain.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS;
  plain.create_flags = IBV_QP_CREATE_CVLAN_STRIPPING;
  ibv_qp* raw = started(ibv_create_qp_ex(context, &plain));
  EthRule to_rss = rule_to(7), to_raw = rule_to(8);
  ibv_flow *first = ibv_create_flow(rss, &to_rss.attr),
           *second = ibv_create_flow(raw, &to_raw.attr);
  ASSERT_TRUE(first && second);
  const auto expect = [&](char to_whom, const Frame& wanted, std::uint16_t tag) {
    send_alone(from, frame(to_whom, 60, true));
    ibv_poll_cq_attr none{};
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    int empty = ENOENT;
    while (empty == ENOENT && std::chrono::steady_clock::now() < end)
      empty = ibv_start_poll(ex, &none);
    ASSERT_EQ(empty, 0);
    EXPECT_EQ(ex->status, IBV_WC_SUCCESS);
    EXPECT_EQ(got(ibv_wc_read_byte_len(ex)), wanted);
    EXPECT_EQ(ibv_wc_read_cvlan(ex), tag);
    ibv_end_poll(ex);
  };
  ASSERT_EQ(post(wq, 1), 0);
  expect(7, frame(7, 60), 7);
  ASSERT_EQ(post_receive(raw, 2, mr, 2000), 0);
  expect(8, frame(8, 60), 7);
  ibv_wq_attr off{};
  off.attr_mask = IBV_WQ_ATTR_FLAGS, off.flags_mask = IBV_WQ_FLAGS_CVLAN_STRIPPING;
  ASSERT_EQ(ibv_modify_wq(wq, &off), 0);
  ASSERT_EQ(post(wq, 1), 0);
  expect(7, frame(7, 60, true), 0);
  for (ibv_flow* flow : {first, second}) EXPECT_EQ(ibv_destroy_flow(flow), 0);
  for (ibv_qp* qp : {from, rss, raw}) EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_EQ(ibv_destroy_rwq_ind_table(table), 0);
  EXPECT_EQ(ibv_destroy_wq(wq), 0);
  EXPECT_EQ(ibv_destroy_cq(a.cq), 0);
}

TEST_F(ReceiveScaling, LowerLimitsHold) {
  if (!run_alone({"ADVERB_LIMITS=max_wq_type_rq=2,max_rwq_indirection_tables=1,"
                  "max_rwq_indirection_table_size=2"}) ||
      !permitted)
    return;
  ibv_device_attr_ex a;
  ASSERT_EQ(ibv_query_device_ex(context, nullptr, &a), 0);
  EXPECT_EQ(a.max_wq_type_rq, 2u);
  EXPECT_EQ(a.rss_caps.max_rwq_indirection_tables, 1u);
  EXPECT_EQ(a.rss_caps.max_rwq_indirection_table_size, 2u);
  ibv_wq *one = make_wq(), *two = make_wq();
  ibv_wq_init_attr third = wq_attr();
  EXPECT_EQ(error_of(ibv_create_wq(context, &third)), ENOMEM);
  EXPECT_EQ(error_of(table_of({one, two, one, two})), EINVAL);
  ibv_rwq_ind_table* table = table_of({one, two});
  ASSERT_TRUE(table);
  EXPECT_EQ(error_of(table_of({one})), ENOMEM);
  EXPECT_EQ(ibv_destroy_rwq_ind_table(table), 0);
  for (ibv_wq* wq : {one, two}) EXPECT_EQ(ibv_destroy_wq(wq), 0);
  ibv_wq* again = make_wq();
  EXPECT_EQ(ibv_destroy_wq(again), 0);
}

TEST_F(Loopback, WorkQueuesNeedCapNetRaw) {
  if (!run_alone({})) return;
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct data[2];
  ASSERT_EQ(syscall(SYS_capget, &header, data), 0);
  data[0].effective &= ~(1u << CAP_NET_RAW);
  ASSERT_EQ(syscall(SYS_capset, &header, data), 0);
  ibv_device_attr_ex a;
  ASSERT_EQ(ibv_query_device_ex(context, nullptr, &a), 0);
  EXPECT_EQ(a.rss_caps.supported_qpts, 0u);
  EXPECT_EQ(a.rss_caps.max_rwq_indirection_tables, 0u);
  EXPECT_EQ(a.max_wq_type_rq, 0u);
  EXPECT_EQ(a.raw_packet_caps, 0u);
  ibv_wq_init_attr wq{.wq_context = nullptr,
                      .wq_type = IBV_WQT_RQ,
                      .max_wr = 1,
                      .max_sge = 1,
                      .pd = pd,
                      .cq = cq,
                      .comp_mask = 0,
                      .create_flags = 0};
  errno = 0;
  EXPECT_EQ(error_of(ibv_create_wq(context, &wq)), EPERM);
}

}  // namespace
