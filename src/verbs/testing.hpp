// SPDX-License-Identifier: Apache-2.0
// What tests of the C shell begin with: the first device of this network namespace, with a PD, a CQ
// and a buffer, and queue pairs that are connected with themselves.
#pragma once

#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

namespace adverb::verbs {

// The library reads its settings once.  A test that begins with
//   if (!run_alone({"ADVERB_LIMITS=max_qp=4"})) return;
// runs in a process of its own that has these; in the first one this fails the test when that does.
inline bool run_alone(const std::vector<std::string>& settings) {
  if (std::getenv("ADVERB_TEST_ALONE")) return true;
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  std::string filter =
      std::string("--gtest_filter=") + test->test_suite_name() + "." + test->name();
  std::vector<std::string> words = settings;
  words.emplace_back("ADVERB_TEST_ALONE=1");
  std::vector<char*> env;
  for (std::string& w : words) env.push_back(w.data());
  for (char** e = environ; *e; ++e) env.push_back(*e);
  env.push_back(nullptr);
  // By its name, which valgrind can follow.
  std::string self = std::filesystem::canonical("/proc/self/exe");
  char* argv[] = {self.data(), filter.data(), nullptr};
  pid_t child = 0;
  int status = -1;
  EXPECT_EQ(posix_spawn(&child, self.c_str(), nullptr, nullptr, argv, env.data()), 0);
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << "in its own process";
  return false;
}

// Memory where no other mapping comes when it is unmapped: the kernel fills the address space from
// the top, and what a queue pair, a thread or a sanitizer maps would come to any other hole soon.
inline char* map_apart(std::size_t bytes, int protection = PROT_READ | PROT_WRITE) {
  void* p = mmap(reinterpret_cast<void*>(0x2000'0000), bytes, protection,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  EXPECT_NE(p, MAP_FAILED);
  return static_cast<char*>(p);
}

struct Verbs : testing::Test {
  ibv_device** list = nullptr;
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_cq* cq = nullptr;
  std::vector<char> buffer = std::vector<char>(1 << 16);

  void SetUp() override {
    list = ibv_get_device_list(nullptr);
    ASSERT_TRUE(list && list[0]);
    context = ibv_open_device(list[0]);
    ASSERT_TRUE(context) << std::strerror(errno);
    pd = ibv_alloc_pd(context);
    cq = ibv_create_cq(context, 64, this, nullptr, 0);
    ASSERT_TRUE(pd && cq);
  }
  void TearDown() override {
    EXPECT_TRUE(!cq || ibv_destroy_cq(cq) == 0);
    EXPECT_TRUE(!pd || ibv_dealloc_pd(pd) == 0);
    EXPECT_TRUE(!context || ibv_close_device(context) == 0);
    ibv_free_device_list(list);
  }

  ibv_qp_init_attr init_attr(ibv_qp_type type = IBV_QPT_RC, ibv_srq* srq = nullptr) {
    return {.qp_context = this,
            .send_cq = cq,
            .recv_cq = cq,
            .srq = srq,
            .cap = {.max_send_wr = 8,
                    .max_recv_wr = 8,
                    .max_send_sge = 4,
                    .max_recv_sge = 4,
                    .max_inline_data = 64},
            .qp_type = type,
            .sq_sig_all = 1};
  }
  ibv_qp* make_qp(ibv_qp_type type = IBV_QPT_RC, ibv_srq* srq = nullptr) {
    ibv_qp_init_attr a = init_attr(type, srq);
    return ibv_create_qp(pd, &a);
  }
  static constexpr std::uint32_t qkey = 0x11111111;  // of UD queue pairs
  // A UD QP in RTS.
  ibv_qp* make_ud() {
    ibv_qp* qp = make_qp(IBV_QPT_UD);
    to_rts_as_ud(qp);
    return qp;
  }
  static void to_rts_as_ud(ibv_qp* qp) {
    EXPECT_EQ(to_init(qp), 0);
    ibv_qp_attr a{};
    a.qp_state = IBV_QPS_RTR;
    EXPECT_EQ(ibv_modify_qp(qp, &a, IBV_QP_STATE), 0);
    a.qp_state = IBV_QPS_RTS;
    EXPECT_EQ(ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
  }
  ibv_ah_attr own_address() {
    ibv_ah_attr a{};
    a.is_global = 1;
    a.port_num = 1;
    a.grh.hop_limit = 64;
    EXPECT_EQ(ibv_query_gid(context, 1, 0, &a.grh.dgid), 0);
    return a;
  }
  static int to_init(ibv_qp* qp) {
    ibv_qp_attr a{};
    a.qp_state = IBV_QPS_INIT;
    a.port_num = 1;
    a.qkey = qkey;
    a.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    return ibv_modify_qp(qp, &a,
                         IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                             (qp->qp_type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS));
  }
  int to_rtr(ibv_qp* qp, std::uint32_t peer) {
    ibv_qp_attr a{};
    a.qp_state = IBV_QPS_RTR;
    a.path_mtu = IBV_MTU_1024;
    a.dest_qp_num = peer;
    a.rq_psn = 7;
    a.max_dest_rd_atomic = 4;
    a.min_rnr_timer = 12;
    a.ah_attr = own_address();
    return ibv_modify_qp(qp, &a,
                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                             IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  }
  static int to_rts(ibv_qp* qp) {
    ibv_qp_attr a{};
    a.qp_state = IBV_QPS_RTS;
    a.sq_psn = 7;
    a.timeout = 14;
    a.retry_cnt = 7;
    a.rnr_retry = 7;
    a.max_rd_atomic = 4;
    return ibv_modify_qp(qp, &a,
                         IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                             IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
  }
  static int to_error(ibv_qp* qp) {
    ibv_qp_attr a{};
    a.qp_state = IBV_QPS_ERR;
    return ibv_modify_qp(qp, &a, IBV_QP_STATE);
  }
  // A QP that is connected with itself.
  ibv_qp* make_connected() {
    ibv_qp* qp = make_qp();
    EXPECT_TRUE(qp);
    EXPECT_EQ(to_init(qp), 0);
    EXPECT_EQ(to_rtr(qp, qp->qp_num), 0);
    EXPECT_EQ(to_rts(qp), 0);
    return qp;
  }
  // Two that are connected: what the responder refuses leaves the requester to tell of it.
  std::array<ibv_qp*, 2> make_pair() {
    std::array<ibv_qp*, 2> pair{make_qp(), make_qp()};
    for (int i : {0, 1}) {
      EXPECT_EQ(to_init(pair[i]), 0);
      EXPECT_EQ(to_rtr(pair[i], pair[1 - i]->qp_num), 0);
      EXPECT_EQ(to_rts(pair[i]), 0);
    }
    return pair;
  }
  // The status of an RDMA request of a fresh pair.
  ibv_wc_status rdma_once(ibv_wr_opcode opcode, ibv_sge local, std::uint64_t remote,
                          std::uint32_t rkey) {
    const std::array<ibv_qp*, 2> pair = make_pair();
    const ibv_wc_status status = rdma(pair[0], opcode, local, remote, rkey);
    for (ibv_qp* qp : pair) EXPECT_EQ(ibv_destroy_qp(qp), 0);
    return status;
  }
  int post_receive(ibv_qp* qp, std::uint64_t id, ibv_mr* mr = nullptr, std::uint32_t length = 0) {
    ibv_sge sge{reinterpret_cast<std::uintptr_t>(buffer.data()) + 4096, length, mr ? mr->lkey : 0};
    ibv_recv_wr wr{.wr_id = id, .next = nullptr, .sg_list = &sge, .num_sge = mr ? 1 : 0}, *bad;
    return ibv_post_recv(qp, &wr, &bad);
  }
  static int post_send(ibv_qp* qp, std::uint64_t id, ibv_sge* sge, unsigned flags = 0) {
    ibv_send_wr wr{}, *bad = nullptr;
    wr.wr_id = id;
    wr.sg_list = sge;
    wr.num_sge = sge ? 1 : 0;
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = flags;
    const int error = ibv_post_send(qp, &wr, &bad);
    EXPECT_EQ(bad, error ? &wr : nullptr);
    return error;
  }
  // A one-sided request of a connected QP; its completion's status.
  ibv_wc_status run(ibv_qp* qp, ibv_send_wr wr, ibv_sge sge) {
    ibv_send_wr* bad = nullptr;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    EXPECT_EQ(ibv_post_send(qp, &wr, &bad), 0);
    const std::vector<ibv_wc> done = completions(1);
    return done.empty() ? IBV_WC_GENERAL_ERR : done[0].status;
  }
  ibv_wc_status rdma(ibv_qp* qp, ibv_wr_opcode opcode, ibv_sge local, std::uint64_t remote,
                     std::uint32_t rkey) {
    ibv_send_wr wr{};
    wr.opcode = opcode;
    wr.wr.rdma = {remote, rkey};
    return run(qp, wr, local);
  }
  // Polls until n completions are there.
  std::vector<ibv_wc> completions(std::size_t n) {
    std::vector<ibv_wc> out;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (out.size() < n && std::chrono::steady_clock::now() < end) {
      ibv_wc wc;
      if (ibv_poll_cq(cq, 1, &wc) == 1) out.push_back(wc);
    }
    EXPECT_EQ(out.size(), n);
    return out;
  }

  static ibv_sge sge_of(const void* p, std::uint32_t length, const ibv_mr* mr) {
    return {reinterpret_cast<std::uintptr_t>(p), length, mr->lkey};
  }
  // The errno of a creator that must have failed.
  static int error_of(const void* made) {
    const int error = errno;
    EXPECT_EQ(made, nullptr);
    return error;
  }
};

// The same on the loopback interface, for tests that send to others than themselves.
struct Loopback : Verbs {
  void SetUp() override {
    setenv("ADVERB_DEVICE", "lo", 1);
    Verbs::SetUp();
  }
  void TearDown() override {
    Verbs::TearDown();
    unsetenv("ADVERB_DEVICE");
  }
};

}  // namespace adverb::verbs
