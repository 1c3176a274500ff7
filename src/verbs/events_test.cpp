// SPDX-License-Identifier: Apache-2.0
// Completion channels and asynchronous events as an application sees them (ibv_get_cq_event(3),
// ibv_req_notify_cq(3), ibv_get_async_event(3)).
#include <fcntl.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <sys/epoll.h>

#include <future>
#include <thread>

#include "verbs/testing.hpp"

namespace {

using namespace std::chrono_literals;
using adverb::verbs::Verbs;

struct Events : Verbs {
  ibv_comp_channel* channel = nullptr;
  ibv_cq* plain = nullptr;
  void SetUp() override {
    Verbs::SetUp();
    channel = ibv_create_comp_channel(context);
    ASSERT_TRUE(channel);
    plain = cq;
    cq = ibv_create_cq(context, 64, this, channel, 0);
    ASSERT_TRUE(cq);
  }
  void TearDown() override {
    EXPECT_EQ(ibv_destroy_cq(cq), 0);
    EXPECT_EQ(ibv_destroy_comp_channel(channel), 0);
    cq = plain;
    Verbs::TearDown();
  }
  static bool readable(int fd, int milliseconds) {
    pollfd p{fd, POLLIN, 0};
    return ::poll(&p, 1, milliseconds) == 1;
  }
};

// Arming is one-shot, and what is there already raises nothing.
TEST_F(Events, C28_OneEventForOneArming) {
  ibv_qp* qp = make_connected();
  ASSERT_EQ(ibv_req_notify_cq(cq, 0), 0);
  ASSERT_EQ(post_receive(qp, 1), 0);
  ASSERT_EQ(post_send(qp, 2, nullptr), 0);
  ibv_cq* who = nullptr;
  void* what = nullptr;
  ASSERT_EQ(ibv_get_cq_event(channel, &who, &what), 0);
  EXPECT_EQ(who, cq);
  EXPECT_EQ(what, this);
  ibv_ack_cq_events(cq, 1);
  completions(2);
  fcntl(channel->fd, F_SETFL, O_NONBLOCK);
  EXPECT_EQ(ibv_get_cq_event(channel, &who, &what), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
}

// destroy_cq waits for the acknowledgement of every event that was read, and for no other.
TEST_F(Events, DestroyWaitsForAcknowledgements) {
  ibv_cq* own = ibv_create_cq(context, 8, nullptr, channel, 0);
  std::swap(own, cq);
  ibv_qp* qp = make_connected();
  std::swap(own, cq);
  ASSERT_EQ(ibv_req_notify_cq(own, 0), 0);
  ASSERT_EQ(to_error(qp), 0);
  ASSERT_EQ(post_send(qp, 1, nullptr), 0);
  ibv_cq* who;
  void* what;
  ASSERT_EQ(ibv_get_cq_event(channel, &who, &what), 0);
  ASSERT_EQ(ibv_req_notify_cq(own, 0), 0);
  ASSERT_EQ(post_send(qp, 2, nullptr), 0);
  ASSERT_TRUE(readable(channel->fd, 10'000));  // never read: destroy takes it away
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  auto done = std::async(std::launch::async, [&] { return ibv_destroy_cq(own); });
  EXPECT_EQ(done.wait_for(100ms), std::future_status::timeout);
  ibv_ack_cq_events(who, 1);
  EXPECT_EQ(done.get(), 0);
  EXPECT_FALSE(readable(channel->fd, 0));
}

TEST_F(Events, AsynchronousEventOfAQp) {
  ibv_srq_init_attr a{.srq_context = nullptr, .attr = {.max_wr = 4, .max_sge = 1, .srq_limit = 0}};
  ibv_srq* srq = ibv_create_srq(pd, &a);
  ibv_qp* qp = make_qp(IBV_QPT_RC, srq);
  ASSERT_EQ(to_init(qp), 0);
  ASSERT_EQ(to_rtr(qp, qp->qp_num), 0);
  ASSERT_EQ(to_rts(qp), 0);
  ASSERT_EQ(to_error(qp), 0);
  ASSERT_TRUE(readable(context->async_fd, 10'000));
  ibv_async_event event;
  ASSERT_EQ(ibv_get_async_event(context, &event), 0);
  EXPECT_EQ(event.event_type, IBV_EVENT_QP_LAST_WQE_REACHED);
  EXPECT_EQ(event.element.qp, qp);
  auto done = std::async(std::launch::async, [&] { return ibv_destroy_qp(qp); });
  EXPECT_EQ(done.wait_for(100ms), std::future_status::timeout);
  ibv_ack_async_event(&event);
  EXPECT_EQ(done.get(), 0);
  EXPECT_EQ(ibv_destroy_srq(srq), 0);
}

// --- ibv_req_notify_cq(3)

struct Notify : Events {
  bool event_within(int milliseconds) {
    if (!readable(channel->fd, milliseconds)) return false;
    ibv_cq* who = nullptr;
    void* what = nullptr;
    EXPECT_EQ(ibv_get_cq_event(channel, &who, &what), 0);
    EXPECT_EQ(who, cq);
    ibv_ack_cq_events(who, 1);
    return true;
  }
};

TEST_F(Notify, C26_SolicitedOnly) {
  ibv_qp* qp = make_connected();
  ASSERT_EQ(ibv_req_notify_cq(cq, 1), 0);
  ASSERT_EQ(post_receive(qp, 1), 0);
  ASSERT_EQ(post_send(qp, 2, nullptr), 0);
  completions(2);
  EXPECT_FALSE(event_within(100));
  ASSERT_EQ(post_receive(qp, 3), 0);
  ASSERT_EQ(post_send(qp, 4, nullptr, IBV_SEND_SOLICITED), 0);
  EXPECT_TRUE(event_within(10'000));
  completions(2);
  ASSERT_EQ(ibv_req_notify_cq(cq, 1), 0);
  ASSERT_EQ(to_error(qp), 0);
  ASSERT_EQ(post_send(qp, 5, nullptr), 0);  // errors always count
  EXPECT_TRUE(event_within(10'000));
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
}

TEST_F(Notify, C28_WhatIsThereAlreadyRaisesNothing) {
  ibv_qp* qp = make_connected();
  ASSERT_EQ(to_error(qp), 0);
  ASSERT_EQ(post_send(qp, 1, nullptr), 0);
  ASSERT_EQ(ibv_req_notify_cq(cq, 0), 0);
  EXPECT_FALSE(event_within(100));
  ASSERT_EQ(post_send(qp, 2, nullptr), 0);
  ASSERT_EQ(post_send(qp, 3, nullptr), 0);
  EXPECT_TRUE(event_within(10'000));
  EXPECT_FALSE(event_within(100));
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
}

// The entry is there before the event is.
TEST_F(Notify, C29_AnEventMeansAnEntry) {
  ibv_qp* qp = make_connected();
  ASSERT_EQ(to_error(qp), 0);
  constexpr int in_this_thread = 100'000, in_another = 5'000;
  std::atomic<int> wanted{0};
  std::thread poster([&] {
    for (int i = 1; i <= in_another; ++i) {
      while (wanted.load() < i) std::this_thread::yield();
      EXPECT_EQ(post_send(qp, 1, nullptr), 0);
    }
  });
  for (int i = 0; i < in_this_thread + in_another; ++i) {
    ibv_wc wc;
    ASSERT_EQ(ibv_req_notify_cq(cq, 0), 0);
    ASSERT_EQ(ibv_poll_cq(cq, 1, &wc), 0);
    if (i < in_this_thread)
      ASSERT_EQ(post_send(qp, 1, nullptr), 0);
    else
      ++wanted;
    ASSERT_TRUE(event_within(60'000));
    ASSERT_EQ(ibv_poll_cq(cq, 1, &wc), 1) << i;
  }
  poster.join();
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
}

TEST_F(Notify, C30_ManyEventsOnOneChannel) {
  ibv_cq* second = ibv_create_cq(context, 8, nullptr, channel, 0);
  ibv_qp* qp = make_connected();
  std::swap(cq, second);
  ibv_qp* other = make_connected();
  std::swap(cq, second);
  const int watch = epoll_create1(EPOLL_CLOEXEC);
  epoll_event wanted{.events = EPOLLIN | EPOLLET, .data = {}}, got;
  ASSERT_EQ(epoll_ctl(watch, EPOLL_CTL_ADD, channel->fd, &wanted), 0);
  for (ibv_qp* q : {qp, other}) {
    ASSERT_EQ(ibv_req_notify_cq(q->send_cq, 0), 0);
    ASSERT_EQ(to_error(q), 0);
    ASSERT_EQ(post_send(q, 1, nullptr), 0);
  }
  EXPECT_EQ(epoll_wait(watch, &got, 1, 10'000), 1);
  fcntl(channel->fd, F_SETFL, O_NONBLOCK);
  std::vector<ibv_cq*> told;
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(readable(channel->fd, 10'000));
    ibv_cq* who = nullptr;
    void* what = nullptr;
    ASSERT_EQ(ibv_get_cq_event(channel, &who, &what), 0);
    told.push_back(who);
    ibv_ack_cq_events(who, 1);
  }
  EXPECT_THAT(told, testing::UnorderedElementsAre(cq, second));
  EXPECT_FALSE(readable(channel->fd, 0));
  ibv_cq* who;
  void* what;
  errno = 0;
  EXPECT_EQ(ibv_get_cq_event(channel, &who, &what), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(epoll_wait(watch, &got, 1, 0), 0);
  ASSERT_EQ(ibv_req_notify_cq(cq, 0), 0);  // a new one is a new edge
  ASSERT_EQ(post_send(qp, 2, nullptr), 0);
  EXPECT_EQ(epoll_wait(watch, &got, 1, 10'000), 1);
  close(watch);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_EQ(ibv_destroy_qp(other), 0);
  EXPECT_EQ(ibv_destroy_cq(second), 0);
}

// --- asynchronous events

struct Async : Verbs {
  // The next event, acknowledged; -1: none comes.
  int event_within(int milliseconds, void* element) {
    pollfd p{context->async_fd, POLLIN, 0};
    if (::poll(&p, 1, milliseconds) != 1) return -1;
    ibv_async_event event;
    EXPECT_EQ(ibv_get_async_event(context, &event), 0);
    if (element) {
      EXPECT_EQ(static_cast<void*>(event.element.cq), element);
    }
    ibv_ack_async_event(&event);
    return event.event_type;
  }
};

TEST_F(Async, C23_CompletionQueueOverrun) {
  ibv_cq* small = ibv_create_cq(context, 16, nullptr, nullptr, 0);
  ASSERT_TRUE(small);
  std::swap(cq, small);
  ibv_qp_init_attr a = init_attr();
  a.cap.max_send_wr = a.cap.max_recv_wr = 64;
  ibv_qp *qp = ibv_create_qp(pd, &a), *idle = make_qp();
  ASSERT_TRUE(qp && idle);
  ASSERT_EQ(to_init(qp), 0);
  ASSERT_EQ(to_init(idle), 0);
  ASSERT_EQ(to_rtr(qp, qp->qp_num), 0);
  ASSERT_EQ(to_rts(qp), 0);
  for (int i = 0; i < 40; ++i) ASSERT_EQ(post_receive(qp, i), 0);
  for (int i = 0; i < 40; ++i) ASSERT_EQ(post_send(qp, i, nullptr), 0);
  EXPECT_EQ(event_within(10'000, cq), IBV_EVENT_CQ_ERR);
  int fatal = 0;
  for (int event; (event = event_within(200, nullptr)) != -1; ++fatal)
    EXPECT_EQ(event, IBV_EVENT_QP_FATAL);
  EXPECT_EQ(fatal, 2);  // once for each queue pair, and no second CQ_ERR
  for (ibv_qp* q : {qp, idle}) {
    ibv_qp_attr attr;
    ibv_qp_init_attr init;
    ASSERT_EQ(ibv_query_qp(q, &attr, IBV_QP_STATE, &init), 0);
    EXPECT_EQ(attr.qp_state, IBV_QPS_ERR);
  }
  ibv_wc wc[64];
  EXPECT_EQ(ibv_poll_cq(cq, 64, wc), cq->cqe);  // those that had room, and none was overwritten
  std::uint64_t sent = 0, received = 0;
  for (int i = 0; i < cq->cqe; ++i)
    EXPECT_EQ(wc[i].wr_id, wc[i].opcode == IBV_WC_RECV ? received++ : sent++);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_EQ(ibv_destroy_qp(idle), 0);
  std::swap(cq, small);
  EXPECT_EQ(ibv_destroy_cq(small), 0);
}

TEST_F(Async, C32_SharedReceiveQueueLimit) {
  ibv_srq_init_attr a{.srq_context = nullptr, .attr = {.max_wr = 100, .max_sge = 1}};
  ibv_srq* srq = ibv_create_srq(pd, &a);
  ASSERT_TRUE(srq);
  const auto receives = [&](int n) {
    for (int i = 0; i < n; ++i) {
      ibv_recv_wr wr{}, *bad;
      ASSERT_EQ(ibv_post_srq_recv(srq, &wr, &bad), 0);
    }
  };
  receives(100);
  ibv_srq_attr limit{.max_wr = 0, .max_sge = 0, .srq_limit = 50};
  ASSERT_EQ(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT), 0);
  ibv_qp* qp = make_qp(IBV_QPT_RC, srq);
  ASSERT_EQ(to_init(qp), 0);
  ASSERT_EQ(to_rtr(qp, qp->qp_num), 0);
  ASSERT_EQ(to_rts(qp), 0);
  const auto consume = [&](int n) {
    for (int i = 0; i < n; ++i) {
      ASSERT_EQ(post_send(qp, i, nullptr), 0);
      completions(2);
    }
  };
  consume(50);
  EXPECT_EQ(event_within(100, nullptr), -1);
  consume(1);
  EXPECT_EQ(event_within(10'000, srq), IBV_EVENT_SRQ_LIMIT_REACHED);
  consume(1);
  EXPECT_EQ(event_within(100, nullptr), -1);  // once, until it is armed again
  ASSERT_EQ(ibv_query_srq(srq, &limit), 0);
  EXPECT_EQ(limit.srq_limit, 0u);
  limit.srq_limit = 48;
  ASSERT_EQ(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT), 0);
  consume(1);
  EXPECT_EQ(event_within(10'000, srq), IBV_EVENT_SRQ_LIMIT_REACHED);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_EQ(ibv_destroy_srq(srq), 0);
}

}  // namespace
