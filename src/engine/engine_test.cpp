// SPDX-License-Identifier: Apache-2.0
// The engine around its queue pairs: who is listened to, what modify_qp refuses, how objects come
// and go, and the lists that a queue pair can stand on.
#include <gtest/gtest.h>

#include <set>

#include "engine/talk.hpp"

namespace adverb::engine::talk {
namespace {

constexpr Remote theirs{0xabc000, 0x1234};

// --- whom a QP listens to

// C60
//= IBTA 9.6.1, 10.9.3 packet header validation, partition keys: what does not belong to the QP
// costs a counter
TEST(Engine, C60_StrangersPacketsChangeNothing) {
  Talk t;
  Said good = write_only(0, t.at(0), "x").ack_req();
  t.in(good.to(Qpn::of(1, 9)), good.to(Qpn::of(2, t.qp->qpn.index())), good.to(Qpn(1)),
       good.to(Qpn(0xffffff)));
  EXPECT_EQ(t.counters().drop_no_qp, 4u);
  t.in(good.pkey(0x1234), good.pkey(0x8000));
  EXPECT_EQ(t.counters().drop_pkey, 2u);
  t.in(good.from(Gid::from_v4(0x0900000a)), good.to(Gid::from_v4(0x0900000a)));
  EXPECT_EQ(t.counters().drop_source, 2u);
  t.in(good.opcode(0x2a), good.opcode(0x2a).psn(5));  // UC WRITE_ONLY
  EXPECT_EQ(t.counters().drop_transport, 2u);
  t.silent();
  EXPECT_EQ(t.text(0, 1), std::string(1, 0));
  EXPECT_EQ(t.state(), QpState::rts);
  t.in(good.pkey(0x7fff));  // a limited member of our partition
  t.out(ack(0, 1));
}

// C60: all 256 first bytes at every type of QP: only its own transport's do anything.
//= IBTA 9.2.1 OpCode: the top three bits are the transport
TEST(Engine, C60_EveryOpcodeAtEveryTypeOfQp) {
  for (QpType type : {QpType::rc, QpType::uc, QpType::ud}) {
    Talk t({.type = type});
    std::uint64_t transport = 0;
    for (unsigned b = 0; b < 256; ++b) {
      const wire::OpcodeInfo& info = wire::opcodes[b];
      std::vector<std::uint8_t> bytes(wire::max_header_bytes);
      wire::Packet p;
      p.bth.opcode = wire::Opcode{static_cast<std::uint8_t>(b)};
      p.bth.dest_qp = t.qp->qpn;
      bytes.resize(wire::encode_headers(p, bytes.data()));
      if (info.verb == wire::Verb::cnp) bytes.resize(28);
      auto packet = wire::decode(bytes);
      EXPECT_EQ(packet.has_value(), static_cast<bool>(info)) << b;
      if (!packet) continue;
      unsigned top = b >> 5;
      bool own = (type == QpType::rc && top == 0) || (type == QpType::uc && top == 1) ||
                 (type == QpType::ud && top == 3) || (type != QpType::ud && b == 0x81);
      transport += !own;
      QpState before = t.state();
      RxFrame f{.packet = *packet, .source = t.them(), .destination = t.us()};
      t.engine.receive(t.now, f);
      EXPECT_EQ(t.counters().drop_transport, transport) << b;
      if (!own) {
        EXPECT_EQ(t.state(), before) << b;
      }
      t.discard();
      if (t.state() == QpState::error) {
        t.modify(QpState::reset);
        t.modify_to(*t.qp, QpState::rts);
      }
    }
  }
}

TEST(Engine, StatesThatDoNotListen) {
  for (QpState s : {QpState::reset, QpState::init}) {
    Talk t({.state = s});
    t.in(write_only(0, t.at(0), "x").ack_req(), ack(100, 1));
    EXPECT_EQ(t.counters().drop_qp_state, 2u);
    t.silent();
  }
  Talk t({.state = QpState::rtr});
  t.in(ack(0, 1));  // an answer before anything was asked
  EXPECT_EQ(t.counters().drop_qp_state, 1u);
}

TEST(Engine, BytesAndPacketsAreCounted) {
  Talk t;
  t.in(write_only(0, t.at(0), "abcde").ack_req());
  t.discard();
  EXPECT_EQ(t.counters().rcvd_pkts, 1u);
  EXPECT_EQ(t.counters().rcvd_bytes, 12u + 16 + 8);
  EXPECT_EQ(t.counters().sent_pkts, 1u);
  EXPECT_EQ(t.counters().sent_bytes, 16u);
  EXPECT_EQ(t.counters().sent_acks, 1u);
  EXPECT_EQ(t.counters().rx_write_requests, 1u);
  std::set<std::string_view> names;
  std::uint64_t sum = 0;
  for_each_counter(t.counters(), [&](std::string_view name, std::uint64_t v) {
    EXPECT_TRUE(names.insert(name).second) << name;
    sum += v;
  });
  EXPECT_EQ(sum, 1u + 36 + 1 + 16 + 1 + 1);
}

// --- modify_qp

TEST(Engine, ModifyRefusesValuesOutOfBounds) {
  struct Row {
    std::uint32_t mask;
    void (*spoil)(QpAttributes&);
  };
  constexpr std::uint32_t rtr = attr_state | attr_av | attr_path_mtu | attr_dest_qpn | attr_rq_psn |
                                attr_max_dest_rd_atomic | attr_min_rnr_timer;
  const Row rows[] = {
      {rtr, [](QpAttributes& x) { x.path_mtu = Mtu::mtu_4096; }},
      {rtr, [](QpAttributes& x) { x.path_mtu = Mtu{0}; }},
      {rtr, [](QpAttributes& x) { x.min_rnr_timer = 32; }},
      {rtr, [](QpAttributes& x) { x.max_dest_rd_atomic = 129; }},
      {rtr, [](QpAttributes& x) { x.av.sgid_index = 3; }},
      {rtr, [](QpAttributes& x) { x.av.sgid_index = 16; }},
      {rtr, [](QpAttributes& x) { x.av.dgid = {}; }},
      {rtr, [](QpAttributes& x) { x.av.dgid = Gid{{0xfd, 1}}; }},
  };
  for (const Row& row : rows) {
    Talk t({.state = QpState::init,
            .config = {.max_qp = 4, .max_mr = 16, .active_mtu = Mtu::mtu_2048}});
    QpAttributes x = t.attributes();
    x.state = QpState::rtr;
    row.spoil(x);
    ModifyResult r = t.engine.modify_qp(t.now, *t.qp, x, row.mask);
    EXPECT_FALSE(r.ok());
    EXPECT_NE(r.what, nullptr);
    EXPECT_EQ(t.state(), QpState::init);
    t.engine.set_active_mtu(Mtu::mtu_4096);
  }
  constexpr std::uint32_t rts = attr_state | attr_sq_psn | attr_timeout | attr_retry_cnt |
                                attr_rnr_retry | attr_max_qp_rd_atomic;
  const Row more[] = {
      {rts, [](QpAttributes& x) { x.timeout = 32; }},
      {rts, [](QpAttributes& x) { x.retry_cnt = 8; }},
      {rts, [](QpAttributes& x) { x.rnr_retry = 8; }},
      {rts, [](QpAttributes& x) { x.max_rd_atomic = 129; }},
  };
  for (const Row& row : more) {
    Talk t({.state = QpState::rtr});
    QpAttributes x = t.attributes();
    x.state = QpState::rts;
    row.spoil(x);
    EXPECT_NE(t.engine.modify_qp(t.now, *t.qp, x, row.mask).what, nullptr);
    EXPECT_EQ(t.state(), QpState::rtr);
  }
  Talk t({.state = QpState::reset});
  QpAttributes x = t.attributes();
  x.state = QpState::init;
  constexpr std::uint32_t init = attr_state | attr_port | attr_pkey_index | attr_access_flags;
  for (unsigned port : {0u, 2u}) {
    x.port = static_cast<std::uint8_t>(port);
    EXPECT_NE(t.engine.modify_qp(t.now, *t.qp, x, init).what, nullptr);
  }
  x.port = 1;
  x.pkey_index = 1;
  EXPECT_NE(t.engine.modify_qp(t.now, *t.qp, x, init).what, nullptr);
}

TEST(Engine, ModifyRefusesTransitionsAndAWrongCurrentState) {
  Talk t;
  QpAttributes x = t.attributes();
  x.state = QpState::init;
  EXPECT_EQ(t.engine.modify_qp(t.now, *t.qp, x, attr_state).transition.kind,
            TransitionError::no_such_transition);
  x.state = QpState::rts;
  x.cur_state = QpState::sqd;
  EXPECT_NE(t.engine.modify_qp(t.now, *t.qp, x, attr_state | attr_cur_state).what, nullptr);
  x.cur_state = QpState::rts;
  EXPECT_TRUE(t.engine.modify_qp(t.now, *t.qp, x, attr_state | attr_cur_state).ok());
  EXPECT_EQ(t.state(), QpState::rts);
}

// A change of attributes without a change of state.
TEST(Engine, ModifyInRts) {
  Talk t;
  QpAttributes x = t.attributes();
  x.access_flags = 0;
  x.min_rnr_timer = 9;
  ASSERT_TRUE(t.engine.modify_qp(t.now, *t.qp, x, attr_access_flags | attr_min_rnr_timer).ok());
  t.in(send_only(0, "x"));
  t.out(rnr_nak(0, 9, 0));
  t.in(write_only(0, t.at(0), "x"));
  t.out(nak(0, NakCode::invalid_request, 0));
}

TEST(Engine, RetryCountersChangeInSqd) {
  Talk t({.retry_cnt = 7, .rnr_retry = 7});
  t.modify(QpState::sqd);
  QpAttributes x = t.attributes();
  x.retry_cnt = 0;
  x.rnr_retry = 0;
  x.timeout = 10;
  ASSERT_TRUE(
      t.engine.modify_qp(t.now, *t.qp, x, attr_retry_cnt | attr_rnr_retry | attr_timeout).ok());
  t.modify(QpState::rts);
  t.post({.length = 1});
  t.discard();
  t.silent_for(Duration(4096 << 10));
  t.failed(1, WcStatus::retry_exc_err);
}

//= IBTA 10.3.1.1 RESET: nothing of the past is left
TEST(Engine, ResetForgetsEverything) {
  Talk t;
  auto before = t.post_recv(0, 10);
  t.post({.length = 1});
  t.post({WrOpcode::rdma_read, 0, 3000, send_signaled, theirs});
  t.post({.length = 1});
  t.in(send_only(0, "x").ack_req());
  t.discard();
  t.in(ack(100, 1), read_response_first(101, 1, pattern(1024)));
  t.modify(QpState::reset);
  t.no_completion();  // the completions that were there are gone too
  EXPECT_EQ(t.events(), Words{});
  EXPECT_EQ(t.engine.next_deadline(), never);
  EXPECT_EQ(t.qp->sq->free_slots(), 64u);
  t.modify_to(*t.qp, QpState::rts);
  t.in(send_only(0, "y"));
  t.out(rnr_nak(0, 1, 0));
  auto r = t.post_recv(0, 10);
  EXPECT_GT(r, before);
  t.in(send_only(0, "y").ack_req());
  t.out(ack(0, 1));
  t.received(r, 1);
  auto wr = t.post({.length = 1});
  t.out(send_only(100, "y").ack_req());
  t.in(ack(100, 1));
  t.sent(wr, WcOpcode::send, 1);
  t.idle();
}

// --- objects

TEST(Engine, ObjectsInUseAreNotDestroyed) {
  Talk t({.srq_depth = 4});
  EXPECT_FALSE(t.engine.destroy_cq(t.send_cq));
  EXPECT_FALSE(t.engine.destroy_srq(t.srq));
  t.engine.destroy_qp(t.qp);
  EXPECT_TRUE(t.engine.destroy_cq(t.send_cq));
  EXPECT_TRUE(t.engine.destroy_srq(t.srq));
  EXPECT_TRUE(t.engine.destroy_cq(t.recv_cq));
}

TEST(Engine, QpnsAreUniqueOfTheSlotAndNotReusedAtOnce) {
  Talk t;
  std::set<unsigned> live{t.qp->qpn.raw()};
  std::vector<QueuePair*> all;
  while (QueuePair* q = t.create_qp()) {
    EXPECT_EQ(q->qpn.slot(), 1u);
    EXPECT_TRUE(live.insert(q->qpn.raw()).second);
    all.push_back(q);
  }
  EXPECT_EQ(live.size(), 16u);
  Qpn first = all[0]->qpn, second = all[1]->qpn;
  t.engine.destroy_qp(all[0]);
  t.engine.destroy_qp(all[1]);
  EXPECT_EQ(t.create_qp()->qpn, first);  // the one that was freed longest ago
  EXPECT_EQ(t.create_qp()->qpn, second);
}

// Destroyed while it stands on each of the engine's lists; the neighbours on them live on.
TEST(Engine, DestroyOnEveryList) {
  for (int which = 0; which < 8; ++which) {
    Talk t({.config = {.max_qp = 8,
                       .max_mr = 16,
                       .active_mtu = Mtu::mtu_4096,
                       .initial_window = frame_cost(1056)}});
    std::vector<QueuePair*> three{t.create_qp(), t.create_qp(), t.create_qp()};
    for (QueuePair* q : three) t.modify_to(*q, QpState::rts);
    auto each = [&](auto f) {
      for (QueuePair* q : three) f(*q);
    };
    std::vector<std::uint8_t> none(16);
    TxBurst no_room(none);
    if (which == 0) each([&](QueuePair& q) { t.post(q, {.length = 1}); });  // doorbells
    if (which == 1) {                                                       // ready
      each([&](QueuePair& q) { t.post(q, {.length = 1}); });
      t.engine.transmit(t.now, no_room);
    }
    if (which == 2) {  // waiting for window
      each([&](QueuePair& q) { t.post(q, {.length = 3000}); });
      t.discard();
    }
    if (which == 3)
      each([&](QueuePair& q) {
        t.modify(q, QpState::sqd, attr_state | attr_en_sqd_async_notify, true);
      });
    if (which == 4) {  // timers
      each([&](QueuePair& q) { t.post(q, {.length = 1}); });
      t.discard();
    }
    if (which == 5) {  // completions in the CQ
      each([&](QueuePair& q) { t.post(q, {.length = 1, .lkey = 0xdead00}); });
      t.discard();
    }
    if (which == 6) each([&](QueuePair& q) { t.in(read_request(0, t.at(0), 1).to(q.qpn)); });
    if (which == 7) {  // an RNR timer
      each([&](QueuePair& q) { t.post(q, {.length = 1}); });
      t.discard();
      each([&](QueuePair& q) { t.in(rnr_nak(100, 20, 0).to(q.qpn)); });
    }
    t.engine.destroy_qp(three[1]);
    t.discard();
    t.engine.destroy_qp(three[2]);
    t.engine.destroy_qp(three[0]);
    t.after(10s);
    t.silent();
    EXPECT_EQ(t.events(), Words{}) << which;
    t.no_completion();
    EXPECT_EQ(t.engine.next_deadline(), never) << which;
    auto wr = t.post({.length = 1});
    t.out(send_only(100, t.text(0, 1)).ack_req());
    t.in(ack(100, 1));
    t.sent(wr, WcOpcode::send, 1);
    t.idle();
  }
}

TEST(Engine, DestroyedObjectsLeaveTheEventLists) {
  Talk t({.srq_depth = 4});
  t.engine.arm_srq_limit(t.srq, 3);
  for (int i = 0; i < 4; ++i) t.post_recv(0, 10);
  t.recv_cq->arm(false);
  t.in(send_only(0, "x"), send_only(1, "x"));
  EXPECT_TRUE(t.engine.events_pending());
  t.engine.destroy_qp(t.qp);
  EXPECT_TRUE(t.engine.destroy_srq(t.srq));
  EXPECT_TRUE(t.engine.destroy_cq(t.recv_cq));
  EXPECT_FALSE(t.engine.events_pending());
  EventRecord r[4];
  EXPECT_EQ(t.engine.take_events(r), 0u);
}

// Freed window wakes those who waited, first come first served.
TEST(Engine, WindowOfADestroyedQpGoesToThoseWhoWait) {
  Talk t({.config = {.max_qp = 8,
                     .max_mr = 16,
                     .active_mtu = Mtu::mtu_4096,
                     .initial_window = frame_cost(1056)}});
  QueuePair *first = t.create_qp(), *second = t.create_qp();
  t.modify_to(*first, QpState::rts);
  t.modify_to(*second, QpState::rts);
  t.post(*first, {.length = 1024});
  t.discard();
  t.post(*second, {.length = 1024});
  t.silent();
  t.post({.length = 1024});
  t.silent();
  t.engine.destroy_qp(first);
  EXPECT_EQ(t.waiting(), 1u);
  t.discard();
  t.in(ack(100, 1).to(second->qpn));
  t.out(send_only(100, t.text(0, 1024)).ack_req());
}

TEST(Engine, MoreEventsThanTheCallerHasRoomFor) {
  Talk t({.srq_depth = 8});
  std::vector<QueuePair*> all{t.qp};
  for (int i = 0; i < 4; ++i) {
    all.push_back(t.create_qp());
    t.modify_to(*all.back(), QpState::rtr);
  }
  for (QueuePair* q : all) {
    if (q != t.qp) t.in(read_request(0, t.at(0), 1).to(q->qpn));  // COMM_EST
    t.modify(*q, QpState::error);                                 // LAST_WQE
  }
  Words e = t.events();
  EXPECT_EQ(std::count(e.begin(), e.end(), "qp COMM_EST"), 4);
  EXPECT_EQ(std::count(e.begin(), e.end(), "qp LAST_WQE"), 5);
  EXPECT_EQ(e.size(), 9u);
}

// --- doorbells

TEST(Engine, ManyDoorbellsAreServedInOrder) {
  Talk t;
  std::vector<QueuePair*> all;
  for (int i = 0; i < 5; ++i) {
    all.push_back(t.create_qp());
    t.modify_to(*all.back(), QpState::rts);
  }
  EXPECT_FALSE(t.engine.doorbells_pending());
  for (int twice = 0; twice < 2; ++twice)
    for (unsigned i = 0; i < 5; ++i) {
      t.fill(i, std::string(1, static_cast<char>('a' + i)));
      t.post(*all[i], {.local = i, .length = 1});
    }
  EXPECT_TRUE(t.engine.doorbells_pending());
  for (unsigned i = 0; i < 5; ++i) {
    EXPECT_EQ(t.next().payload[0], 'a' + i);
    EXPECT_EQ(t.next().payload[0], 'a' + i);
  }
}

// --- same-host credit

TEST(Engine, CreditIsSettledWhenTheSocketsStayEmpty) {
  Talk t;
  EXPECT_EQ(t.engine.credit_mark(), 0u);  // no lines: nothing to settle
  t.engine.credit_settle(5);
  std::vector<CreditLine> lines(4);
  Gid host[] = {t.us(), t.them()};
  t.engine.set_local(host, lines, 1 << 20);
  lines[1].enqueued = 1000;
  EXPECT_EQ(t.engine.credit_mark(), 1000u);
  t.engine.credit_settle(1000);
  EXPECT_EQ(lines[1].consumed.load(), 0u);  // perhaps not sent yet
  EXPECT_LE(t.engine.next_deadline(), t.now + 10ms);
  lines[1].enqueued = 1500;
  t.after(10ms);
  t.silent();
  t.engine.credit_settle(1500);
  EXPECT_EQ(lines[1].consumed.load(), 1000u);  // the younger ones have their time
  t.after(10ms);
  t.silent();
  t.engine.credit_settle(900);  // older
  EXPECT_EQ(lines[1].consumed.load(), 1000u);
  lines[1].enqueued = 600;  // more came out than was put in: a sender was held up
  t.engine.credit_settle(600);
  EXPECT_EQ(lines[1].consumed.load(), 600u);
  lines[1].enqueued = lines[1].consumed = 1000;
  t.in(write_only(0, t.at(0), "abcd"));
  EXPECT_EQ(lines[1].consumed.load(), 1000 + frame_cost(12 + 16 + 4 + 4));
  t.in(write_only(1, t.at(0), "abcd").from(Gid::from_v4(0x0900000a)));  // not of this host
  EXPECT_EQ(lines[1].consumed.load(), 1000 + frame_cost(12 + 16 + 4 + 4));
}

}  // namespace
}  // namespace adverb::engine::talk
