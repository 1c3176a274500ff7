// SPDX-License-Identifier: Apache-2.0
// D10: nothing on the data path allocates.  malloc is counted while a million operations go through
// a device.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>

#include "nic/testing.hpp"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define COUNT_ALLOCATIONS 0
#else
#define COUNT_ALLOCATIONS 1
#endif

namespace {
std::atomic<bool> counting{false};
std::atomic<unsigned long> allocations{0};
[[maybe_unused]] void count() {
  if (counting.load(std::memory_order_relaxed)) allocations.fetch_add(1, std::memory_order_relaxed);
}
}  // namespace

#if COUNT_ALLOCATIONS
extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);
__attribute__((visibility("default"))) void* malloc(std::size_t n) {
  return count(), __libc_malloc(n);
}
__attribute__((visibility("default"))) void* calloc(std::size_t n, std::size_t m) {
  return count(), __libc_calloc(n, m);
}
__attribute__((visibility("default"))) void* realloc(void* p, std::size_t n) {
  return count(), __libc_realloc(p, n);
}
__attribute__((visibility("default"))) void* aligned_alloc(std::size_t a, std::size_t n) {
  return count(), __libc_memalign(a, n);
}
__attribute__((visibility("default"))) int posix_memalign(void** p, std::size_t a, std::size_t n) {
  count();
  *p = __libc_memalign(a, n);
  return *p ? 0 : ENOMEM;
}
}
#endif

namespace adverb::nic {
namespace {

using engine::Cqe;
using engine::WrOpcode;
using testing::Endpoint;

TEST(Allocation, TheCounterWorks) {
  if (!COUNT_ALLOCATIONS) GTEST_SKIP() << "the sanitizer has malloc";
  counting = true;
  const unsigned long before = allocations;
  delete new std::string(1000, 'x');
  counting = false;
  EXPECT_GT(allocations, before);
}

TEST(Allocation, NoneInAMillionOperations) {
  if (!COUNT_ALLOCATIONS) GTEST_SKIP() << "the sanitizer has malloc";
  auto device = testing::open_loopback();
  ASSERT_TRUE(device) << device.error().message;
  Endpoint a(*device), b(*device);
  ASSERT_TRUE(a.connect(b.address()));
  ASSERT_TRUE(b.connect(a.address()));
  constexpr unsigned long operations = 1'000'000;
  constexpr WrOpcode kinds[] = {WrOpcode::rdma_write, WrOpcode::rdma_read, WrOpcode::rdma_write,
                                WrOpcode::send};
  const auto run = [&](unsigned long count) {
    unsigned long posted = 0, done = 0;
    Cqe cqe[32];
    while (done < count) {
      while (posted < count) {
        const WrOpcode kind = kinds[posted % 4];
        if (kind == WrOpcode::send && !b.post_recv(posted, 4096, 64)) break;
        if (!a.post(kind, posted, 0, 64)) break;
        ++posted;
      }
      const unsigned n = a.poll(32, cqe);
      for (unsigned i = 0; i < n; ++i) ASSERT_EQ(cqe[i].status, engine::WcStatus::success);
      done += n;
      b.poll(32, cqe);
    }
  };
  run(10'000);
  allocations = 0;
  counting = true;
  run(operations);
  counting = false;
  EXPECT_EQ(allocations, 0u);
}

}  // namespace
}  // namespace adverb::nic
