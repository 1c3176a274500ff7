// SPDX-License-Identifier: Apache-2.0
// Completion queues beyond polling: resizing, moderation, the extended CQ and what a failed device
// says.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <poll.h>

#include <atomic>
#include <ctime>
#include <thread>

#include "verbs/testing.hpp"

namespace {

using namespace std::chrono_literals;
using adverb::verbs::run_alone;
using adverb::verbs::Verbs;

struct Completion : Verbs {
  // Flushed sends: entries that are there when the call returns.
  void put(ibv_qp* qp, std::uint64_t first, int n) {
    for (int i = 0; i < n; ++i) ASSERT_EQ(post_send(qp, first + i, nullptr), 0);
  }
  std::vector<std::uint64_t> take(std::size_t n) {
    std::vector<std::uint64_t> ids;
    for (const ibv_wc& wc : completions(n)) ids.push_back(wc.wr_id);
    return ids;
  }
  ibv_qp* make_failed() {
    ibv_qp* qp = make_connected();
    EXPECT_EQ(to_error(qp), 0);
    return qp;
  }
};

// --- ibv_resize_cq(3)

TEST_F(Completion, ResizeKeepsTheEntriesInOrder) {
  ibv_qp* qp = make_failed();
  put(qp, 0, 8);
  EXPECT_THAT(take(3), testing::ElementsAre(0, 1, 2));  // the ring begins in its midst
  put(qp, 8, 3);
  ASSERT_EQ(ibv_resize_cq(cq, 8), 0);
  EXPECT_GE(cq->cqe, 8);
  ASSERT_EQ(ibv_resize_cq(cq, 500), 0);
  EXPECT_GE(cq->cqe, 500);
  EXPECT_THAT(take(8), testing::ElementsAre(3, 4, 5, 6, 7, 8, 9, 10));
  put(qp, 20, 8);
  EXPECT_THAT(take(8), testing::ElementsAre(20, 21, 22, 23, 24, 25, 26, 27));
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
}

TEST_F(Completion, ResizeBelowWhatWaitsOrBeyondTheLimitIsRefused) {
  ibv_device_attr limits;
  ASSERT_EQ(ibv_query_device(context, &limits), 0);
  ibv_qp* qp = make_failed();
  put(qp, 0, 8);
  const int before = cq->cqe;
  EXPECT_EQ(ibv_resize_cq(cq, 1), EINVAL);
  for (const int cqe : {0, -1, limits.max_cqe + 1}) EXPECT_EQ(ibv_resize_cq(cq, cqe), EINVAL);
  EXPECT_EQ(cq->cqe, before);
  EXPECT_EQ(take(8).size(), 8u);
  EXPECT_EQ(ibv_resize_cq(cq, 1), 0);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
}

TEST_F(Completion, ResizedCqHoldsWhatItSays) {
  ASSERT_EQ(ibv_resize_cq(cq, 3), 0);
  ibv_qp* qp = make_failed();
  put(qp, 0, std::min(cq->cqe, 8));
  pollfd quiet{context->async_fd, POLLIN, 0};
  EXPECT_EQ(::poll(&quiet, 1, 50), 0);
  EXPECT_EQ(take(std::min(cq->cqe, 8)).front(), 0u);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
}

// Whoever polls sees each completion once and in order, whatever the size is at that moment.
TEST_F(Completion, ResizeWhileTrafficRuns) {
  constexpr std::uint64_t messages = 20'000;
  ibv_qp* qp = make_connected();
  std::atomic<bool> done{false};
  std::thread resizer([&] {
    for (int size = 32; !done; size = size == 500 ? 32 : size + 1)
      EXPECT_EQ(ibv_resize_cq(cq, size), 0);
  });
  std::uint64_t sent = 0, received = 0, completed = 0;
  const auto end = std::chrono::steady_clock::now() + 60s;
  while (completed < messages && std::chrono::steady_clock::now() < end) {
    if (sent < messages && sent - completed < 8 && sent - received < 8) {
      ASSERT_EQ(post_receive(qp, sent), 0);
      ASSERT_EQ(post_send(qp, sent, nullptr), 0);
      ++sent;
    }
    ibv_wc wc[8];
    const int n = ibv_poll_cq(cq, 8, wc);
    ASSERT_GE(n, 0);
    for (int i = 0; i < n; ++i) {
      ASSERT_EQ(wc[i].status, IBV_WC_SUCCESS);
      ASSERT_EQ(wc[i].wr_id, wc[i].opcode == IBV_WC_RECV ? received++ : completed++);
    }
  }
  done = true;
  resizer.join();
  EXPECT_EQ(completed, messages);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
}

// --- ibv_modify_cq(3)

struct Moderation : Completion {
  ibv_comp_channel* channel = nullptr;
  ibv_cq* plain = nullptr;
  ibv_qp* qp = nullptr;
  void SetUp() override {
    Verbs::SetUp();
    channel = ibv_create_comp_channel(context);
    plain = cq;
    cq = ibv_create_cq(context, 64, nullptr, channel, 0);
    ASSERT_TRUE(channel && cq);
    qp = make_failed();
  }
  void TearDown() override {
    EXPECT_EQ(ibv_destroy_qp(qp), 0);
    EXPECT_EQ(ibv_destroy_cq(cq), 0);
    EXPECT_EQ(ibv_destroy_comp_channel(channel), 0);
    cq = plain;
    Verbs::TearDown();
  }
  int moderate(std::uint16_t count, std::uint16_t period) {
    ibv_modify_cq_attr a{.attr_mask = IBV_CQ_ATTR_MODERATE, .moderate = {count, period}};
    return ibv_modify_cq(cq, &a);
  }
  bool event_within(std::chrono::milliseconds wait) {
    pollfd p{channel->fd, POLLIN, 0};
    if (::poll(&p, 1, static_cast<int>(wait.count())) != 1) return false;
    ibv_cq* who;
    void* what;
    EXPECT_EQ(ibv_get_cq_event(channel, &who, &what), 0);
    ibv_ack_cq_events(who, 1);
    return true;
  }
};

TEST_F(Moderation, OneEventForSeveralCompletions) {
  ASSERT_EQ(moderate(4, 4095), 0);
  for (int round = 0; round < 2; ++round) {
    ASSERT_EQ(ibv_req_notify_cq(cq, 0), 0);
    put(qp, 0, 4);
    EXPECT_TRUE(event_within(10s));
    EXPECT_FALSE(event_within(20ms));  // one, and not a second for the time
    take(4);
  }
}

TEST_F(Moderation, OneEventAfterTheTime) {
  ASSERT_EQ(moderate(0xffff, 4000), 0);
  ASSERT_EQ(ibv_req_notify_cq(cq, 0), 0);
  const auto begin = std::chrono::steady_clock::now();
  put(qp, 0, 2);
  ASSERT_TRUE(event_within(10s));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 4ms);
  EXPECT_FALSE(event_within(20ms));
}

TEST_F(Moderation, SwitchedOffEachCompletionCounts) {
  ASSERT_EQ(moderate(8, 4000), 0);
  ASSERT_EQ(ibv_req_notify_cq(cq, 0), 0);
  put(qp, 0, 1);
  ASSERT_EQ(moderate(0, 0), 0);
  EXPECT_TRUE(event_within(10s));  // what waited by the old rule
  ASSERT_EQ(ibv_req_notify_cq(cq, 0), 0);
  put(qp, 1, 1);
  EXPECT_TRUE(event_within(10s));
}

TEST_F(Moderation, DestroyedWhileAnEventIsDue) {
  ibv_cq* own = ibv_create_cq(context, 8, nullptr, channel, 0);
  std::swap(own, cq);
  ibv_qp* other = make_failed();
  ASSERT_EQ(moderate(8, 4095), 0);
  ASSERT_EQ(ibv_req_notify_cq(cq, 0), 0);
  put(other, 0, 1);
  EXPECT_EQ(ibv_destroy_qp(other), 0);
  EXPECT_EQ(ibv_destroy_cq(cq), 0);
  std::swap(own, cq);
  EXPECT_FALSE(event_within(20ms));
}

TEST_F(Moderation, WrongAttributes) {
  ibv_device_attr_ex caps;
  ASSERT_EQ(ibv_query_device_ex(context, nullptr, &caps), 0);
  EXPECT_EQ(caps.cq_mod_caps.max_cq_count, 0xffff);
  EXPECT_EQ(moderate(1, caps.cq_mod_caps.max_cq_period), 0);
  EXPECT_EQ(moderate(1, caps.cq_mod_caps.max_cq_period + 1), EINVAL);
  ibv_modify_cq_attr a{.attr_mask = IBV_CQ_ATTR_RESERVED, .moderate = {1, 1}};
  EXPECT_EQ(ibv_modify_cq(cq, &a), EINVAL);
}

// --- ibv_create_cq_ex(3)

struct Extended : Completion {
  ibv_cq* plain = nullptr;
  ibv_cq_ex* ex = nullptr;
  ibv_cq_ex* make(std::uint64_t wc_flags, std::uint32_t flags = 0, std::uint32_t cqe = 16) {
    ibv_cq_init_attr_ex a{};
    a.cqe = cqe;
    a.wc_flags = wc_flags;
    a.comp_mask = flags ? IBV_CQ_INIT_ATTR_MASK_FLAGS : 0;
    a.flags = flags;
    return ibv_create_cq_ex(context, &a);
  }
  void use(ibv_cq_ex* made) {
    ASSERT_TRUE(made);
    ex = made;
    plain = cq;
    cq = ibv_cq_ex_to_cq(ex);
  }
  void TearDown() override {
    if (ex) {
      EXPECT_EQ(ibv_destroy_cq(cq), 0);
      cq = plain;
    }
    Verbs::TearDown();
  }
  // Waits for an entry and leaves the poll open at it.
  bool open_poll() {
    const auto end = std::chrono::steady_clock::now() + 10s;
    ibv_poll_cq_attr none{};
    while (std::chrono::steady_clock::now() < end)
      if (ibv_start_poll(ex, &none) == 0) return true;
    return false;
  }
};

constexpr std::uint64_t every_wc_flag =
    std::uint64_t{IBV_WC_STANDARD_FLAGS} | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK | IBV_WC_EX_WITH_CVLAN | IBV_WC_EX_WITH_FLOW_TAG;

TEST_F(Extended, WcFlagsOneByOne) {
  for (unsigned bit = 0; bit < 64; ++bit) {
    const std::uint64_t flag = std::uint64_t{1} << bit;
    errno = 0;
    ibv_cq_ex* made = make(flag);
    EXPECT_EQ(made != nullptr, (flag & every_wc_flag) != 0) << bit;
    if (made)
      EXPECT_EQ(ibv_destroy_cq(ibv_cq_ex_to_cq(made)), 0);
    else
      EXPECT_EQ(errno, EOPNOTSUPP) << bit;
  }
  EXPECT_EQ(error_of(make(0, 1u << 2)), EINVAL);
}

TEST_F(Extended, EveryReadFunction) {
  use(make(every_wc_flag, IBV_CREATE_CQ_ATTR_SINGLE_THREADED));
  ibv_mr* mr = ibv_reg_mr(pd, buffer.data(), buffer.size(), IBV_ACCESS_LOCAL_WRITE);
  ibv_qp* qp = make_connected();
  ASSERT_EQ(post_receive(qp, 11, mr, 4096), 0);
  ibv_sge sge = sge_of(buffer.data(), 100, mr);
  ibv_send_wr wr{}, *bad;
  wr.wr_id = 22;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_SEND_WITH_IMM;
  wr.imm_data = htonl(0xdecade);
  ASSERT_EQ(ibv_post_send(qp, &wr, &bad), 0);
  bool received = false, sent = false;
  while (!(received && sent)) {
    ASSERT_TRUE(open_poll());
    EXPECT_EQ(ex->status, IBV_WC_SUCCESS);
    EXPECT_EQ(ibv_wc_read_vendor_err(ex), 0u);
    EXPECT_EQ(ibv_wc_read_qp_num(ex), qp->qp_num);
    EXPECT_EQ(ibv_wc_read_slid(ex), 0u);
    EXPECT_EQ(ibv_wc_read_sl(ex), 0u);
    EXPECT_EQ(ibv_wc_read_dlid_path_bits(ex), 0u);
    EXPECT_EQ(ibv_wc_read_cvlan(ex), 0u);
    EXPECT_EQ(ibv_wc_read_flow_tag(ex), 0u);
    if (ibv_wc_read_opcode(ex) == IBV_WC_RECV) {
      received = true;
      EXPECT_EQ(ex->wr_id, 11u);
      EXPECT_EQ(ibv_wc_read_byte_len(ex), 100u);
      EXPECT_EQ(ibv_wc_read_wc_flags(ex), unsigned{IBV_WC_WITH_IMM});
      EXPECT_EQ(ibv_wc_read_imm_data(ex), htonl(0xdecade));
    } else {
      sent = true;
      EXPECT_EQ(ibv_wc_read_opcode(ex), IBV_WC_SEND);
      EXPECT_EQ(ex->wr_id, 22u);
    }
    ibv_end_poll(ex);
  }
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

// ibv_query_rt_values_ex(3) and ibv_query_device_ex(3): one clock, in ticks of hca_core_clock kHz.
TEST_F(Extended, TimestampsAreTimesOfTheDevicesClock) {
  use(make(every_wc_flag));
  ibv_device_attr_ex caps;
  ASSERT_EQ(ibv_query_device_ex(context, nullptr, &caps), 0);
  EXPECT_EQ(caps.hca_core_clock, 1'000'000u);
  EXPECT_EQ(caps.completion_timestamp_mask, ~std::uint64_t{0});
  const auto ticks = [&] {
    ibv_values_ex v{};
    v.comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
    EXPECT_EQ(ibv_query_rt_values_ex(context, &v), 0);
    EXPECT_EQ(v.raw_clock.tv_sec, 0);
    return static_cast<std::uint64_t>(v.raw_clock.tv_nsec);
  };
  const auto wall = [] {
    timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
  };
  ibv_qp* qp = make_failed();
  std::uint64_t last = ticks();
  const std::uint64_t wall_before = wall();
  for (int i = 0; i < 3; ++i) {
    put(qp, i, 1);
    ASSERT_TRUE(open_poll());
    const std::uint64_t at = ibv_wc_read_completion_ts(ex);
    EXPECT_GE(at, last);
    EXPECT_LE(at, ticks());
    last = at;
    // The wall clock may be slewed meanwhile, but not by a millisecond.
    const std::uint64_t wall_at = ibv_wc_read_completion_wallclock_ns(ex);
    EXPECT_GE(wall_at + 1'000'000, wall_before);
    EXPECT_LE(wall_at, wall() + 1'000'000);
    ibv_end_poll(ex);
  }
  ibv_values_ex unknown{};
  unknown.comp_mask = 1u << 7;
  EXPECT_EQ(ibv_query_rt_values_ex(context, &unknown), EINVAL);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
}

// IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN: entries are lost, and nothing else happens; the send queue
// slots of lost entries are free again.
TEST_F(Extended, OverrunIsIgnored) {
  use(make(0, IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN, 3));
  ibv_qp* qp = make_connected();
  // Nobody polls, and yet the queues become free again.
  const auto taken = [](auto&& post) {
    int error = 0;
    while ((error = post()) == ENOMEM) std::this_thread::sleep_for(1ms);
    return error;
  };
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(taken([&] { return post_receive(qp, i); }), 0);
    ASSERT_EQ(taken([&] { return post_send(qp, i, nullptr); }), 0);
  }
  ibv_qp_attr attr;
  ibv_qp_init_attr init;
  ASSERT_EQ(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init), 0);
  EXPECT_EQ(attr.qp_state, IBV_QPS_RTS);
  pollfd quiet{context->async_fd, POLLIN, 0};
  EXPECT_EQ(::poll(&quiet, 1, 0), 0);
  EXPECT_EQ(completions(3).front().status, IBV_WC_SUCCESS);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
}

TEST_F(Completion, VectorsAreOneForEachProcessor) {
  EXPECT_GE(context->num_comp_vectors, 1);
  for (int vector = 0; vector < context->num_comp_vectors; ++vector) {
    ibv_cq* own = ibv_create_cq(context, 1, nullptr, nullptr, vector);
    ASSERT_TRUE(own);
    EXPECT_EQ(ibv_destroy_cq(own), 0);
  }
  EXPECT_EQ(error_of(ibv_create_cq(context, 1, nullptr, nullptr, context->num_comp_vectors)),
            EINVAL);
}

// --- what is not offered, and what is promised

// Enhanced connection establishment is between NICs of one vendor, of those who have it.
TEST_F(Completion, EceOfAnotherVendorsNic) {
  if (!run_alone({"ADVERB_PART_ID=0x1017"})) return;
  ibv_qp* qp = make_connected();
  ibv_ece ece{1, 1, 1};
  EXPECT_EQ(ibv_query_ece(qp, &ece), 0);
  EXPECT_EQ(ece.vendor_id, 0x15b3u);
  EXPECT_EQ(ece.options, 0u);
  EXPECT_EQ(ece.comp_mask, 0u);
  ece.options = 0x30000002;
  EXPECT_EQ(ibv_set_ece(qp, &ece), 0);
  EXPECT_EQ(ece.options, 0u) << "none was accepted";
  ece.comp_mask = 1;
  EXPECT_EQ(ibv_set_ece(qp, &ece), EINVAL);
  ece = {.vendor_id = 0x14e4, .options = 0, .comp_mask = 0};
  EXPECT_EQ(ibv_set_ece(qp, &ece), EINVAL);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
}

TEST_F(Completion, EceAndRateLimitsAreNotOffered) {
  ibv_qp* qp = make_connected();
  ibv_ece ece{};
  EXPECT_EQ(ibv_query_ece(qp, &ece), EOPNOTSUPP);
  EXPECT_EQ(ibv_set_ece(qp, &ece), EOPNOTSUPP);
  ibv_qp_rate_limit_attr rate{};
  rate.rate_limit = 1000;
  EXPECT_EQ(ibv_modify_qp_rate_limit(qp, &rate), EOPNOTSUPP);
  ibv_counters_init_attr none{};
  EXPECT_EQ(error_of(ibv_create_counters(context, &none)), EOPNOTSUPP);
  ibv_device_attr_ex caps;
  ASSERT_EQ(ibv_query_device_ex(context, nullptr, &caps), 0);
  EXPECT_EQ(caps.packet_pacing_caps.qp_rate_limit_max, 0u);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
}

TEST_F(Completion, DataIsWrittenInOrder) {
  ibv_qp* qp = make_connected();
  for (const ibv_wr_opcode opcode : {IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ}) {
    EXPECT_EQ(ibv_query_qp_data_in_order(qp, opcode, 0), 1);
    EXPECT_EQ(ibv_query_qp_data_in_order(qp, opcode, 1), 3);
    EXPECT_EQ(ibv_query_qp_data_in_order(qp, opcode, 2), 0);
  }
  EXPECT_EQ(ibv_query_qp_data_in_order(qp, IBV_WR_LOCAL_INV, 0), 0);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
}

// --- DEVICE_FATAL: nothing goes on but destruction

TEST_F(Completion, FailedDeviceSaysEio) {
  if (!run_alone({"ADVERB_FAULT=event DEVICE_FATAL tx SEND nth 1"})) return;
  ibv_qp* qp = make_connected();
  ibv_srq_init_attr srq_attr{.srq_context = nullptr, .attr = {.max_wr = 1, .max_sge = 1}};
  ibv_srq* srq = ibv_create_srq(pd, &srq_attr);
  ibv_mr* mr = ibv_reg_mr(pd, buffer.data(), 64, 0);
  ASSERT_EQ(post_receive(qp, 1), 0);
  ASSERT_EQ(post_send(qp, 2, nullptr), 0);
  pollfd told{context->async_fd, POLLIN, 0};
  ASSERT_EQ(::poll(&told, 1, 10'000), 1);
  ibv_async_event event;
  ASSERT_EQ(ibv_get_async_event(context, &event), 0);
  EXPECT_EQ(event.event_type, IBV_EVENT_DEVICE_FATAL);
  ibv_ack_async_event(&event);

  // What was posted was flushed; then there is no more.
  for (const ibv_wc& wc : completions(2)) EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
  ibv_wc wc;
  EXPECT_EQ(ibv_poll_cq(cq, 1, &wc), -EIO);
  EXPECT_EQ(post_send(qp, 3, nullptr), EIO);
  EXPECT_EQ(post_receive(qp, 3), EIO);
  ibv_recv_wr recv{}, *bad;
  EXPECT_EQ(ibv_post_srq_recv(srq, &recv, &bad), EIO);
  EXPECT_EQ(ibv_req_notify_cq(cq, 0), EIO);
  EXPECT_EQ(ibv_resize_cq(cq, 100), EIO);
  ibv_device_attr device;
  ibv_port_attr port;
  ibv_qp_attr attr;
  ibv_qp_init_attr init;
  EXPECT_EQ(ibv_query_device(context, &device), EIO);
  EXPECT_EQ(ibv_query_port(context, 1, &port), EIO);
  EXPECT_EQ(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init), EIO);
  EXPECT_EQ(to_error(qp), EIO);
  EXPECT_EQ(error_of(ibv_alloc_pd(context)), EIO);
  EXPECT_EQ(error_of(ibv_reg_mr(pd, buffer.data(), 64, 0)), EIO);
  EXPECT_EQ(error_of(ibv_create_cq(context, 1, nullptr, nullptr, 0)), EIO);
  EXPECT_EQ(error_of(make_qp()), EIO);
  EXPECT_EQ(error_of(ibv_open_device(list[0])), EIO);

  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_EQ(ibv_destroy_srq(srq), 0);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  EXPECT_EQ(ibv_destroy_cq(cq), 0);
  EXPECT_EQ(ibv_dealloc_pd(pd), 0);
  EXPECT_EQ(ibv_close_device(context), 0);
  cq = nullptr;
  pd = nullptr;
  context = ibv_open_device(list[0]);  // whoever closes it everywhere gets a new one
  EXPECT_TRUE(context);
}

}  // namespace
