// SPDX-License-Identifier: Apache-2.0
// XRC (IBTA annex A14), in conversations: an initiator that only asks, a target that only answers,
// and SRQs whose receives, completions and keys each message chooses.
#include <gtest/gtest.h>

#include "engine/talk.hpp"

namespace adverb::engine::talk {
namespace {

Options initiator() { return {.type = QpType::xrc_send}; }
Options target() { return {.type = QpType::xrc_recv}; }

// --- the initiator

//= A14: every request carries the XRCETH behind the BTH: eight reserved bits, and the SRQ number
TEST(Xrc, BytesOfRequests) {
  struct {
    Post post;
    std::uint8_t opcode;
    std::size_t size;
  } rows[] = {
      {{.opcode = WrOpcode::send, .length = 4}, 0xa4, 12 + 4 + 4},
      {{.opcode = WrOpcode::send_with_imm, .length = 4}, 0xa5, 12 + 4 + 4 + 4},
      {{.opcode = WrOpcode::send_with_inv, .length = 4}, 0xb7, 12 + 4 + 4 + 4},
      {{.opcode = WrOpcode::rdma_write, .length = 4}, 0xaa, 12 + 4 + 16 + 4},
      {{.opcode = WrOpcode::rdma_write_with_imm, .length = 4}, 0xab, 12 + 4 + 16 + 4 + 4},
      {{.opcode = WrOpcode::rdma_read, .length = 4}, 0xac, 12 + 4 + 16},
      {{.opcode = WrOpcode::atomic_cmp_and_swp, .length = 8}, 0xb3, 12 + 4 + 28},
      {{.opcode = WrOpcode::atomic_fetch_and_add, .length = 8}, 0xb4, 12 + 4 + 28},
      {{.opcode = WrOpcode::atomic_write, .length = 8}, 0xbd, 12 + 4 + 16 + 8},
      {{.opcode = WrOpcode::flush, .flush_type = 1}, 0xbc, 12 + 4 + 4 + 16},
  };
  for (auto& row : rows) {
    Talk t(initiator());
    ASSERT_TRUE(t.post(row.post));
    const std::vector<std::uint8_t> bytes = t.next_bytes();
    ASSERT_EQ(bytes.size(), row.size) << int{row.opcode};
    EXPECT_EQ(bytes[0], row.opcode);
    EXPECT_EQ(bytes[12], 0);
    EXPECT_EQ(bytes[13], 0x12);
    EXPECT_EQ(bytes[14], 0x34);
    EXPECT_EQ(bytes[15], 0x56);
  }
}

TEST(Xrc, EveryPacketOfAMessageNamesTheSrq) {
  Talk t(initiator());
  const std::string data = pattern(2500);
  t.fill(0, data);
  auto id = t.post({.length = 2500, .srqn = Srqn(0x4321)});
  t.out(send_first(100, data.substr(0, 1024)).srqn(Srqn(0x4321)));
  t.out(send_middle(101, data.substr(1024, 1024)).srqn(Srqn(0x4321)));
  t.out(send_last(102, data.substr(2048)).srqn(Srqn(0x4321)).ack_req());
  t.in(ack(102, 1));
  t.sent(id, WcOpcode::send, 2500);
}

TEST(Xrc, InitiatorReadsAndAdds) {
  Talk t(initiator());
  auto read = t.post({.opcode = WrOpcode::rdma_read, .length = 3, .remote = {0x1000, 77}});
  t.out(read_request(100, {0x1000, 77}, 3).ack_req());
  auto add = t.post({.opcode = WrOpcode::atomic_fetch_and_add,
                     .local = 64,
                     .length = 8,
                     .remote = {0x2000, 78},
                     .compare_add = 5});
  t.out(fetch_add(101, {0x2000, 78}, 5).ack_req());
  t.in(read_response_only(100, 1, "abc"), atomic_acknowledge(101, 2, 41));
  t.sent(read, WcOpcode::rdma_read, 3);
  t.sent(add, WcOpcode::fetch_add, 8);
  EXPECT_EQ(t.text(0, 3), "abc");
  EXPECT_EQ(t.word(64), 41u);
}

// Two processes of the peer's host have a socket each; nothing keeps order between them.
TEST(Xrc, WhatGoesToAnotherProcessWaitsForTheAck) {
  Talk t(initiator());
  const Srqn here = Srqn::of(7, 1), beside = Srqn::of(7, 2), there = Srqn::of(8, 1);
  t.post({.length = 1, .srqn = here});
  t.post({.length = 1, .srqn = beside});
  t.post({.length = 1, .srqn = there});
  t.post({.length = 1, .srqn = here});
  EXPECT_EQ(t.next_slot(), 7u);
  EXPECT_EQ(t.next_slot(), 7u);
  t.silent();
  t.in(ack(100, 1));
  t.silent();
  t.in(ack(101, 2));
  EXPECT_EQ(t.next_slot(), 8u);
  t.silent();
  t.in(ack(102, 3));
  EXPECT_EQ(t.next_slot(), 7u);
}

TEST(Xrc, InitiatorAnswersNoRequest) {
  Talk t(initiator());
  t.in(send_only(0, "abc").ack_req());
  t.silent();
  EXPECT_EQ(t.counters().drop_transport, 1u);
}

// --- the target

TEST(Xrc, TargetAnswersNothingButRequests) {
  Talk t(target());
  t.in(ack(100, 1), read_response_only(100, 1, "abc"));
  EXPECT_EQ(t.counters().drop_transport, 2u);
  t.silent();
}

//= A14: the receive, the completion and the keys are those of the SRQ that the message names
TEST(Xrc, MessagesGoToTheSrqTheyName) {
  Talk t(target());
  MemoryRegion* theirs = t.add_region(4096, 4096, 0xf, Talk::other_pd);
  SharedReceiveQueue* other =
      t.engine.create_xrc_srq(4, 4, Talk::other_pd, Talk::xrcd, t.send_cq, &other);
  auto a = t.post_recv(0, 100);
  Sge list{theirs->iova, 100, theirs->key};
  ASSERT_TRUE(other->queue.post(500, {&list, 1}));
  t.in(send_only(0, "one"), send_only_imm(1, "two").imm(9).srqn(other->srqn).ack_req());
  t.out(ack(1, 2));
  t.received(a, 3);
  std::optional<Cqe> c = t.poll(*t.send_cq);
  ASSERT_TRUE(c);
  EXPECT_EQ(describe(*c), "wr 500 status 0 opcode 128 byte_len 3 flags 2 imm 9");
  EXPECT_EQ(c->qp_num, t.qp->qpn);
  EXPECT_EQ(t.text(0, 3) + t.text(4096, 3), "onetwo");
  t.in(write_only(2, {theirs->iova + 8, theirs->key}, "abc").srqn(other->srqn).ack_req());
  t.out(ack(2, 3));
  EXPECT_EQ(t.text(4104, 3), "abc");
  t.in(write_only(3, {theirs->iova + 8, theirs->key}, "xyz").ack_req());  // not in that SRQ's PD
  t.out(nak(3, NakCode::remote_access_error, 3));
  EXPECT_EQ(t.text(4104, 3), "abc");
}

TEST(Xrc, BytesOfResponses) {
  Talk t(target());
  t.in(write_only(0, t.at(0), "abc").ack_req());
  std::vector<std::uint8_t> bytes = t.next_bytes();
  EXPECT_EQ(bytes[0], 0xb1);
  EXPECT_EQ(bytes.size(), 12u + 4u);
  t.in(read_request(1, t.at(0), 3));
  bytes = t.next_bytes();
  EXPECT_EQ(bytes[0], 0xb0);
  EXPECT_EQ(std::string(&bytes[16], &bytes[19]), "abc");
  t.in(fetch_add(2, t.at(64), 5));
  bytes = t.next_bytes();
  EXPECT_EQ(bytes[0], 0xb2);
  EXPECT_EQ(bytes.size(), 12u + 4u + 8u);
}

// A READ's response is read in the protection domain of its own SRQ, whatever came after it.
TEST(Xrc, ReadKeepsItsSrq) {
  Talk t(target());
  SharedReceiveQueue* other =
      t.engine.create_xrc_srq(4, 4, Talk::other_pd, Talk::xrcd, t.send_cq, &other);
  MemoryRegion* theirs = t.add_region(4096, 4096, 0xf, Talk::other_pd);
  t.fill(0, "ours");
  t.fill(4096, "theirs");
  t.in(read_request(0, t.at(0), 4),
       read_request(1, {theirs->iova, theirs->key}, 6).srqn(other->srqn));
  t.out(read_response_only(0, 1, "ours"));
  t.out(read_response_only(1, 2, "theirs"));
  t.in(read_request(0, t.at(0), 4));  // again
  t.out(read_response_only(0, 1, "ours"));
  t.in(read_request(0, t.at(0), 4).srqn(other->srqn));  // nobody has asked that
  t.silent();
  EXPECT_EQ(t.counters().drop_duplicate_resource, 1u);
}

TEST(Xrc, C35_RepeatedAtomicIsNotExecutedTwice) {
  Talk t(target());
  t.set_word(64, 1);
  for (int i = 0; i < 2; ++i) {
    t.in(fetch_add(0, t.at(64), 5));
    t.out(atomic_acknowledge(0, 1, 1));
  }
  EXPECT_EQ(t.word(64), 6u);
}

TEST(Xrc, ReceiverNotReady) {
  Talk t(target());
  t.in(send_only(0, "abc").ack_req());
  t.out(rnr_nak(0, 1, 0));
  auto r = t.post_recv(0, 100);
  t.in(send_only(0, "abc").ack_req());
  t.out(ack(0, 1));
  t.received(r, 3);
}

// --- what is refused

void refuses(Talk& t, std::uint32_t psn, std::uint32_t msn) {
  t.out(nak(psn, NakCode::invalid_request, msn));
  EXPECT_EQ(t.state(), QpState::error);
  EXPECT_EQ(t.events(), (Words{"qp QP_REQ_ERR", "qp LAST_WQE"}));
}

TEST(Xrc, NoSuchSrq) {
  Talk t(target());
  t.post_recv(0, 100);
  t.in(send_only(0, "abc").srqn(Srqn(t.srq->srqn.raw() ^ 1)).ack_req());
  refuses(t, 0, 0);
  t.no_completion();
}

TEST(Xrc, SrqOfAnotherDomain) {
  Talk t(target());
  SharedReceiveQueue* other =
      t.engine.create_xrc_srq(4, 4, Talk::pd, Talk::xrcd + 1, t.recv_cq, &other);
  t.in(write_only(0, t.at(0), "abc").srqn(other->srqn).ack_req());
  refuses(t, 0, 0);
  EXPECT_EQ(t.text(0, 3), std::string(3, 0));
}

TEST(Xrc, MessageThatChangesItsSrq) {
  Talk t(target());
  SharedReceiveQueue* other =
      t.engine.create_xrc_srq(4, 4, Talk::pd, Talk::xrcd, t.recv_cq, &other);
  auto r = t.post_recv(0, 4000);
  t.in(send_first(0, pattern(1024)));
  t.in(send_last(1, "x").srqn(other->srqn).ack_req());
  refuses(t, 1, 0);
  t.receive_failed(r, WcStatus::rem_inv_req_err);
}

TEST(Xrc, SrqThatGoesDuringAMessage) {
  Talk t(target());
  const Srqn srqn = t.srq->srqn;
  t.post_recv(0, 4000);
  t.in(send_first(0, pattern(1024)));
  ASSERT_FALSE(t.engine.destroy_cq(t.recv_cq)) << "the SRQ uses it";
  ASSERT_TRUE(t.engine.destroy_srq(t.srq));
  t.in(send_last(1, "x").srqn(srqn).ack_req());
  refuses(t, 1, 0);
  ASSERT_TRUE(t.engine.destroy_cq(t.recv_cq));
}

// --- what outlives what

TEST(Xrc, CompletionsOutliveTheTarget) {
  Talk t(target());
  auto r = t.post_recv(0, 100);
  QueuePair* second = t.create_qp();
  t.modify_to(*second, QpState::rts);
  t.in(send_only(0, "abc").to(second->qpn));
  const Qpn number = second->qpn;
  t.engine.destroy_qp(second);
  std::optional<Cqe> c = t.poll(*t.recv_cq);
  ASSERT_TRUE(c);
  EXPECT_EQ(c->wr_id, r);
  EXPECT_EQ(c->qp_num, number);
}

TEST(Xrc, NumbersAreNotReusedAtOnce) {
  Talk t(target());
  const Srqn old = t.srq->srqn;
  ASSERT_TRUE(t.engine.destroy_srq(t.srq));
  EXPECT_EQ(t.engine.find_srq(old), nullptr);
  for (int i = 0; i < 100; ++i) {
    SharedReceiveQueue* s = t.engine.create_xrc_srq(1, 1, Talk::pd, Talk::xrcd, t.recv_cq, &t);
    EXPECT_EQ(t.engine.find_srq(s->srqn), s);
    EXPECT_NE(s->srqn, old);
    ASSERT_TRUE(t.engine.destroy_srq(s));
  }
}

// An overrun CQ tells nothing of later messages, so they are not taken either.
TEST(Xrc, C23_OverrunOfTheSrqsCq) {
  Options o = target();
  o.cq_size = 1;
  Talk t(o);
  QueuePair* second = t.create_qp();
  t.modify_to(*second, QpState::rts);
  for (int i = 0; i < 3; ++i) t.post_recv(0, 100);
  t.in(send_only(0, "a"), send_only(1, "b").ack_req());
  t.out(nak(1, NakCode::remote_operational_error, 2));
  EXPECT_EQ(t.state(), QpState::error);
  EXPECT_EQ(t.events(), (Words{"cq recv CQ_ERR", "qp QP_FATAL", "qp LAST_WQE"}));
  EXPECT_EQ(second->state, QpState::rts);
  t.in(send_only(0, "c").to(second->qpn).ack_req());
  t.out(nak(0, NakCode::remote_operational_error, 0));
  EXPECT_EQ(second->state, QpState::error);
}

// --- transitions (ibv_modify_qp(3)): each half has the attributes of its side

TEST(Xrc, AttributesOfTransitions) {
  const auto allows = [](QpType type, QpState from, QpState to, std::uint32_t mask) {
    return check_transition(type, from, to, mask).kind == TransitionError::none;
  };
  using enum QpType;
  using enum QpState;
  const std::uint32_t path = attr_state | attr_av | attr_path_mtu | attr_dest_qpn | attr_rq_psn;
  const std::uint32_t responder = attr_max_dest_rd_atomic | attr_min_rnr_timer;
  EXPECT_TRUE(allows(xrc_send, init, rtr, path));
  EXPECT_FALSE(allows(xrc_send, init, rtr, path | responder));
  EXPECT_TRUE(allows(xrc_recv, init, rtr, path | responder));
  EXPECT_FALSE(allows(xrc_recv, init, rtr, path));
  const std::uint32_t send = attr_state | attr_sq_psn | attr_timeout;
  const std::uint32_t requester = attr_retry_cnt | attr_rnr_retry | attr_max_qp_rd_atomic;
  EXPECT_TRUE(allows(xrc_send, rtr, rts, send | requester));
  EXPECT_FALSE(allows(xrc_send, rtr, rts, send));
  EXPECT_TRUE(allows(xrc_recv, rtr, rts, send));
  EXPECT_FALSE(allows(xrc_recv, rtr, rts, send | requester));
  EXPECT_TRUE(allows(xrc_recv, rts, rts, attr_min_rnr_timer));
  EXPECT_FALSE(allows(xrc_send, rts, rts, attr_min_rnr_timer));
  EXPECT_TRUE(allows(xrc_send, sqd, sqd, requester | attr_timeout));
  EXPECT_FALSE(allows(xrc_send, sqd, sqd, responder));
  EXPECT_TRUE(allows(xrc_recv, sqd, sqd, responder | attr_timeout));
  EXPECT_FALSE(allows(xrc_recv, sqd, sqd, requester));
}

}  // namespace
}  // namespace adverb::engine::talk
