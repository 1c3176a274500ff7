// SPDX-License-Identifier: Apache-2.0
// Which packets, calls and times a rule acts on.
#include "faults/matcher.hpp"

#include <gmock/gmock.h>

#include <cerrno>
#include <memory>

#include "wire/aeth.hpp"

namespace adverb::faults {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using wire::Operation;
using wire::Transport;

struct Bench {
  explicit Bench(std::string_view text) : parsed(parse(text, "f")) {
    EXPECT_TRUE(parsed.errors.empty()) << parsed.errors[0].text();
    matcher = std::make_unique<Matcher>(parsed.rules, opened);
  }
  Decision see(Direction d, Operation o, std::uint32_t psn = 0, Duration age = {}) {
    PacketFields f{.opcode = wire::opcode_of(transport, o),
                   .psn = Psn(psn),
                   .qp = qp,
                   .peer_qp = peer_qp,
                   .peer = peer,
                   .first = first,
                   .size = size};
    return matcher->decide(opened + age, d, f);
  }
  // Which of n packets are dropped, counted from 1.
  std::vector<int> dropped(int n, Operation o = Operation::send_only, Direction d = Direction::tx) {
    std::vector<int> out;
    for (int i = 1; i <= n; ++i)
      if (see(d, o).drop) out.push_back(i);
    return out;
  }

  Parsed parsed;
  Instant opened{5s};
  Transport transport = Transport::rc;
  Qpn qp{0x4001}, peer_qp{0x8002};
  Gid peer = Gid::from_v4(0x0700000a);  // 10.0.0.7
  std::optional<Psn> first;
  std::uint32_t size = 100;
  std::unique_ptr<Matcher> matcher;
};

TEST(Matcher, CountsAsTheWordsSay) {
  EXPECT_THAT(Bench("drop nth 3").dropped(7), ElementsAre(3));
  EXPECT_THAT(Bench("drop every 3").dropped(7), ElementsAre(3, 6));
  EXPECT_THAT(Bench("drop first 2").dropped(7), ElementsAre(1, 2));
  EXPECT_THAT(Bench("drop after 5").dropped(7), ElementsAre(6, 7));
  EXPECT_THAT(Bench("drop after 2 nth 3").dropped(7), ElementsAre(5));
  EXPECT_THAT(Bench("drop after 2 every 2").dropped(7), ElementsAre(4, 6));
  EXPECT_THAT(Bench("drop after 2 first 3").dropped(7), ElementsAre(3, 4, 5));
  EXPECT_THAT(Bench("drop every 2 first 4").dropped(9), ElementsAre(2, 4));
  EXPECT_THAT(Bench("drop every 2 times 2").dropped(9), ElementsAre(2, 4));
}

TEST(Matcher, OnlyPacketsThatMeetTheConditionsCount) {
  Bench b("drop tx ACK every 2");
  EXPECT_FALSE(b.see(Direction::tx, Operation::acknowledge).drop);
  EXPECT_FALSE(b.see(Direction::rx, Operation::acknowledge).drop);
  EXPECT_FALSE(b.see(Direction::tx, Operation::atomic_acknowledge).drop);
  EXPECT_TRUE(b.see(Direction::tx, Operation::acknowledge).drop);
  EXPECT_EQ(b.matcher->counts()[0].matched, 2u);
  EXPECT_EQ(b.matcher->counts()[0].hits, 1u);
}

TEST(Matcher, GroupsHoldTheirOperations) {
  const auto drops = [](const char* rule, Operation o) {
    return !Bench(rule).dropped(1, o).empty();
  };
  EXPECT_TRUE(drops("drop SEND", Operation::send_last_invalidate));
  EXPECT_FALSE(drops("drop SEND", Operation::write_only));
  EXPECT_TRUE(drops("drop WRITE", Operation::write_last_imm));
  EXPECT_FALSE(drops("drop WRITE", Operation::atomic_write));
  EXPECT_TRUE(drops("drop READ", Operation::read_request));
  EXPECT_FALSE(drops("drop READ", Operation::read_response_only));
  EXPECT_TRUE(drops("drop READ_RESPONSE", Operation::read_response_middle));
  EXPECT_TRUE(drops("drop ATOMIC", Operation::fetch_add));
  EXPECT_TRUE(drops("drop ATOMIC_ACK", Operation::atomic_acknowledge));
  EXPECT_FALSE(drops("drop ATOMIC_ACK", Operation::acknowledge));
  EXPECT_TRUE(drops("drop RESPONSE", Operation::atomic_acknowledge));
  EXPECT_FALSE(drops("drop REQUEST", Operation::acknowledge));
  EXPECT_TRUE(drops("drop any", Operation::flush));
}

TEST(Matcher, QueuePairTransportAndPeerAreConditions) {
  EXPECT_THAT(Bench("drop qp 0x4001").dropped(1), ElementsAre(1));
  EXPECT_THAT(Bench("drop qp 0x4002").dropped(1), ElementsAre());
  EXPECT_THAT(Bench("drop qp RC").dropped(1), ElementsAre(1));
  EXPECT_THAT(Bench("drop qp UD").dropped(1), ElementsAre());
  EXPECT_THAT(Bench("drop peer_qp 0x8002").dropped(1), ElementsAre(1));
  EXPECT_THAT(Bench("drop peer_qp 0x8003").dropped(1), ElementsAre());
  EXPECT_THAT(Bench("drop peer 10.0.0.7").dropped(1), ElementsAre(1));
  EXPECT_THAT(Bench("drop peer 10.0.0.8").dropped(1), ElementsAre());
}

TEST(Matcher, AbsolutePsnsMayGoOverTheEndOfTheCircle) {
  Bench b("drop psn 0xfffffe-1");
  EXPECT_TRUE(b.see(Direction::tx, Operation::send_only, 0xfffffe).drop);
  EXPECT_TRUE(b.see(Direction::tx, Operation::send_only, 0).drop);
  EXPECT_FALSE(b.see(Direction::tx, Operation::send_only, 2).drop);
  EXPECT_FALSE(b.see(Direction::tx, Operation::send_only, 0xfffffd).drop);
}

TEST(Matcher, RelativePsnsCountFromTheFirstOfTheQueuePair) {
  Bench b("drop psn +2-3");
  EXPECT_FALSE(b.see(Direction::tx, Operation::send_only, 2).drop) << "the first is not known";
  b.first = Psn(0xffffff);
  EXPECT_FALSE(b.see(Direction::tx, Operation::send_only, 0).drop);
  EXPECT_TRUE(b.see(Direction::tx, Operation::send_only, 1).drop);
  EXPECT_TRUE(b.see(Direction::tx, Operation::send_only, 2).drop);
  EXPECT_FALSE(b.see(Direction::tx, Operation::send_only, 3).drop);
}

TEST(Matcher, FieldsTakeTheFirstPsnOfTheSideThatAsked) {
  const QpFacts facts{.peer_qp = Qpn(7), .first_sent = Psn(10), .first_received = Psn(20)};
  wire::Packet p;
  const auto first = [&](Direction d, Operation o) {
    p.bth.opcode = wire::opcode_of(Transport::rc, o);
    return fields_of(d, p, Qpn(1), Gid{}, 0, &facts).first->raw();
  };
  EXPECT_EQ(first(Direction::tx, Operation::send_only), 10u);
  EXPECT_EQ(first(Direction::rx, Operation::acknowledge), 10u);
  EXPECT_EQ(first(Direction::rx, Operation::send_only), 20u);
  EXPECT_EQ(first(Direction::tx, Operation::read_response_only), 20u);
  EXPECT_EQ(fields_of(Direction::rx, p, Qpn(1), Gid{}, 0, &facts).peer_qp, Qpn(7));
  p.bth.opcode = wire::opcode_of(Transport::ud, Operation::send_only);
  p.deth.src_qp = Qpn(9);
  EXPECT_EQ(fields_of(Direction::rx, p, Qpn(1), Gid{}, 0, &facts).peer_qp, Qpn(9));
}

TEST(Matcher, ATimeWindowCountsFromTheOpening) {
  Bench b("drop from 1s until 2s");
  EXPECT_FALSE(b.see(Direction::tx, Operation::send_only, 0, 999ms).drop);
  EXPECT_TRUE(b.see(Direction::tx, Operation::send_only, 0, 1s).drop);
  EXPECT_FALSE(b.see(Direction::tx, Operation::send_only, 0, 2s).drop);
  EXPECT_EQ(b.matcher->counts()[0].matched, 1u);
}

TEST(Matcher, TheSameSeedDrawsTheSame) {
  const auto a = Bench("drop prob 10% seed 42").dropped(1000);
  EXPECT_EQ(a, Bench("drop prob 10% seed 42").dropped(1000));
  EXPECT_NE(a, Bench("drop prob 10% seed 43").dropped(1000));
  EXPECT_GT(a.size(), 60u);
  EXPECT_LT(a.size(), 140u);
}

TEST(Matcher, RulesActTogetherAndADroppedPacketIsNotSeenByLaterOnes) {
  Bench b("delay 1ms\ndelay 2ms\nduplicate 2\ndrop nth 2\nreorder");
  const Decision d = b.see(Direction::tx, Operation::send_only);
  EXPECT_EQ(d.delay, 3ms);
  EXPECT_EQ(d.copies, 2u);
  EXPECT_EQ(d.hold, 1u);
  EXPECT_FALSE(d.harmless());
  EXPECT_TRUE(b.see(Direction::tx, Operation::send_only).drop);
  EXPECT_EQ(b.matcher->counts()[4].matched, 1u);
}

TEST(Matcher, NothingMatchedIsHarmless) {
  EXPECT_TRUE(Bench("drop rx").see(Direction::tx, Operation::send_only).harmless());
}

TEST(Matcher, DamageLiesInsideThePacket) {
  Bench fixed("corrupt bit 9 sealed");
  Decision d = fixed.see(Direction::tx, Operation::send_only);
  ASSERT_EQ(d.damages, 1);
  EXPECT_EQ(d.damage[0].byte, 1u);
  EXPECT_EQ(d.damage[0].mask, 0x40);
  EXPECT_TRUE(d.damage[0].sealed);

  d = Bench("corrupt byte 103").see(Direction::tx, Operation::send_only);
  ASSERT_EQ(d.damages, 1) << "the ICRC's last byte";
  EXPECT_EQ(d.damage[0].mask, 0xff);
  EXPECT_EQ(Bench("corrupt byte 104").see(Direction::tx, Operation::send_only).damages, 0);
  EXPECT_EQ(Bench("corrupt byte 100 sealed").see(Direction::tx, Operation::send_only).damages, 0);

  Bench random("corrupt seed 3 prob 1");
  for (int i = 0; i < 1000; ++i) {
    d = random.see(Direction::tx, Operation::send_only);
    ASSERT_EQ(d.damages, 1);
    ASSERT_LT(d.damage[0].byte, 104u);
  }
}

TEST(Matcher, OnlyReliableRequestsAreAnswered) {
  const char* rule = "answer remote_access";
  EXPECT_EQ(Bench(rule).see(Direction::rx, Operation::write_only).syndrome,
            wire::make_nak(wire::NakCode::remote_access_error));
  EXPECT_EQ(Bench(rule).see(Direction::tx, Operation::write_only).syndrome, 0);
  EXPECT_EQ(Bench(rule).see(Direction::rx, Operation::acknowledge).syndrome, 0);
  Bench ud(rule);
  ud.transport = Transport::ud;
  EXPECT_EQ(ud.see(Direction::rx, Operation::send_only).syndrome, 0);
  EXPECT_EQ(Bench("answer rnr 14").see(Direction::rx, Operation::send_only).syndrome,
            wire::make_rnr_nak(14));
}

TEST(Matcher, CallsFailByTheirName) {
  Bench b("fail reg_mr ENOMEM nth 2\nfail poll_cq EIO after 1");
  EXPECT_EQ(b.matcher->decide(b.opened, Call::reg_mr), 0);
  EXPECT_EQ(b.matcher->decide(b.opened, Call::poll_cq), 0);
  EXPECT_EQ(b.matcher->decide(b.opened, Call::reg_mr), ENOMEM);
  EXPECT_EQ(b.matcher->decide(b.opened, Call::reg_mr), 0);
  EXPECT_EQ(b.matcher->decide(b.opened, Call::poll_cq), EIO);
  EXPECT_EQ(b.matcher->decide(b.opened, Call::create_qp), 0);
  EXPECT_FALSE(b.matcher->has_packet_rules());
}

TEST(Matcher, TimedActionsComeDueOnceAndInTheOrderOfTheirTimes) {
  Bench b("port up at 3s\nport down at 1s\nevent QP_FATAL qp 0x4001 at 2s");
  EXPECT_EQ(b.matcher->next_deadline(), b.opened + 1s);
  EXPECT_FALSE(b.matcher->take_due(b.opened + 999ms));
  EXPECT_EQ(b.matcher->take_due(b.opened + 2s)->action, Action::port_down);
  const auto event = b.matcher->take_due(b.opened + 2s);
  ASSERT_TRUE(event);
  EXPECT_EQ(event->event, 1);
  EXPECT_EQ(event->qp, Qpn(0x4001));
  EXPECT_FALSE(b.matcher->take_due(b.opened + 2s));
  EXPECT_EQ(b.matcher->take_due(b.opened + 3s)->action, Action::port_up);
  EXPECT_EQ(b.matcher->next_deadline(), never);
  for (const RuleCount& c : b.matcher->counts()) EXPECT_EQ(c.hits, 1u);
}

TEST(Matcher, CountsOfSeveralMatchersAddUp) {
  const Parsed p = parse("drop every 2", "f");
  SharedCount total[1];
  Matcher a(p.rules, Instant{}, total), b(p.rules, Instant{}, total);
  const PacketFields f{.opcode = wire::opcode_of(Transport::rc, Operation::send_only)};
  for (int i = 0; i < 4; ++i) {
    a.decide(Instant{}, Direction::tx, f);
    b.decide(Instant{}, Direction::tx, f);
  }
  EXPECT_EQ(total[0].matched.load(), 8u);
  EXPECT_EQ(total[0].hits.load(), 4u);
}

}  // namespace
}  // namespace adverb::faults
