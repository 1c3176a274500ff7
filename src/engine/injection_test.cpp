// SPDX-License-Identifier: Apache-2.0
// What fault rules ask of the engine: answers that no check gave, and events that nothing caused.
#include <gtest/gtest.h>

#include "engine/talk.hpp"

namespace adverb::engine::talk {
namespace {

using Words = std::vector<std::string>;

// --- answers

TEST(Injection, ARequestIsRefusedAndNotExecuted) {
  Talk t;
  t.in(write_only(0, t.at(0), "abc").ack_req());
  t.out(ack(0, 1));
  t.in(
      write_only(1, t.at(0), "xyz").ack_req().forced(wire::make_nak(NakCode::remote_access_error)));
  t.out(nak(1, NakCode::remote_access_error, 1));
  EXPECT_EQ(t.text(0, 3), "abc");
  EXPECT_EQ(t.state(), QpState::error);
  EXPECT_EQ(t.events(), (Words{"qp QP_ACCESS_ERR"}));
}

TEST(Injection, InvalidRequestAndRemoteOperationalErrorFailTheQueuePair) {
  for (NakCode code : {NakCode::invalid_request, NakCode::remote_operational_error}) {
    Talk t;
    auto r = t.post_recv(0, 50);
    t.in(send_only(0, "hello").forced(wire::make_nak(code)));
    t.out(nak(0, code, 0));
    t.receive_failed(r, WcStatus::wr_flush_err);
    EXPECT_EQ(t.state(), QpState::error);
  }
}

TEST(Injection, AnRnrNakHasTheRulesTimerAndTheRetryIsExecuted) {
  Talk t;
  auto r = t.post_recv(0, 50);
  t.in(send_only(0, "hello").ack_req().forced(wire::make_rnr_nak(14)));
  t.out(rnr_nak(0, 14, 0));
  t.no_completion();
  t.in(send_only(0, "hello").ack_req());
  t.out(ack(0, 1));
  t.received(r, 5);
}

TEST(Injection, ASequenceNakSilencesWhatFollowsUntilTheRetry) {
  Talk t;
  auto r = t.post_recv(0, 50);
  auto r2 = t.post_recv(100, 50);
  t.in(send_only(0, "one").forced(wire::make_nak(NakCode::psn_sequence_error)),
       send_only(1, "two"));
  t.out(nak(0, NakCode::psn_sequence_error, 0));
  t.silent();
  t.in(send_only(0, "one"), send_only(1, "two").ack_req());
  t.out(ack(1, 2));
  t.received(r, 3);
  t.received(r2, 3);
  EXPECT_EQ(t.state(), QpState::rts);
}

TEST(Injection, ADuplicateIsAnsweredAsEver) {
  Talk t;
  t.in(write_only(0, t.at(0), "abc").ack_req());
  t.out(ack(0, 1));
  t.in(
      write_only(0, t.at(0), "abc").ack_req().forced(wire::make_nak(NakCode::remote_access_error)));
  t.out(ack(0, 1));
  EXPECT_EQ(t.state(), QpState::rts);
}

// --- events

TEST(Injection, AnErrorOfTheQueuePairMovesItToErrorAndFlushes) {
  for (AsyncEvent e : {AsyncEvent::qp_fatal, AsyncEvent::qp_req_err, AsyncEvent::qp_access_err}) {
    Talk t;
    auto r = t.post_recv(0, 50);
    t.engine.inject(e, *t.qp, t.recv_cq);
    EXPECT_EQ(t.state(), QpState::error);
    EXPECT_EQ(t.events(), (Words{std::string("qp ") + name_of(e)}));
    t.receive_failed(r, WcStatus::wr_flush_err);
    t.engine.inject(e, *t.qp, t.recv_cq);
    EXPECT_EQ(t.events(), (Words{std::string("qp ") + name_of(e)})) << "in ERROR: the event";
  }
}

TEST(Injection, ACqErrorFailsItsQueuePairsOnce) {
  Talk t;
  t.engine.inject(AsyncEvent::cq_err, *t.qp, t.recv_cq);
  EXPECT_EQ(t.events(), (Words{"cq recv CQ_ERR", "qp QP_FATAL"}));
  EXPECT_EQ(t.state(), QpState::error);
  t.engine.inject(AsyncEvent::cq_err, *t.qp, t.recv_cq);
  EXPECT_EQ(t.events(), Words{});
}

TEST(Injection, EventsThatAreNoErrorLeaveTheQueuePair) {
  Talk t;
  for (AsyncEvent e : {AsyncEvent::comm_est, AsyncEvent::sq_drained, AsyncEvent::path_mig}) {
    t.engine.inject(e, *t.qp, t.send_cq);
    EXPECT_EQ(t.events(), (Words{std::string("qp ") + name_of(e)}));
  }
  EXPECT_EQ(t.state(), QpState::rts);
}

TEST(Injection, EventsOfAnSrqNeedOne) {
  Talk t({.srq_depth = 4});
  EXPECT_TRUE(t.engine.inject(AsyncEvent::srq_err, *t.qp, t.recv_cq));
  EXPECT_TRUE(t.engine.inject(AsyncEvent::srq_limit_reached, *t.qp, t.recv_cq));
  EXPECT_EQ(t.events(), (Words{"srq SRQ_LIMIT", "srq SRQ_ERR"}));
  Talk without;
  EXPECT_FALSE(without.engine.inject(AsyncEvent::srq_err, *without.qp, without.recv_cq));
  EXPECT_EQ(without.events(), Words{});
}

TEST(Injection, ADeadDeviceFailsEveryQueuePairWithoutTheirEvents) {
  Talk t;
  auto r = t.post_recv(0, 50);
  t.engine.fail_all();
  EXPECT_EQ(t.state(), QpState::error);
  t.receive_failed(r, WcStatus::wr_flush_err);
  EXPECT_EQ(t.events(), Words{});
}

}  // namespace
}  // namespace adverb::engine::talk
