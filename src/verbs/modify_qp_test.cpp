// SPDX-License-Identifier: Apache-2.0
// What ibv_modify_qp(3) refuses with which errno, and what ibv_query_qp(3) tells afterwards.
#include "verbs/testing.hpp"

namespace adverb::verbs {
namespace {

struct ModifyQp : Verbs {
  ibv_qp* qp = nullptr;
  void SetUp() override {
    Verbs::SetUp();
    qp = make_qp();
    ASSERT_TRUE(qp);
    ASSERT_EQ(to_init(qp), 0);
  }
  void TearDown() override {
    EXPECT_TRUE(!qp || ibv_destroy_qp(qp) == 0);
    Verbs::TearDown();
  }
  // INIT to RTR with something changed.
  template <class Change>
  int to_rtr_with(Change change) {
    ibv_qp_attr a{};
    a.qp_state = IBV_QPS_RTR;
    a.path_mtu = IBV_MTU_1024;
    a.dest_qp_num = qp->qp_num;
    a.max_dest_rd_atomic = 1;
    a.ah_attr = own_address();
    int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
               IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    change(a, mask);
    return ibv_modify_qp(qp, &a, mask);
  }
  ibv_qp_attr query() {
    ibv_qp_attr a{};
    ibv_qp_init_attr init{};
    EXPECT_EQ(ibv_query_qp(qp, &a, IBV_QP_STATE, &init), 0);
    return a;
  }
};

TEST_F(ModifyQp, RefusesWhatNoNicHasWithTheKernelsErrno) {
  EXPECT_EQ(to_rtr_with([](auto&, int& mask) { mask |= IBV_QP_ALT_PATH; }), EINVAL);
  EXPECT_EQ(to_rtr_with([](auto&, int& mask) { mask |= IBV_QP_CAP; }), EINVAL);
  EXPECT_EQ(query().qp_state, IBV_QPS_INIT);
}

// What is no value of its kind.
TEST_F(ModifyQp, RefusesValuesThatStandForNothing) {
  using Attr = ibv_qp_attr;
  for (const int mtu : {0, 6})
    EXPECT_EQ(to_rtr_with([mtu](Attr& a, int&) { a.path_mtu = static_cast<ibv_mtu>(mtu); }), EINVAL)
        << mtu;
  EXPECT_EQ(to_rtr_with([](Attr& a, int& mask) {
              a.cur_qp_state = IBV_QPS_UNKNOWN;
              mask |= IBV_QP_CUR_STATE;
            }),
            EINVAL);
  EXPECT_EQ(to_rtr_with([](Attr& a, int&) { a.qp_state = IBV_QPS_UNKNOWN; }), EINVAL);
  EXPECT_EQ(to_rtr_with([](Attr& a, int&) { a.min_rnr_timer = 32; }), EINVAL);
  EXPECT_EQ(to_rtr_with([](Attr& a, int& mask) { a.pkey_index = 1, mask |= IBV_QP_PKEY_INDEX; }),
            EINVAL);
  EXPECT_EQ(to_rtr_with([](Attr&, int& mask) { mask |= IBV_QP_RATE_LIMIT; }), EINVAL);
  for (const std::uint8_t rate : {1, 25, 255})
    EXPECT_EQ(to_rtr_with([rate](Attr& a, int&) { a.ah_attr.static_rate = rate; }), EINVAL)
        << unsigned{rate};
  EXPECT_EQ(query().qp_state, IBV_QPS_INIT);
}

TEST_F(ModifyQp, RefusesCodesOfRtsThatStandForNothing) {
  ASSERT_EQ(to_rtr_with([](auto&, int&) {}), 0);
  const auto to_rts_with = [&](auto change) {
    ibv_qp_attr a{};
    a.qp_state = IBV_QPS_RTS;
    change(a);
    return ibv_modify_qp(qp, &a,
                         IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                             IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_PATH_MIG_STATE);
  };
  for (const int state : {3, 256})
    EXPECT_EQ(
        to_rts_with([state](auto& a) { a.path_mig_state = static_cast<ibv_mig_state>(state); }),
        EINVAL)
        << state;
  EXPECT_EQ(to_rts_with([](auto& a) { a.timeout = 32; }), EINVAL);
  EXPECT_EQ(to_rts_with([](auto& a) { a.retry_cnt = 8; }), EINVAL);
  EXPECT_EQ(to_rts_with([](auto& a) { a.rnr_retry = 8; }), EINVAL);
  EXPECT_EQ(query().qp_state, IBV_QPS_RTR);
  ASSERT_EQ(to_rts_with([](auto& a) {
              a.timeout = 31;
              a.retry_cnt = a.rnr_retry = 7;
              a.path_mig_state = IBV_MIG_ARMED;
            }),
            0);
  EXPECT_EQ(query().path_mig_state, IBV_MIG_ARMED);
}

// A program that gives no port works nowhere else.
TEST_F(ModifyQp, TheAddressNamesThePort) {
  for (const std::uint8_t port : {0, 2})
    EXPECT_EQ(to_rtr_with([port](auto& a, int&) { a.ah_attr.port_num = port; }), EINVAL);
}

// The two errnos by which programs and people tell a wrong index from an index of nothing.
TEST_F(ModifyQp, TellsAnEmptyGidFromNone) {
  EXPECT_EQ(to_rtr_with([](auto& a, int&) { a.ah_attr.grh.sgid_index = 7; }), ENODATA);
  EXPECT_EQ(to_rtr_with([](auto& a, int&) { a.ah_attr.grh.sgid_index = 200; }), EINVAL);
}

// Many programs set a hop limit of 1, and their packets pass routers nevertheless.
TEST_F(ModifyQp, TheHopLimitIsTheRoutes) {
  for (const std::uint8_t limit : {0, 1, 255}) {
    ASSERT_EQ(to_rtr_with([limit](auto& a, int&) { a.ah_attr.grh.hop_limit = limit; }), 0);
    EXPECT_EQ(query().ah_attr.grh.hop_limit, 64);
    ibv_qp_attr a{};
    ASSERT_EQ(ibv_modify_qp(qp, &a, IBV_QP_STATE), 0);
    ASSERT_EQ(to_init(qp), 0);
  }
}

TEST_F(ModifyQp, QueryHasNoAddressBeforeOneIsGiven) {
  const ibv_qp_attr a = query();
  const ibv_ah_attr none{};
  EXPECT_EQ(std::memcmp(&a.ah_attr, &none, sizeof none), 0);
}

TEST_F(ModifyQp, QueryTellsTheStaticRateUntilReset) {
  for (const std::uint8_t rate : {IBV_RATE_MAX, IBV_RATE_25_GBPS, IBV_RATE_1200_GBPS}) {
    ASSERT_EQ(to_rtr_with([rate](auto& a, int&) { a.ah_attr.static_rate = rate; }), 0);
    EXPECT_EQ(query().ah_attr.static_rate, rate);
    ibv_qp_attr a{};
    ASSERT_EQ(ibv_modify_qp(qp, &a, IBV_QP_STATE), 0);
    EXPECT_EQ(query().ah_attr.static_rate, 0);
    ASSERT_EQ(to_init(qp), 0);
  }
}

TEST_F(ModifyQp, QueryTellsTheRemoteRights) {
  ibv_qp_attr a{};
  a.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_MW_BIND;
  ASSERT_EQ(ibv_modify_qp(qp, &a, IBV_QP_ACCESS_FLAGS), 0);
  EXPECT_EQ(query().qp_access_flags, unsigned{IBV_ACCESS_REMOTE_READ});
}

// ibv_create_cq_ex(3), ibv_modify_srq(3): what mlx5 says to what it does not know
TEST_F(ModifyQp, UnknownBitsAreInvalid) {
  ibv_cq_init_attr_ex a{};
  a.cqe = 8;
  a.comp_mask = 1u << 5;
  EXPECT_EQ(error_of(ibv_create_cq_ex(context, &a)), EINVAL);
  a.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
  a.flags = 1u << 5;
  EXPECT_EQ(error_of(ibv_create_cq_ex(context, &a)), EINVAL);
  ibv_srq_init_attr init{.srq_context = nullptr,
                         .attr = {.max_wr = 4, .max_sge = 1, .srq_limit = 0}};
  ibv_srq* srq = ibv_create_srq(pd, &init);
  ASSERT_TRUE(srq);
  EXPECT_EQ(ibv_modify_srq(srq, &init.attr, IBV_SRQ_MAX_WR), EINVAL);
  EXPECT_EQ(ibv_destroy_srq(srq), 0);
}

}  // namespace
}  // namespace adverb::verbs
