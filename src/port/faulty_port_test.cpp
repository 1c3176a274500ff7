// SPDX-License-Identifier: Apache-2.0
// What a FaultyPort makes of frames, with a port behind it that keeps what it is given, and a clock
// that stands.
#include "port/faulty_port.hpp"

#include <gmock/gmock.h>

#include <deque>

#include "wire/icrc.hpp"
#include "wire/testing.hpp"

namespace adverb::port {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using wire::testing::Bytes;

constexpr Qpn ours{0x4001}, theirs{0x8002};

struct Sent {
  std::uint32_t psn;
  Bytes bytes;
  std::uint32_t icrc_error;
};

class KeepingPort final : public Port {
 public:
  explicit KeepingPort(std::vector<Sent>& sent, std::deque<engine::RxFrame>& waiting)
      : sent_(sent), waiting_(waiting) {}
  std::span<const engine::RxFrame> receive(bool& all_empty, Look) override {
    given_.assign(waiting_.begin(), waiting_.end());
    waiting_.clear();
    all_empty = given_.empty();
    return given_;
  }
  void send(engine::TxBurst& burst) override {
    for (const auto& f : burst.frames()) {
      const Bytes bytes(burst.bytes(f), burst.bytes(f) + f.size);
      const auto p = wire::decode(bytes);
      sent_.push_back({p ? p->bth.psn.raw() : ~0u, bytes, f.icrc_error});
    }
  }
  std::vector<int> wait_descriptors() const override { return {}; }
  const PortCounters& counters() const override { return counters_; }
  void add_address(const LocalAddress&) override {}
  void remove_address(unsigned) override {}
  int join(const Gid&) override { return 0; }
  void leave(const Gid&) override {}

 private:
  std::vector<Sent>& sent_;
  std::deque<engine::RxFrame>& waiting_;
  std::vector<engine::RxFrame> given_;
  PortCounters counters_;
};

struct Bench final : FaultHost {
  explicit Bench(std::string_view rules) : parsed(faults::parse(rules, "f")) {
    EXPECT_TRUE(parsed.errors.empty()) << parsed.errors[0].text();
    port = std::make_unique<FaultyPort>(std::make_unique<KeepingPort>(sent, waiting),
                                        faults::Matcher(parsed.rules, time), *this);
  }
  Instant now() override { return time; }
  std::optional<faults::QpFacts> facts(Qpn q) override {
    if (q != ours) return std::nullopt;
    return faults::QpFacts{.peer_qp = theirs, .first_sent = Psn(10), .first_received = Psn(20)};
  }
  bool raise(unsigned event, Qpn q, bool receiving) override {
    said.push_back("event " + std::to_string(event) + (q == ours ? " ours" : " other") +
                   (receiving ? " receiving" : " sending"));
    return raises;
  }
  bool raise_timed(const faults::TimedAction& a) override {
    said.push_back("timed event " + std::to_string(a.event));
    return raises;
  }
  void set_port_state(bool up) override { said.push_back(up ? "up" : "down"); }

  static wire::Packet packet(std::uint32_t psn) {
    wire::Packet p;
    p.bth.opcode = wire::opcode_of(wire::Transport::rc, wire::Operation::send_only);
    p.bth.psn = Psn(psn);
    return p;
  }
  // One burst of frames with these PSNs, each with eight bytes of payload.
  void send(std::initializer_list<std::uint32_t> psns, Qpn from = ours) {
    std::vector<std::uint8_t> arena(64 << 10);
    engine::TxBurst burst(arena);
    for (const std::uint32_t psn : psns) {
      wire::Packet p = packet(psn);
      p.bth.dest_qp = theirs;
      const unsigned n = wire::encode_headers(p, burst.next());
      std::fill_n(burst.next() + n, 8, static_cast<std::uint8_t>(psn));
      burst.commit(n + 8, {}, theirs, from);
    }
    port->send(burst);
  }
  std::vector<std::uint32_t> sent_psns() {
    std::vector<std::uint32_t> out;
    for (const Sent& s : std::exchange(sent, {})) out.push_back(s.psn);
    return out;
  }
  void comes(std::uint32_t psn) {
    engine::RxFrame f;
    f.packet = packet(psn);
    f.packet.bth.dest_qp = ours;
    f.packet.payload = payload;
    waiting.push_back(f);
  }
  std::vector<std::uint32_t> received() {
    std::vector<std::uint32_t> out;
    bool all_empty = false;
    for (const auto& f : port->receive(all_empty)) {
      out.push_back(f.packet.bth.psn.raw());
      last_payload.assign(f.packet.payload.begin(), f.packet.payload.end());
      last_syndrome = f.forced_syndrome;
    }
    return out;
  }

  Instant time{1s};
  faults::Parsed parsed;
  std::vector<Sent> sent;
  std::deque<engine::RxFrame> waiting;
  std::vector<std::string> said;
  bool raises = true;  // is there something to raise events for?
  Bytes payload = {1, 2, 3, 4}, last_payload;
  std::uint8_t last_syndrome = 0;
  std::unique_ptr<FaultyPort> port;
};

TEST(FaultyPort, PassesWhatNoRuleIsAbout) {
  Bench b("drop rx ACK");
  b.send({1, 2, 3});
  EXPECT_THAT(b.sent_psns(), ElementsAre(1, 2, 3));
  b.comes(7);
  EXPECT_THAT(b.received(), ElementsAre(7));
  EXPECT_EQ(b.last_payload, b.payload);
  EXPECT_EQ(b.port->next_deadline(), never);
}

TEST(FaultyPort, DropsAndDuplicatesInPlace) {
  Bench b("drop tx nth 2\nduplicate 2 tx psn 3\ndrop rx psn +1\nduplicate rx psn 20");
  b.send({1, 2, 3, 4});
  EXPECT_THAT(b.sent_psns(), ElementsAre(1, 3, 3, 3, 4));
  b.comes(20);
  b.comes(21);
  b.comes(22);
  EXPECT_THAT(b.received(), ElementsAre(20, 20, 22));
}

TEST(FaultyPort, DelayedFramesComeAtTheirTimeAndInOrder) {
  Bench b("delay 5ms psn 1-2");
  b.send({1, 2, 3});
  EXPECT_THAT(b.sent_psns(), ElementsAre(3));
  EXPECT_EQ(b.port->next_deadline(), b.time + 5ms);
  b.time += 4999us;
  b.received();
  EXPECT_THAT(b.sent_psns(), ElementsAre());
  b.time += 1us;
  b.received();
  EXPECT_THAT(b.sent_psns(), ElementsAre(1, 2));
  EXPECT_EQ(b.port->next_deadline(), never);

  b.comes(1);
  b.comes(9);
  EXPECT_THAT(b.received(), ElementsAre(9));
  b.payload = {9, 9, 9, 9};  // the inner port's memory is used again
  b.time += 5ms;
  EXPECT_THAT(b.received(), ElementsAre(1));
  EXPECT_EQ(b.last_payload, (Bytes{1, 2, 3, 4}));
}

TEST(FaultyPort, HeldBackFramesFollowOthersOfTheirQueuePair) {
  Bench b("reorder 2 psn 1");
  b.send({1, 2});
  b.send({50, 51}, Qpn(0x4009));
  EXPECT_THAT(b.sent_psns(), ElementsAre(2, 50, 51));
  b.send({3, 4});
  EXPECT_THAT(b.sent_psns(), ElementsAre(3, 1, 4));

  b.comes(1);
  b.comes(2);
  b.comes(3);
  b.comes(4);
  EXPECT_THAT(b.received(), ElementsAre(2, 3, 1, 4));
}

TEST(FaultyPort, NothingIsHeldBackForEver) {
  Bench b("reorder psn 1");
  b.send({1});
  EXPECT_EQ(b.port->next_deadline(), b.time + FaultyPort::most_holding);
  b.time += FaultyPort::most_holding;
  b.received();
  EXPECT_THAT(b.sent_psns(), ElementsAre(1));
}

TEST(FaultyPort, WhatFindsNoRoomIsLostAndCounted) {
  Bench b("delay 1s tx");
  for (std::size_t i = 0; i < FaultyPort::most_held + 3; ++i) b.send({1});
  EXPECT_EQ(b.port->fault_counters().hold_overflows, 3u);
}

// The receiver sums what it gets; the sender summed what it meant.
TEST(FaultyPort, DamageOnTheWireHasTheIcrcOfTheUndamagedFrame) {
  Bench b("corrupt byte 14 tx");
  b.send({5});
  ASSERT_EQ(b.sent.size(), 1u);
  const Sent s = b.sent[0];
  EXPECT_EQ(s.bytes[14], 5 ^ 0xff);
  Bytes meant = s.bytes;
  meant[14] = 5;
  const wire::IcrcPath path{Gid::from_v4(0x0100000a), Gid::from_v4(0x0200000a), 0xc123};
  const wire::IcrcPrefix prefix(path, meant.size());
  EXPECT_EQ(prefix.icrc(s.bytes) ^ s.icrc_error, prefix.icrc(meant));
  EXPECT_FALSE(prefix.check(s.bytes, prefix.icrc(s.bytes) ^ s.icrc_error, 0));
}

TEST(FaultyPort, DamageOfTheIcrcItselfLeavesTheBytes) {
  Bench b("corrupt byte 21 tx");  // 12 + 8 bytes, then the ICRC
  b.send({5});
  ASSERT_EQ(b.sent.size(), 1u);
  EXPECT_EQ(b.sent[0].bytes[19], 5);
  EXPECT_EQ(b.sent[0].icrc_error, 0xff00u);
}

TEST(FaultyPort, SealedDamageHasARightIcrc) {
  Bench b("corrupt byte 14 sealed tx");
  b.send({5});
  ASSERT_EQ(b.sent.size(), 1u);
  EXPECT_EQ(b.sent[0].bytes[14], 5 ^ 0xff);
  EXPECT_EQ(b.sent[0].icrc_error, 0u);
}

TEST(FaultyPort, ReceivedDamageIsFoundByTheChecksOrReachesTheEngine) {
  Bench wire("corrupt rx");
  wire.comes(1);
  EXPECT_THAT(wire.received(), ElementsAre());
  EXPECT_EQ(wire.port->counters().drop_icrc, 1u);

  Bench sealed("corrupt byte 13 sealed rx");
  sealed.comes(1);
  EXPECT_THAT(sealed.received(), ElementsAre(1));
  EXPECT_EQ(sealed.last_payload, (Bytes{1, 2 ^ 0xff, 3, 4}));

  Bench opcode("corrupt byte 0 sealed rx");  // 0x04 becomes 0xfb, which is none
  opcode.comes(1);
  EXPECT_THAT(opcode.received(), ElementsAre());
  EXPECT_EQ(opcode.port->counters().drop_decode_opcode, 1u);
}

TEST(FaultyPort, AnAnswerGoesWithTheFrame) {
  Bench b("answer remote_access nth 2");
  b.comes(1);
  b.received();
  EXPECT_EQ(b.last_syndrome, 0);
  b.comes(2);
  EXPECT_THAT(b.received(), ElementsAre(2));
  EXPECT_EQ(b.last_syndrome, 0x62);
}

TEST(FaultyPort, APortThatIsDownLosesWhatIsSentReceivedAndHeld) {
  Bench b("delay 1ms tx psn 1\nport down 5ms tx psn 3");
  b.send({1, 2, 3});
  EXPECT_THAT(b.said, ElementsAre("down"));
  EXPECT_THAT(b.sent_psns(), ElementsAre(2));
  b.send({4});
  b.comes(9);
  b.time += 1ms;
  EXPECT_THAT(b.received(), ElementsAre());
  EXPECT_EQ(b.port->next_deadline(), b.time + 4ms);
  EXPECT_EQ(b.port->fault_counters().port_down_drops, 4u) << "3 itself, 4, 9, and 1 when it is due";
  b.time += 4ms;
  b.comes(10);
  EXPECT_THAT(b.received(), ElementsAre(10));
  EXPECT_THAT(b.said, ElementsAre("down", "up"));
  b.send({5});
  EXPECT_THAT(b.sent_psns(), ElementsAre(5));
}

TEST(FaultyPort, TimedRulesComeDueWithoutAFrame) {
  Bench b("port down at 1ms\nevent GID_CHANGE at 2ms\nport up at 3ms");
  EXPECT_EQ(b.port->next_deadline(), b.time + 1ms);
  b.time += 10ms;
  b.received();
  EXPECT_THAT(b.said, ElementsAre("down", "timed event 18", "up"));
}

TEST(FaultyPort, AnEventThatIsRaisedForNothingIsNoHit) {
  Bench b("event SRQ_ERR at 1ms\nevent SRQ_ERR tx times 2\ndrop tx psn 3");
  const auto hits = [&](std::size_t rule) { return b.port->matcher().counts()[rule].hits; };
  b.raises = false;
  b.time += 10ms;
  b.received();
  b.send({1, 2, 3});
  EXPECT_EQ(b.said.size(), 4u);
  EXPECT_EQ(hits(0), 0u);
  EXPECT_EQ(hits(1), 0u);
  EXPECT_EQ(hits(2), 1u);
  EXPECT_EQ(b.port->matcher().counts()[1].matched, 3u);
  b.raises = true;
  b.send({4, 5, 6});
  EXPECT_EQ(hits(1), 2u);
  EXPECT_EQ(b.said.size(), 6u);
}

TEST(FaultyPort, EventsNameTheQueuePairAndItsSide) {
  Bench b("event QP_FATAL psn 1");
  b.send({1});
  b.comes(1);
  b.received();
  EXPECT_THAT(b.said, ElementsAre("event 1 ours sending", "event 1 ours receiving"));
}

}  // namespace
}  // namespace adverb::port
