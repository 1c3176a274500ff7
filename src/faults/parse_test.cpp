// SPDX-License-Identifier: Apache-2.0
// The rule language as its users meet it: what each mistake is told, and what each rule is
// explained as.
#include <gmock/gmock.h>

#include <cerrno>

#include "faults/rule.hpp"
#include "faults/values.hpp"

namespace adverb::faults {
namespace {

std::string first_error(std::string_view text) {
  const Parsed p = parse(text, "f");
  return p.errors.empty() ? "no error" : p.errors[0].text();
}

std::string explained(std::string_view text) {
  const Parsed p = parse(text, "f");
  if (!p.errors.empty()) return p.errors[0].text();
  return p.rules.size() == 1 ? explain(p.rules[0]) : "not one rule";
}

struct Row {
  const char *rule, *text;
};

constexpr Row mistakes[] = {
    {"dorp tx", "f:1:1: unknown action \"dorp\"; did you mean \"drop\"?"},
    {"\n\n  frobnicate",
     "f:3:3: unknown action \"frobnicate\": expected drop, duplicate, delay, reorder, corrupt, "
     "answer, fail, event, port"},
    {"duplicate 0", "f:1:11: duplicate: \"0\" is not a number of copies from 1 to 1000"},
    {"delay", "f:1:6: delay: expected a time such as 10ms (units: ns, us, ms, s)"},
    {"delay 10", "f:1:7: delay: \"10\" is not a time such as 10ms (units: ns, us, ms, s)"},
    {"delay 0s", "f:1:7: delay: the time must be more than zero"},
    {"reorder 2000", "f:1:9: reorder: \"2000\" is not a number of packets from 1 to 1000"},
    {"corrupt bit x", "f:1:13: bit: \"x\" is not the number of a bit of the packet"},
    {"corrupt byte 100000", "f:1:14: byte: \"100000\" is not the number of a byte of the packet"},
    {"answer",
     "f:1:7: NAK is missing: expected psn_sequence, invalid_request, remote_access, "
     "remote_operational, rnr"},
    {"answer remote_acess", "f:1:8: unknown NAK \"remote_acess\"; did you mean \"remote_access\"?"},
    {"answer rnr 32", "f:1:12: rnr: \"32\" is not an RNR timer code from 0 to 31"},
    {"answer rnr tx", "f:1:12: answer: requests are answered where they are received, that is rx"},
    {"fail reg_mrr ENOMEM", "f:1:6: unknown verb \"reg_mrr\"; did you mean \"reg_mr\"?"},
    {"fail reg_mr", "f:1:12: errno is missing: expected an errno such as ENOMEM, EINVAL or EAGAIN"},
    {"fail reg_mr ENOMEN", "f:1:13: unknown errno \"ENOMEN\"; did you mean \"ENOMEM\"?"},
    {"fail reg_mr 0", "f:1:13: reg_mr: \"0\" is not an errno"},
    {"fail reg_mr ENOMEM tx SEND",
     "f:1:23: fail: a verb has no \"SEND\"; use nth, every, first, after, times, prob, from, "
     "until"},
    {"event QP_FATEL at 1s", "f:1:7: unknown event \"QP_FATEL\"; did you mean \"QP_FATAL\"?"},
    {"event PORT_ERR", "f:1:15: when? expected at TIME, or packets such as: rx SEND nth 10"},
    {"port", "f:1:5: port state is missing: expected down or up"},
    {"port dwon", "f:1:6: unknown port state \"dwon\"; did you mean \"down\"?"},
    {"port down 5", "f:1:11: down: \"5\" is not a time such as 10ms (units: ns, us, ms, s)"},
    {"port down 1s", "f:1:13: when? expected at TIME, or packets such as: rx SEND nth 10"},
    {"drop SENDS", "f:1:6: unknown condition or opcode \"SENDS\"; did you mean \"SEND\"?"},
    {"drop RDMA_SEND_ONLY",
     "f:1:6: unknown condition or opcode \"RDMA_SEND_ONLY\"; did you mean \"SEND_ONLY\"?"},
    {"drop zzzzzzzz",
     "f:1:6: unknown condition or opcode \"zzzzzzzz\": expected an opcode (SEND, ACK, ...) or "
     "one "
     "of tx, rx, qp, peer, peer_qp, psn, nth, every, first, after, times, prob, seed, from, "
     "until, at"},
    {"corrupt tx byte 3", "f:1:12: \"byte\" stands directly behind the action that it belongs to"},
    {"drop SEND WRITE", "f:1:11: a second opcode: write alternatives as one word, SEND|WRITE"},
    {"drop tx rx", "f:1:9: tx and rx exclude one another; without either a rule means both"},
    {"drop nth 3 nth 4", "f:1:12: \"nth\" stands twice"},
    {"drop nth 0", "f:1:10: nth: \"0\" is not a number from 1"},
    {"drop every x", "f:1:12: every: \"x\" is not a number from 1"},
    {"drop first", "f:1:11: first: expected a number from 1"},
    {"drop nth 3 every 2",
     "f:1:1: nth is one packet or call: it does not go with every, first or times"},
    {"drop qp foo", "f:1:9: qp: \"foo\" is not a queue pair number (24 bits), RC, UC, UD or XRC"},
    {"drop qp 0x1000000",
     "f:1:9: qp: \"0x1000000\" is not a queue pair number (24 bits), RC, UC, UD or XRC"},
    {"drop peer_qp x", "f:1:14: peer_qp: \"x\" is not a queue pair number (24 bits)"},
    {"drop peer 1.2.3", "f:1:11: peer: \"1.2.3\" is not an IPv4 or IPv6 address"},
    {"drop peer 1.2.3.256", "f:1:11: peer: \"1.2.3.256\" is not an IPv4 or IPv6 address"},
    {"drop peer fe80::1::2", "f:1:11: peer: \"fe80::1::2\" is not an IPv4 or IPv6 address"},
    {"drop psn +9-5",
     "f:1:10: psn: \"+9-5\" is not a PSN (24 bits), a range such as 5-9, or +5 from the first "
     "on"},
    {"drop prob 0",
     "f:1:11: prob: \"0\" is not a probability such as 1% or 0.01 (above 0, at most 1)"},
    {"drop prob 101%",
     "f:1:11: prob: \"101%\" is not a probability such as 1% or 0.01 (above 0, at most 1)"},
    {"drop seed 4", "f:1:6: seed goes with prob"},
    {"drop prob 1% seed x", "f:1:19: seed: \"x\" is not a number"},
    {"drop from 2s until 1s", "f:1:1: until is not later than from"},
    {"drop at 1s", "f:1:6: at goes with event and port; use from and until here"},
    {"port down at 1s nth 3",
     "f:1:11: at is a time of its own: it goes with qp only, not with packets"},
    {"drop tx; dorp", "f:1:10: unknown action \"dorp\"; did you mean \"drop\"?"},
};

TEST(Parse, EveryMistakeIsNamedWithItsPlaceAndWhatWasExpected) {
  for (const Row& row : mistakes) EXPECT_EQ(first_error(row.rule), row.text) << row.rule;
}

TEST(Parse, EachLineWithAMistakeIsReportedAndTheOthersStand) {
  const Parsed p = parse("drop tx ACK\nbogus\ndelay 1ms\nfail x\n", "rules.txt");
  ASSERT_EQ(p.errors.size(), 2u);
  EXPECT_EQ(p.errors[0].line, 2u);
  EXPECT_EQ(p.errors[1].line, 4u);
  ASSERT_EQ(p.rules.size(), 2u);
  EXPECT_EQ(p.rules[1].line, 3u);
  EXPECT_EQ(p.rules[1].source, "rules.txt");
}

TEST(Parse, CommentsBlankLinesAndCarriageReturnsAreNothing) {
  const Parsed p = parse("# all\r\n\r\n  drop\ttx SEND  # why; not\r\n\t\n", "f");
  EXPECT_TRUE(p.errors.empty());
  ASSERT_EQ(p.rules.size(), 1u);
  EXPECT_EQ(p.rules[0].text, "drop\ttx SEND");
  EXPECT_EQ(p.rules[0].line, 3u);
}

TEST(Parse, ASemicolonEndsARule) {
  const Parsed p = parse("drop tx; delay 1ms rx;", "f");
  EXPECT_TRUE(p.errors.empty());
  ASSERT_EQ(p.rules.size(), 2u);
  EXPECT_EQ(p.rules[1].text, "delay 1ms rx");
}

TEST(Parse, WordsAreReadWhateverTheirCase) {
  const Parsed p = parse("FAIL ibv_REG_MR enomem NTH 2", "f");
  ASSERT_EQ(p.rules.size(), 1u);
  EXPECT_EQ(p.rules[0].call, Call::reg_mr);
  EXPECT_EQ(p.rules[0].error, ENOMEM);
  EXPECT_EQ(p.rules[0].nth, 2u);
}

TEST(Parse, EveryVerbErrnoEventAndNakIsReadByItsName) {
  for (const Word& w : calls()) {
    const Parsed p = parse("fail " + std::string(w.name) + " EINVAL", "f");
    ASSERT_EQ(p.rules.size(), 1u) << w.name;
    EXPECT_EQ(name_of(p.rules[0].call), w.name);
  }
  for (const Word& w : errnos()) {
    const Parsed p = parse("fail reg_mr " + std::string(w.name), "f");
    ASSERT_EQ(p.rules.size(), 1u) << w.name;
    EXPECT_EQ(p.rules[0].error, w.value);
  }
  for (const Word& w : events()) {
    const Parsed p = parse("event IBV_EVENT_" + std::string(w.name) + " at 1s", "f");
    ASSERT_EQ(p.rules.size(), 1u) << w.name;
    EXPECT_EQ(p.rules[0].event, w.value);
  }
  for (const Word& w : naks())
    EXPECT_TRUE(parse("answer " + std::string(w.name), "f").errors.empty()) << w.name;
}

TEST(Parse, EveryOpcodeOfTheSpecificationIsReadByItsName) {
  for (const auto& o : wire::operations) {
    const Parsed p = parse("drop " + std::string(o.name), "f");
    ASSERT_EQ(p.rules.size(), 1u) << o.name;
    const OpcodeSet& set = p.rules[0].opcodes;
    EXPECT_TRUE(set.any());
    for (std::size_t i = 0; i < 256; ++i)
      EXPECT_EQ(set.test(i), wire::opcodes[i] && wire::opcodes[i].name == o.name) << o.name << i;
  }
  EXPECT_EQ(*find_opcodes("RDMA_WRITE_ONLY"), *find_opcodes("WRITE_ONLY"));
  EXPECT_EQ(*find_opcodes("ACK"), *find_opcodes("ACKNOWLEDGE"));
}

TEST(Explain, SaysWhatARuleDoes) {
  const Row rows[] = {
      {"drop tx ATOMIC_ACK every 3", "drop: sent ATOMIC_ACK packets, every 3rd one"},
      {"drop", "drop: packets"},
      {"drop rx any peer 10.0.0.7 from 1s until 2.5s",
       "drop: received any packets from 10.0.0.7, from 1s until 2.5s since the device was opened"},
      {"duplicate SEND|WRITE_ONLY", "repeat once: SEND or WRITE_ONLY packets"},
      {"duplicate 3 tx after 10 first 2",
       "repeat 3 times: sent packets, after the first 10, the first 2"},
      {"delay 200ms rx READ_RESPONSE prob 0.5% seed 7",
       "delay by 200ms: received READ_RESPONSE packets, each with a probability of 0.5% (seed 7)"},
      {"reorder 3 tx qp RC psn +5-9",
       "hold back until 3 packets more of the queue pair went by (10ms at most): sent RC packets "
       "with PSN first+5 to first+9"},
      {"corrupt byte 20 tx nth 11",
       "flip byte 20 on the wire (the ICRC shows it): sent packets, the 11th one"},
      {"corrupt bit 9 sealed rx",
       "flip bit 1 (from the most significant one) of byte 1, with an ICRC that is right again: "
       "received packets"},
      {"answer rnr 14 SEND first 2",
       "answer with RNR NAK, timer 1.28ms: received SEND packets, the first 2"},
      {"answer remote_access", "answer with NAK remote_access: received requests"},
      {"fail reg_mr ENOMEM", "fail ibv_reg_mr with ENOMEM (12): every call"},
      {"fail poll_cq EIO nth 2", "fail ibv_poll_cq with EIO (5): of its calls, the 2nd one"},
      {"event QP_FATAL qp UD at 10ms",
       "raise IBV_EVENT_QP_FATAL: UD packets, 10ms since the device was opened"},
      {"event WQ_FATAL at 10ms", "raise IBV_EVENT_WQ_FATAL, 10ms since the device was opened"},
      {"event GID_CHANGE rx SEND nth 1",
       "raise IBV_EVENT_GID_CHANGE, by received SEND packets, the 1st one"},
      {"port down 500ms tx after 100 first 1",
       "take the port down for 500ms, by sent packets, after the first 100, the first 1"},
      {"port up at 3s", "bring the port up, 3s since the device was opened"},
      {"drop peer_qp 0x12 qp 0x40ab", "drop: packets of QP 0x40ab to or from QP 0x12"},
  };
  for (const Row& row : rows) EXPECT_EQ(explained(row.rule), row.text) << row.rule;
}

TEST(Values, TimesAreExact) {
  EXPECT_EQ(read_time("1.000000001s")->count(), 1'000'000'001);
  EXPECT_EQ(read_time("0.5us")->count(), 500);
  EXPECT_FALSE(read_time("1.s"));
  EXPECT_FALSE(read_time(".5s"));
  EXPECT_FALSE(read_time("-1s"));
  EXPECT_FALSE(read_time("1m"));
  EXPECT_FALSE(read_time("9999999999s"));
  for (const char* text : {"1ns", "999ns", "1.5us", "200ms", "1.000000001s", "90s", "0ns"})
    EXPECT_EQ(to_text(*read_time(text)), text);
}

TEST(Values, AddressesAreGids) {
  EXPECT_EQ(to_text(*read_address("10.1.2.3")), "10.1.2.3");
  EXPECT_EQ(to_text(*read_address("fe80::1")), "fe80:0:0:0:0:0:0:1");
  EXPECT_EQ(to_text(*read_address("::")), "0:0:0:0:0:0:0:0");
  EXPECT_EQ(to_text(*read_address("1:2:3:4:5:6:7:8")), "1:2:3:4:5:6:7:8");
  for (const char* bad : {"", "1", "1.2.3.4.5", "1..2.3", ":", "1:2", "1:2:3:4:5:6:7:8:9",
                          "1:2:3:4:5:6:7:", "12345::", "g::"})
    EXPECT_FALSE(read_address(bad)) << bad;
}

}  // namespace
}  // namespace adverb::faults
