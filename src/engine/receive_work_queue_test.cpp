// SPDX-License-Identifier: Apache-2.0
// Work queues of raw packets and what spreads frames over them, as an application sees it: memory
// and completions.
#include "engine/receive_work_queue.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "engine/engine.hpp"

namespace adverb::engine {
namespace {

using namespace std::literals;
using Frame = std::string;

// IPv4 and UDP from 10.0.0.`from`; `tag`: with a VLAN tag.
Frame frame_from(char from, bool tag = false) {
  return "\2\0\0\0\0\1\2\0\0\0\0\2"s + (tag ? "\x81\0\x60\x07"s : ""s) + "\x08\0"s +
         "\x45\0\0\x1c\0\0\0\0\x40\x11\0\0\x0a\0\0"s + from + "\x0a\0\0\xff\0\1\0\2\0\x08\0\0"s;
}

struct WorkQueues : testing::Test {
  Engine engine{{.slot = 1, .max_qp = 16, .max_mr = 16, .max_ethernet_frame = 1518}};
  CompletionQueue* cq = engine.create_cq(32, nullptr);
  std::string memory = std::string(4096, '\0');
  MemoryRegion* region = nullptr;
  ToeplitzKey key{};
  std::uint64_t wr_id = 0;

  void SetUp() override {
    MemoryRegion mr;
    mr.base = reinterpret_cast<std::byte*>(memory.data());
    mr.iova = reinterpret_cast<std::uintptr_t>(memory.data());
    mr.length = memory.size();
    mr.pd = 1;
    mr.access = access_local_write;
    region = engine.keys().add(mr);
    // One bit of 320: the hash has bits 7 to 0 of an address's last byte as its bits 0 to 7.
    key[6] = 1;
  }
  ReceiveWorkQueue* make(CompletionQueue* to = nullptr, std::uint32_t max_wr = 4) {
    return engine.create_wq({.max_wr = max_wr, .max_sge = 2, .pd = 1, .cq = to ? to : cq});
  }
  ReceiveWorkQueue* make_ready(CompletionQueue* to = nullptr) {
    ReceiveWorkQueue* wq = make(to);
    EXPECT_EQ(engine.modify_wq(*wq, {}, WqState::ready), nullptr);
    return wq;
  }
  QueuePair* spread(IndirectionTable* table, std::uint32_t fields = rx_src_ipv4) {
    QueuePair* qp = engine.create_qp({.type = QpType::raw_packet,
                                      .pd = 1,
                                      .scaling = {.table = table, .hash = RxHash(key, fields)}});
    FlowRule everything;
    everything.qp = qp;
    engine.flows().add(everything);
    return qp;
  }
  bool post(ReceiveWorkQueue& wq, std::uint32_t length = 512) {
    const Sge sge{region->iova + 512 * (wr_id % 8), length, region->key};
    return wq.queue.post(wr_id++, {&sge, 1});
  }
  void arrive(const Frame& frame) {
    RxFrame f;
    f.protocol = Protocol::ethernet;
    f.packet.payload = {reinterpret_cast<const std::uint8_t*>(frame.data()), frame.size()};
    engine.receive(Instant{}, f);
  }
  Cqe poll(CompletionQueue* from = nullptr) {
    Cqe c;
    c.status = WcStatus::general_err;
    EXPECT_EQ((from ? from : cq)->poll(1, &c), 1u);
    return c;
  }
  Frame got(const Cqe& c) const { return memory.substr(512 * (c.wr_id % 8), c.byte_len); }
  std::string events() {
    std::string s;
    EventRecord records[4];
    for (unsigned i = 0, n = engine.take_events(records); i < n; ++i)
      s += records[i].kind == EventRecord::wq   ? 'w'
           : records[i].kind == EventRecord::cq ? 'c'
                                                : '-';
    return s;
  }
};

TEST_F(WorkQueues, AFrameIsInMemoryAndHasTheQueuesNumber) {
  ReceiveWorkQueue* wq = make_ready();
  QueuePair* qp = spread(engine.create_table({wq}), 0);
  ASSERT_TRUE(post(*wq));
  arrive(frame_from(1, true));
  const Cqe c = poll();
  EXPECT_EQ(c.status, WcStatus::success);
  EXPECT_EQ(c.opcode, WcOpcode::recv);
  EXPECT_EQ(got(c), frame_from(1, true));
  EXPECT_EQ(c.qp_num, wq->number);
  EXPECT_NE(c.qp_num, qp->qpn);
  EXPECT_EQ(engine.find(c.qp_num), nullptr);
  EXPECT_TRUE(cq->empty());
}

TEST_F(WorkQueues, TheHashPicksTheEntry) {
  ReceiveWorkQueue* queues[4];
  for (auto& wq : queues) {
    wq = make_ready();
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(post(*wq));
  }
  spread(engine.create_table({queues, queues + 4}));
  const std::pair<char, unsigned> entries[]{{1, 0}, {'\x80', 1}, {'\x40', 2}, {'\xc0', 3}};
  for (const auto& [last_byte, entry] : entries) {
    arrive(frame_from(last_byte));
    EXPECT_EQ(poll().qp_num, queues[entry]->number) << entry;
  }
  arrive("\2\0\0\0\0\1\2\0\0\0\0\2\x88\xb5nobody knows"s);
  EXPECT_EQ(poll().qp_num, queues[0]->number);
}

TEST_F(WorkQueues, WithoutAReceiveAFrameIsDroppedAndCounted) {
  ReceiveWorkQueue* wq = make_ready();
  spread(engine.create_table({wq}));
  arrive(frame_from(1));
  EXPECT_EQ(engine.counters().out_of_buffer, 1u);
  ASSERT_TRUE(post(*wq));
  arrive(frame_from(2));
  EXPECT_EQ(got(poll()), frame_from(2));
}

TEST_F(WorkQueues, WhatIsNotReadyTakesNothing) {
  ReceiveWorkQueue* wq = make();
  spread(engine.create_table({wq}));
  arrive(frame_from(1));
  EXPECT_EQ(engine.counters().drop_qp_state, 1u);
  EXPECT_TRUE(cq->empty());
}

TEST_F(WorkQueues, AnInjectedFailureMovesToErrorAndFlushes) {
  ReceiveWorkQueue *wq = make_ready(), *other = make_ready(), *unused = make();
  ASSERT_TRUE(post(*wq));
  engine.inject_wq_fatal(wq->number);
  EXPECT_EQ(poll().status, WcStatus::wr_flush_err);
  EXPECT_EQ(wq->state.load(), WqState::error);
  EXPECT_EQ(other->state.load(), WqState::ready);
  EXPECT_EQ(events(), "w");
  EXPECT_TRUE(engine.inject_wq_fatal());
  EXPECT_EQ(other->state.load(), WqState::error);
  EXPECT_EQ(unused->state.load(), WqState::reset);
  EXPECT_EQ(events(), "ww") << "in ERROR: the event";
  EXPECT_FALSE(engine.inject_wq_fatal(unused->number)) << "in RESET: nothing";
}

TEST_F(WorkQueues, ALongFrameFailsTheQueue) {
  ReceiveWorkQueue* wq = make_ready();
  spread(engine.create_table({wq}));
  ASSERT_TRUE(post(*wq, 40));
  ASSERT_TRUE(post(*wq));
  arrive(frame_from(1));
  const Cqe failed = poll(), flushed = poll();
  EXPECT_EQ(failed.status, WcStatus::loc_len_err);
  EXPECT_EQ(flushed.status, WcStatus::wr_flush_err);
  EXPECT_EQ(flushed.wr_id, failed.wr_id + 1);
  EXPECT_EQ(wq->state.load(), WqState::error);
  EXPECT_EQ(events(), "w");
}

TEST_F(WorkQueues, ForeignMemoryFailsTheQueue) {
  ReceiveWorkQueue* wq = make_ready();
  wq->pd = 2;
  spread(engine.create_table({wq}));
  ASSERT_TRUE(post(*wq));
  arrive(frame_from(1));
  EXPECT_EQ(poll().status, WcStatus::loc_prot_err);
  EXPECT_EQ(memory, std::string(4096, '\0'));
}

TEST_F(WorkQueues, ErrorFlushesWhatIsPostedAndWhatComesLater) {
  ReceiveWorkQueue* wq = make_ready();
  ASSERT_TRUE(post(*wq));
  EXPECT_EQ(engine.modify_wq(*wq, {}, WqState::error), nullptr);
  EXPECT_EQ(poll().status, WcStatus::wr_flush_err);
  ASSERT_TRUE(post(*wq));
  engine.flush(*wq);
  EXPECT_EQ(poll().status, WcStatus::wr_flush_err);
  EXPECT_EQ(events(), "");  // the application knows
}

TEST_F(WorkQueues, ResetForgetsReceivesAndCompletions) {
  ReceiveWorkQueue *wq = make_ready(), *other = make_ready();
  spread(engine.create_table({wq, other}), rx_src_ipv4);
  ASSERT_TRUE(post(*wq) && post(*wq) && post(*other));
  EXPECT_EQ(engine.modify_wq(*other, {}, WqState::error), nullptr);
  EXPECT_EQ(engine.modify_wq(*wq, {}, WqState::error), nullptr);
  EXPECT_EQ(engine.modify_wq(*wq, {}, WqState::reset), nullptr);
  EXPECT_EQ(poll().qp_num, other->number);
  EXPECT_TRUE(cq->empty());
  EXPECT_EQ(wq->queue.available(), 0u);
}

TEST_F(WorkQueues, EveryTransition) {
  using enum WqState;
  constexpr WqState all[]{reset, ready, error};
  constexpr bool allowed[3][3] = {{true, true, false}, {true, true, true}, {true, false, true}};
  for (const WqState from : all)
    for (const WqState to : all) {
      ReceiveWorkQueue* wq = make();
      if (from != reset) {
        ASSERT_EQ(engine.modify_wq(*wq, {}, ready), nullptr);
      }
      if (from == error) {
        ASSERT_EQ(engine.modify_wq(*wq, {}, error), nullptr);
      }
      const bool right = allowed[static_cast<int>(from)][static_cast<int>(to)];
      EXPECT_EQ(engine.modify_wq(*wq, from, to) == nullptr, right) << int(from) << int(to);
      EXPECT_EQ(wq->state.load(), right ? to : from);
      EXPECT_NE(engine.modify_wq(*wq, wq->state.load() == reset ? ready : reset, {}), nullptr);
    }
}

TEST_F(WorkQueues, TheVlanTagGoesIntoTheCompletion) {
  ReceiveWorkQueue* wq = make_ready();
  wq->strip_vlan = true;
  spread(engine.create_table({wq}));
  ASSERT_TRUE(post(*wq) && post(*wq));
  arrive(frame_from(1, true));
  Cqe c = poll();
  EXPECT_EQ(got(c), frame_from(1));
  EXPECT_EQ(c.cvlan, 0x6007);
  arrive(frame_from(2));
  c = poll();
  EXPECT_EQ(got(c), frame_from(2));
  EXPECT_EQ(c.cvlan, 0);
}

TEST_F(WorkQueues, AnOverrunFailsItsQueues) {
  CompletionQueue* small = engine.create_cq(1, nullptr);
  ReceiveWorkQueue *wq = make_ready(small), *beside = make_ready(small), *other = make_ready();
  spread(engine.create_table({wq}));
  ASSERT_TRUE(post(*wq) && post(*wq));
  arrive(frame_from(1));
  arrive(frame_from(2));
  EXPECT_EQ(events(), "cww");
  EXPECT_EQ(beside->state.load(), WqState::error);
  EXPECT_EQ(other->state.load(), WqState::ready);
  // One that is made with it takes nothing.
  ReceiveWorkQueue* late = make_ready(small);
  ASSERT_TRUE(post(*late));
  QueuePair* qp = spread(engine.create_table({late}));
  engine.flows().forget(*qp);
  FlowRule first;
  first.type = FlowType::sniffer;
  first.qp = qp;
  engine.flows().add(first);
  arrive(frame_from(3));
  EXPECT_EQ(engine.counters().out_of_buffer, 1u);
  EXPECT_EQ(late->queue.available(), 1u);
}

TEST_F(WorkQueues, WhatIsInUseStays) {
  ReceiveWorkQueue* wq = make_ready();
  EXPECT_FALSE(engine.destroy_cq(cq));
  IndirectionTable *one = engine.create_table({wq, wq}), *two = engine.create_table({wq});
  QueuePair *a = spread(one), *b = spread(one);
  EXPECT_TRUE(engine.destroy_table(two));
  engine.destroy_qp(a);
  EXPECT_FALSE(engine.destroy_table(one));
  engine.destroy_qp(b);
  EXPECT_FALSE(engine.destroy_wq(wq));
  EXPECT_TRUE(engine.destroy_table(one));
  EXPECT_TRUE(engine.destroy_wq(wq));
  EXPECT_TRUE(engine.destroy_cq(cq));
}

}  // namespace
}  // namespace adverb::engine
