// SPDX-License-Identifier: Apache-2.0
// Every limit that the query calls report is reached, and holds: the real ones, and lower ones that
// the environment sets.
#include <functional>

#include "verbs/testing.hpp"

namespace {

using adverb::verbs::run_alone;
using adverb::verbs::Verbs;

struct Limits : Verbs {
  ibv_device_attr device{};
  void SetUp() override {
    Verbs::SetUp();
    ASSERT_EQ(ibv_query_device(context, &device), 0);
  }
  // `others` exist already.  Makes as many as `most` allows; one more is refused with ENOMEM, and
  // when one was destroyed there is room for one.
  template <class T>
  void fill(int most, int others, std::function<T*()> make, int (*destroy)(T*)) {
    std::vector<T*> made;
    while (static_cast<int>(made.size()) < most - others) {
      T* one = make();
      ASSERT_TRUE(one) << made.size() << ": " << std::strerror(errno);
      made.push_back(one);
    }
    errno = 0;
    EXPECT_EQ(make(), nullptr);
    EXPECT_EQ(errno, ENOMEM);
    ASSERT_EQ(destroy(made.back()), 0);
    made.back() = make();
    EXPECT_TRUE(made.back()) << std::strerror(errno);
    for (auto one = made.rbegin(); one != made.rend(); ++one) EXPECT_EQ(destroy(*one), 0);
  }
  ibv_srq* make_srq(std::uint32_t max_wr, std::uint32_t max_sge) {
    ibv_srq_init_attr a{.srq_context = nullptr, .attr = {.max_wr = max_wr, .max_sge = max_sge}};
    return ibv_create_srq(pd, &a);
  }
  ibv_qp* make_small_qp() {
    ibv_qp_init_attr a = init_attr();
    a.cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1};
    return ibv_create_qp(pd, &a);
  }
  // Paged on demand, so that no mapping is looked up: there are many.
  ibv_mr* make_mr() { return ibv_reg_mr(pd, buffer.data(), 64, IBV_ACCESS_ON_DEMAND); }
  ibv_ah* make_ah() {
    static ibv_ah_attr address = own_address();
    return ibv_create_ah(pd, &address);
  }
  void fill_everything() {
    fill<ibv_pd>(device.max_pd, 1, [&] { return ibv_alloc_pd(context); }, ibv_dealloc_pd);
    fill<ibv_ah>(device.max_ah, 0, [&] { return make_ah(); }, ibv_destroy_ah);
    fill<ibv_mr>(device.max_mr, 0, [&] { return make_mr(); }, ibv_dereg_mr);
    fill<ibv_mw>(device.max_mw, 0, [&] { return ibv_alloc_mw(pd, IBV_MW_TYPE_2); }, ibv_dealloc_mw);
    fill<ibv_cq>(
        device.max_cq, 1, [&] { return ibv_create_cq(context, 1, nullptr, nullptr, 0); },
        ibv_destroy_cq);
    fill<ibv_srq>(device.max_srq, 0, [&] { return make_srq(1, 1); }, ibv_destroy_srq);
    fill<ibv_qp>(device.max_qp, 0, [&] { return make_small_qp(); }, ibv_destroy_qp);
  }
};

TEST_F(Limits, ObjectsToTheRealLimits) { fill_everything(); }

TEST_F(Limits, ObjectsToLowerLimits) {
  if (!run_alone({"ADVERB_LIMITS=max_qp=3,max_cq=4,max_srq=2,max_mr=2,max_mw=3,max_pd=5,max_ah=6"}))
    return;
  EXPECT_EQ(device.max_qp, 3);
  EXPECT_EQ(device.max_cq, 4);
  EXPECT_EQ(device.max_srq, 2);
  EXPECT_EQ(device.max_mr, 2);
  EXPECT_EQ(device.max_mw, 3);
  EXPECT_EQ(device.max_pd, 5);
  EXPECT_EQ(device.max_ah, 6);
  fill_everything();
  // They are the device's: another context has its share of the same.
  ibv_mr *one = make_mr(), *two = make_mr();
  ibv_context* other = ibv_open_device(list[0]);
  ibv_pd* theirs = ibv_alloc_pd(other);
  EXPECT_EQ(error_of(ibv_reg_mr(theirs, buffer.data(), 64, 0)), ENOMEM);
  EXPECT_EQ(ibv_dereg_mr(one), 0);
  ibv_mr* three = ibv_reg_mr(theirs, buffer.data(), 64, 0);
  EXPECT_TRUE(three);
  EXPECT_EQ(ibv_dereg_mr(two), 0);
  EXPECT_EQ(ibv_dereg_mr(three), 0);
  EXPECT_EQ(ibv_dealloc_pd(theirs), 0);
  EXPECT_EQ(ibv_close_device(other), 0);
}

// A forked child counts for itself.
TEST_F(Limits, ForkedChildHasItsOwn) {
  if (!run_alone({"ADVERB_LIMITS=max_pd=2"})) return;
  ibv_pd* second = ibv_alloc_pd(context);
  ASSERT_TRUE(second);
  const pid_t child = fork();
  if (child == 0) {
    ibv_device** own_list = ibv_get_device_list(nullptr);
    ibv_context* own = own_list ? ibv_open_device(own_list[0]) : nullptr;
    ibv_pd* a = own ? ibv_alloc_pd(own) : nullptr;
    ibv_pd* b = own ? ibv_alloc_pd(own) : nullptr;
    _exit(a && b && !ibv_alloc_pd(own) ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(error_of(ibv_alloc_pd(context)), ENOMEM);
  EXPECT_EQ(ibv_dealloc_pd(second), 0);
}

// --- queues

TEST_F(Limits, C19_QueuePairOfTheLargestQueues) {
  ibv_qp_init_attr a = init_attr();
  const auto wr = static_cast<std::uint32_t>(device.max_qp_wr);
  a.cap = {.max_send_wr = wr, .max_recv_wr = wr, .max_send_sge = 1, .max_recv_sge = 1};
  ibv_qp* qp = ibv_create_qp(pd, &a);
  ASSERT_TRUE(qp);
  EXPECT_EQ(a.cap.max_send_wr, wr);
  ASSERT_EQ(to_init(qp), 0);
  for (std::uint32_t i = 0; i < wr; ++i) ASSERT_EQ(post_receive(qp, i), 0);
  EXPECT_EQ(post_receive(qp, wr), ENOMEM);
  ASSERT_EQ(to_rtr(qp, qp->qp_num), 0);
  ASSERT_EQ(to_rts(qp), 0);
  // Nothing frees a slot but polling.
  ibv_send_wr one{}, *bad = nullptr;
  one.opcode = IBV_WR_SEND;
  std::uint32_t posted = 0;
  while (posted <= wr && ibv_post_send(qp, &one, &bad) == 0) ++posted;
  EXPECT_EQ(posted, wr);
  EXPECT_EQ(bad, &one);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  ++a.cap.max_send_wr;
  EXPECT_EQ(error_of(ibv_create_qp(pd, &a)), EINVAL);
}

TEST_F(Limits, ListsOfTheMostElements) {
  ibv_mr* mr =
      ibv_reg_mr(pd, buffer.data(), buffer.size(), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
  ibv_qp_init_attr a = init_attr();
  const auto n = static_cast<unsigned>(device.max_sge);
  a.cap.max_send_sge = a.cap.max_recv_sge = n;
  ibv_qp* qp = ibv_create_qp(pd, &a);
  ASSERT_TRUE(qp);
  ASSERT_EQ(to_init(qp), 0);
  ASSERT_EQ(to_rtr(qp, qp->qp_num), 0);
  ASSERT_EQ(to_rts(qp), 0);
  std::vector<ibv_sge> from, to;
  for (unsigned i = 0; i < n; ++i) {
    buffer[i * 2] = static_cast<char>('a' + i);
    from.push_back(sge_of(&buffer[i * 2], 1, mr));
    to.push_back(sge_of(&buffer[4096 + i * 2], 1, mr));
  }
  ibv_recv_wr recv{.wr_id = 1, .next = nullptr, .sg_list = to.data(), .num_sge = int(n)}, *bad_recv;
  ASSERT_EQ(ibv_post_recv(qp, &recv, &bad_recv), 0);
  ibv_send_wr wr{}, *bad;
  wr.sg_list = from.data();
  wr.num_sge = static_cast<int>(n);
  wr.opcode = IBV_WR_SEND;
  ASSERT_EQ(ibv_post_send(qp, &wr, &bad), 0);
  for (const ibv_wc& wc : completions(2)) EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  for (unsigned i = 0; i < n; ++i) EXPECT_EQ(buffer[4096 + i * 2], buffer[i * 2]);
  wr.sg_list = to.data();
  wr.num_sge = device.max_sge_rd;
  wr.opcode = IBV_WR_RDMA_READ;
  wr.wr.rdma = {reinterpret_cast<std::uintptr_t>(buffer.data()), mr->rkey};
  ASSERT_EQ(ibv_post_send(qp, &wr, &bad), 0);
  EXPECT_EQ(completions(1)[0].status, IBV_WC_SUCCESS);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  a.cap.max_send_sge = n + 1;
  EXPECT_EQ(error_of(ibv_create_qp(pd, &a)), EINVAL);
}

TEST_F(Limits, LargestCompletionQueue) {
  ibv_cq* own = ibv_create_cq(context, device.max_cqe, nullptr, nullptr, 0);
  ASSERT_TRUE(own);
  EXPECT_EQ(own->cqe, device.max_cqe);
  EXPECT_EQ(ibv_destroy_cq(own), 0);
  EXPECT_EQ(error_of(ibv_create_cq(context, device.max_cqe + 1, nullptr, nullptr, 0)), EINVAL);
}

TEST_F(Limits, C34_LargestSharedReceiveQueue) {
  const auto wr = static_cast<std::uint32_t>(device.max_srq_wr);
  const auto sge = static_cast<std::uint32_t>(device.max_srq_sge);
  ibv_srq* srq = make_srq(wr, sge);
  ASSERT_TRUE(srq);
  std::vector<ibv_sge> list(sge, ibv_sge{});
  std::vector<ibv_recv_wr> chain(wr + 1);
  for (std::size_t i = 0; i < chain.size(); ++i)
    chain[i] = {.wr_id = i,
                .next = i < wr ? &chain[i + 1] : nullptr,
                .sg_list = list.data(),
                .num_sge = static_cast<int>(sge)};
  ibv_recv_wr* bad = nullptr;
  EXPECT_EQ(ibv_post_srq_recv(srq, chain.data(), &bad), ENOMEM);
  EXPECT_EQ(bad, &chain.back());
  EXPECT_EQ(ibv_destroy_srq(srq), 0);
  EXPECT_EQ(error_of(make_srq(wr + 1, 1)), EINVAL);
  EXPECT_EQ(error_of(make_srq(1, sge + 1)), EINVAL);
}

TEST_F(Limits, LowerOnesOfQueues) {
  if (!run_alone({"ADVERB_LIMITS=max_qp_wr=6,max_sge=3,max_sge_rd=2,max_cqe=70,max_srq_wr=5,"
                  "max_srq_sge=2,max_inline_data=40"}))
    return;
  EXPECT_EQ(device.max_qp_wr, 6);
  EXPECT_EQ(device.max_sge, 3);
  EXPECT_EQ(device.max_sge_rd, 2);
  ibv_qp_init_attr a = init_attr();
  a.cap = {.max_send_wr = 5,
           .max_recv_wr = 6,
           .max_send_sge = 3,
           .max_recv_sge = 3,
           .max_inline_data = 40};
  const auto refused = [&](auto member) {
    ibv_qp_init_attr more = a;
    more.cap.*member = 41;
    return error_of(ibv_create_qp(pd, &more));
  };
  EXPECT_EQ(refused(&ibv_qp_cap::max_send_wr), EINVAL);
  EXPECT_EQ(refused(&ibv_qp_cap::max_recv_wr), EINVAL);
  EXPECT_EQ(refused(&ibv_qp_cap::max_send_sge), EINVAL);
  EXPECT_EQ(refused(&ibv_qp_cap::max_recv_sge), EINVAL);
  EXPECT_EQ(refused(&ibv_qp_cap::max_inline_data), EINVAL);
  ibv_qp* qp = ibv_create_qp(pd, &a);
  ASSERT_TRUE(qp);
  EXPECT_EQ(a.cap.max_send_wr, 6u);  // rounding stops there
  EXPECT_EQ(a.cap.max_inline_data, 40u);
  ASSERT_EQ(to_init(qp), 0);
  ASSERT_EQ(to_rtr(qp, qp->qp_num), 0);
  ASSERT_EQ(to_rts(qp), 0);
  ibv_sge list[3]{};
  ibv_send_wr wr{}, *bad;
  wr.opcode = IBV_WR_RDMA_READ;
  wr.sg_list = list;
  wr.num_sge = 3;
  EXPECT_EQ(ibv_post_send(qp, &wr, &bad), EINVAL);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_EQ(error_of(ibv_create_cq(context, 71, nullptr, nullptr, 0)), EINVAL);
  EXPECT_EQ(ibv_resize_cq(cq, 71), EINVAL);
  EXPECT_EQ(error_of(make_srq(6, 1)), EINVAL);
  EXPECT_EQ(error_of(make_srq(1, 3)), EINVAL);
}

// --- READs and atomics

TEST_F(Limits, OutstandingReads) {
  ibv_qp* qp = make_qp();
  ASSERT_EQ(to_init(qp), 0);
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_RTR;
  a.path_mtu = IBV_MTU_1024;
  a.dest_qp_num = qp->qp_num;
  a.ah_attr = own_address();
  a.max_dest_rd_atomic = static_cast<std::uint8_t>(device.max_qp_rd_atom + 1);
  constexpr int rtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  EXPECT_EQ(ibv_modify_qp(qp, &a, rtr), EINVAL);
  --a.max_dest_rd_atomic;
  EXPECT_EQ(ibv_modify_qp(qp, &a, rtr), 0);
  a.qp_state = IBV_QPS_RTS;
  a.max_rd_atomic = static_cast<std::uint8_t>(device.max_qp_init_rd_atom + 1);
  constexpr int rts = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                      IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
  EXPECT_EQ(ibv_modify_qp(qp, &a, rts), EINVAL);
  --a.max_rd_atomic;
  EXPECT_EQ(ibv_modify_qp(qp, &a, rts), 0);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
}

// The resources of all queue pairs together.
TEST_F(Limits, ResponderResources) {
  if (!run_alone({"ADVERB_LIMITS=max_res_rd_atom=6,max_qp_rd_atom=4,max_qp_init_rd_atom=4"}))
    return;
  EXPECT_EQ(device.max_res_rd_atom, 6);
  EXPECT_EQ(device.max_qp_rd_atom, 4);
  ibv_qp *one = make_qp(), *two = make_qp();
  for (ibv_qp* qp : {one, two}) ASSERT_EQ(to_init(qp), 0);
  ASSERT_EQ(to_rtr(one, two->qp_num), 0);  // with 4
  EXPECT_EQ(to_rtr(two, one->qp_num), ENOMEM);
  EXPECT_EQ(two->state, IBV_QPS_INIT);
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_RESET;
  ASSERT_EQ(ibv_modify_qp(one, &a, IBV_QP_STATE), 0);
  EXPECT_EQ(to_rtr(two, one->qp_num), 0);
  EXPECT_EQ(ibv_destroy_qp(two), 0);
  ASSERT_EQ(to_init(one), 0);
  EXPECT_EQ(to_rtr(one, one->qp_num), 0);
  EXPECT_EQ(ibv_destroy_qp(one), 0);
}

// --- memory

TEST_F(Limits, LockableMemory) {
  if (!run_alone({"ADVERB_LIMITS=memlock=64k,max_mr_size=128k"})) return;
  EXPECT_EQ(device.max_mr_size, 128u << 10);
  std::vector<char> room(256 << 10);
  char* page = room.data() + 4096 - reinterpret_cast<std::uintptr_t>(room.data()) % 4096;
  EXPECT_EQ(error_of(ibv_reg_mr(pd, page, (128 << 10) + 1, 0)), EINVAL);
  EXPECT_EQ(error_of(ibv_reg_mr(pd, page, (64 << 10) + 1, 0)), ENOMEM);
  ibv_mr* most = ibv_reg_mr(pd, page, 64 << 10, 0);
  ASSERT_TRUE(most);
  EXPECT_EQ(error_of(ibv_reg_mr(pd, page, 1, 0)), ENOMEM);
  ibv_mr* unpinned = ibv_reg_mr(pd, page, 4096, IBV_ACCESS_ON_DEMAND);
  EXPECT_TRUE(unpinned);
  EXPECT_EQ(ibv_rereg_mr(most, IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, page, 60 << 10, 0), 0);
  ibv_mr* small = ibv_reg_mr(pd, page + 4095, 1, 0);  // a page
  EXPECT_TRUE(small);
  EXPECT_EQ(error_of(ibv_reg_mr(pd, page, 1, 0)), ENOMEM);
  errno = 0;
  EXPECT_NE(ibv_rereg_mr(most, IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, page, 64 << 10, 0), 0);
  EXPECT_EQ(errno, ENOMEM);
  for (ibv_mr* mr : {most, unpinned, small}) EXPECT_EQ(ibv_dereg_mr(mr), 0);
  most = ibv_reg_mr(pd, page, 64 << 10, 0);
  EXPECT_TRUE(most);
  EXPECT_EQ(ibv_dereg_mr(most), 0);
}

// --- ibv_query_port(3): what was refused

TEST_F(Limits, QkeyViolationsAreCounted) {
  EXPECT_TRUE(device.device_cap_flags & IBV_DEVICE_BAD_QKEY_CNTR);
  const auto violations = [&] {
    ibv_port_attr port;
    EXPECT_EQ(ibv_query_port(context, 1, &port), 0);
    return port.qkey_viol_cntr;
  };
  ibv_qp* qp = make_qp(IBV_QPT_UD);
  ASSERT_EQ(to_init(qp), 0);
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_RTR;
  ASSERT_EQ(ibv_modify_qp(qp, &a, IBV_QP_STATE), 0);
  a.qp_state = IBV_QPS_RTS;
  ASSERT_EQ(ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
  const std::uint32_t before = violations();
  ibv_ah_attr address = own_address();
  ibv_ah* ah = ibv_create_ah(pd, &address);
  ibv_send_wr wr{}, *bad;
  wr.opcode = IBV_WR_SEND;
  wr.wr.ud = {.ah = ah, .remote_qpn = qp->qp_num, .remote_qkey = 0x22222222};
  ASSERT_EQ(ibv_post_send(qp, &wr, &bad), 0);
  EXPECT_EQ(completions(1)[0].status, IBV_WC_SUCCESS);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  ibv_wc wc;
  while (violations() == before && std::chrono::steady_clock::now() < end)
    EXPECT_EQ(ibv_poll_cq(cq, 1, &wc), 0);
  EXPECT_EQ(violations(), before + 1);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_EQ(ibv_destroy_ah(ah), 0);
}

// --- a program must not run as if it had no limits

TEST(WrongSettings, GiveNoDevice) {
  if (!run_alone({"ADVERB_LIMITS=max_qps=4"})) return;
  int n = -1;
  errno = 0;
  EXPECT_EQ(ibv_get_device_list(&n), nullptr);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(n, 0);
}

}  // namespace
