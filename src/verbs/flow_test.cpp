// SPDX-License-Identifier: Apache-2.0
// Raw packet queue pairs and flow rules (ibv_create_flow(3)), on the loopback interface.  They need
// CAP_NET_RAW; without it, that they say so.
#include <arpa/inet.h>

#include "verbs/raw_testing.hpp"

namespace {

using adverb::verbs::Frame;

struct Raw : adverb::verbs::Raw {
  void receive_on(ibv_qp* qp, std::uint32_t bytes = 4000) {
    ASSERT_EQ(post_receive(qp, 2, mr, bytes), 0);
  }
  Frame got(const ibv_wc& wc) const { return Frame(buffer.data() + 4096, wc.byte_len); }
  // The one receive completion, after the send's.
  ibv_wc received() {
    for (const ibv_wc& wc : completions(2))
      if (wc.opcode == IBV_WC_RECV || wc.qp_num != sender_) return wc;
    return {};
  }
  std::uint32_t sender_ = 0;
};

TEST_F(Raw, AFrameGoesWhereItsRuleSays) {
  if (!permitted) return;
  ibv_qp *from = make_raw(), *one = make_raw(), *two = make_raw();
  sender_ = from->qp_num;
  EthRule to_one = rule_to(1), to_two = rule_to(2);
  ibv_flow *first = ibv_create_flow(one, &to_one.attr),
           *second = ibv_create_flow(two, &to_two.attr);
  ASSERT_TRUE(first && second) << std::strerror(errno);
  for (const bool tagged : {false, true}) {
    receive_on(two);
    const Frame f = frame(2, 200, tagged);
    ASSERT_EQ(send(from, f), 0);
    const ibv_wc wc = received();
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.qp_num, two->qp_num);
    EXPECT_EQ(got(wc), f);  // whole, with its VLAN tag
    EXPECT_EQ(wc.wc_flags & IBV_WC_GRH, 0u);
  }
  EXPECT_EQ(ibv_destroy_qp(two), EBUSY);
  EXPECT_EQ(ibv_destroy_flow(second), 0);
  receive_on(two);
  ASSERT_EQ(send(from, frame(2, 60)), 0);
  completions(1);
  silent();
  EXPECT_EQ(ibv_destroy_flow(first), 0);
  for (ibv_qp* qp : {from, one, two}) EXPECT_EQ(ibv_destroy_qp(qp), 0);
}

TEST_F(Raw, LengthsThatNoFrameHas) {
  if (!permitted) return;
  ibv_qp* qp = make_raw();
  EXPECT_EQ(send(qp, Frame(13, 'x')), EINVAL);
  ibv_sge huge = sge_of(buffer.data(), 40000, mr);
  ibv_sge list[2] = {huge, huge};
  ibv_send_wr wr{}, *bad;
  wr.sg_list = list, wr.num_sge = 2, wr.opcode = IBV_WR_SEND;
  ASSERT_EQ(ibv_post_send(qp, &wr, &bad), 0);
  EXPECT_EQ(completions(1).at(0).status, IBV_WC_LOC_LEN_ERR);
  ibv_qp_attr a;
  ibv_qp_init_attr init;
  ASSERT_EQ(ibv_query_qp(qp, &a, IBV_QP_STATE, &init), 0);
  EXPECT_EQ(a.qp_state, IBV_QPS_SQE);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
}

// The MTU of the interface counts (that of lo is 65536), not the MTU of InfiniBand packets.
TEST_F(Raw, AFrameThatIsLongerThanAPacket) {
  if (!permitted) return;
  ibv_qp *from = make_raw(), *to = make_raw();
  sender_ = from->qp_num;
  EthRule rule = rule_to(4);
  ibv_flow* flow = ibv_create_flow(to, &rule.attr);
  ASSERT_TRUE(flow);
  constexpr std::uint32_t room = 24000;
  char* into = buffer.data() + room;
  for (const std::size_t payload : {4083u, 9000u, 20000u}) {
    ibv_sge sge = sge_of(into, room, mr);
    ibv_recv_wr wr{.wr_id = 2, .next = nullptr, .sg_list = &sge, .num_sge = 1}, *bad;
    ASSERT_EQ(ibv_post_recv(to, &wr, &bad), 0);
    const Frame f = frame(4, payload);
    ASSERT_EQ(send(from, f), 0);
    const ibv_wc wc = received();
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.qp_num, to->qp_num);
    ASSERT_EQ(wc.byte_len, f.size());
    EXPECT_EQ(Frame(into, wc.byte_len), f);
  }
  silent();  // each was sent once, and completed once
  EXPECT_EQ(ibv_destroy_flow(flow), 0);
  for (ibv_qp* qp : {from, to}) EXPECT_EQ(ibv_destroy_qp(qp), 0);
}

TEST_F(Raw, AFrameThatIsTooLongForItsReceive) {
  if (!permitted) return;
  ibv_qp *from = make_raw(), *to = make_raw();
  sender_ = from->qp_num;
  EthRule rule = rule_to(3);
  ibv_flow* flow = ibv_create_flow(to, &rule.attr);
  ASSERT_TRUE(flow);
  receive_on(to, 63);
  ASSERT_EQ(send(from, frame(3, 50)), 0);
  EXPECT_EQ(received().status, IBV_WC_LOC_LEN_ERR);
  EXPECT_EQ(ibv_destroy_flow(flow), 0);
  for (ibv_qp* qp : {from, to}) EXPECT_EQ(ibv_destroy_qp(qp), 0);
}

TEST_F(Raw, RulesThatAreRefused) {
  ibv_qp* ud = make_qp(IBV_QPT_UD);
  EthRule good = rule_to(1);
  errno = 0;
  EXPECT_EQ(ibv_create_flow(ud, &good.attr), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(ibv_destroy_qp(ud), 0);
  if (!permitted) return;
  ibv_qp* qp = make_raw();
  const auto refused = [&](auto&& change) {
    EthRule r = rule_to(1);
    change(r);
    errno = 0;
    return error_of(ibv_create_flow(qp, &r.attr));
  };
  EXPECT_EQ(refused([](EthRule& r) { r.attr.port = 2; }), EINVAL);
  EXPECT_EQ(refused([](EthRule& r) { r.attr.comp_mask = 1; }), EINVAL);
  EXPECT_EQ(refused([](EthRule& r) { r.attr.type = IBV_FLOW_ATTR_SNIFFER; }), EINVAL);
  EXPECT_EQ(refused([](EthRule& r) { r.attr.type = ibv_flow_attr_type(4); }), EINVAL);
  EXPECT_EQ(refused([](EthRule& r) { r.attr.flags = IBV_FLOW_ATTR_FLAGS_EGRESS; }), EOPNOTSUPP);
  EXPECT_EQ(refused([](EthRule& r) { r.attr.flags = 1 << 7; }), EINVAL);
  EXPECT_EQ(refused([](EthRule& r) { r.eth.size = 8; }), EINVAL);
  EXPECT_EQ(refused([](EthRule& r) {
              r.eth.type = ibv_flow_spec_type(IBV_FLOW_SPEC_ETH | IBV_FLOW_SPEC_INNER);
            }),
            EOPNOTSUPP);
  EXPECT_EQ(refused([](EthRule& r) { r.eth.type = IBV_FLOW_SPEC_ACTION_DROP; }), EOPNOTSUPP);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
}

}  // namespace
