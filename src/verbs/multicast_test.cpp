// SPDX-License-Identifier: Apache-2.0
// Multicast groups as an application sees them (ibv_attach_mcast(3)).
#include <arpa/inet.h>

#include <map>
#include <string>

#include "verbs/testing.hpp"

namespace {

using adverb::verbs::Loopback;

struct Multicast : Loopback {
  static ibv_gid group(const char* text) {
    ibv_gid gid;
    EXPECT_EQ(inet_pton(AF_INET6, text, gid.raw), 1);
    return gid;
  }
  static int attach(ibv_qp* qp, const ibv_gid& gid) { return ibv_attach_mcast(qp, &gid, 0); }
  static int detach(ibv_qp* qp, const ibv_gid& gid) { return ibv_detach_mcast(qp, &gid, 0); }
  ibv_ah* address_of(const ibv_gid& gid) {
    ibv_ah_attr a = own_address();
    a.grh.dgid = gid;
    errno = 0;
    return ibv_create_ah(pd, &a);
  }
  static int send(ibv_qp* qp, ibv_ah* ah, std::uint32_t key = qkey) {
    ibv_send_wr wr{}, *bad;
    wr.opcode = IBV_WR_SEND;
    wr.wr.ud = {.ah = ah, .remote_qpn = 0xffffff, .remote_qkey = key};
    return ibv_post_send(qp, &wr, &bad);
  }
  // How many datagrams each of them has got when `n` completions have come, and that no more come.
  std::map<std::uint32_t, int> received(std::size_t n) {
    std::map<std::uint32_t, int> by_qp;
    for (const ibv_wc& wc : completions(n)) {
      EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
      if (wc.opcode == IBV_WC_RECV) ++by_qp[wc.qp_num];
    }
    ibv_wc wc;
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
    while (std::chrono::steady_clock::now() < end) EXPECT_EQ(ibv_poll_cq(cq, 1, &wc), 0);
    return by_qp;
  }
};

TEST_F(Multicast, WhatCannotBeAttached) {
  const ibv_gid g = group("::ffff:239.7.7.7");
  ibv_qp *rc = make_qp(), *ud = make_qp(IBV_QPT_UD);
  EXPECT_EQ(attach(rc, g), EINVAL);
  EXPECT_EQ(detach(rc, g), EINVAL);
  EXPECT_EQ(attach(ud, group("::ffff:10.7.7.7")), EINVAL);
  EXPECT_EQ(attach(ud, group("fe80::1")), EINVAL);
  EXPECT_EQ(attach(ud, ibv_gid{}), EINVAL);
  EXPECT_EQ(detach(ud, g), EINVAL);
  EXPECT_EQ(ibv_destroy_qp(rc), 0);
  EXPECT_EQ(ibv_destroy_qp(ud), 0);
}

// C63: as with other references, the QP stays as long as it is in a group.
TEST_F(Multicast, AttachedTwiceIsAttachedOnce) {
  const ibv_gid g = group("::ffff:239.7.7.7");
  ibv_qp* qp = make_qp(IBV_QPT_UD);
  EXPECT_EQ(attach(qp, g), 0);
  EXPECT_EQ(attach(qp, g), 0);
  EXPECT_EQ(ibv_destroy_qp(qp), EBUSY);
  EXPECT_EQ(detach(qp, g), 0);
  EXPECT_EQ(detach(qp, g), EINVAL);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
}

TEST_F(Multicast, LimitsAreThoseThatAreTold) {
  ibv_device_attr limits;
  ASSERT_EQ(ibv_query_device(context, &limits), 0);
  EXPECT_EQ(limits.max_total_mcast_qp_attach, limits.max_mcast_grp * limits.max_mcast_qp_attach);
  const ibv_gid g = group("::ffff:239.7.7.7");
  std::vector<ibv_qp*> qps;
  for (int i = 0; i < limits.max_mcast_qp_attach; ++i) {
    qps.push_back(make_qp(IBV_QPT_UD));
    ASSERT_EQ(attach(qps.back(), g), 0) << i;
  }
  ibv_qp* one_more = make_qp(IBV_QPT_UD);
  EXPECT_EQ(attach(one_more, g), ENOMEM);
  for (ibv_qp* qp : qps) EXPECT_EQ(detach(qp, g), 0);
  for (ibv_qp* qp : qps) EXPECT_EQ(ibv_destroy_qp(qp), 0);

  ibv_gid other = g;
  for (int i = 0; i < limits.max_mcast_grp; ++i) {
    other.raw[15] = static_cast<std::uint8_t>(i);
    ASSERT_EQ(attach(one_more, other), 0) << i;
  }
  other.raw[14] = 99;
  EXPECT_EQ(attach(one_more, other), ENOMEM);
  other.raw[14] = g.raw[14];
  for (int i = 0; i < limits.max_mcast_grp; ++i) {
    other.raw[15] = static_cast<std::uint8_t>(i);
    EXPECT_EQ(detach(one_more, other), 0) << i;
  }
  EXPECT_EQ(ibv_destroy_qp(one_more), 0);
}

// Each gets one copy, however often it was attached, and who sends gets none of his own.
TEST_F(Multicast, EveryMemberButTheSenderGetsACopy) {
  ibv_mr* mr = ibv_reg_mr(pd, buffer.data(), buffer.size(), IBV_ACCESS_LOCAL_WRITE);
  for (const char* text : {"::ffff:239.7.7.8", "ff02::ad:7"}) {
    SCOPED_TRACE(text);
    const ibv_gid g = group(text), another = group("::ffff:239.7.7.9");
    ibv_ah* ah = address_of(g);
    if (!ah && errno == ENETUNREACH && text[0] != ':') continue;  // IPv6 on the loopback interface
    ASSERT_TRUE(ah) << std::strerror(errno);
    ibv_qp *sender = make_ud(), *first = make_ud(), *second = make_ud(), *outside = make_ud();
    for (ibv_qp* qp : {sender, first, second, outside})
      for (int i : {1, 2}) ASSERT_EQ(post_receive(qp, i, mr, 64), 0);
    for (ibv_qp* qp : {sender, first, first, second}) ASSERT_EQ(attach(qp, g), 0);
    ASSERT_EQ(attach(outside, another), 0);
    ASSERT_EQ(send(sender, ah), 0);
    const std::map<std::uint32_t, int> once{{first->qp_num, 1}, {second->qp_num, 1}};
    EXPECT_EQ(received(3), once);
    // In front of it stands the group as the destination: it has no answer.
    ibv_wc wc{};
    wc.wc_flags = IBV_WC_GRH;
    auto* grh = reinterpret_cast<ibv_grh*>(buffer.data() + 4096);
    const bool v4 = text[0] == ':';
    EXPECT_EQ(std::memcmp(reinterpret_cast<char*>(grh) + (v4 ? 36 : 24), g.raw + (v4 ? 12 : 0),
                          v4 ? 4 : 16),
              0);
    errno = 0;
    EXPECT_EQ(ibv_create_ah_from_wc(pd, &wc, grh, 1), nullptr);
    EXPECT_EQ(errno, EINVAL);

    ASSERT_EQ(send(outside, ah, qkey + 1), 0);  // C57: a wrong Q_Key costs nobody a WQE
    EXPECT_TRUE(received(1).empty());
    ASSERT_EQ(detach(second, g), 0);
    ASSERT_EQ(send(outside, ah), 0);
    const std::map<std::uint32_t, int> now{{sender->qp_num, 1}, {first->qp_num, 1}};
    EXPECT_EQ(received(3), now);
    for (ibv_qp* qp : {sender, first}) EXPECT_EQ(detach(qp, g), 0);
    EXPECT_EQ(detach(outside, another), 0);
    EXPECT_EQ(ibv_destroy_ah(ah), 0);
    for (ibv_qp* qp : {sender, first, second, outside}) EXPECT_EQ(ibv_destroy_qp(qp), 0);
  }
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

// ibv_create_qp_ex(3): programs ask not to hear themselves
TEST_F(Multicast, SelfLoopbackIsBlockedOnRequest) {
  ibv_qp_init_attr_ex init{};
  init.send_cq = init.recv_cq = cq;
  init.cap = {.max_send_wr = 4,
              .max_recv_wr = 4,
              .max_send_sge = 1,
              .max_recv_sge = 1,
              .max_inline_data = 0};
  init.qp_type = IBV_QPT_UD;
  init.sq_sig_all = 1;
  init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS;
  init.pd = pd;
  init.create_flags = IBV_QP_CREATE_BLOCK_SELF_MCAST_LB;
  ibv_qp* sender = ibv_create_qp_ex(context, &init);
  ASSERT_TRUE(sender) << std::strerror(errno);
  to_rts_as_ud(sender);
  ibv_qp* other = make_ud();
  ibv_mr* mr = ibv_reg_mr(pd, buffer.data(), buffer.size(), IBV_ACCESS_LOCAL_WRITE);
  const ibv_gid g = group("::ffff:239.7.7.8");
  ibv_ah* ah = address_of(g);
  ASSERT_TRUE(ah) << std::strerror(errno);
  for (ibv_qp* qp : {sender, other}) {
    ASSERT_EQ(post_receive(qp, 1, mr, 64), 0);
    ASSERT_EQ(attach(qp, g), 0);
  }
  ASSERT_EQ(send(sender, ah), 0);
  const std::map<std::uint32_t, int> only{{other->qp_num, 1}};
  EXPECT_EQ(received(2), only);
  EXPECT_EQ(ibv_destroy_ah(ah), 0);
  for (ibv_qp* qp : {sender, other}) {
    EXPECT_EQ(detach(qp, g), 0);
    EXPECT_EQ(ibv_destroy_qp(qp), 0);
  }
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

}  // namespace
