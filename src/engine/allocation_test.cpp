// SPDX-License-Identifier: Apache-2.0
// Nothing on the data path allocates: every call of the allocator in this process is counted while
// operations of every kind run, with loss, RNR and retransmission, and while raw packets come in.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>

#include "engine/network.hpp"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ADVERB_SANITIZER 1
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*)(const volatile void*,
                                                                  std::size_t),
                                                         void (*)(const volatile void*));
#else
#define ADVERB_SANITIZER 0
#endif

namespace {
std::atomic<bool> counting{false};
std::atomic<std::uint64_t> allocations{0};
void count() {
  if (counting.load(std::memory_order_relaxed)) allocations.fetch_add(1, std::memory_order_relaxed);
}
}  // namespace

#if !ADVERB_SANITIZER
// glibc takes these in place of its own; operator new ends here too.
extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
__attribute__((visibility("default"))) void* malloc(std::size_t n) {
  count();
  return __libc_malloc(n);
}
__attribute__((visibility("default"))) void* calloc(std::size_t n, std::size_t m) {
  count();
  return __libc_calloc(n, m);
}
__attribute__((visibility("default"))) void* realloc(void* p, std::size_t n) {
  count();
  return __libc_realloc(p, n);
}
}
#endif

namespace adverb::engine::network {
namespace {

class Allocation : public testing::Test {
 protected:
  static void SetUpTestSuite() {
#if ADVERB_SANITIZER
    __sanitizer_install_malloc_and_free_hooks([](const volatile void*, std::size_t) { count(); },
                                              [](const volatile void*){});
#endif
  }
};

TEST_F(Allocation, TheCounterSeesAllocations) {
  counting = true;
  auto p = std::make_unique<int>(1);
  void* volatile q = std::malloc(10);
  std::free(q);
  counting = false;
  EXPECT_GE(allocations.exchange(0), 2u);
  EXPECT_EQ(*p, 1);
}

TEST_F(Allocation, NoneOnTheDataPath) {
  constexpr std::uint64_t operations = ADVERB_SANITIZER ? 20'000 : 1'000'000;
  Network n({.seed = 5,
             .hosts = 2,
             .qps = 4,
             .loss = 10,
             .duplicate = 10,
             .reorder = 10,
             .recv_depth = 2,
             .credits = false,
             .receive_lag = 600,
             .max_length = 1500});
  ASSERT_TRUE(n.run(10));  // gtest and the streams have what they need
  allocations = 0;
  counting = true;
  bool done = n.run(operations / 8);
  counting = false;
  ASSERT_TRUE(done);
  EXPECT_EQ(allocations.load(), 0u);
  EXPECT_GT(n.sum(&Counters::retransmitted_pkts), 100u);
  EXPECT_GT(n.sum(&Counters::sent_rnr_naks), 100u);
  EXPECT_GT(n.sum(&Counters::local_ack_timeout_err), 10u);
}

// A frame of raw packets, from its rule by its hash into a work queue.
TEST_F(Allocation, NoneForFramesThatAreSpread) {
  Engine engine({.max_qp = 16, .max_mr = 16});
  CompletionQueue* cq = engine.create_cq(16, nullptr);
  ReceiveWorkQueue* wq = engine.create_wq({.max_wr = 4, .max_sge = 1, .pd = 1, .cq = cq});
  ASSERT_EQ(engine.modify_wq(*wq, {}, WqState::ready), nullptr);
  FlowRule everything;
  everything.qp = engine.create_qp(
      {.type = QpType::raw_packet,
       .pd = 1,
       .scaling = {.table = engine.create_table({wq, wq}), .hash = RxHash({}, rx_src_ipv4)}});
  engine.flows().add(everything);
  std::array<std::byte, 64> memory{};
  MemoryRegion mr;
  mr.base = memory.data();
  mr.iova = reinterpret_cast<std::uintptr_t>(memory.data());
  mr.length = memory.size();
  mr.pd = 1;
  mr.access = access_local_write;
  const Sge sge{mr.iova, 64, engine.keys().add(mr)->key};
  const std::uint8_t bytes[64]{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45};
  RxFrame frame;
  frame.protocol = Protocol::ethernet;
  frame.packet.payload = bytes;
  Cqe c;
  unsigned received = 0;
  allocations = 0;
  counting = true;
  for (unsigned i = 0; i < 100; ++i) {
    wq->queue.post(i, {&sge, 1});
    engine.receive(Instant{}, frame);
    received += cq->poll(1, &c);
    engine.receive(Instant{}, frame);  // no receive: dropped
  }
  counting = false;
  EXPECT_EQ(allocations.load(), 0u);
  EXPECT_EQ(received, 100u);
  EXPECT_EQ(engine.counters().out_of_buffer, 100u);
}

}  // namespace
}  // namespace adverb::engine::network
