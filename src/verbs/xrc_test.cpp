// SPDX-License-Identifier: Apache-2.0
// XRC as programs use it: domains and who holds them, SRQs that messages name, targets that are
// open more than once (ibv_open_xrcd(3), ibv_create_srq_ex(3), ibv_open_qp(3)).
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cstdlib>

#include "verbs/testing.hpp"

namespace adverb::verbs {
namespace {

struct Xrc : Verbs {
  ibv_xrcd* xrcd = nullptr;
  ibv_srq* srq = nullptr;
  ibv_mr* mr = nullptr;

  void SetUp() override {
    Verbs::SetUp();
    xrcd = open(-1, O_CREAT);
    ASSERT_TRUE(xrcd);
    srq = make_srq(xrcd, pd);
    ASSERT_TRUE(srq);
    mr = ibv_reg_mr(pd, buffer.data(), buffer.size(),
                    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                        IBV_ACCESS_REMOTE_ATOMIC);
    ASSERT_TRUE(mr);
  }
  void TearDown() override {
    EXPECT_TRUE(!mr || ibv_dereg_mr(mr) == 0);
    EXPECT_TRUE(!srq || ibv_destroy_srq(srq) == 0);
    EXPECT_TRUE(!xrcd || ibv_close_xrcd(xrcd) == 0);
    Verbs::TearDown();
  }

  ibv_xrcd* open(int fd, int flags) {
    ibv_xrcd_init_attr a{
        .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = fd, .oflags = flags};
    errno = 0;
    return ibv_open_xrcd(context, &a);
  }
  ibv_srq* make_srq(ibv_xrcd* domain, ibv_pd* in) {
    ibv_srq_init_attr_ex a{};
    a.attr = {.max_wr = 16, .max_sge = 1, .srq_limit = 0};
    a.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD |
                  IBV_SRQ_INIT_ATTR_CQ;
    a.srq_type = IBV_SRQT_XRC;
    a.pd = in;
    a.xrcd = domain;
    a.cq = cq;
    return ibv_create_srq_ex(context, &a);
  }
  static std::uint32_t number_of(ibv_srq* s) {
    std::uint32_t n = 0;
    EXPECT_EQ(ibv_get_srq_num(s, &n), 0);
    return n;
  }
  ibv_qp* make_target(ibv_xrcd* domain) {
    ibv_qp_init_attr_ex a{};
    a.qp_context = this;
    a.qp_type = IBV_QPT_XRC_RECV;
    a.comp_mask = IBV_QP_INIT_ATTR_XRCD;
    a.xrcd = domain;
    return ibv_create_qp_ex(context, &a);
  }
  ibv_qp* make_initiator(std::uint64_t ops = 0) {
    ibv_qp_init_attr_ex a{};
    a.qp_type = IBV_QPT_XRC_SEND;
    a.send_cq = cq;
    a.cap = {.max_send_wr = 8,
             .max_recv_wr = 0,
             .max_send_sge = 1,
             .max_recv_sge = 0,
             .max_inline_data = 64};
    a.sq_sig_all = 1;
    a.comp_mask = IBV_QP_INIT_ATTR_PD | (ops ? IBV_QP_INIT_ATTR_SEND_OPS_FLAGS : 0);
    a.pd = pd;
    a.send_ops_flags = ops;
    return ibv_create_qp_ex(context, &a);
  }
  // Both sides get all attributes of RC: each takes those that it has.
  void connect(ibv_qp* from, ibv_qp* to) {
    for (auto [qp, peer] : {std::pair{from, to}, std::pair{to, from}}) {
      ASSERT_EQ(to_init(qp), 0);
      ASSERT_EQ(to_rtr(qp, peer->qp_num), 0);
      ASSERT_EQ(to_rts(qp), 0);
    }
  }
  ibv_qp* open_qp(std::uint32_t number, ibv_xrcd* domain) {
    ibv_qp_open_attr a{};
    a.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_CONTEXT |
                  IBV_QP_OPEN_ATTR_TYPE;
    a.qp_num = number;
    a.xrcd = domain;
    a.qp_context = &a;
    a.qp_type = IBV_QPT_XRC_RECV;
    errno = 0;
    return ibv_open_qp(context, &a);
  }
  void post_receive_of(ibv_srq* s, std::uint64_t id, std::uint32_t offset) {
    ibv_sge sge = sge_of(&buffer[offset], 1024, mr);
    ibv_recv_wr wr{.wr_id = id, .next = nullptr, .sg_list = &sge, .num_sge = 1}, *bad;
    ASSERT_EQ(ibv_post_srq_recv(s, &wr, &bad), 0);
  }
  int send(ibv_qp* qp, std::uint32_t srqn, std::uint64_t id, const char* text) {
    std::strcpy(buffer.data(), text);
    ibv_sge sge = sge_of(buffer.data(), static_cast<std::uint32_t>(std::strlen(text)), mr);
    ibv_send_wr wr{}, *bad;
    wr.wr_id = id;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    wr.qp_type.xrc.remote_srqn = srqn;
    return ibv_post_send(qp, &wr, &bad);
  }
  std::vector<ibv_async_event> async_events(int n) {
    std::vector<ibv_async_event> all(static_cast<std::size_t>(n));
    for (auto& e : all) {
      pollfd p{context->async_fd, POLLIN, 0};
      if (poll(&p, 1, 5000) != 1 || ibv_get_async_event(context, &e) != 0) {
        ADD_FAILURE() << "no event";
        return all;
      }
      ibv_ack_async_event(&e);
    }
    return all;
  }
};

// --- domains

TEST_F(Xrc, DomainsOfInodes) {
  char path[] = "/tmp/adverb-xrc-XXXXXX";
  const int fd = mkstemp(path), again = ::open(path, O_RDONLY);
  EXPECT_EQ(error_of(open(fd, 0)), EAGAIN) << "there is none yet";
  ibv_xrcd* first = open(fd, O_CREAT | O_EXCL);
  ASSERT_TRUE(first);
  EXPECT_EQ(error_of(open(again, O_CREAT | O_EXCL)), EINVAL) << "now there is";
  ibv_xrcd* second = open(again, 0);
  ASSERT_TRUE(second);
  // The two are one domain, and not the one without an inode.
  ibv_qp* target = make_target(first);
  ASSERT_TRUE(target);
  ibv_qp* handle = open_qp(target->qp_num, second);
  ASSERT_TRUE(handle);
  EXPECT_EQ(error_of(open_qp(target->qp_num, xrcd)), EINVAL);
  EXPECT_EQ(ibv_close_xrcd(first), EBUSY) << "the target was made from it";
  EXPECT_EQ(ibv_destroy_qp(target), 0);
  EXPECT_EQ(ibv_close_xrcd(first), 0);
  EXPECT_EQ(error_of(open(fd, O_CREAT | O_EXCL)), EINVAL) << "the second is still open";
  EXPECT_EQ(ibv_destroy_qp(handle), 0);
  EXPECT_EQ(ibv_close_xrcd(second), 0);
  EXPECT_EQ(error_of(open(fd, 0)), EAGAIN) << "the last has closed it";
  close(fd), close(again), unlink(path);
}

TEST_F(Xrc, DomainsThatCannotBe) {
  EXPECT_EQ(error_of(open(10000, O_CREAT)), EBADF);
  ibv_xrcd_init_attr a{.comp_mask = IBV_XRCD_INIT_ATTR_FD, .fd = -1, .oflags = O_CREAT};
  EXPECT_EQ(error_of(ibv_open_xrcd(context, &a)), EINVAL);
  a.comp_mask = 7;
  EXPECT_EQ(error_of(ibv_open_xrcd(context, &a)), EOPNOTSUPP);
  EXPECT_EQ(ibv_close_xrcd(xrcd), EBUSY) << "the SRQ is in it";
  ibv_device_attr_ex device;
  ASSERT_EQ(ibv_query_device_ex(context, nullptr, &device), 0);
  EXPECT_TRUE(device.orig_attr.device_cap_flags & IBV_DEVICE_XRC);
}

TEST_F(Xrc, ObjectsThatCannotBe) {
  EXPECT_EQ(error_of(make_target(nullptr)), EINVAL);
  ibv_qp_init_attr plain = init_attr(IBV_QPT_XRC_RECV);
  EXPECT_EQ(error_of(ibv_create_qp(pd, &plain)), EINVAL);
  EXPECT_EQ(error_of(make_qp(IBV_QPT_RC, srq)), EINVAL) << "an XRC SRQ belongs to no QP";
  ibv_srq_init_attr_ex a{};
  a.attr = {.max_wr = 16, .max_sge = 1, .srq_limit = 0};
  a.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ;
  a.srq_type = IBV_SRQT_XRC;
  a.pd = pd;
  a.cq = cq;
  EXPECT_EQ(error_of(ibv_create_srq_ex(context, &a)), EINVAL) << "no XRC domain";
  EXPECT_EQ(ibv_destroy_cq(cq), EBUSY) << "the SRQ completes there";
}

TEST_F(Xrc, EachHalfHasItsOwnQueues) {
  ibv_qp *initiator = make_initiator(), *target = make_target(xrcd);
  ASSERT_TRUE(initiator && target);
  EXPECT_EQ(target->pd, nullptr);
  EXPECT_EQ(target->send_cq, nullptr);
  connect(initiator, target);
  EXPECT_EQ(post_receive(initiator, 1), EINVAL);
  EXPECT_EQ(post_receive(target, 1), EINVAL);
  EXPECT_EQ(post_send(target, 1, nullptr), EINVAL);
  ibv_qp_attr attr;
  ibv_qp_init_attr init;
  ASSERT_EQ(ibv_query_qp(target, &attr, 0, &init), 0);
  EXPECT_EQ(attr.qp_state, IBV_QPS_RTS);
  EXPECT_EQ(init.qp_type, IBV_QPT_XRC_RECV);
  EXPECT_EQ(init.cap.max_send_wr + init.cap.max_recv_wr, 0u);
  EXPECT_EQ(ibv_destroy_qp(initiator), 0);
  EXPECT_EQ(ibv_destroy_qp(target), 0);
}

// --- traffic

TEST_F(Xrc, MessagesAndRemoteMemory) {
  ibv_qp *initiator = make_initiator(), *target = make_target(xrcd);
  ASSERT_TRUE(initiator && target);
  connect(initiator, target);
  post_receive_of(srq, 77, 4096);
  ASSERT_EQ(send(initiator, number_of(srq), 5, "hello"), 0);
  for (const ibv_wc& wc : completions(2)) {
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    const bool receive = wc.opcode == IBV_WC_RECV;
    EXPECT_EQ(wc.wr_id, receive ? 77u : 5u);
    EXPECT_EQ(wc.qp_num, (receive ? target : initiator)->qp_num);
    EXPECT_EQ(wc.byte_len, 5u);
  }
  EXPECT_EQ(std::string(&buffer[4096], 5), "hello");
  std::strcpy(&buffer[8192], "remote");
  ibv_send_wr wr{};
  wr.opcode = IBV_WR_RDMA_READ;
  wr.wr.rdma = {reinterpret_cast<std::uintptr_t>(&buffer[8192]), mr->rkey};
  wr.qp_type.xrc.remote_srqn = number_of(srq);
  EXPECT_EQ(run(initiator, wr, sge_of(&buffer[512], 6, mr)), IBV_WC_SUCCESS);
  EXPECT_EQ(std::string(&buffer[512], 6), "remote");
  wr.qp_type.xrc.remote_srqn ^= 1;
  EXPECT_EQ(run(initiator, wr, sge_of(&buffer[512], 6, mr)), IBV_WC_REM_INV_REQ_ERR);
  EXPECT_EQ(ibv_destroy_qp(initiator), 0);
  EXPECT_EQ(ibv_destroy_qp(target), 0);
}

// No process has such an SRQ: the target's own one says so.
TEST_F(Xrc, NumbersThatNameNoProcess) {
  for (const std::uint32_t srqn : {0u, 1u, 0xfffffeu, 1000u << 14}) {
    ibv_qp *initiator = make_initiator(), *target = make_target(xrcd);
    ASSERT_TRUE(initiator && target);
    connect(initiator, target);
    ASSERT_EQ(send(initiator, srqn, 5, "hello"), 0);
    const std::vector<ibv_wc> done = completions(1);
    ASSERT_EQ(done.size(), 1u);
    EXPECT_EQ(done[0].status, IBV_WC_REM_INV_REQ_ERR) << srqn;
    EXPECT_EQ(async_events(1)[0].event_type, IBV_EVENT_QP_REQ_ERR);
    EXPECT_EQ(async_events(1)[0].event_type, IBV_EVENT_QP_LAST_WQE_REACHED);
    EXPECT_EQ(ibv_destroy_qp(initiator), 0);
    EXPECT_EQ(ibv_destroy_qp(target), 0);
  }
}

TEST_F(Xrc, ExtendedPosts) {
  ibv_qp *initiator = make_initiator(IBV_QP_EX_WITH_SEND_WITH_IMM), *target = make_target(xrcd);
  ASSERT_TRUE(initiator && target);
  connect(initiator, target);
  ibv_qp_ex* ex = ibv_qp_to_qp_ex(initiator);
  ibv_srq* other = make_srq(xrcd, pd);
  post_receive_of(srq, 1, 4096);
  post_receive_of(other, 2, 5120);
  ibv_wr_start(ex);
  for (ibv_srq* to : {other, srq}) {
    ex->wr_id = 9;
    ex->wr_flags = 0;
    ibv_wr_send_imm(ex, number_of(to));
    ibv_wr_set_xrc_srqn(ex, number_of(to));
    ibv_wr_set_inline_data(ex, buffer.data(), 3);
  }
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  unsigned receives = 0;
  for (const ibv_wc& wc : completions(4)) {
    if (wc.opcode != IBV_WC_RECV) continue;
    ++receives;
    EXPECT_EQ(wc.imm_data, number_of(wc.wr_id == 1 ? srq : other)) << wc.wr_id;
  }
  EXPECT_EQ(receives, 2u);
  EXPECT_EQ(ibv_destroy_srq(other), 0);
  EXPECT_EQ(ibv_destroy_qp(initiator), 0);
  EXPECT_EQ(ibv_destroy_qp(target), 0);
}

// --- more than one handle

TEST_F(Xrc, TargetLivesWithItsLastHandle) {
  ibv_qp *initiator = make_initiator(), *made = make_target(xrcd);
  ASSERT_TRUE(initiator && made);
  connect(initiator, made);
  ibv_qp *second = open_qp(made->qp_num, xrcd), *third = open_qp(made->qp_num, xrcd);
  ASSERT_TRUE(second && third);
  EXPECT_EQ(second->qp_num, made->qp_num);
  EXPECT_EQ(second->state, IBV_QPS_RTS);
  EXPECT_EQ(ibv_destroy_qp(made), 0);
  post_receive_of(srq, 1, 4096);
  ASSERT_EQ(send(initiator, number_of(srq), 2, "on"), 0);
  for (const ibv_wc& wc : completions(2)) EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  // All handles hear of what happens to it, and any of them may change it.
  ASSERT_EQ(to_error(third), 0);
  std::vector<ibv_qp*> told;
  for (const ibv_async_event& e : async_events(2)) {
    EXPECT_EQ(e.event_type, IBV_EVENT_QP_LAST_WQE_REACHED);
    told.push_back(e.element.qp);
  }
  EXPECT_TRUE((told[0] == second && told[1] == third) || (told[0] == third && told[1] == second));
  EXPECT_EQ(ibv_close_xrcd(xrcd), EBUSY);
  const std::uint32_t number = second->qp_num;
  EXPECT_EQ(ibv_destroy_qp(third), 0);
  EXPECT_EQ(ibv_destroy_qp(second), 0);
  EXPECT_EQ(ibv_destroy_qp(initiator), 0);
  EXPECT_EQ(error_of(open_qp(number, xrcd)), EINVAL) << "it went with the last";
}

}  // namespace
}  // namespace adverb::verbs
