// SPDX-License-Identifier: Apache-2.0
// Memory that the application took away before deregistration: an error of the operation, never a
// crash.  The test unmaps real pages and recovers as the product does (base/guarded.hpp).
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <csignal>

#include "base/guarded.hpp"
#include "engine/talk.hpp"

namespace adverb::engine::talk {
namespace {

constexpr Remote theirs{0xabc000, 0x1234};

class Fault : public testing::Test {
 protected:
  static constexpr std::size_t bytes = 8192;
  void SetUp() override {
    struct sigaction action{};
    action.sa_sigaction = [](int signal, siginfo_t*, void* context) {
      if (!guarded_recover(context)) sigaction(signal, &old_segv_, nullptr);
    };
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigemptyset(&action.sa_mask);
    sigaction(SIGSEGV, &action, &old_segv_);
    sigaction(SIGBUS, &action, &old_bus_);
    page_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(page_, MAP_FAILED);
  }
  void TearDown() override {
    sigaction(SIGSEGV, &old_segv_, nullptr);
    sigaction(SIGBUS, &old_bus_, nullptr);
    munmap(page_, bytes);
  }
  // A region of which the second page is gone.
  Remote region(Talk& t) {
    mr_ = t.add_region_at(page_, bytes, 0xf | access_flush_global);
    mprotect(static_cast<char*>(page_) + bytes / 2, bytes / 2, PROT_NONE);
    return {mr_->iova, mr_->key};
  }
  void* page_{};
  MemoryRegion* mr_{};
  static inline struct sigaction old_segv_{}, old_bus_{};
};

//= IBTA 10.7 / 9.9.2: the send list cannot be read: local protection error
TEST_F(Fault, GatherOfASend) {
  for (QpType type : {QpType::rc, QpType::uc, QpType::ud}) {
    Talk t({.type = type});
    Remote r = region(t);
    t.post({.list = {{r.va + bytes / 2 - 10, 20, r.rkey}},
            .remote_qpn = Talk::their_qpn,
            .remote_qkey = 1});
    t.silent();
    t.failed(1, WcStatus::loc_prot_err);
    EXPECT_EQ(t.counters().memory_faults, 1u);
  }
}

TEST_F(Fault, GatherOfAnAtomicWrite) {
  Talk t;
  Remote r = region(t);
  t.post({.opcode = WrOpcode::atomic_write,
          .remote = theirs,
          .list = {{r.va + bytes / 2, 8, r.rkey}}});
  t.failed(1, WcStatus::loc_prot_err);
}

//= IBTA 9.9.3: the target of a WRITE is gone: remote access error
TEST_F(Fault, TargetOfAWrite) {
  Talk t;
  Remote r = region(t);
  t.in(write_only(0, {r.va + bytes / 2 - 2, r.rkey}, "abcd").ack_req());
  t.out(nak(0, NakCode::remote_access_error, 0));
  EXPECT_EQ(t.events(), Words{"qp QP_ACCESS_ERR"});
  EXPECT_EQ(t.counters().memory_faults, 1u);
}

TEST_F(Fault, TargetOfAnUnreliableWrite) {
  Talk t({.type = QpType::uc});
  Remote r = region(t);
  t.in(write_only(0, {r.va + bytes / 2 - 2, r.rkey}, "abcd"));
  t.silent();
  EXPECT_EQ(t.state(), QpState::rts);
  EXPECT_EQ(t.counters().memory_faults, 1u);
}

TEST_F(Fault, TargetOfAtomics) {
  for (int i = 0; i < 3; ++i) {
    Talk t;
    Remote r = region(t);
    r.va += bytes / 2;
    t.in(i == 0   ? fetch_add(0, r, 1)
         : i == 1 ? compare_swap(0, r, 0, 1)
                  : atomic_write(0, r, "12345678"));
    t.out(nak(0, NakCode::remote_access_error, 0));
    t.silent();
    EXPECT_EQ(t.state(), QpState::error);
  }
}

// What comes before the lost page is sent; then the NAK, with the PSN that cannot be.
TEST_F(Fault, SourceOfARead) {
  Talk t;
  Remote r = region(t);
  t.in(read_request(0, {r.va + bytes / 2 - 2048, r.rkey}, 4000).ack_req());
  t.in(read_request(4, {r.va, r.rkey}, 4).ack_req());
  t.out(read_response_first(0, 1, std::string(1024, 0)));
  t.out(read_response_middle(1, std::string(1024, 0)));
  t.out(nak(2, NakCode::remote_access_error, 2));
  t.silent();
  EXPECT_EQ(t.state(), QpState::error);
  EXPECT_EQ(t.counters().memory_faults, 1u);
}

// A NAK that was owed already gives way to the one that comes first in PSN order.
TEST_F(Fault, SourceOfAReadBeforeAnotherError) {
  Talk t;
  Remote r = region(t);
  t.in(read_request(0, {r.va + bytes / 2, r.rkey}, 10).ack_req());
  t.in(write_only(1, {r.va, 0xdead00}, "x").ack_req());
  EXPECT_EQ(t.state(), QpState::error);
  t.out(nak(0, NakCode::remote_access_error, 1));
  t.silent();
}

//= IBTA 9.9.3: the receive list is gone: remote operational error, local protection error
TEST_F(Fault, ReceiveList) {
  Talk t;
  Remote r = region(t);
  auto wr = t.post_recv({{r.va + bytes / 2 - 1, 10, r.rkey}});
  t.in(send_only(0, "abc").ack_req());
  t.out(nak(0, NakCode::remote_operational_error, 0));
  t.receive_failed(wr, WcStatus::loc_prot_err);
  EXPECT_EQ(t.counters().memory_faults, 1u);
}

TEST_F(Fault, ReceiveListOfADatagram) {
  Talk t({.type = QpType::ud});
  Remote r = region(t);
  auto wr = t.post_recv({{r.va + bytes / 2 - 42, 60, r.rkey}});
  t.in(send_only(0, "abc"));
  t.receive_failed(wr, WcStatus::loc_prot_err);
  EXPECT_EQ(t.counters().memory_faults, 1u);
}

TEST_F(Fault, ListOfAReadAndOfAnAtomic) {
  for (bool read : {true, false}) {
    Talk t;
    Remote r = region(t);
    t.post({.opcode = read ? WrOpcode::rdma_read : WrOpcode::atomic_fetch_and_add,
            .remote = theirs,
            .list = {{r.va + bytes / 2, 8, r.rkey}}});
    t.discard();
    t.in(read ? read_response_only(100, 1, "12345678") : atomic_acknowledge(100, 1, 5));
    t.failed(1, WcStatus::loc_prot_err);
    EXPECT_EQ(t.state(), QpState::error);
    t.idle();
  }
}

}  // namespace
}  // namespace adverb::engine::talk
