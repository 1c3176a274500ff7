// SPDX-License-Identifier: Apache-2.0
// Which rules get a frame (ibv_create_flow(3), "Flow domains and priority").
#include "engine/flow.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "engine/queue_pair.hpp"

namespace adverb::engine {
namespace {

struct Flows : ::testing::Test {
  FlowTable table;
  QueuePair a, b, c;
  wire::FlowKey key;

  void SetUp() override {
    key.dst_mac = {2, 0, 0, 0, 0, 1};
    key.ip_version = 4;
    key.next_header = 17;
    key.dst_port = {0x12, 0x34};
  }
  FlowRule* add(QueuePair& qp, std::uint16_t priority, std::uint8_t next_header = 0,
                FlowType type = FlowType::normal, bool dont_trap = false) {
    FlowRule r;
    r.type = type;
    r.priority = priority;
    r.dont_trap = dont_trap;
    r.qp = &qp;
    r.value.next_header = next_header;
    if (next_header) r.mask.next_header = 0xff;
    return table.add(r);
  }
  std::string taken_by(bool outgoing = false) {
    std::string names;
    table.deliver(key, outgoing, [&](QueuePair& q) {
      names += &q == &a ? 'a' : &q == &b ? 'b' : 'c';
    });
    return names;
  }
};

TEST_F(Flows, TheLowestPriorityNumberThatFits) {
  add(a, 5);
  add(b, 2, 6);
  add(c, 3, 17);
  EXPECT_EQ(taken_by(), "c");
  key.next_header = 6;
  EXPECT_EQ(taken_by(), "b");
  key.next_header = 1;
  EXPECT_EQ(taken_by(), "a");
}

TEST_F(Flows, OfEqualsTheOldestAndThoseBesideIt) {
  add(a, 1, 17);
  add(b, 1);
  EXPECT_EQ(taken_by(), "a");
  add(c, 1, 17);
  EXPECT_EQ(taken_by(), "ac");
}

TEST_F(Flows, WhatDoesNotTrapLetsTheRestHaveIt) {
  add(a, 0, 17, FlowType::normal, true);
  add(b, 1, 17);
  add(c, 2, 17);
  EXPECT_EQ(taken_by(), "ab");
}

TEST_F(Flows, DefaultsGetWhatNobodyTook) {
  add(a, 0, 6);
  add(b, 0, 0, FlowType::all_default);
  add(c, 0, 0, FlowType::mc_default);
  EXPECT_EQ(taken_by(), "b");
  key.dst_mac[0] |= 1;
  EXPECT_EQ(taken_by(), "bc");
  key.next_header = 6;
  EXPECT_EQ(taken_by(), "a");
}

TEST_F(Flows, SniffersGetAllAndAloneWhatGoesOut) {
  add(a, 0, 17);
  add(b, 0, 0, FlowType::sniffer);
  add(c, 0, 0, FlowType::all_default);
  EXPECT_EQ(taken_by(), "ba");
  EXPECT_EQ(taken_by(true), "b");
}

TEST_F(Flows, PartialMasksAndRemoval) {
  FlowRule r;
  r.qp = &a;
  r.value.dst_port = {0x10, 0x00}, r.mask.dst_port = {0xf0, 0x00};
  FlowRule* made = table.add(r);
  EXPECT_EQ(taken_by(), "a");
  key.dst_port = {0x20, 0x34};
  EXPECT_EQ(taken_by(), "");
  EXPECT_TRUE(table.uses(a));
  table.remove(made);
  EXPECT_FALSE(table.uses(a));
  EXPECT_TRUE(table.empty());
}

}  // namespace
}  // namespace adverb::engine
