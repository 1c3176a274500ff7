// SPDX-License-Identifier: Apache-2.0
// The completer, in conversations: acknowledgements, NAKs, responses and time become completions
// and retries.
#include <gtest/gtest.h>

#include "engine/talk.hpp"

namespace adverb::engine::talk {
namespace {

constexpr Remote theirs{0xabc000, 0x1234};
constexpr Duration timeout_of(unsigned code) { return Duration(std::int64_t{4096} << code); }

std::uint64_t post_send(Talk& t, std::uint32_t n = 1) { return t.post({.length = n}); }
std::uint64_t post_write(Talk& t, std::uint32_t n = 1) {
  return t.post({WrOpcode::rdma_write, 0, n, send_signaled, theirs});
}
std::uint64_t post_read(Talk& t, std::uint32_t n, std::uint64_t local = 0) {
  return t.post({WrOpcode::rdma_read, local, n, send_signaled, theirs});
}
std::uint64_t post_add(Talk& t, std::uint64_t local = 0) {
  return t.post({WrOpcode::atomic_fetch_and_add, local, 8, send_signaled, theirs, 1});
}
Said one_byte(const Talk& t, std::uint32_t psn) { return send_only(psn, t.text(0, 1)).ack_req(); }

// --- acknowledgements

//= IBTA 9.7.5.1.2 coalesced ACKs: one covers all before it
TEST(Completer, OneAckCompletesAllBeforeIt) {
  Talk t;
  for (int i = 0; i < 3; ++i) post_send(t);
  post_write(t);
  t.discard();
  t.in(ack(102, 3));
  for (std::uint64_t i = 1; i <= 3; ++i) t.sent(i, WcOpcode::send, 1);
  t.no_completion();
  t.in(ack(103, 4));
  t.sent(4, WcOpcode::rdma_write, 1);
  t.idle();
}

TEST(Completer, AckInTheMiddleOfAMessage) {
  Talk t;
  post_send(t, 3000);
  t.discard();
  t.in(ack(100, 0), ack(101, 0));
  t.no_completion();
  t.in(ack(102, 1));
  t.sent(1, WcOpcode::send, 3000);
  t.idle();
}

//= IBTA 9.7.5.1.1: ghost acknowledgements, and PSNs that were never sent
TEST(Completer, GhostsAndStrangersAreDropped) {
  Talk t;
  post_send(t);
  t.discard();
  t.in(ack(101, 1), ack(200, 1), read_response_only(101, 1));
  t.no_completion();
  EXPECT_EQ(t.counters().drop_unseen_psn, 3u);
  t.in(ack(100, 1), ack(100, 1), nak(100, NakCode::remote_access_error, 1), ack(99, 1),
       read_response_only(100, 1));
  t.sent(1, WcOpcode::send, 1);
  t.no_completion();
  EXPECT_EQ(t.state(), QpState::rts);
  EXPECT_EQ(t.counters().stale_acks, 3u);
  EXPECT_EQ(t.counters().duplicated_read_responses, 1u);
}

TEST(Completer, UnknownAnswersAreDropped) {
  Talk t;
  post_send(t);
  post_add(t);
  t.discard();
  t.in(ack(100, 1).syndrome(0x45));             // reserved kind
  t.in(nak(100, static_cast<NakCode>(17), 0));  // reserved code
  t.in(read_response_only(100, 1, ""));         // answers no SEND
  t.no_completion();
  t.in(ack(100, 1));
  t.sent(1, WcOpcode::send, 1);
  t.in(read_response_only(101, 1, "12345678"));  // answers no atomic
  t.no_completion();
  EXPECT_EQ(t.counters().drop_unexpected, 4u);
  t.in(atomic_acknowledge(101, 2, 0));
  t.sent(2, WcOpcode::fetch_add, 8);
}

// Bit 7 of the syndrome is reserved, and ignored.
TEST(Completer, ReservedSyndromeBitIsIgnored) {
  Talk t;
  post_send(t);
  t.discard();
  t.in(ack(100, 1).syndrome(0x9f));
  t.sent(1, WcOpcode::send, 1);
}

// --- NAKs

// C20
//= IBTA 9.7.5.2, 9.9.2: NAK codes end the work request, and take the QP to the error state at once
TEST(Completer, C20_NakCodesAndTheirStatus) {
  struct Row {
    NakCode code;
    WcStatus status;
  };
  for (Row row : {Row{NakCode::invalid_request, WcStatus::rem_inv_req_err},
                  {NakCode::remote_access_error, WcStatus::rem_access_err},
                  {NakCode::remote_operational_error, WcStatus::rem_op_err}}) {
    Talk t({.timeout = 20});
    post_send(t);
    t.post({.length = 1, .flags = 0});
    post_send(t);
    auto r = t.post_recv(0, 10);
    t.discard();
    t.in(nak(101, row.code, 1));  // acknowledges the first
    t.sent(1, WcOpcode::send, 1);
    t.failed(2, row.status);  // C14: though it is not signaled
    t.failed(3, WcStatus::wr_flush_err);
    t.receive_failed(r, WcStatus::wr_flush_err);
    EXPECT_EQ(t.state(), QpState::error);
    EXPECT_EQ(t.events(), Words{});  // the completion tells
    t.idle();
  }
}

// C11
//= IBTA 10.3.1.7 ERR: the first failure has its status, everything later is flushed, nothing is
// lost
TEST(Completer, C11_EndlessBadWrites) {
  Talk t({.max_send_wr = 4, .cq_size = 8});
  post_write(t);
  t.discard();
  t.in(nak(100, NakCode::remote_access_error, 0));
  t.failed(1, WcStatus::rem_access_err);
  for (std::uint64_t i = 2; i < 14; ++i) {
    ASSERT_EQ(post_write(t), i);
    t.failed(i, WcStatus::wr_flush_err);
  }
  t.silent();
}

//= IBTA 9.7.5.2 NAK codes: PSN sequence error, go back to the PSN of the NAK
TEST(Completer, SequenceErrorGoesBackN) {
  Talk t;
  for (int i = 0; i < 4; ++i) post_send(t);
  t.discard();
  t.in(nak(101, NakCode::psn_sequence_error, 1));
  t.sent(1, WcOpcode::send, 1);
  for (std::uint32_t psn = 101; psn < 104; ++psn) t.out(one_byte(t, psn));
  t.silent();
  t.in(nak(101, NakCode::psn_sequence_error, 1));  // of the same loss: once is enough
  t.silent();
  t.in(ack(103, 4));
  for (std::uint64_t i = 2; i <= 4; ++i) t.sent(i, WcOpcode::send, 1);
  EXPECT_EQ(t.counters().retransmitted_pkts, 3u);
  EXPECT_EQ(t.counters().packet_seq_err, 2u);
  t.idle();
}

TEST(Completer, GoesBackIntoTheMiddleOfAMessage) {
  Talk t;
  std::string data = pattern(3000);
  t.fill(0, data);
  t.post({WrOpcode::rdma_write, 0, 3000, send_signaled, theirs});
  t.discard();
  t.in(nak(101, NakCode::psn_sequence_error, 0));
  t.out(say(Operation::write_middle, 101, data.substr(1024, 1024)));
  t.out(say(Operation::write_last, 102, data.substr(2048)).ack_req());
  t.in(ack(102, 1));
  t.sent(1, WcOpcode::rdma_write, 3000);
  t.idle();
}

TEST(Completer, LateAckOvertakesARewind) {
  Talk t({.timeout = 10});
  for (int i = 0; i < 4; ++i) post_send(t, 1024);
  t.discard();
  t.silent_for(timeout_of(10));
  std::vector<std::uint8_t> arena(TxBurst::max_frame + 1100);
  TxBurst tx(arena);
  t.engine.transmit(t.now, tx);  // only a part goes out again
  ASSERT_LT(tx.frames().size(), 3u);
  t.in(ack(102, 3));
  for (std::uint64_t i = 1; i <= 3; ++i) t.sent(i, WcOpcode::send, 1024);
  t.out(send_only(103, t.text(0, 1024)).ack_req());  // and nothing that was acknowledged
  t.in(ack(103, 4));
  t.sent(4, WcOpcode::send, 1024);
  t.idle();
}

// What is sent again is read again: the memory is the application's.
TEST(Completer, RetransmissionOfChangedMemory) {
  Talk t;
  t.fill(0, "old");
  t.post({.length = 3});
  t.out(send_only(100, "old").ack_req());
  t.fill(0, "new");
  t.in(nak(100, NakCode::psn_sequence_error, 0));
  t.out(send_only(100, "new").ack_req());
}

// --- the local ACK timeout

// C41
//= IBTA 9.7.6.1.3: 4.096 us * 2^timeout without an answer, then again, retry_cnt times
TEST(Completer, C41_SilentPeer) {
  Talk t({.timeout = 10, .retry_cnt = 3});
  post_send(t);
  post_send(t);
  for (int i = 0; i < 4; ++i) {
    t.out(one_byte(t, 100));
    t.out(one_byte(t, 101));
    t.silent_for(timeout_of(10));
  }
  t.failed(1, WcStatus::retry_exc_err);
  t.failed(2, WcStatus::wr_flush_err);
  EXPECT_EQ(t.state(), QpState::error);
  EXPECT_EQ(t.counters().local_ack_timeout_err, 4u);
  EXPECT_EQ(t.counters().retry_exceeded_err, 1u);
  t.silent_for(1s);
  t.idle();
}

//= IBTA 9.7.6.1.3: a timeout is seen after one to four times the interval
TEST(Completer, LaterTriesWaitLonger) {
  Talk t({.timeout = 10, .retry_cnt = 7});
  post_send(t);
  for (int i = 0; i < 8; ++i) {
    t.out(one_byte(t, 100));
    t.silent_for(timeout_of(10) * (i < 4 ? 1 : 4));
  }
  t.failed(1, WcStatus::retry_exc_err);
}

TEST(Completer, EveryTimeoutCode) {
  for (unsigned code = 1; code < 32; ++code) {
    Talk t({.timeout = static_cast<std::uint8_t>(code), .retry_cnt = 1});
    post_send(t);
    t.out(one_byte(t, 100));
    t.silent_for(timeout_of(code));
    t.out(one_byte(t, 100));
  }
}

TEST(Completer, TimeoutZeroWaitsForEver) {
  Talk t({.timeout = 0});
  post_send(t);
  t.discard();
  EXPECT_EQ(t.engine.next_deadline(), never);
  t.after(1h);
  t.silent();
}

TEST(Completer, TimeoutHasAFloor) {
  Talk t({.timeout = 1, .config = {.max_qp = 4, .max_mr = 16, .min_ack_timeout = 10ms}});
  post_send(t);
  t.discard();
  t.silent_for(10ms);
  EXPECT_EQ(t.waiting(), 1u);
}

// Progress starts the time anew, and makes the budget whole.
TEST(Completer, ProgressRestartsTheTimer) {
  Talk t({.timeout = 10, .retry_cnt = 1});
  for (int i = 0; i < 6; ++i) post_send(t);
  t.discard();
  for (std::uint32_t i = 0; i < 5; ++i) {
    t.silent_for(timeout_of(10) / 2);
    t.in(ack(100 + i, i + 1));
  }
  t.silent_for(timeout_of(10));
  t.out(one_byte(t, 105));
  t.in(ack(105, 6));
  post_send(t);
  t.discard();
  t.silent_for(timeout_of(10));
  t.out(one_byte(t, 106));  // one retry again
}

TEST(Completer, NoTimerWhenNothingIsOutstanding) {
  Talk t({.timeout = 10});
  post_send(t);
  t.discard();
  t.in(ack(100, 1));
  t.sent(1, WcOpcode::send, 1);
  t.silent_for(1s);
  EXPECT_EQ(t.counters().local_ack_timeout_err, 0u);
  EXPECT_EQ(t.engine.next_deadline(), never);
}

TEST(Completer, SequenceErrorsUseUpTheRetries) {
  Talk t({.retry_cnt = 0});
  post_send(t);
  t.discard();
  t.in(nak(100, NakCode::psn_sequence_error, 0));
  t.failed(1, WcStatus::retry_exc_err);
}

// A loss halves the window, however much comes back with it; acknowledgements let it grow.
TEST(Completer, WindowShrinksOnLossAndGrowsWithAcks) {
  Talk t({.timeout = 10});
  t.post({.length = 200 << 10});
  t.discard();
  Destination& d = *t.qp->destination;
  std::uint64_t before = d.window;
  t.in(nak(100, NakCode::psn_sequence_error, 0));
  EXPECT_EQ(d.window, before / 2);
  std::size_t n = t.waiting();
  EXPECT_LE(n * frame_cost(1056), before / 2);
  t.discard();
  t.silent_for(timeout_of(10));
  EXPECT_EQ(d.window, before / 2);  // lost in the same window
  t.discard();
  for (std::uint32_t acked = 0; acked < 200;) {
    std::uint32_t sent = t.qp->req.psn - Psn(100);
    ASSERT_GT(sent, acked);
    acked = sent;
    t.in(ack(100 + acked - 1, 0));
    t.discard();
  }
  EXPECT_GT(d.window, before / 2);
  t.sent(1, WcOpcode::send, 200 << 10);
  t.idle();
}

// A window that was configured below the floor of halving: a loss does not make it larger.
TEST(Completer, LossNeverWidensASmallWindow) {
  const std::uint64_t window = 5 * frame_cost(1056);
  Talk t({.timeout = 10,
          .config = {.max_qp = 32,
                     .max_mr = 16,
                     .active_mtu = Mtu::mtu_4096,
                     .initial_window = window,
                     .max_window = window}});
  t.post({.length = 8 * 1024});
  EXPECT_EQ(t.waiting(), 5u);
  t.discard();
  t.in(nak(100, NakCode::psn_sequence_error, 0));
  EXPECT_EQ(t.qp->destination->window, window);
  EXPECT_EQ(t.waiting(), 5u);
  t.discard();
  t.in(ack(104, 0));
  t.discard();
  t.in(ack(107, 1));
  t.sent(1, WcOpcode::send, 8 * 1024);
  t.idle();
}

// --- RNR

// C39
//= IBTA 9.7.5.2.8: rnr_retry NAKs are waited out, each for the time of its code
TEST(Completer, C39_RnrRetryCount) {
  Talk t({.rnr_retry = 1});
  post_send(t);
  t.out(one_byte(t, 100));
  t.in(rnr_nak(100, 20, 0));
  t.silent_for(wire::rnr_timer(20));
  t.out(one_byte(t, 100));
  t.in(rnr_nak(100, 20, 0));
  t.failed(1, WcStatus::rnr_retry_exc_err);
  EXPECT_EQ(t.state(), QpState::error);
  EXPECT_EQ(t.counters().rnr_retry_exceeded_err, 1u);
}

TEST(Completer, C39_SevenIsForEver) {
  Talk t({.timeout = 10, .retry_cnt = 0, .rnr_retry = 7});
  post_send(t);
  for (int i = 0; i < 50; ++i) {
    t.out(one_byte(t, 100));
    t.in(rnr_nak(100, 0, 0));  // 655.36 ms: the ACK timer does not run meanwhile
    t.silent_for(wire::rnr_timer(0));
  }
  t.out(one_byte(t, 100));
  t.in(ack(100, 1));
  t.sent(1, WcOpcode::send, 1);
}

TEST(Completer, EveryRnrTimerCode) {
  for (unsigned code = 0; code < 32; ++code) {
    Talk t;
    post_send(t);
    t.discard();
    t.in(rnr_nak(100, code, 0));
    t.silent_for(wire::rnr_timer(code));
    t.out(one_byte(t, 100));
  }
}

TEST(Completer, RnrNakAcknowledgesWhatIsBefore) {
  Talk t({.rnr_retry = 1});
  for (int i = 0; i < 3; ++i) post_send(t);
  t.discard();
  t.in(rnr_nak(101, 1, 1));
  t.sent(1, WcOpcode::send, 1);
  t.in(rnr_nak(101, 1, 1));  // doubled by the network: counts once
  t.silent_for(wire::rnr_timer(1));
  t.out(one_byte(t, 101));
  t.out(one_byte(t, 102));
  t.in(rnr_nak(102, 1, 2));  // progress: the budget is whole
  t.sent(2, WcOpcode::send, 1);
  t.silent_for(wire::rnr_timer(1));
  t.out(one_byte(t, 102));
}

TEST(Completer, NothingIsSentWhileAnRnrTimerRuns) {
  Talk t({.timeout = 10});
  post_send(t);
  post_send(t);
  t.discard();
  t.in(rnr_nak(100, 31, 0));  // 491.52 ms
  post_send(t);
  t.in(nak(100, NakCode::psn_sequence_error, 0));  // rewinds, and waits all the same
  t.silent_for(wire::rnr_timer(31));
  for (std::uint32_t psn = 100; psn < 103; ++psn) t.out(one_byte(t, psn));
  t.silent_for(timeout_of(10));  // now the ACK timer runs
  t.out(one_byte(t, 100));
}

TEST(Completer, AckDuringAnRnrWaitCompletes) {
  Talk t;
  post_send(t);
  post_send(t);
  t.discard();
  t.in(rnr_nak(100, 20, 0));
  t.in(ack(100, 1));  // a duplicate had found a receive WQE after all
  t.sent(1, WcOpcode::send, 1);
  t.silent_for(wire::rnr_timer(20));
  t.out(one_byte(t, 101));
  t.in(ack(101, 2));
  t.sent(2, WcOpcode::send, 1);
  t.idle();
}

// --- responses

//= IBTA 9.7.5.1.2: an answer beyond a READ that is not complete is an implied NAK
TEST(Completer, ImpliedNakAsksForTheRestOnly) {
  Talk t;
  std::string data = pattern(5000);
  post_read(t, 5000);
  post_send(t);
  t.discard();
  t.in(read_response_first(100, 1, data.substr(0, 1024)));
  t.in(read_response_middle(101, data.substr(1024, 1024)));
  t.in(read_response_middle(103, data.substr(3072, 1024)));  // 102 is missing
  Said rest = read_request(102, {theirs.va + 2048, theirs.rkey}, 2952).ack_req();
  t.out(rest);
  t.out(send_only(105, data.substr(0, 1)).ack_req());  // the READ has put it there
  t.in(read_response_last(104, 1, data.substr(4096)), ack(105, 2));
  t.silent();  // of the same loss
  t.in(read_response_first(102, 1, data.substr(2048, 1024)));
  t.in(read_response_middle(103, data.substr(3072, 1024)));
  t.in(read_response_last(104, 1, data.substr(4096)));
  t.sent(1, WcOpcode::rdma_read, 5000);
  EXPECT_EQ(t.text(0, 5000), data);
  t.in(ack(105, 2));
  t.sent(2, WcOpcode::send, 1);
  t.idle();
}

TEST(Completer, AnswersBeyondALostResponse) {
  for (int i = 0; i < 4; ++i) {
    Talk t;
    post_read(t, 10);
    post_add(t, 64);
    t.discard();
    if (i == 0) t.in(atomic_acknowledge(101, 2, 0));
    if (i == 1) t.in(nak(101, NakCode::remote_access_error, 1));
    if (i == 2) t.in(rnr_nak(101, 1, 1));
    if (i == 3) t.in(ack(101, 2));
    t.no_completion();
    t.out(read_request(100, theirs, 10).ack_req());
    t.out(fetch_add(101, theirs, 1).ack_req());
    t.in(read_response_only(100, 1, "0123456789"), atomic_acknowledge(101, 2, 5));
    t.sent(1, WcOpcode::rdma_read, 10);
    t.sent(2, WcOpcode::fetch_add, 8);
    EXPECT_EQ(t.word(64), 5u);
    EXPECT_EQ(t.counters().implied_nak_seq_err, 1u);
    t.idle();
  }
}

// The first answer is only late: it arrives after the request went out again.
TEST(Completer, ReadAnsweredTwice) {
  Talk t({.timeout = 10});
  std::string data = pattern(3000);
  post_read(t, 3000);
  t.discard();
  t.silent_for(timeout_of(10));
  t.out(read_request(100, theirs, 3000).ack_req());
  for (int twice = 0; twice < 2; ++twice) {
    t.in(read_response_first(100, 1, data.substr(0, 1024)));
    t.in(read_response_middle(101, data.substr(1024, 1024)));
    t.in(read_response_last(102, 1, data.substr(2048)));
  }
  t.sent(1, WcOpcode::rdma_read, 3000);
  EXPECT_EQ(t.text(0, 3000), data);
  t.idle();
  EXPECT_EQ(t.counters().duplicated_read_responses, 3u);
}

TEST(Completer, LateResponseAfterARewindThatWasNotSentYet) {
  Talk t({.timeout = 10});
  std::string data = pattern(3000);
  post_read(t, 3000);
  t.discard();
  t.silent_for(timeout_of(10));
  // The timer fires in transmit(), before anything is built; a burst without room shows the state
  // in between.
  std::vector<std::uint8_t> none(16);
  TxBurst tx(none);
  t.engine.transmit(t.now, tx);
  t.in(read_response_first(100, 1, data.substr(0, 1024)));
  t.out(read_request(101, {theirs.va + 1024, theirs.rkey}, 1976).ack_req());
  t.in(read_response_first(101, 1, data.substr(1024, 1024)));
  t.in(read_response_last(102, 1, data.substr(2048)));
  t.sent(1, WcOpcode::rdma_read, 3000);
  t.idle();
}

TEST(Completer, AckReachesPastTheCursorAndStopsAtARead) {
  Talk t({.timeout = 10});
  post_send(t);
  post_read(t, 10);
  t.discard();
  t.silent_for(timeout_of(10));
  std::vector<std::uint8_t> none(16);
  TxBurst tx(none);
  t.engine.transmit(t.now, tx);
  t.in(ack(101, 2));
  t.sent(1, WcOpcode::send, 1);
  t.out(read_request(101, theirs, 10).ack_req());
  t.in(read_response_only(101, 2, "0123456789"));
  t.sent(2, WcOpcode::rdma_read, 10);
  t.idle();
}

TEST(Completer, RetryInTheMiddleOfAChunk) {
  Talk t({.timeout = 10,
          .max_rd_atomic = 2,
          .config = {.max_qp = 4, .max_mr = 16, .read_chunk_packets = 3}});
  std::string data = pattern(9 * 1024);
  post_read(t, 9 * 1024);
  t.out(read_request(100, theirs, 3072).ack_req());
  t.out(read_request(103, {theirs.va + 3072, theirs.rkey}, 3072).ack_req());
  t.silent();
  t.in(read_response_first(100, 1, data.substr(0, 1024)));
  t.silent_for(timeout_of(10));
  t.out(read_request(101, {theirs.va + 1024, theirs.rkey}, 2048).ack_req());
  t.out(read_request(103, {theirs.va + 3072, theirs.rkey}, 3072).ack_req());
  t.silent();
  t.in(read_response_first(101, 1, data.substr(1024, 1024)),
       read_response_last(102, 1, data.substr(2048, 1024)));
  t.out(read_request(106, {theirs.va + 6144, theirs.rkey}, 3072).ack_req());
  t.in(read_response_first(103, 2, data.substr(3072, 1024)),
       read_response_middle(104, data.substr(4096, 1024)),
       read_response_last(105, 2, data.substr(5120, 1024)),
       read_response_first(106, 3, data.substr(6144, 1024)),
       read_response_middle(107, data.substr(7168, 1024)),
       read_response_last(108, 3, data.substr(8192, 1024)));
  t.sent(1, WcOpcode::rdma_read, 9 * 1024);
  EXPECT_EQ(t.text(0, 9 * 1024), data);
  t.idle();
}

//= IBTA 9.9.2: a response that does not fit its request ends it
TEST(Completer, WrongResponsesAreBadResponseErrors) {
  for (int i = 0; i < 6; ++i) {
    Talk t;
    if (i < 4) post_read(t, 1500);
    if (i == 4) t.post({.opcode = WrOpcode::atomic_write, .length = 8, .remote = theirs});
    if (i == 5) t.post({.opcode = WrOpcode::flush, .remote = theirs, .flush_type = 1});
    t.discard();
    if (i == 0) t.in(read_response_first(100, 1, pattern(512)));
    if (i == 1) t.in(read_response_only(100, 1, pattern(1024)));
    if (i == 2)
      t.in(read_response_first(100, 1, pattern(1024)), read_response_middle(101, pattern(476)));
    if (i == 3)
      t.in(read_response_first(100, 1, pattern(1024)), read_response_last(101, 1, pattern(475)));
    if (i == 4) t.in(read_response_only(100, 1, "unasked!"));
    if (i == 5) t.in(read_response_first(100, 1, ""));
    t.failed(1, WcStatus::bad_resp_err);
    EXPECT_EQ(t.state(), QpState::error) << i;
    t.idle();
  }
}

TEST(Completer, ResponseLongerThanThePathMtuIsDropped) {
  Talk t({.mtu = Mtu::mtu_256});
  post_read(t, 600);
  t.discard();
  t.in(read_response_only(100, 1, pattern(600)));
  t.no_completion();
  EXPECT_EQ(t.counters().drop_length, 1u);
}

TEST(Completer, ResponseIntoMemoryThatIsNotOurs) {
  for (int i = 0; i < 3; ++i) {
    Talk t;
    MemoryRegion* mr = t.add_region(0, 100, i == 0 ? 0u : 0xfu, i == 1 ? Talk::other_pd : Talk::pd);
    std::uint32_t n = i == 2 ? 4 : 8;
    t.post({.opcode = WrOpcode::atomic_fetch_and_add,
            .remote = theirs,
            .list = {{t.address(0), n, mr->key}}});
    t.discard();
    t.in(atomic_acknowledge(100, 1, 7));
    t.failed(1, i == 2 ? WcStatus::loc_len_err : WcStatus::loc_prot_err);
    EXPECT_EQ(t.word(0), 0u);
  }
}

TEST(Completer, NakOfARead) {
  Talk t;
  post_read(t, 3000);
  post_send(t);
  t.discard();
  t.in(read_response_first(100, 1, pattern(1024)));
  t.in(nak(101, NakCode::remote_access_error, 1));
  t.failed(1, WcStatus::rem_access_err);
  t.failed(2, WcStatus::wr_flush_err);
  t.idle();
  EXPECT_EQ(t.counters().req_remote_access_errors, 1u);
}

// C43
TEST(Completer, C43_PsnWrap) {
  Talk t({.sq_psn = 0xfffffe});
  std::string data = pattern(3000);
  post_read(t, 3000);
  post_send(t, 3000);
  t.out(read_request(0xfffffe, theirs, 3000).ack_req());
  EXPECT_EQ(t.next().bth.psn, Psn(1));
  t.discard();
  t.in(read_response_first(0xfffffe, 1, data.substr(0, 1024)),
       read_response_middle(0xffffff, data.substr(1024, 1024)),
       read_response_last(0, 1, data.substr(2048)));
  t.sent(1, WcOpcode::rdma_read, 3000);
  t.in(nak(2, NakCode::psn_sequence_error, 1));
  t.out(say(Operation::send_middle, 2, data.substr(1024, 1024)));
  t.out(say(Operation::send_last, 3, data.substr(2048)).ack_req());
  t.in(ack(3, 2));
  t.sent(2, WcOpcode::send, 3000);
  t.idle();
}

// --- flushing

// C12
//= IBTA 10.3.1.7 ERR: both queues are flushed, each in the order of posting
TEST(Completer, C12_FlushInOrder) {
  Talk t;
  std::vector<std::uint64_t> sends, receives;
  for (int i = 0; i < 8; ++i) {
    receives.push_back(t.post_recv(0, 10));
    sends.push_back(t.post({.length = 1, .flags = i % 2 ? 0u : 0u + send_signaled}));
    if (i == 3) t.discard();  // half of them is on its way
  }
  t.modify(QpState::error);
  for (int i = 0; i < 8; ++i) {
    t.failed(sends[i], WcStatus::wr_flush_err);
    t.receive_failed(receives[i], WcStatus::wr_flush_err);
  }
  t.no_completion();
  t.idle();
  EXPECT_EQ(t.counters().req_cqe_flush_error, 8u);
  EXPECT_EQ(t.counters().resp_cqe_flush_error, 8u);
}

// C13
TEST(Completer, C13_PostingInTheErrorState) {
  Talk t;
  t.modify(QpState::error);
  t.failed(t.post({.length = 1}), WcStatus::wr_flush_err);
  t.receive_failed(t.post_recv(0, 10), WcStatus::wr_flush_err);
  t.silent();
}

TEST(Completer, FlushGivesBackWhatReadsHadAskedFor) {
  Talk t;
  post_read(t, 3000);
  post_add(t);
  t.discard();
  t.in(read_response_first(100, 1, pattern(1024)));
  t.modify(QpState::error);
  t.failed(1, WcStatus::wr_flush_err);
  t.failed(2, WcStatus::wr_flush_err);
  t.idle();
  t.in(read_response_middle(101, pattern(1024)));
  t.no_completion();
  EXPECT_EQ(t.counters().drop_qp_state, 1u);
}

// --- completion queues

// C23
//= IBTA 10.2.6.3, 11.6.3.3: an overrun is reported once and takes the QPs to the error state
TEST(Completer, C23_CqOverrun) {
  Talk t({.cq_size = 16});
  for (int i = 0; i < 40; ++i) post_send(t);
  t.discard();
  t.in(ack(139, 40));
  EXPECT_EQ(t.state(), QpState::error);
  EXPECT_EQ(t.events(), (Words{"cq send CQ_ERR", "qp QP_FATAL"}));
  for (std::uint64_t i = 1; i <= 16; ++i) t.sent(i, WcOpcode::send, 1);
  post_send(t);
  t.no_completion();
  EXPECT_EQ(t.events(), Words{});
  EXPECT_EQ(t.counters().cq_overruns, 1u);
  t.idle();
}

// The overrun comes in the middle of an answer that means more than an acknowledgement.
TEST(Completer, C23_CqOverrunInsideEveryAnswer) {
  for (int i = 0; i < 5; ++i) {
    Talk t({.cq_size = 2});
    for (int k = 0; k < 4; ++k) post_send(t);
    post_read(t, 1);
    t.discard();
    if (i == 0) t.in(nak(103, NakCode::remote_access_error, 3));
    if (i == 1) t.in(rnr_nak(103, 1, 3));
    if (i == 2) t.in(nak(103, NakCode::psn_sequence_error, 3));
    if (i == 3) t.in(read_response_only(104, 5, "x"));
    if (i == 4) t.in(ack(104, 5));
    EXPECT_EQ(t.state(), QpState::error);
    t.sent(1, WcOpcode::send, 1);
    t.sent(2, WcOpcode::send, 1);
    t.no_completion();
    t.after(1s);
    t.idle();
  }
}

TEST(Completer, C23_CqOverrunByTheFailureItself) {
  for (QpType type : {QpType::rc, QpType::uc}) {
    Talk t({.type = type, .cq_size = 1});
    post_send(t);
    t.discard();
    if (type == QpType::rc) t.in(ack(100, 1));
    t.post({.length = 1, .lkey = 0xdead00});
    t.silent();
    EXPECT_EQ(t.state(), QpState::error);  // not SQE
    t.sent(1, WcOpcode::send, 1);
    t.no_completion();
  }
}

TEST(Completer, C23_CqOverrunByAResponse) {
  Talk t({.cq_size = 1});
  post_send(t);
  post_read(t, 1);
  t.discard();
  t.in(ack(100, 1), read_response_only(101, 2, "x"));
  EXPECT_EQ(t.state(), QpState::error);
  t.idle();
}

// A receive whose completion is lost is not acknowledged.
TEST(Completer, C23_CqOverrunByAReceive) {
  Talk t({.cq_size = 1});
  t.post_recv(0, 10);
  t.post_recv(0, 10);
  t.in(send_only(0, "a").ack_req(), send_only(1, "b").ack_req());
  t.out(nak(1, NakCode::remote_operational_error, 2));
  EXPECT_EQ(t.state(), QpState::error);
  EXPECT_EQ(t.events(), (Words{"cq recv CQ_ERR", "qp QP_FATAL"}));
  t.received(1, 1);
  t.no_completion();
}

TEST(Completer, C23_OverrunTakesEveryQpOfTheCq) {
  Talk t({.cq_size = 1});
  QueuePair* other = t.create_qp();
  t.modify_to(*other, QpState::rts);
  t.post(*other, {.length = 1});
  post_send(t);
  post_send(t);
  t.discard();
  t.in(ack(101, 2));
  EXPECT_EQ(t.state(), QpState::error);
  EXPECT_EQ(other->state.load(), QpState::error);
  EXPECT_EQ(t.events(), (Words{"cq send CQ_ERR", "qp QP_FATAL", "qp QP_FATAL"}));
}

// C26
//= ibv_req_notify_cq(3), IBTA 11.4.2.2: solicited completions are those with SE, and errors
TEST(Completer, C26_SolicitedOnly) {
  Talk t;
  for (int i = 0; i < 4; ++i) t.post_recv(0, 10);
  t.recv_cq->arm(true);
  t.send_cq->arm(true);
  t.in(send_only(0, "x"));
  post_send(t);
  t.discard();
  t.in(ack(100, 1));
  EXPECT_EQ(t.events(), Words{});
  t.in(send_only(1, "x").se());
  EXPECT_EQ(t.events(), Words{"completion recv"});
  t.in(send_only(2, "x").se());
  EXPECT_EQ(t.events(), Words{});  // one shot
  t.recv_cq->arm(true);
  t.post({.length = 1, .flags = 0, .lkey = 0xdead00});
  Words e = t.events();
  std::sort(e.begin(), e.end());
  EXPECT_EQ(e,
            (Words{"completion recv", "completion send"}));  // the failure, and the flushed receive
}

// C28
//= ibv_req_notify_cq(3): one event for one arming, and none for entries that were there before
TEST(Completer, C28_ArmingIsOneShot) {
  Talk t;
  post_send(t);
  post_send(t);
  post_send(t);
  t.discard();
  t.in(ack(100, 1));
  EXPECT_EQ(t.events(), Words{});
  t.send_cq->arm(false);
  t.after(100ms);
  EXPECT_EQ(t.events(), Words{});
  t.in(ack(101, 2));
  EXPECT_EQ(t.events(), Words{"completion send"});
  t.in(ack(102, 3));
  EXPECT_EQ(t.events(), Words{});
}

TEST(Completer, C26_ArmingForAnyIsNotWeakened) {
  Talk t;
  t.send_cq->arm(false);
  t.send_cq->arm(true);
  post_send(t);
  t.discard();
  t.in(ack(100, 1));
  EXPECT_EQ(t.events(), Words{"completion send"});
}

}  // namespace
}  // namespace adverb::engine::talk
