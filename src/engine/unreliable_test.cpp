// SPDX-License-Identifier: Apache-2.0
// The unreliable services, in conversations: UC drops what is out of order, UD stands alone.
#include <gtest/gtest.h>

#include "engine/talk.hpp"

namespace adverb::engine::talk {
namespace {

Options uc() { return {.type = QpType::uc}; }
Options ud() { return {.type = QpType::ud}; }

// --- UC

TEST(Unreliable, MessagesAreDelivered) {
  Talk t(uc());
  auto a = t.post_recv(0, 2000), b = t.post_recv(0, 0), c = t.post_recv(0, 0);
  std::string data = pattern(1500);
  t.in(send_first(0, data.substr(0, 1024)), send_last_imm(1, data.substr(1024)).imm(5).se());
  t.received(a, 1500, WcOpcode::recv, wc_with_imm, 5);
  EXPECT_EQ(t.text(0, 1500), data);
  t.in(write_only(2, t.at(100), "abc"), write_only_imm(3, t.at(200), "def").imm(6));
  t.received(b, 3, WcOpcode::recv_rdma_with_imm, wc_with_imm, 6);
  t.in(write_first(4, t.at(3000), data.substr(0, 1024)).length(1500));
  t.in(write_last_imm(5, data.substr(1024)).imm(7));
  t.received(c, 1500, WcOpcode::recv_rdma_with_imm, wc_with_imm, 7);
  EXPECT_EQ(t.text(3000, 1500), data);
  EXPECT_EQ(t.text(200, 3), "def");
  t.silent();  // never an answer
}

//= IBTA 9.8.2.2.1: a gap drops the message it lies in, and nothing else
TEST(Unreliable, LossInTheMiddleDropsTheMessage) {
  Talk t(uc());
  auto a = t.post_recv(0, 4000);
  t.in(send_first(0, pattern(1024)), send_last(2, "end"));
  t.no_completion();
  EXPECT_EQ(t.counters().out_of_sequence, 1u);
  t.in(send_middle(3, pattern(1024)), send_last(4, "end"));
  t.no_completion();
  EXPECT_EQ(t.counters().drop_psn, 3u);
  t.in(send_only(5, "whole"));  // takes the WQE that the broken message had opened
  t.received(a, 5);
  EXPECT_EQ(t.text(0, 5), "whole");
  EXPECT_EQ(t.state(), QpState::rts);
}

TEST(Unreliable, LossBetweenMessagesCostsNothing) {
  Talk t(uc());
  auto a = t.post_recv(0, 10), b = t.post_recv(0, 10);
  t.in(send_only(7, "a"), send_only(3, "b"));  // ahead, and behind
  t.received(a, 1);
  t.received(b, 1);
  EXPECT_EQ(t.counters().out_of_sequence, 2u);
}

TEST(Unreliable, MessageThatIsCutShortByTheNext) {
  Talk t(uc());
  auto a = t.post_recv(0, 4000);
  t.in(send_first(0, pattern(1024)), send_first(1, pattern(1024, 9)), send_last(2, "x"));
  t.received(a, 1025);
  EXPECT_EQ(t.text(0, 1024), pattern(1024, 9));
}

//= IBTA 9.9.3.1: requests that are wrong are dropped, and never answered
TEST(Unreliable, WrongRequestsAreDropped) {
  Talk t(uc());
  auto r = t.post_recv(0, 4000);
  std::uint32_t psn = 0;
  for (int i = 0; i < 8; ++i) {
    if (i == 0) t.in(write_only(psn++, {t.address(0), 0xdead00}, "x"));
    if (i == 1) t.in(write_only(psn++, t.at(0), "abc").length(5));
    if (i == 2) t.in(send_middle(psn++, pattern(1024)));
    if (i == 3) t.in(send_first(psn++, "short"));
    if (i == 4)
      t.in(send_first(psn, pattern(1024)), write_middle(psn + 1, pattern(1024))), psn += 2;
    if (i == 5) t.in(write_last(psn++, "x"));
    if (i == 6) t.in(write_only(psn++, t.at(Talk::memory_bytes - 1), "ab"));
    if (i == 7) t.in(send_first(psn, pattern(1024)), send_last(psn + 1, "")), psn += 2;
    t.no_completion();
    t.silent();
    EXPECT_EQ(t.state(), QpState::rts);
  }
  t.in(send_only(psn, "fine"));
  t.received(r, 4);
  EXPECT_EQ(t.counters().drop_sequence, 6u);
  EXPECT_EQ(t.counters().drop_psn, 2u);  // MIDDLE and LAST of what is being dropped already
}

TEST(Unreliable, WriteThatTheQpDoesNotAllow) {
  Talk t({.type = QpType::uc, .access = 0});
  t.in(write_only(0, t.at(0), "abc"));
  EXPECT_EQ(t.text(0, 3), std::string(3, 0));
  EXPECT_EQ(t.counters().drop_sequence, 1u);
}

TEST(Unreliable, NoReceiveDropsTheMessage) {
  Talk t(uc());
  t.in(send_first(0, pattern(1024)), send_last(1, "x"), write_only_imm(2, t.at(0), "x").imm(1));
  EXPECT_EQ(t.counters().out_of_buffer, 2u);
  auto r = t.post_recv(0, 10);
  t.in(send_only(3, "y"));
  t.received(r, 1);
  t.silent();
}

// C15
//= IBTA 9.9.3.1.2: the receive WQE's own faults are local errors
TEST(Unreliable, C15_FaultsOfTheReceiveWqe) {
  for (int i = 0; i < 2; ++i) {
    Talk t(uc());
    auto r = i ? t.post_recv({{t.address(0), 10, 0xdead00}}) : t.post_recv(0, 2);
    t.in(send_only(0, "abc"));
    t.receive_failed(r, i ? WcStatus::loc_prot_err : WcStatus::loc_len_err);
    EXPECT_EQ(t.state(), QpState::error);
    t.silent();
  }
}

TEST(Unreliable, CnpForAMarkedPacket) {
  Talk t(uc());
  t.in(write_only(0, t.at(0), "x").ce());
  t.out(cnp());
}

// --- UD

Said datagram(std::string b, std::uint32_t psn = 0) { return send_only(psn, std::move(b)); }

//= IBTA 9.8.3, 10.2.5, annex A17: one packet, DETH, no AckReq; the path of the work request
TEST(Datagram, Send) {
  Talk t(ud());
  t.fill(0, "hello");
  auto wr = t.post({.length = 5,
                    .flags = send_signaled | send_solicited,
                    .remote_qpn = Talk::their_qpn,
                    .remote_qkey = 0x77});
  t.out(send_only(100, "hello").se().qkey(0x77));
  t.sent(wr, WcOpcode::send, 5);
  t.post({.opcode = WrOpcode::send_with_imm,
          .length = 1,
          .imm_or_rkey = 9,
          .remote_qpn = Talk::their_qpn,
          .remote_qkey = 0x80000001});
  t.out(send_only_imm(101, "h").imm(9).qkey(Talk::qkey));  // controlled Q_Key: the QP's own
  t.silent();
}

// C57
//= IBTA 9.8.3: a message is one packet
TEST(Datagram, C57_LongerThanTheMtu) {
  Talk t(ud());
  t.post({.length = 4097, .remote_qpn = Talk::their_qpn, .remote_qkey = 1});
  t.silent();
  t.failed(1, WcStatus::loc_len_err);
  EXPECT_EQ(t.state(), QpState::sqe);
  t.in(datagram(pattern(4100)));
  EXPECT_EQ(t.counters().drop_length, 1u);
}

// C49
//= IBTA 10.2.2.2: the address handle's protection domain
TEST(Datagram, C49_AddressHandleOfAnotherDomain) {
  Talk t(ud());
  t.post({.length = 1, .remote_qpn = Talk::their_qpn, .remote_qkey = 1, .pd_of_ah = 2});
  t.silent();
  t.failed(1, WcStatus::loc_qp_op_err);
}

//= annex A17.9.3: forty bytes of network header come before the payload
TEST(Datagram, ReceiveOverIpv4) {
  Talk t(ud());
  auto r = t.post_recv(0, 100);
  t.in(send_only_imm(0, "hello").imm(3).tos(0x2a));
  t.received(r, 45, WcOpcode::recv, wc_grh | wc_with_imm, 3);
  EXPECT_EQ(t.text(40, 5), "hello");
  EXPECT_EQ(t.text(0, 20), std::string(20, 0));
  auto* ip = reinterpret_cast<const std::uint8_t*>(t.memory.data()) + 20;
  EXPECT_EQ(ip[0], 0x45);
  EXPECT_EQ(ip[1], 0x2a);
  EXPECT_EQ(ip[2] << 8 | ip[3], 20 + 8 + 12 + 8 + 4 + 8 + 4);  // BTH, DETH, ImmDt, payload, ICRC
  EXPECT_EQ(ip[9], 17);
  EXPECT_EQ(t.text(32, 4), std::string("\x0a\0\0\x02", 4));
  EXPECT_EQ(t.text(36, 4), std::string("\x0a\0\0\x01", 4));
  std::uint32_t sum = 0;
  for (int i = 0; i < 20; i += 2) sum += static_cast<std::uint32_t>(ip[i] << 8 | ip[i + 1]);
  EXPECT_EQ((sum & 0xffff) + (sum >> 16), 0xffffu);
}

TEST(Datagram, ServiceLevelOfTheCompletionTellsTheHeader) {
  const auto sl_of = [](bool v6, bool tells, Protocol protocol = Protocol::roce_v2) {
    Options o = ud();
    o.v6 = v6;
    o.config.sl_tells_header = tells;
    Talk t(o);
    t.post_recv(0, 100);
    RxFrame f;
    const auto bytes = t.bytes_of(datagram("hello"));
    f.packet = *wire::decode(bytes);
    f.source = t.them(), f.destination = t.us();
    f.protocol = protocol;
    t.engine.receive(t.now, f);
    const auto c = t.poll(*t.recv_cq);
    return c ? c->sl : 99;
  };
  EXPECT_EQ(sl_of(false, true), 10);
  EXPECT_EQ(sl_of(true, true), 9);
  EXPECT_EQ(sl_of(true, true, Protocol::roce_v1), 0);
  EXPECT_EQ(sl_of(false, true, Protocol::roce_v1), 0);
  EXPECT_EQ(sl_of(false, false), 0);
  EXPECT_EQ(sl_of(true, false), 0);
}

TEST(Datagram, ReceiveOverIpv6) {
  Talk t({.type = QpType::ud, .v6 = true});
  auto r = t.post_recv(0, 100);
  t.in(datagram("hello").tos(0x2a));
  t.received(r, 45, WcOpcode::recv, wc_grh);
  auto* ip = reinterpret_cast<const std::uint8_t*>(t.memory.data());
  EXPECT_EQ(ip[0] >> 4, 6);
  EXPECT_EQ((ip[0] & 15) << 4 | ip[1] >> 4, 0x2a);
  EXPECT_EQ(ip[4] << 8 | ip[5], 8 + 12 + 8 + 8 + 4);
  EXPECT_EQ(ip[6], 17);
  EXPECT_EQ(std::memcmp(ip + 8, t.them().bytes.data(), 16), 0);
  EXPECT_EQ(std::memcmp(ip + 24, t.us().bytes.data(), 16), 0);
}

TEST(Datagram, SourceQpIsInTheCompletion) {
  Talk t(ud());
  t.post_recv(0, 100);
  t.in(datagram("x"));
  auto c = t.poll(*t.recv_cq);
  ASSERT_TRUE(c);
  EXPECT_EQ(c->src_qp, Talk::their_qpn);
}

// C57
//= IBTA 9.8.3 unreliable datagrams: wrong Q_Key, no receive, receive too small: silence, and the QP
// goes on
TEST(Datagram, C57_Drops) {
  Talk t(ud());
  t.in(datagram("nobody waits"));
  EXPECT_EQ(t.counters().out_of_buffer, 1u);
  auto small = t.post_recv(0, 44);
  t.in(datagram("x").qkey(0x22222222));
  EXPECT_EQ(t.counters().drop_qkey, 1u);
  t.in(datagram("12345"));
  EXPECT_EQ(t.counters().drop_length, 1u);
  t.no_completion();
  t.silent();
  EXPECT_EQ(t.state(), QpState::rts);
  t.in(datagram("1234", 77));  // no PSN is expected
  t.received(small, 44, WcOpcode::recv, wc_grh);
}

// C23
// An overrun CQ tells of nothing, so that a queue pair which is made with it takes nothing.
TEST(Datagram, C23_DropsAfterAnOverrun) {
  Options o = ud();
  o.cq_size = 1;
  Talk t(o);
  for (int i = 0; i < 2; ++i) t.post_recv(0, 100);
  t.in(datagram("a"), datagram("b"));
  EXPECT_EQ(t.state(), QpState::error);
  QueuePair* second = t.create_qp();
  t.modify_to(*second, QpState::rts);
  EXPECT_EQ(t.counters().out_of_buffer, 0u);
  t.in(datagram("c").to(second->qpn));
  EXPECT_EQ(t.counters().out_of_buffer, 1u);
  EXPECT_EQ(second->state, QpState::rts);
}

TEST(Datagram, ReceiveListThatIsBadIsALocalError) {
  for (int i = 0; i < 2; ++i) {
    Talk t(ud());
    auto r = i ? t.post_recv({{t.address(0), 40, t.mr->key}, {t.address(0), 40, 0xdead00}})
               : t.post_recv({{t.address(0), 100, 0xdead00}});
    t.in(datagram("x"));
    t.receive_failed(r, WcStatus::loc_prot_err);
    EXPECT_EQ(t.state(), QpState::error);
  }
}

TEST(Datagram, MarkedPacketsAreCountedOnly) {
  Talk t(ud());
  t.in(datagram("x").ce());
  t.silent();
  EXPECT_EQ(t.counters().np_ecn_marked_roce_packets, 1u);
}

TEST(Datagram, SrqAndSolicitedEvent) {
  Talk t({.type = QpType::ud, .srq_depth = 4});
  auto r = t.post_recv(0, 100);
  t.recv_cq->arm(true);
  t.in(datagram("x").se());
  t.received(r, 41, WcOpcode::recv, wc_grh);
  EXPECT_EQ(t.events(), Words{"completion recv"});
}

}  // namespace
}  // namespace adverb::engine::talk
