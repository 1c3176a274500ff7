// SPDX-License-Identifier: Apache-2.0
// Memory windows: binding, what a bound window allows, and what ends it.
#include <gtest/gtest.h>

#include "engine/talk.hpp"

namespace adverb::engine::talk {
namespace {

constexpr std::uint32_t bindable = access_local_write | access_mw_bind;

// A talk with a region that may have windows and that nobody may reach by its own key.
struct Windows : testing::Test {
  Talk t{{.max_recv_wr = 8}};
  MemoryRegion* region = t.add_region(4096, 256, bindable);
  std::uint32_t key = 0;

  MemoryRegion* add(WindowType type, PdId pd = Talk::pd) {
    MemoryRegion* window = t.engine.keys().add_window(type, pd, key);
    EXPECT_TRUE(window);
    return window;
  }
  Post binding(std::uint32_t new_key, std::uint64_t offset, std::uint64_t length,
               std::uint32_t access) {
    return {.opcode = WrOpcode::bind_mw,
            .bind = {.key = key,
                     .new_key = new_key,
                     .lkey = region->key,
                     .access = access,
                     .address = region->iova + offset,
                     .length = length}};
  }
  Remote at(std::uint64_t offset, std::uint32_t rkey) { return {region->iova + offset, rkey}; }
};

TEST_F(Windows, WorkWhileTheyAreBound) {
  MemoryRegion* window = add(WindowType::type_1);
  EXPECT_EQ(t.engine.keys().find(key), nullptr) << "not before the first binding";
  const std::uint32_t bound = key ^ 0x5a;
  t.post(binding(bound, 16, 64, access_remote_write));
  t.pump();
  t.sent(1, WcOpcode::bind_mw, 0);
  EXPECT_EQ(region->windows, 1u);
  t.in(write_only(0, at(16, bound), "first"), write_only(1, at(76, bound), "last").ack_req());
  t.out(ack(1, 2));
  EXPECT_EQ(t.text(4096 + 16, 5), "first");
  EXPECT_EQ(t.text(4096 + 76, 4), "last");
  t.post(binding(key, 0, 0, 0));  // of length zero: it is bound no more
  t.pump();
  t.sent(2, WcOpcode::bind_mw, 0);
  EXPECT_EQ(region->windows, 0u);
  EXPECT_EQ(window->key, 0u);
  t.in(write_only(2, at(16, bound), "never").ack_req());
  t.out(nak(2, NakCode::remote_access_error, 2));
  EXPECT_EQ(t.text(4096 + 16, 5), "first");
}

TEST_F(Windows, AllowTheirOwnRightsAndRangeOnly) {
  struct Case {
    const char* what;
    Said said;
  };
  MemoryRegion* window = add(WindowType::type_2);
  const std::uint32_t bound = key;
  const auto requests = [&] {
    return std::vector<Case>{{"a byte before", write_only(0, at(15, bound), "x")},
                             {"a byte behind", write_only(0, at(80, bound), "x")},
                             {"over the end", write_only(0, at(79, bound), "xx")},
                             {"READ", read_request(0, at(16, bound), 4)},
                             {"atomic", fetch_add(0, at(16, bound), 1)},
                             {"the region's own key", write_only(0, at(16, region->key), "x")}};
  };
  for (const Case& c : requests()) {
    t.engine.keys().unbind(*window);
    t.modify(QpState::reset);
    t.modify_to(*t.qp, QpState::rts);
    t.post(binding(bound, 16, 64, access_remote_write));
    t.pump();
    Said said = c.said;
    t.in(said.ack_req());
    t.out(nak(0, NakCode::remote_access_error, 0));
    EXPECT_EQ(t.state(), QpState::error) << c.what;
  }
}

TEST_F(Windows, OfZeroBaseBeginAtZero) {
  add(WindowType::type_2);
  t.post(binding(key, 8, 32, access_remote_write | access_remote_read | access_zero_based));
  t.pump();
  t.in(write_only(0, {0, key}, "zero"), write_only(1, {28, key}, "last").ack_req());
  t.out(ack(1, 2));
  EXPECT_EQ(t.text(4096 + 8, 4), "zero");
  EXPECT_EQ(t.text(4096 + 36, 4), "last");
  t.in(write_only(2, {29, key}, "last").ack_req());
  t.out(nak(2, NakCode::remote_access_error, 2));
}

// C50
//= IBTA 10.6.7.2: what a binding must satisfy; else a memory management operation error
TEST_F(Windows, C50_BindingsThatAreRefused) {
  MemoryRegion* plain = t.add_region(8192, 256, access_local_write);
  MemoryRegion* read_only = t.add_region(8192, 256, access_mw_bind);
  MemoryRegion* foreign = t.add_region(8192, 256, bindable, Talk::other_pd);
  const auto with = [&](const MemoryRegion* mr, std::uint64_t offset, std::uint64_t length) {
    Post p = binding(key, 0, length, access_remote_write);
    p.bind.lkey = mr->key;
    p.bind.address = mr->iova + offset;
    return p;
  };
  add(WindowType::type_2, Talk::other_pd);
  const std::uint32_t others_window = key;
  add(WindowType::type_2);
  Post of_other_pd = with(region, 0, 8), of_nothing = with(region, 0, 8),
       of_a_region = with(region, 0, 8), lkey_of_a_window = with(region, 0, 8);
  of_other_pd.bind.key = others_window;
  of_nothing.bind.key = 0xdead00;
  of_a_region.bind.key = plain->key;
  lkey_of_a_window.bind.lkey = key;
  const std::pair<const char*, Post> cases[] = {
      {"no MW_BIND", with(plain, 0, 8)},
      {"remote write without local write", with(read_only, 0, 8)},
      {"region of another PD", with(foreign, 0, 8)},
      {"beyond the region", with(region, 250, 8)},
      {"before the region", with(region, ~std::uint64_t{7}, 8)},
      {"of length zero", with(region, 0, 0)},
      {"as long as can be", with(region, 0, ~std::uint64_t{0})},
      {"window of another PD", of_other_pd},
      {"no window", of_nothing},
      {"a region instead of a window", of_a_region},
      {"a window instead of a region", lkey_of_a_window},
  };
  std::uint64_t id = 0;
  for (const auto& [what, post] : cases) {
    SCOPED_TRACE(what);
    t.post(post);
    t.silent();
    t.failed(++id, WcStatus::mw_bind_err);
    EXPECT_EQ(t.state(), QpState::error);
    t.modify(QpState::reset);
    t.modify_to(*t.qp, QpState::rts);
  }
  t.post(with(read_only, 0, 8));
  t.failed(++id, WcStatus::mw_bind_err);
}

// C50
TEST_F(Windows, C50_Type2IsNotBoundTwice) {
  add(WindowType::type_2);
  t.post(binding(key, 0, 8, access_remote_read));
  t.post(binding(key ^ 1, 0, 8, access_remote_read));
  t.pump();
  t.sent(1, WcOpcode::bind_mw, 0);
  t.failed(2, WcStatus::mw_bind_err);
  EXPECT_EQ(t.state(), QpState::error);
  EXPECT_NE(t.engine.keys().find(key), nullptr);
  EXPECT_EQ(t.engine.keys().find(key ^ 1), nullptr);
}

TEST_F(Windows, Type1MovesWithEachBinding) {
  MemoryRegion* other = t.add_region(8192, 256, bindable);
  add(WindowType::type_1);
  t.post(binding(key ^ 1, 0, 8, access_remote_write));
  Post second = binding(key ^ 2, 0, 8, access_remote_write);
  second.bind.lkey = other->key;
  second.bind.address = other->iova;
  t.post(second);
  t.pump();
  t.sent(1, WcOpcode::bind_mw, 0);
  t.sent(2, WcOpcode::bind_mw, 0);
  EXPECT_EQ(region->windows, 0u);
  EXPECT_EQ(other->windows, 1u);
  t.in(write_only(0, {other->iova, key ^ 2}, "moved").ack_req());
  t.out(ack(0, 1));
  EXPECT_EQ(t.text(8192, 5), "moved");
  t.in(write_only(1, at(0, key ^ 1), "old").ack_req());
  t.out(nak(1, NakCode::remote_access_error, 1));
}

// C50
//= IBTA 10.6.7.2: a window of type 2B is the queue pair's that bound it; type 1 is the PD's
TEST_F(Windows, C50_AreUsedByAnotherQueuePair) {
  for (const WindowType type : {WindowType::type_1, WindowType::type_2}) {
    SCOPED_TRACE(type == WindowType::type_1 ? "type 1" : "type 2B");
    QueuePair* binder = t.create_qp();
    t.modify_to(*binder, QpState::rts);
    add(type);
    t.post(*binder, binding(key, 0, 64, access_remote_write));
    t.pump();
    t.in(write_only(0, at(0, key), "text").ack_req());
    if (type == WindowType::type_1)
      t.out(ack(0, 1));
    else
      t.out(nak(0, NakCode::remote_access_error, 0));
    t.modify(QpState::reset);
    t.modify_to(*t.qp, QpState::rts);
  }
}

TEST_F(Windows, AreNoLocalKeys) {
  add(WindowType::type_1);
  t.post(binding(key, 0, 64, access_remote_write | access_remote_read));
  t.post({.list = {{region->iova, 8, key}}});
  t.pump();
  t.sent(1, WcOpcode::bind_mw, 0);
  t.failed(2, WcStatus::loc_prot_err);
}

// --- invalidation

TEST_F(Windows, LocalInvalidateEndsABindingAndTheNextMayFollow) {
  add(WindowType::type_2);
  t.post(binding(key, 0, 64, access_remote_write));
  t.post({.opcode = WrOpcode::local_inv, .imm_or_rkey = key});
  t.post(binding(key ^ 3, 0, 64, access_remote_write));
  t.pump();
  t.sent(1, WcOpcode::bind_mw, 0);
  t.sent(2, WcOpcode::local_inv, 0);
  t.sent(3, WcOpcode::bind_mw, 0);
  EXPECT_EQ(region->windows, 1u);
  t.in(write_only(0, at(0, key ^ 3), "new").ack_req());
  t.out(ack(0, 1));
  t.in(write_only(1, at(0, key), "old").ack_req());
  t.out(nak(1, NakCode::remote_access_error, 1));
  EXPECT_EQ(t.text(4096, 3), "new");
}

TEST_F(Windows, LocalInvalidateOfWhatMayNotBe) {
  QueuePair* binder = t.create_qp();
  t.modify_to(*binder, QpState::rts);
  add(WindowType::type_2);
  const std::uint32_t of_binder = key;
  Post silent = binding(key, 0, 64, access_remote_write);
  silent.flags = 0;
  t.post(*binder, silent);
  add(WindowType::type_1);
  const std::uint32_t type_1 = key;
  silent.bind.key = silent.bind.new_key = key;
  t.post(*binder, silent);
  t.pump();
  std::uint64_t id = 2;
  for (const std::uint32_t bad : {of_binder, type_1, region->key, 0xdead00u, 0u}) {
    t.post({.opcode = WrOpcode::local_inv, .imm_or_rkey = bad});
    t.silent();
    t.failed(++id, WcStatus::mw_bind_err);
    t.modify(QpState::reset);
    t.modify_to(*t.qp, QpState::rts);
  }
  EXPECT_EQ(region->windows, 2u);
}

// C53
//= IBTA 9.9.6.3: a window of the queue pair that receives; the key of another one is refused
TEST_F(Windows, C53_SendWithInvalidate) {
  add(WindowType::type_2);
  t.post(binding(key, 0, 64, access_remote_write));
  t.pump();
  const auto r = t.post_recv(0, 50);
  t.in(write_only(0, at(0, key), "ok"));
  t.in(send_only_invalidate(1, "x").inv(key).ack_req());
  t.out(ack(1, 2));
  t.received(r, 1, WcOpcode::recv, wc_with_inv, key);
  EXPECT_EQ(region->windows, 0u);
  t.in(write_only(2, at(0, key), "no").ack_req());
  t.out(nak(2, NakCode::remote_access_error, 2));
  EXPECT_EQ(t.text(4096, 2), "ok");
}

// C53
TEST_F(Windows, C53_InvalidateOfAnotherQueuePairsWindow) {
  QueuePair* binder = t.create_qp();
  t.modify_to(*binder, QpState::rts);
  add(WindowType::type_2);
  t.post(*binder, binding(key, 0, 64, access_remote_write));
  t.pump();
  const auto r = t.post_recv(0, 50);
  t.in(send_only_invalidate(0, "x").inv(key).ack_req());
  t.silent();
  t.receive_failed(r, WcStatus::loc_access_err);
  EXPECT_EQ(region->windows, 1u);
}

// --- the place in the send queue

//= IBTA 10.8.3.3: in the order of posting; a fenced one waits for the READs before it
TEST_F(Windows, BindingsKeepTheirPlaceInTheSendQueue) {
  add(WindowType::type_2);
  t.post({.opcode = WrOpcode::rdma_read, .length = 3, .remote = {1, 2}});
  Post fenced = binding(key, 0, 64, access_remote_write);
  fenced.flags |= send_fence;
  t.post(fenced);
  t.post({.length = 3});
  t.out(read_request(100, {1, 2}, 3).ack_req());
  t.silent();
  EXPECT_EQ(region->windows, 0u);
  t.in(read_response_only(100, 1, "new"));
  t.out(send_only(101, "new").ack_req());
  EXPECT_EQ(region->windows, 1u);
  t.sent(1, WcOpcode::rdma_read, 3);
  t.sent(2, WcOpcode::bind_mw, 0);
  t.no_completion();
  t.in(ack(101, 2));
  t.sent(3, WcOpcode::send, 3);
}

TEST_F(Windows, CompletionsKeepTheOrderOfPosting) {
  add(WindowType::type_2);
  t.post({.length = 3});
  t.post(binding(key, 0, 64, access_remote_write));
  t.post({.opcode = WrOpcode::local_inv, .flags = 0, .imm_or_rkey = key});
  t.post({.length = 4});
  t.out(send_only(100, t.text(0, 3)).ack_req());
  t.out(send_only(101, t.text(0, 4)).ack_req());
  t.no_completion();
  t.in(ack(100, 1));
  t.sent(1, WcOpcode::send, 3);
  t.sent(2, WcOpcode::bind_mw, 0);
  t.no_completion();
  t.in(ack(101, 2));
  t.sent(4, WcOpcode::send, 4);
}

// What is sent again does not bind again.
TEST_F(Windows, AreBoundOnceThoughPacketsAreSentAgain) {
  add(WindowType::type_2);
  t.post({.length = 3});
  t.post(binding(key, 0, 64, access_remote_write));
  t.post({.length = 4});
  t.discard();
  t.in(nak(100, NakCode::psn_sequence_error, 0));
  t.out(send_only(100, t.text(0, 3)).ack_req());
  t.out(send_only(101, t.text(0, 4)).ack_req());
  t.in(ack(101, 2));
  t.sent(1, WcOpcode::send, 3);
  t.sent(2, WcOpcode::bind_mw, 0);
  t.sent(3, WcOpcode::send, 4);
  EXPECT_EQ(region->windows, 1u);
}

TEST_F(Windows, RefusedBindingWaitsForWhatWasPostedBefore) {
  add(WindowType::type_2);
  t.post({.length = 3});
  t.post(binding(key, 0, 0, access_remote_write));
  t.post({.length = 4});
  t.discard();
  t.no_completion();
  t.in(nak(100, NakCode::psn_sequence_error, 0));  // the cursor goes back and comes again
  t.out(send_only(100, t.text(0, 3)).ack_req());
  t.no_completion();
  t.in(ack(100, 1));
  t.sent(1, WcOpcode::send, 3);
  t.failed(2, WcStatus::mw_bind_err);
  t.failed(3, WcStatus::wr_flush_err);
}

TEST_F(Windows, OfUnreliableQueuePairs) {
  Talk u({.type = QpType::uc});
  MemoryRegion* mr = u.add_region(4096, 256, bindable);
  std::uint32_t rkey = 0;
  ASSERT_TRUE(u.engine.keys().add_window(WindowType::type_2, Talk::pd, rkey));
  const WindowBinding binding{.key = rkey,
                              .new_key = rkey,
                              .lkey = mr->key,
                              .access = access_remote_write,
                              .address = mr->iova,
                              .length = 64};
  u.post({.length = 3});
  u.post({.opcode = WrOpcode::bind_mw, .bind = binding});
  u.out(send_only(100, u.text(0, 3)));
  u.sent(1, WcOpcode::send, 3);
  u.sent(2, WcOpcode::bind_mw, 0);
  u.in(write_only(0, {mr->iova, rkey}, "text"));
  EXPECT_EQ(u.text(4096, 4), "text");
  u.post({.opcode = WrOpcode::local_inv, .imm_or_rkey = rkey ^ 1});
  u.silent();
  u.failed(3, WcStatus::mw_bind_err);
  EXPECT_EQ(u.state(), QpState::sqe);
}

}  // namespace
}  // namespace adverb::engine::talk
