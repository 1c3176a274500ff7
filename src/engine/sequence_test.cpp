// SPDX-License-Identifier: Apache-2.0
// Exhaustive: every request opcode after every other, on RC and UC.  What may follow is stated here
// once more, in the words of the specification and not in those of wire::follows.
#include <gtest/gtest.h>

#include "engine/talk.hpp"

namespace adverb::engine::talk {
namespace {

constexpr Operation requests[] = {
    Operation::send_first,
    Operation::send_middle,
    Operation::send_last,
    Operation::send_last_imm,
    Operation::send_last_invalidate,
    Operation::send_only,
    Operation::send_only_imm,
    Operation::send_only_invalidate,
    Operation::write_first,
    Operation::write_middle,
    Operation::write_last,
    Operation::write_last_imm,
    Operation::write_only,
    Operation::write_only_imm,
    Operation::read_request,
    Operation::compare_swap,
    Operation::fetch_add,
    Operation::flush,
    Operation::atomic_write,
};

//= IBTA 9.7.4.1.3, table "valid opcode sequences": after FIRST or MIDDLE come MIDDLE or LAST of the
//= same operation; after LAST, ONLY or nothing comes whatever begins a message
bool may_follow(Operation previous, Operation current) {
  switch (previous) {
    case Operation::send_first:
    case Operation::send_middle:
      return current == Operation::send_middle || current == Operation::send_last ||
             current == Operation::send_last_imm || current == Operation::send_last_invalidate;
    case Operation::write_first:
    case Operation::write_middle:
      return current == Operation::write_middle || current == Operation::write_last ||
             current == Operation::write_last_imm;
    default:
      return current != Operation::send_middle && current != Operation::send_last &&
             current != Operation::send_last_imm && current != Operation::send_last_invalidate &&
             current != Operation::write_middle && current != Operation::write_last &&
             current != Operation::write_last_imm;
  }
}

bool goes_on(Operation o) {
  return o == Operation::send_first || o == Operation::send_middle || o == Operation::write_first ||
         o == Operation::write_middle;
}
bool needs_start(Operation o) { return !may_follow(Operation::send_only, o); }
bool is_write(Operation o) { return o >= Operation::write_first && o <= Operation::write_only_imm; }
bool uc_has(Operation o) { return o <= Operation::write_only_imm; }

// A packet that is right in everything but, perhaps, its place.
Said packet(const Talk& t, Operation o, std::uint32_t psn, std::uint32_t invalidatable) {
  switch (o) {
    case Operation::read_request:
      return read_request(psn, t.at(0), 1);
    case Operation::compare_swap:
      return compare_swap(psn, t.at(64), 0, 1);
    case Operation::fetch_add:
      return fetch_add(psn, t.at(64), 1);
    case Operation::flush:
      return flush(psn, t.at(0), 1, 1);
    case Operation::atomic_write:
      return atomic_write(psn, t.at(64), "12345678");
    case Operation::write_only:
    case Operation::write_only_imm:
      return with_reth(o, psn, t.at(0), "abc");
    case Operation::write_first:
      return with_reth(o, psn, t.at(0), pattern(256)).length(1027);
    case Operation::write_last:
    case Operation::write_last_imm:
      return say(o, psn, "abc");
    default:
      return say(o, psn, goes_on(o) ? pattern(256) : "abc").inv(invalidatable);
  }
}

class Sequence : public testing::TestWithParam<QpType> {
 protected:
  // The conversation that ends with `previous`; returns the next PSN.
  std::uint32_t lead(Talk& t, Operation previous, std::uint32_t key) {
    std::uint32_t psn = 0;
    bool write = is_write(previous);
    if (needs_start(previous)) {
      t.in(packet(t, write ? Operation::write_first : Operation::send_first, psn++, key));
      // 1027 bytes are 4 * 256 + 3: the LAST of a WRITE is the fifth packet.
      bool last = !goes_on(previous);
      for (int i = 0; write && last && i < 3; ++i)
        t.in(packet(t, Operation::write_middle, psn++, key));
    }
    t.in(packet(t, previous, psn++, key));
    return psn;
  }
};
INSTANTIATE_TEST_SUITE_P(Connected, Sequence, testing::Values(QpType::rc, QpType::uc));

TEST_P(Sequence, EveryPairOfOpcodes) {
  bool rc = GetParam() == QpType::rc;
  for (Operation previous : requests)
    for (Operation current : requests) {
      if (!rc && (!uc_has(previous) || !uc_has(current))) continue;
      SCOPED_TRACE(std::string(wire::info_of(wire::opcode_of(Transport::rc, previous)).name) +
                   " then " +
                   std::string(wire::info_of(wire::opcode_of(Transport::rc, current)).name));
      Talk t({.type = GetParam(), .mtu = Mtu::mtu_256});
      MemoryRegion *one = t.add_region(0, 64, 0xf), *two = t.add_region(0, 64, 0xf);
      one->invalidatable = two->invalidatable = true;
      for (int i = 0; i < 4; ++i) t.post_recv(100, 3000);
      std::uint32_t psn = lead(t, previous, one->key);
      t.discard();
      ASSERT_EQ(t.state(), QpState::rts);
      // WRITE_LAST must bring what is left: make up for it, so that only the order is judged.
      bool ends_write = current == Operation::write_last || current == Operation::write_last_imm;
      if (may_follow(previous, current) && ends_write)
        while (t.qp->resp.write_left > 256) t.in(packet(t, Operation::write_middle, psn++, 0));
      std::uint32_t msn = t.qp->resp.msn;
      t.in(packet(t, current, psn, two->key).ack_req());
      if (rc && !may_follow(previous, current)) {
        t.out(nak(psn, NakCode::invalid_request, msn));
        EXPECT_EQ(t.state(), QpState::error);
        EXPECT_EQ(t.events(), Words{"qp QP_REQ_ERR"});
      } else if (rc) {
        wire::Packet p = t.next();
        EXPECT_EQ(p.bth.psn, Psn(psn));
        EXPECT_EQ(wire::aeth_kind(p.aeth.syndrome), wire::AethKind::ack);
        EXPECT_EQ(p.aeth.msn, msn + !goes_on(current));
        EXPECT_EQ(t.state(), QpState::rts);
      } else {
        //= IBTA 9.8.2.2.1: UC answers nothing; what begins a message ends a broken one
        bool taken = may_follow(previous, current) || !needs_start(current);
        EXPECT_EQ(t.counters().drop_sequence, taken ? 0u : 1u);
        EXPECT_EQ(t.qp->resp.msn, msn + (taken && !goes_on(current)));
        EXPECT_EQ(t.state(), QpState::rts);
      }
      t.silent();
    }
}

// The first packet of a queue pair must begin a message.
TEST_P(Sequence, FirstPacketOfAll) {
  bool rc = GetParam() == QpType::rc;
  for (Operation current : requests) {
    if (!rc && !uc_has(current)) continue;
    Talk t({.type = GetParam(), .mtu = Mtu::mtu_256});
    MemoryRegion* one = t.add_region(0, 64, 0xf);
    one->invalidatable = true;
    t.post_recv(100, 3000);
    t.in(packet(t, current, 0, one->key).ack_req());
    EXPECT_EQ(t.state() == QpState::error, rc && needs_start(current));
    EXPECT_EQ(t.counters().drop_sequence, !rc && needs_start(current) ? 1u : 0u);
  }
}

}  // namespace
}  // namespace adverb::engine::talk
