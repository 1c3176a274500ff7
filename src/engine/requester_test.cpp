// SPDX-License-Identifier: Apache-2.0
// The requester, in conversations: which packets a work request becomes, and when they may go.
#include <gtest/gtest.h>

#include <mutex>
#include <thread>

#include "engine/talk.hpp"

namespace adverb::engine::talk {
namespace {

constexpr Remote theirs{0xabc000, 0x1234};

// --- segmentation

struct Message {
  WrOpcode opcode;
  Operation first, middle, last, only;
  WcOpcode completion;
};
constexpr Message messages[] = {
    {WrOpcode::send, Operation::send_first, Operation::send_middle, Operation::send_last,
     Operation::send_only, WcOpcode::send},
    {WrOpcode::send_with_imm, Operation::send_first, Operation::send_middle,
     Operation::send_last_imm, Operation::send_only_imm, WcOpcode::send},
    {WrOpcode::send_with_inv, Operation::send_first, Operation::send_middle,
     Operation::send_last_invalidate, Operation::send_only_invalidate, WcOpcode::send},
    {WrOpcode::rdma_write, Operation::write_first, Operation::write_middle, Operation::write_last,
     Operation::write_only, WcOpcode::rdma_write},
    {WrOpcode::rdma_write_with_imm, Operation::write_first, Operation::write_middle,
     Operation::write_last_imm, Operation::write_only_imm, WcOpcode::rdma_write},
};

Said expected_packet(const Message& m, std::uint32_t k, std::uint32_t packets, std::uint32_t length,
                     const std::string& data, std::uint32_t mtu) {
  Operation o = k == 0 ? (packets == 1 ? m.only : m.first) : k + 1 == packets ? m.last : m.middle;
  Said s = say(o, 100 + k, data.substr(std::size_t{k} * mtu, mtu)).imm(0xcafe).inv(0xcafe);
  s.p.reth = {theirs.va, theirs.rkey, length};
  return k + 1 == packets ? s.ack_req() : s;
}

class Segmentation : public testing::TestWithParam<Mtu> {};
INSTANTIATE_TEST_SUITE_P(PathMtu, Segmentation,
                         testing::Values(Mtu::mtu_256, Mtu::mtu_512, Mtu::mtu_1024, Mtu::mtu_2048,
                                         Mtu::mtu_4096));

//= IBTA 9.7.2, 9.7.3 message segmentation: all packets but the last are full
TEST_P(Segmentation, OfEveryMessageAndLength) {
  std::uint32_t mtu = bytes_of(GetParam());
  for (const Message& m : messages)
    for (std::uint32_t n : {0u, 1u, 2u, 3u, 4u, mtu - 1, mtu, mtu + 1, 2 * mtu, 3 * mtu + 5}) {
      Talk t({.mtu = GetParam()});
      std::string data = pattern(n, 3);
      t.fill(64, data);
      auto wr = t.post({m.opcode, 64, n, send_signaled, theirs, 0, 0, 0xcafe});
      std::uint32_t packets = n ? (n + mtu - 1) / mtu : 1;
      for (std::uint32_t k = 0; k < packets; ++k)
        t.out(expected_packet(m, k, packets, n, data, mtu));
      t.silent();
      t.no_completion();
      t.in(ack(100 + packets - 1, 1));
      t.sent(wr, m.completion, n);
      t.idle();
    }
}

//= IBTA 9.8.2.1 UC: the same packets, without AckReq; complete when they were handed over
TEST(Requester, UnreliableMessagesCompleteWithoutAnAck) {
  for (const Message& m : messages) {
    if (m.opcode == WrOpcode::send_with_inv) continue;
    Talk t({.type = QpType::uc});
    std::string data = pattern(2500);
    t.fill(0, data);
    auto wr = t.post({m.opcode, 0, 2500, send_signaled, theirs, 0, 0, 0xcafe});
    for (std::uint32_t k = 0; k < 3; ++k) {
      Said s = expected_packet(m, k, 3, 2500, data, 1024);
      s.p.bth.ack_request = false;  // C59
      t.out(s);
    }
    t.sent(wr, m.completion, 2500);
    t.silent_for(1s);
  }
}

// C08
//= ibv_post_send(3): a gather list is one message; elements of length 0 are skipped
TEST(Requester, C08_GathersThirtyTwoElementsOfOddSizes) {
  Talk t;
  std::vector<Sge> list;
  std::string all;
  std::uint64_t at = 0;
  for (unsigned i = 0; i < 32; ++i) {
    constexpr std::uint32_t sizes[] = {1, 0, 1023, 0, 3, 700, 13, 511};
    std::uint32_t n = sizes[i % 8];
    std::string piece = pattern(n, i);
    t.fill(at, piece);
    list.push_back({t.address(at), n, n ? t.mr->key : 0xdead});
    all += piece;
    at += n + 5;
  }
  t.post({.list = list});
  std::string got;
  for (std::size_t i = 0; i < (all.size() + 1023) / 1024; ++i) {
    wire::Packet p = t.next();
    got.append(p.payload.begin(), p.payload.end());
  }
  t.silent();
  EXPECT_EQ(got, all);
}

// C06
//= ibv_post_send(3): inline data is taken at the time of posting, its lkey is not looked at
TEST(Requester, C06_InlineDataIsWhatItWasWhenPosted) {
  Talk t;
  t.post({.flags = send_signaled | send_inline, .lkey = 0xdead, .inline_data = "as posted"});
  t.out(send_only(100, "as posted").ack_req());
}

// C03
TEST(Requester, C03_EmptySendWithAndWithoutAnElement) {
  Talk t;
  t.post({.length = 0});
  t.post({.list = {{t.address(0), 0, 0xdead}}});
  t.out(send_only(100).ack_req());
  t.out(send_only(101).ack_req());
  t.in(ack(101, 2));
  t.sent(1, WcOpcode::send, 0);
  t.sent(2, WcOpcode::send, 0);
}

// --- requests that are answered by a response

// C01
//= IBTA 9.7.4.1.6 / 9.7.3: a READ of length 0 is one request and one empty response
TEST(Requester, C01_ReadOfLengthZero) {
  Talk t;
  t.fill(0, "untouched");
  auto wr = t.post({WrOpcode::rdma_read, 0, 0, send_signaled, theirs});
  t.out(read_request(100, theirs, 0).ack_req());
  t.in(read_response_only(100, 1));
  t.sent(wr, WcOpcode::rdma_read, 0);
  EXPECT_EQ(t.text(0, 9), "untouched");
  t.idle();
}

//= IBTA 9.7.3: a READ request takes as many PSNs as its response has packets
TEST(Requester, ReadTakesThePsnsOfItsResponse) {
  Talk t;
  auto wr = t.post({WrOpcode::rdma_read, 500, 2500, send_signaled, theirs});
  t.post({.length = 1});
  t.out(read_request(100, theirs, 2500).ack_req());
  t.out(send_only(103, t.text(0, 1)).ack_req());
  std::string data = pattern(2500, 9);
  t.in(read_response_first(100, 1, data.substr(0, 1024)));
  t.in(read_response_middle(101, data.substr(1024, 1024)));
  t.no_completion();
  t.in(read_response_last(102, 1, data.substr(2048)));
  t.sent(wr, WcOpcode::rdma_read, 2500);
  EXPECT_EQ(t.text(500, 2500), data);
  t.in(ack(103, 2));
  t.sent(2, WcOpcode::send, 1);
  t.idle();
}

TEST(Requester, ReadScattersOverItsList) {
  Talk t;
  t.post({.opcode = WrOpcode::rdma_read,
          .remote = theirs,
          .list = {{t.address(0), 3, t.mr->key}, {0, 0, 1}, {t.address(10), 4, t.mr->key}}});
  t.out(read_request(100, theirs, 7).ack_req());
  t.in(read_response_only(100, 1, "abcdefg"));
  t.sent(1, WcOpcode::rdma_read, 7);
  EXPECT_EQ(t.text(0, 3), "abc");
  EXPECT_EQ(t.text(10, 4), "defg");
}

// Our own choice: a long READ is asked for in pieces, each a READ request of the wire.
TEST(Requester, LongReadIsAskedForInChunks) {
  Talk t({.max_rd_atomic = 1,
          .config = {
              .max_qp = 4, .max_mr = 16, .active_mtu = Mtu::mtu_4096, .read_chunk_packets = 2}});
  std::string data = pattern(4500);
  auto wr = t.post({WrOpcode::rdma_read, 0, 4500, send_signaled, theirs});
  t.out(read_request(100, theirs, 2048).ack_req());
  t.silent();  // max_rd_atomic
  t.in(read_response_first(100, 1, data.substr(0, 1024)));
  t.silent();
  t.in(read_response_last(101, 1, data.substr(1024, 1024)));
  t.out(read_request(102, {theirs.va + 2048, theirs.rkey}, 2048).ack_req());
  t.in(read_response_first(102, 2, data.substr(2048, 1024)));
  t.in(read_response_last(103, 2, data.substr(3072, 1024)));
  t.out(read_request(104, {theirs.va + 4096, theirs.rkey}, 404).ack_req());
  t.no_completion();
  t.in(read_response_only(104, 3, data.substr(4096)));
  t.sent(wr, WcOpcode::rdma_read, 4500);
  EXPECT_EQ(t.text(0, 4500), data);
  t.idle();
}

//= IBTA 9.4.5 atomics: the original value arrives in host order
TEST(Requester, Atomics) {
  Talk t;
  t.post({WrOpcode::atomic_fetch_and_add, 0, 8, send_signaled, theirs, 5});
  t.post({WrOpcode::atomic_cmp_and_swp, 8, 8, send_signaled, theirs, 7, 9});
  t.out(fetch_add(100, theirs, 5).ack_req());
  t.out(compare_swap(101, theirs, 7, 9).ack_req());
  t.in(atomic_acknowledge(100, 1, 0x1122334455667788), atomic_acknowledge(101, 2, 42));
  t.sent(1, WcOpcode::fetch_add, 8);
  t.sent(2, WcOpcode::comp_swap, 8);
  EXPECT_EQ(t.word(0), 0x1122334455667788u);
  EXPECT_EQ(t.word(8), 42u);
  t.idle();
}

// C55
//= annex A19: FLUSH and ATOMIC WRITE are answered by an empty READ response; SE is not set
TEST(Requester, C55_FlushAndAtomicWrite) {
  Talk t;
  t.fill(0, "12345678");
  auto solicited = send_signaled | send_solicited;
  t.post({.opcode = WrOpcode::atomic_write,
          .length = 8,
          .flags = static_cast<unsigned>(solicited),
          .remote = theirs});
  t.post({.opcode = WrOpcode::flush,
          .flags = static_cast<unsigned>(solicited),
          .remote = theirs,
          .flush_type = 2,
          .flush_level = 1});
  t.out(atomic_write(100, theirs, "12345678").ack_req());
  t.out(flush(101, theirs, 0, 2, 1).ack_req());
  t.in(read_response_only(100, 1), read_response_only(101, 2));
  t.sent(1, WcOpcode::atomic_write, 8);
  t.sent(2, WcOpcode::flush, 0);
  t.idle();
}

//= IBTA 9.7.3: no more than max_rd_atomic READs and atomics on their way
TEST(Requester, MaxRdAtomicBoundsWhatIsOutstanding) {
  Talk t({.max_rd_atomic = 2});
  for (int i = 0; i < 4; ++i)
    t.post({WrOpcode::atomic_fetch_and_add, 0, 8, send_signaled, theirs, 1});
  t.out(fetch_add(100, theirs, 1).ack_req());
  t.out(fetch_add(101, theirs, 1).ack_req());
  t.silent();
  t.in(atomic_acknowledge(100, 1, 0));
  t.out(fetch_add(102, theirs, 1).ack_req());
  t.silent();
  t.in(atomic_acknowledge(101, 2, 1), atomic_acknowledge(102, 3, 2));
  t.out(fetch_add(103, theirs, 1).ack_req());
  t.in(atomic_acknowledge(103, 4, 3));
  for (std::uint64_t i = 1; i <= 4; ++i) t.sent(i, WcOpcode::fetch_add, 8);
  t.idle();
}

TEST(Requester, NoResourcesAtThePeerNoReads) {
  for (WrOpcode o : {WrOpcode::rdma_read, WrOpcode::atomic_fetch_and_add}) {
    Talk t({.max_rd_atomic = 0});
    t.post({o, 0, 8, send_signaled, theirs});
    t.silent();
    t.failed(1, WcStatus::loc_qp_op_err);
    EXPECT_EQ(t.state(), QpState::error);
  }
}

// The response bytes that all QPs together may ask for.
TEST(Requester, ReadBudgetIsSharedAndGivenBack) {
  Talk t({.config = {.max_qp = 4, .max_mr = 16, .active_mtu = Mtu::mtu_4096, .read_budget = 2048}});
  t.post({WrOpcode::rdma_read, 0, 1500, send_signaled, theirs});
  t.post({WrOpcode::rdma_read, 0, 1024, send_signaled, theirs});
  t.out(read_request(100, theirs, 1500).ack_req());
  t.silent();
  t.in(read_response_first(100, 1, pattern(1024)));
  t.out(read_request(102, theirs, 1024).ack_req());
  t.in(read_response_last(101, 1, pattern(476)), read_response_only(102, 2, pattern(1024)));
  t.sent(1, WcOpcode::rdma_read, 1500);
  t.sent(2, WcOpcode::rdma_read, 1024);
  t.idle();
}

// Another QP's error gives back what it had asked for.
TEST(Requester, ReadBudgetOfAFailedQpIsGivenBack) {
  Talk t({.config = {.max_qp = 4, .max_mr = 16, .active_mtu = Mtu::mtu_4096, .read_budget = 2048}});
  QueuePair* other = t.create_qp();
  t.modify_to(*other, QpState::rts);
  t.post(*other, {WrOpcode::rdma_read, 0, 2048, send_signaled, theirs});
  t.discard();
  t.post({WrOpcode::rdma_read, 0, 1024, send_signaled, theirs});
  t.silent();
  t.modify(*other, QpState::error);
  t.out(read_request(100, theirs, 1024).ack_req());
}

// --- fence

// C45
//= IBTA 10.8.3.3: a fenced work request waits for READs and atomics before it, for nothing else
TEST(Requester, C45_FenceWaitsForReadsOnly) {
  Talk t;
  t.post({WrOpcode::rdma_read, 0, 3, send_signaled, theirs});
  t.post({.local = 0, .length = 3, .flags = send_signaled | send_fence});
  t.out(read_request(100, theirs, 3).ack_req());
  t.silent();
  t.in(read_response_only(100, 1, "new"));
  t.out(send_only(101, "new").ack_req());

  t.post({WrOpcode::rdma_write, 0, 3, send_signaled, theirs});
  t.post({.local = 0, .length = 3, .flags = send_signaled | send_fence});
  t.out(write_only(102, theirs, "new").ack_req());
  t.out(send_only(103, "new").ack_req());
}

// --- AckReq

//= IBTA 9.7.3 generating request packets: the last packet of what is posted asks for an ACK, and SE
// only where it is asked
// for
TEST(Requester, SolicitedEventOnTheLastPacketOnly) {
  Talk t;
  unsigned flags = send_signaled | send_solicited;
  t.post({WrOpcode::send, 0, 1500, flags});
  t.post({WrOpcode::rdma_write, 0, 4, flags, theirs});
  t.post({WrOpcode::rdma_write_with_imm, 0, 4, flags, theirs, 0, 0, 7});
  t.out(send_first(100, t.text(0, 1024)));
  t.out(send_last(101, t.text(0, 476)).se().ack_req());
  // A plain WRITE consumes no receive WQE: there is no event to ask for.
  t.out(write_only(102, theirs, t.text(0, 4)).ack_req());
  t.out(write_only_imm(103, theirs, t.text(0, 4)).imm(7).se().ack_req());
}

TEST(Requester, AsksForAnAckOftenEnough) {
  Talk t;
  t.post({.length = 200 << 10});
  unsigned since = 0, packets = 0;
  bool last_asked = false;
  while (packets < 200) {
    if (t.waiting() == 0) {
      ASSERT_TRUE(last_asked) << "stopped without asking, after " << packets;
      t.in(ack(100 + packets - 1, 0));
    }
    wire::Packet p = t.next();
    ++packets;
    last_asked = p.bth.ack_request;
    since = last_asked ? 0 : since + 1;
    ASSERT_LE(since, 31u);
  }
  t.in(ack(299, 1));
  t.sent(1, WcOpcode::send, 200 << 10);
  t.idle();
}

// --- window

EngineConfig small_window(std::uint64_t bytes) {
  return {.max_qp = 32, .max_mr = 16, .active_mtu = Mtu::mtu_4096, .initial_window = bytes};
}

TEST(Requester, WindowStopsAndTheLastPacketAsksForAnAck) {
  Talk t({.config = small_window(5 * frame_cost(1056))});
  t.post({.length = 8 * 1024});
  for (unsigned i = 0; i < 5; ++i) {
    wire::Packet p = t.next();
    EXPECT_EQ(p.bth.ack_request, i == 4) << i;
  }
  t.silent();
  t.in(ack(102, 0));
  EXPECT_EQ(t.waiting(), 3u);
  t.discard();
  t.in(ack(107, 1));
  t.sent(1, WcOpcode::send, 8 * 1024);
  t.idle();
}

// Many QPs, each with too few packets to ask by itself: none may sit on the window in silence.
TEST(Requester, SharedWindowNeverStallsWithoutAnAckRequest) {
  Talk t({.config = small_window(20 * frame_cost(1056))});
  std::vector<QueuePair*> all{t.qp};
  for (int i = 0; i < 9; ++i) {
    all.push_back(t.create_qp());
    t.modify_to(*all.back(), QpState::rts);
  }
  for (QueuePair* q : all) t.post(*q, {.length = 6 * 1024});
  t.pump();
  std::uint64_t asked = 0;
  std::size_t n = t.waiting();
  EXPECT_EQ(n, 20u);
  for (std::size_t i = 0; i < n; ++i) asked += t.next().bth.ack_request;
  EXPECT_EQ(asked, 4u);  // three whole messages, and the one that was cut short
}

// Two engines' worth of posting in one turn each: a small burst ends the turn, not the stream.
TEST(Requester, SmallBurstsCarryEverything) {
  Talk t({.arena = TxBurst::max_frame});
  t.post({.length = 5000});
  EXPECT_EQ(t.waiting(), 5u);
}

// --- credits

//= IBTA 9.7.7.2.5: beyond the credits of the last ACK one message is sent, and one at a time
TEST(Requester, CreditLimit) {
  Talk t;
  t.post({.length = 1});
  t.out(send_only(100, t.text(0, 1)).ack_req());
  t.in(ack(100, 1).credits(2));
  for (int i = 0; i < 5; ++i) t.post({.length = 1});
  t.out(send_only(101, t.text(0, 1)).ack_req());
  t.out(send_only(102, t.text(0, 1)).ack_req());
  t.silent();
  t.in(ack(102, 3).credits(0));
  t.out(send_only(103, t.text(0, 1)).ack_req());  // limited: asks for credits by itself
  t.silent();
  t.in(ack(103, 4));  // "no limit"
  t.out(send_only(104, t.text(0, 1)).ack_req());
  t.out(send_only(105, t.text(0, 1)).ack_req());
}

TEST(Requester, CreditsBindOnlyWhatConsumesAReceive) {
  Talk t;
  t.post({.length = 1});
  t.discard();
  t.in(ack(100, 1).credits(0));
  t.post({WrOpcode::rdma_write, 0, 1, 0, theirs});
  t.post({WrOpcode::rdma_write, 0, 1, 0, theirs});
  t.post({WrOpcode::rdma_write_with_imm, 0, 1, 0, theirs});
  EXPECT_EQ(t.waiting(), 2u);
}

// A burst that is full in the middle of a message leaves a packet that asks for an ACK, whatever
// becomes of the rest.
TEST(Requester, EveryTurnEndsWithAnAckRequest) {
  Talk t;
  t.post({.length = 9 * 1024});
  std::vector<std::uint8_t> arena(TxBurst::max_frame * 2);
  TxBurst tx(arena);
  EXPECT_TRUE(t.engine.transmit(t.now, tx));
  ASSERT_LT(tx.frames().size(), 9u);
  for (const TxFrame& f : tx.frames())
    EXPECT_EQ(wire::decode({tx.bytes(f), f.size}).value().bth.ack_request,
              &f == &tx.frames().back());
}

TEST(Requester, CreditsCanBeSwitchedOff) {
  Talk t({.config = {.max_qp = 4, .max_mr = 16, .end_to_end_credits = false}});
  t.post({.length = 1});
  t.discard();
  t.in(ack(100, 1).credits(0));
  t.post({.length = 1});
  t.post({.length = 1});
  EXPECT_EQ(t.waiting(), 2u);
}

// --- local errors

// C14
//= ibv_post_send(3): an unsignaled work request that fails completes all the same
TEST(Requester, C14_UnsignaledFailureCompletes) {
  Talk t;
  t.post({.length = 4, .flags = 0, .lkey = 0xdead00});
  t.silent();
  t.failed(1, WcStatus::loc_prot_err);
  EXPECT_EQ(t.state(), QpState::error);
  EXPECT_EQ(t.counters().req_cqe_error, 1u);
}

// C49
//= IBTA 10.2.3: an lkey of another protection domain is no key
TEST(Requester, C49_KeyOfAnotherDomainIsALocalError) {
  Talk t;
  MemoryRegion* mine = t.add_region(0, 100, 0xf, Talk::other_pd);
  t.post({.length = 4, .lkey = mine->key});
  t.failed(1, WcStatus::loc_prot_err);
}

TEST(Requester, ListShorterThanTheMessageIsALengthError) {
  Talk t;
  t.post({.length = 4});
  t.qp->sq->at(0).length = 9;
  t.failed(1, WcStatus::loc_len_err);
}

//= IBTA 10.7: what was posted before a failing work request completes before it
TEST(Requester, LocalErrorWaitsForWhatWasPostedBefore) {
  Talk t;
  t.post({.length = 3});
  t.post({.length = 4, .lkey = 0xdead00});
  t.post({.length = 5});
  t.out(send_only(100, t.text(0, 3)).ack_req());
  t.silent();
  t.no_completion();
  t.in(ack(100, 1));
  t.sent(1, WcOpcode::send, 3);
  t.failed(2, WcStatus::loc_prot_err);
  t.failed(3, WcStatus::wr_flush_err);
  EXPECT_EQ(t.state(), QpState::error);
  t.idle();
}

TEST(Requester, LocalErrorIsNotReportedForWhatIsBeingRetried) {
  Talk t({.timeout = 10, .retry_cnt = 1});
  t.post({.length = 3});
  t.post({.length = 4, .lkey = 0xdead00});
  t.discard();
  t.silent_for(4096ns * 1024);
  t.out(send_only(100, t.text(0, 3)).ack_req());  // sent again, though a later one failed
  t.no_completion();
  t.in(ack(100, 1));
  t.sent(1, WcOpcode::send, 3);
  t.failed(2, WcStatus::loc_prot_err);
}

TEST(Requester, LocalErrorInTheMiddleOfAMessage) {
  Talk t;
  t.post({.list = {{t.address(0), 1024, t.mr->key}, {t.address(0), 10, 0xdead00}}});
  t.out(send_first(100, t.text(0, 1024)).ack_req());  // the last that goes out asks for an ACK
  t.failed(1, WcStatus::loc_prot_err);
  EXPECT_EQ(t.state(), QpState::error);
  t.in(ack(100, 0));
  t.idle();
}

TEST(Requester, UnreliableLocalErrorStopsTheSendQueueOnly) {
  for (QpType type : {QpType::uc, QpType::ud}) {
    Talk t({.type = type});
    t.post({.length = 4, .lkey = 0xdead00, .remote_qpn = Talk::their_qpn, .remote_qkey = 1});
    t.post({.length = 4, .remote_qpn = Talk::their_qpn, .remote_qkey = 1});
    t.silent();
    t.failed(1, WcStatus::loc_prot_err);
    t.failed(2, WcStatus::wr_flush_err);
    EXPECT_EQ(t.state(), QpState::sqe);
    //= IBTA 10.3.1.6 SQE: what is posted is flushed; receives go on; RTS again on request
    t.post({.length = 4, .remote_qpn = Talk::their_qpn, .remote_qkey = 1});
    t.failed(3, WcStatus::wr_flush_err);
    auto r = t.post_recv(0, 100);
    t.in(send_only(0, "abc"));
    t.received(r, type == QpType::ud ? 43 : 3, WcOpcode::recv, type == QpType::ud ? wc_grh : 0);
    t.modify(QpState::rts);
    t.post({.length = 2, .remote_qpn = Talk::their_qpn, .remote_qkey = 1});
    EXPECT_EQ(t.waiting(), 1u);
    t.sent(5, WcOpcode::send, 2);
  }
}

// A send queue in SQE is flushed while another thread posts; the CQ overruns in the midst of that
// and takes the QP to the error state, which flushes too, and further.
TEST(Requester, AFlushThatOverrunsTheCqBesideAPoster) {
  constexpr std::uint32_t posts = 4000;
  for (int round = 0; round < 20; ++round) {
    Talk t({.type = QpType::ud, .max_send_wr = posts + 1, .cq_size = 500});
    t.post({.length = 4, .lkey = 0xdead00, .remote_qpn = Talk::their_qpn, .remote_qkey = 1});
    t.failed(1, WcStatus::loc_prot_err);
    ASSERT_EQ(t.state(), QpState::sqe);
    SendQueue& sq = *t.qp->sq;
    std::thread poster([&] {
      for (std::uint32_t i = 0; i < posts; ++i) {
        std::lock_guard hold(sq.lock);
        SendWqe* w = sq.reserve();
        ASSERT_TRUE(w);
        w->flags = send_signaled;
        sq.publish();
      }
    });
    while (sq.posted() < posts / 4) std::this_thread::yield();
    t.engine.ring_doorbell(*t.qp);
    t.silent();
    poster.join();
    EXPECT_EQ(t.state(), QpState::error);
    t.engine.ring_doorbell(*t.qp);
    t.silent();
    EXPECT_EQ(t.qp->comp.acked, sq.posted());
    EXPECT_EQ(t.counters().cq_overruns, 1u);
  }
}

//= IBTA table of work request operations by service: what a service does not have is a local error
TEST(Requester, OperationsThatTheServiceDoesNotHave) {
  struct Row {
    QpType type;
    WrOpcode opcode;
  };
  for (Row r : {Row{QpType::uc, WrOpcode::rdma_read},
                {QpType::uc, WrOpcode::send_with_inv},
                {QpType::uc, WrOpcode::atomic_fetch_and_add},
                {QpType::ud, WrOpcode::rdma_write},
                {QpType::ud, WrOpcode::rdma_read},
                {QpType::ud, WrOpcode::flush},
                {QpType::ud, WrOpcode::local_inv},
                {QpType::ud, WrOpcode::bind_mw}}) {
    Talk t({.type = r.type});
    t.post({r.opcode, 0, 8, send_signaled, theirs});
    t.silent();
    t.failed(1, WcStatus::loc_qp_op_err);
  }
}

// --- states

// C17
//= IBTA 10.3.1.4: nothing is sent before RTS
TEST(Requester, C17_NothingIsSentBeforeRts) {
  for (QpState s : {QpState::reset, QpState::init, QpState::rtr}) {
    Talk t({.state = s});
    t.post({.length = 1});
    t.silent();
    t.no_completion();
  }
}

// C19
//= ibv_post_send(3): a slot is free when its completion was polled
TEST(Requester, C19_FullQueueRefusesUntilPolled) {
  Talk t({.max_send_wr = 3});
  for (int i = 0; i < 3; ++i) EXPECT_NE(t.post({.length = 1}), 0u);
  EXPECT_EQ(t.post({.length = 1}), 0u);
  EXPECT_EQ(t.qp->sq->free_slots(), 0u);
  t.discard();
  t.in(ack(102, 3));
  EXPECT_EQ(t.post({.length = 1}), 0u);  // complete, but not polled
  t.sent(1, WcOpcode::send, 1);
  EXPECT_NE(t.post({.length = 1}), 0u);
  EXPECT_EQ(t.post({.length = 1}), 0u);
}

TEST(Requester, UnsignaledSlotsAreFreedByTheNextSignaledCompletion) {
  Talk t({.max_send_wr = 3});
  t.post({.length = 1, .flags = 0});
  t.post({.length = 1, .flags = 0});
  t.post({.length = 1});
  t.discard();
  t.in(ack(102, 3));
  t.sent(3, WcOpcode::send, 1);
  t.no_completion();
  EXPECT_EQ(t.qp->sq->free_slots(), 3u);
}

TEST(Requester, AllSignaledQueue) {
  Talk t({.sq_sig_all = true});
  t.post({.length = 1, .flags = 0});
  t.discard();
  t.in(ack(100, 1));
  t.sent(1, WcOpcode::send, 1);
}

//= IBTA 10.3.1.5 SQD: what was started is finished, the rest waits; SQ_DRAINED when that is
// complete
TEST(Requester, SqdFinishesWhatWasStarted) {
  Talk t({.config = small_window(2 * frame_cost(1056))});
  t.post({.length = 3000});
  t.post({.length = 1});
  t.out(send_first(100, t.text(0, 1024)));
  t.out(send_middle(101, t.text(0, 1024)).ack_req());
  t.modify(QpState::sqd, attr_state | attr_en_sqd_async_notify, true);
  EXPECT_EQ(t.events(), Words{});
  t.in(ack(101, 0));
  t.out(send_last(102, t.text(0, 952)).ack_req());
  EXPECT_EQ(t.events(), Words{});
  t.in(ack(102, 1));
  t.sent(1, WcOpcode::send, 3000);
  EXPECT_EQ(t.events(), Words{"qp SQ_DRAINED"});
  t.silent_for(1s);
  t.modify(QpState::rts);
  t.out(send_only(103, t.text(0, 1)).ack_req());
}

TEST(Requester, SqdRetriesWhatWasStarted) {
  Talk t({.timeout = 10});
  t.post({.length = 3});
  t.discard();
  t.modify(QpState::sqd, attr_state | attr_en_sqd_async_notify, true);
  t.silent_for(4096ns * 1024);
  t.out(send_only(100, t.text(0, 3)).ack_req());
  t.in(ack(100, 1));
  EXPECT_EQ(t.events(), Words{"qp SQ_DRAINED"});
}

TEST(Requester, SqdOfAnIdleQueueIsDrainedAtOnceAndSaysSoOnlyWhenAsked) {
  Talk t;
  t.modify(QpState::sqd);
  EXPECT_EQ(t.events(), Words{});
  t.modify(QpState::rts);
  t.modify(QpState::sqd, attr_state | attr_en_sqd_async_notify, true);
  EXPECT_EQ(t.events(), Words{"qp SQ_DRAINED"});
}

TEST(Requester, SqdOfAnUnreliableQueueDrainsWhenTheMessageIsOut) {
  Talk t({.type = QpType::uc});
  t.post({.length = 9 * 1024});
  std::vector<std::uint8_t> arena(TxBurst::max_frame * 2);
  TxBurst tx(arena);
  ASSERT_TRUE(t.engine.transmit(t.now, tx));
  t.modify(QpState::sqd, attr_state | attr_en_sqd_async_notify, true);
  EXPECT_EQ(t.events(), Words{"qp SQ_DRAINED"});
}

// A new path in SQD takes what is in flight along.
TEST(Requester, NewPathInSqd) {
  Talk t;
  t.post({.length = 1});
  t.discard();
  t.modify(QpState::sqd);
  t.modify(QpState::sqd, attr_state | attr_av);
  t.in(ack(100, 1));
  t.sent(1, WcOpcode::send, 1);
  t.idle();
}

}  // namespace
}  // namespace adverb::engine::talk
