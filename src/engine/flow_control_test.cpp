// SPDX-License-Identifier: Apache-2.0
// What holds a sender back where nobody acknowledges: the credit of a receiver on the same host,
// and the speed of the link.
#include <gtest/gtest.h>

#include "engine/talk.hpp"

namespace adverb::engine::talk {
namespace {

constexpr Remote theirs{0x10000, 0x5678};

// --- same-host credit

// Puts both ends on one host, where each slot's receiver has that much credit; the QP learns it.
std::vector<CreditLine> share_host(Talk& t, std::uint64_t limit) {
  std::vector<CreditLine> lines(4);
  Gid host[] = {t.us(), t.them()};
  t.engine.set_local(host, lines, limit);
  t.modify(QpState::reset);
  t.modify_to(*t.qp, QpState::rts);
  return lines;
}

TEST(FlowControl, SameHostCreditStopsEveryTransport) {
  for (QpType type : {QpType::rc, QpType::uc, QpType::ud}) {
    Talk t({.type = type,
            .config = {.slot = 1, .max_qp = 4, .max_mr = 16, .active_mtu = Mtu::mtu_4096}});
    std::vector<CreditLine> lines = share_host(t, 4 * frame_cost(1024 + 100));
    Remote r = theirs;
    unsigned slot = Talk::their_qpn.slot();
    for (int i = 0; i < 10; ++i)
      t.post({.length = 1024, .remote = r, .remote_qpn = Talk::their_qpn, .remote_qkey = 1});
    std::size_t n = t.waiting();
    EXPECT_GE(n, 3u);
    EXPECT_LE(n, 4u);
    EXPECT_NE(t.engine.next_deadline(), never);  // looks again by itself
    EXPECT_LE(t.engine.next_deadline(), t.now + 20us);
    lines[slot].consumed = lines[slot].enqueued.load();
    EXPECT_GT(t.waiting(), n);
  }
}

// A receiver that is stopped takes nothing: RC waits for it, UC and UD do not wait for ever.
TEST(FlowControl, SameHostCreditThatStandsStill) {
  for (QpType type : {QpType::rc, QpType::uc, QpType::ud}) {
    Talk t({.type = type,
            .timeout = 20,
            .config = {.slot = 1, .max_qp = 4, .max_mr = 16, .active_mtu = Mtu::mtu_4096}});
    std::vector<CreditLine> lines = share_host(t, 4 * frame_cost(1024 + 100));
    t.after(10s);  // an idle time before counts for nothing
    const auto post = [&](unsigned n) {
      while (n-- != 0)
        t.post({.length = 1024, .remote = theirs, .remote_qpn = Talk::their_qpn, .remote_qkey = 1});
    };
    // In steps, as the deadlines have it; the tenth of a second counts from the first refusal.
    const auto pass = [&](Duration d) {
      for (const auto end = t.now + d; t.now < end; t.pump())
        t.now = std::min(end, t.engine.next_deadline());
    };
    post(9);
    const std::size_t first = t.waiting();
    EXPECT_LT(first, 6u);
    pass(90ms);
    EXPECT_EQ(t.waiting(), first);
    CreditLine& line = lines[Talk::their_qpn.slot()];
    line.consumed += frame_cost(1024 + 100);  // it lives after all
    const std::size_t second = t.waiting();
    EXPECT_GT(second, first);
    EXPECT_LT(second, 9u);
    pass(90ms);
    EXPECT_EQ(t.waiting(), second);
    if (type == QpType::rc) continue;
    pass(11ms);
    EXPECT_EQ(t.waiting(), 9u);
    EXPECT_EQ(t.counters().sent_without_credit, 9 - second);
    post(2);
    EXPECT_EQ(t.waiting(), 11u);  // still nothing: no new wait
    line.consumed = line.enqueued.load();
    post(6);
    EXPECT_LT(t.waiting(), 11u + 6u);  // and when it takes again, the credit holds again
  }
}

// --- the pace of the link

TEST(FlowControl, UnreliableServicesKeepTheSpeedOfTheLink) {
  for (QpType type : {QpType::uc, QpType::ud}) {
    Talk t(
        {.type = type,
         .max_send_wr = 2000,
         .cq_size = 4096,
         .config = {
             .max_qp = 4, .max_mr = 16, .active_mtu = Mtu::mtu_4096, .link_rate = 1'250'000'000}});
    t.after(1s);  // time that was not used is lost
    for (int i = 0; i < 1500; ++i)
      t.post({.length = 1024, .remote = theirs, .remote_qpn = Talk::their_qpn, .remote_qkey = 1});
    const auto begin = t.now;
    std::size_t before = t.waiting();
    EXPECT_GE(before, 200u);  // 200 microseconds are 250,000 bytes
    EXPECT_LE(before, 240u);
    while (before < 1500) {
      ASSERT_LE(t.engine.next_deadline(), t.now + 110us);
      t.now = t.engine.next_deadline();
      const std::size_t now = t.waiting();
      EXPECT_LE(now - before, 140u);  // the turn's last packets, and half a burst
      before = now;
    }
    // 1500 packets of 1040 to 1060 bytes and what surrounds a frame: 1.65 MB in 1.32 ms
    EXPECT_GE(t.now - begin, 1000us);
    EXPECT_LE(t.now - begin, 1400us);
  }
}

TEST(FlowControl, TheLinkHoldsBackNothingThatIsAcknowledgedOrStaysOnTheHost) {
  for (const QpType type : {QpType::rc, QpType::uc, QpType::ud}) {
    Talk t({.type = type,
            .config = {.slot = 1,
                       .max_qp = 4,
                       .max_mr = 16,
                       .active_mtu = Mtu::mtu_4096,
                       .link_rate = 1'000'000}});
    std::vector<CreditLine> lines;
    if (type != QpType::rc) lines = share_host(t, 1 << 20);
    for (int i = 0; i < 10; ++i)
      t.post({.length = 1024, .remote = theirs, .remote_qpn = Talk::their_qpn, .remote_qkey = 1});
    EXPECT_EQ(t.waiting(), 10u);
  }
}

}  // namespace
}  // namespace adverb::engine::talk
