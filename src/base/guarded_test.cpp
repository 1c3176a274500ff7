// SPDX-License-Identifier: Apache-2.0
// What an application can see of the guarded routines: bytes, order of bytes, and no crash.
#include "base/guarded.hpp"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <thread>
#include <vector>

namespace adverb {
namespace {

// Two pages side by side, of which the second can be taken away.
class Pages {
 public:
  static constexpr std::size_t size = 4096;
  Pages() {
    base_ = static_cast<unsigned char*>(
        mmap(nullptr, 2 * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (base_ == MAP_FAILED) std::abort();
  }
  ~Pages() { munmap(base_, 2 * size); }
  Pages(const Pages&) = delete;
  unsigned char* boundary() { return base_ + size; }
  void protect(int protection) { mprotect(boundary(), size, protection); }

 private:
  unsigned char* base_;
};

unsigned char pattern(std::size_t i) { return static_cast<unsigned char>(i * 7 + 1); }

TEST(GuardedCopy, EverySizeAtEveryAlignmentAndNotOneByteMore) {
  constexpr unsigned char canary = 0xee;
  alignas(64) unsigned char from[512], to[512];
  for (std::size_t i = 0; i < sizeof from; ++i) from[i] = pattern(i);
  for (std::size_t n = 0; n <= 300; ++n)
    for (std::size_t s = 0; s < 17; ++s)
      for (std::size_t d = 16; d < 33; ++d) {
        std::memset(to, canary, sizeof to);
        ASSERT_TRUE(guarded_copy(to + d, from + s, n));
        ASSERT_EQ(std::memcmp(to + d, from + s, n), 0) << n << ' ' << s << ' ' << d;
        const auto untouched = [](unsigned char c) { return c == canary; };
        ASSERT_TRUE(std::all_of(to, to + d, untouched)) << n << ' ' << s << ' ' << d;
        ASSERT_TRUE(std::all_of(to + d + n, to + sizeof to, untouched))
            << n << ' ' << s << ' ' << d;
      }
}

TEST(GuardedCopy, LargeSizes) {
  std::vector<unsigned char> from(1 << 20), to(from.size() + 64);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = pattern(i ^ i >> 8);
  for (const std::size_t n : {4095, 4096, 4097, 65'536, 1'048'000}) {
    std::fill(to.begin(), to.end(), 0);
    ASSERT_TRUE(guarded_copy(to.data() + n % 13, from.data() + n % 7, n));
    EXPECT_EQ(std::memcmp(to.data() + n % 13, from.data() + n % 7, n), 0);
    EXPECT_EQ(to[n % 13 + n], 0);
  }
}

class GuardedFault : public testing::Test {
 protected:
  void SetUp() override {
    struct sigaction action{};
    action.sa_sigaction = handle;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigemptyset(&action.sa_mask);
    sigaction(SIGSEGV, &action, &old_segv_);
    sigaction(SIGBUS, &action, &old_bus_);
    recovered_ = 0;
  }
  void TearDown() override {
    sigaction(SIGSEGV, &old_segv_, nullptr);
    sigaction(SIGBUS, &old_bus_, nullptr);
  }
  static void handle(int signal, siginfo_t*, void* context) {
    if (guarded_recover(context)) {
      recovered_ = recovered_ + 1;
      return;
    }
    // Not ours: what was there before takes the second, identical fault.
    sigaction(signal, signal == SIGSEGV ? &old_segv_ : &old_bus_, nullptr);
  }
  static inline struct sigaction old_segv_{}, old_bus_{};
  static inline volatile sig_atomic_t recovered_ = 0;
};

// An access of 2, 4 or 8 bytes is one load: when it cannot be had whole, nothing is written.
std::size_t readable_prefix(std::size_t n, std::size_t before) {
  return n == 8 || n == 4 || n == 2 ? 0 : before;
}

TEST_F(GuardedFault, SourceThatEndsEarlyGivesTheBytesBeforeIt) {
  Pages source;
  for (std::size_t i = 0; i < Pages::size; ++i) source.boundary()[i - Pages::size] = pattern(i);
  source.protect(PROT_NONE);
  alignas(64) unsigned char to[320];
  for (std::size_t n = 1; n <= 200; ++n)
    for (const std::size_t d : {0, 1, 3, 4, 8, 13})
      for (std::size_t before = 0; before < n; before += n > 40 ? 3 : 1) {
        std::memset(to, 0xee, sizeof to);
        const unsigned char* from = source.boundary() - before;
        ASSERT_FALSE(guarded_copy(to + d, from, n)) << n << ' ' << before;
        const std::size_t copied = readable_prefix(n, before);
        ASSERT_EQ(std::memcmp(to + d, from, copied), 0) << n << ' ' << d << ' ' << before;
        for (std::size_t i = d + copied; i < sizeof to; ++i)
          ASSERT_EQ(to[i], 0xee) << n << ' ' << d << ' ' << before << ' ' << i;
      }
  EXPECT_GT(recovered_, 0);
}

TEST_F(GuardedFault, DestinationThatEndsEarlyHoldsTheBytesBeforeIt) {
  Pages destination;
  unsigned char from[256];
  for (std::size_t i = 0; i < sizeof from; ++i) from[i] = pattern(i);
  for (const int protection : {PROT_NONE, PROT_READ}) {
    for (std::size_t n = 1; n <= 200; ++n)
      for (std::size_t before = 0; before < n; before += n > 40 ? 3 : 1) {
        destination.protect(PROT_READ | PROT_WRITE);
        std::memset(destination.boundary() - 256, 0xee, 512);
        destination.protect(protection);
        unsigned char* to = destination.boundary() - before;
        ASSERT_FALSE(guarded_copy(to, from + n % 9, n)) << n << ' ' << before;
        ASSERT_EQ(std::memcmp(to, from + n % 9, before), 0) << n << ' ' << before;
        ASSERT_EQ(to[-1], 0xee);
      }
    destination.protect(PROT_READ | PROT_WRITE);
    EXPECT_EQ(*destination.boundary(), 0xee);
  }
}

TEST_F(GuardedFault, UnmappedMemory) {
  auto* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  munmap(page, 4096);
  unsigned char own[100] = {1, 2, 3};
  for (const std::size_t n : {1, 2, 3, 4, 8, 9, 16, 17, 64, 100}) {
    EXPECT_FALSE(guarded_copy(own, page, n));
    EXPECT_FALSE(guarded_copy(page, own, n));
  }
  EXPECT_EQ(own[0], 1);
  EXPECT_TRUE(guarded_copy(page, own, 0)) << "no byte, no fault";
}

TEST_F(GuardedFault, AddressesThatNoProcessHas) {
  unsigned char own[64];
  for (const std::uintptr_t wild : {std::uintptr_t{0}, std::uintptr_t{8}, ~std::uintptr_t{0} - 63,
                                    std::uintptr_t{1} << 63, std::uintptr_t{1} << 48})
    for (const std::size_t n : {1, 8, 64}) {
      EXPECT_FALSE(guarded_copy(own, reinterpret_cast<void*>(wild), n)) << std::hex << wild;
      EXPECT_FALSE(guarded_copy(reinterpret_cast<void*>(wild), own, n)) << std::hex << wild;
    }
}

TEST_F(GuardedFault, FileThatWasTruncated) {
  const int file = memfd_create("truncated", MFD_CLOEXEC);
  ASSERT_GE(file, 0);
  ASSERT_EQ(ftruncate(file, 8192), 0);
  auto* map =
      static_cast<unsigned char*>(mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
  ASSERT_NE(map, MAP_FAILED);
  std::memset(map, 0x55, 8192);
  ASSERT_EQ(ftruncate(file, 4096), 0);
  unsigned char own[128];
  std::memset(own, 0xee, sizeof own);
  EXPECT_FALSE(guarded_copy(own, map + 4096 - 50, 100));
  EXPECT_EQ(own[49], 0x55);
  EXPECT_EQ(own[50], 0xee);
  EXPECT_FALSE(guarded_copy(map + 4096 - 50, own, 100));
  std::uint64_t original = 9;
  EXPECT_FALSE(guarded_fetch_add(reinterpret_cast<std::uint64_t*>(map + 4096), 1, &original));
  EXPECT_EQ(original, 9u);
  munmap(map, 8192);
  close(file);
}

TEST_F(GuardedFault, AtomicsOnMemoryThatIsNotWritable) {
  Pages pages;
  auto* target = reinterpret_cast<std::uint64_t*>(pages.boundary());
  *target = 7;
  for (const int protection : {PROT_NONE, PROT_READ}) {
    pages.protect(protection);
    std::uint64_t original = 99;
    EXPECT_FALSE(guarded_fetch_add(target, 1, &original));
    EXPECT_FALSE(guarded_compare_swap(target, 7, 8, &original));
    EXPECT_FALSE(guarded_compare_swap(target, 6, 8, &original));
    EXPECT_EQ(original, 99u);
  }
  pages.protect(PROT_READ | PROT_WRITE);
  EXPECT_EQ(*target, 7u);
}

// A fault right behind a recovered one, and a good copy after it.
TEST_F(GuardedFault, WorksAgainAfterAFault) {
  Pages pages;
  unsigned char own[64];
  std::memset(own, 0x11, sizeof own);
  for (int i = 0; i < 3; ++i) {
    pages.protect(PROT_NONE);
    EXPECT_FALSE(guarded_copy(pages.boundary(), own, 64));
    pages.protect(PROT_READ | PROT_WRITE);
    EXPECT_TRUE(guarded_copy(pages.boundary(), own, 64));
    EXPECT_EQ(std::memcmp(pages.boundary(), own, 64), 0);
    std::memset(pages.boundary(), 0, 64);
  }
}

TEST_F(GuardedFault, FaultsOfOthersAreNotSwallowed) {
  ucontext_t context{};
#if defined(__x86_64__)
  const auto elsewhere = reinterpret_cast<greg_t>(&memfd_create);
  context.uc_mcontext.gregs[REG_RIP] = elsewhere;
  EXPECT_FALSE(guarded_recover(&context));
  EXPECT_EQ(context.uc_mcontext.gregs[REG_RIP], elsewhere);
#endif
  Pages pages;
  pages.protect(PROT_NONE);
  EXPECT_DEATH(*const_cast<volatile unsigned char*>(pages.boundary()) = 1, "");
}

TEST(GuardedAtomics, ReturnTheOriginalValue) {
  std::uint64_t target = ~std::uint64_t{0}, original = 0;
  EXPECT_TRUE(guarded_fetch_add(&target, 3, &original));
  EXPECT_EQ(original, ~std::uint64_t{0});
  EXPECT_EQ(target, 2u);
  EXPECT_TRUE(guarded_compare_swap(&target, 5, 9, &original));
  EXPECT_EQ(original, 2u);
  EXPECT_EQ(target, 2u);
  EXPECT_TRUE(guarded_compare_swap(&target, 2, 9, &original));
  EXPECT_EQ(original, 2u);
  EXPECT_EQ(target, 9u);
}

TEST(GuardedAtomics, MixWithTheApplicationsOwn) {
  constexpr int rounds = 100'000;
  alignas(8) std::uint64_t target = 0;
  std::thread application([&] {
    for (int i = 0; i < rounds; ++i) __atomic_fetch_add(&target, 1, __ATOMIC_RELAXED);
  });
  for (int i = 0; i < rounds; ++i) {
    std::uint64_t original, seen;
    ASSERT_TRUE(guarded_fetch_add(&target, 1, &original));
    do {
      seen = original;
      ASSERT_TRUE(guarded_compare_swap(&target, seen, seen + 1, &original));
    } while (original != seen);
  }
  application.join();
  EXPECT_EQ(target, 3u * rounds);
}

// ---- Placement: what a program sees that polls the last byte
// ---------------------------------------------

// Copies generation after generation (every byte of the message is the generation) until told to
// stop.
class Writer {
 public:
  Writer(unsigned char* to, std::size_t size, std::size_t skew)
      : thread_([=, this] {
          std::vector<unsigned char> message(size + 16);
          for (std::uint64_t g = 1; !stop_.load(std::memory_order_relaxed); ++g) {
            std::memset(message.data(), static_cast<int>(g & 0xff), message.size());
            started_.store(g, std::memory_order_release);
            if (!guarded_copy(to, message.data() + skew, size)) std::abort();
          }
        }) {}
  ~Writer() {
    stop_ = true;
    thread_.join();
  }
  // The newest generation of which a byte may have been stored.
  std::uint64_t started() const { return started_.load(std::memory_order_acquire); }

 private:
  std::atomic<bool> stop_{false};
  std::atomic<std::uint64_t> started_{0};
  std::thread thread_;
};

unsigned char load(const unsigned char* p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }

// Reads the last byte, then the others, and looks for bytes that are older than the last byte was.
struct Sample {
  bool older;  // the failure
  bool moved;  // the writer was at work meanwhile, so that something could be seen
};
Sample sample(const Writer& writer, const unsigned char* to, std::size_t size, bool ascending) {
  const std::uint64_t before = writer.started();
  const unsigned char last = load(to + size - 1);
  unsigned char seen[4096];
  for (std::size_t i = 0; i + 1 < size; ++i) {
    const std::size_t at = ascending ? i : size - 2 - i;
    seen[at] = load(to + at);
  }
  const std::uint64_t after = writer.started();
  // Generations are a byte: when many may have passed (we were scheduled out), the sample is void.
  if (after - before >= 100) return {false, false};
  const auto newest = static_cast<unsigned char>(after - last);
  const bool older = std::any_of(seen, seen + size - 1, [=](unsigned char byte) {
    return static_cast<unsigned char>(byte - last) > newest;
  });
  return {older, after != before};
}

TEST(GuardedPlacement, WhoSeesTheLastByteSeesAllOthers) {
  alignas(64) static unsigned char memory[4096 + 192];
  int all_moved = 0;
  for (const std::size_t size :
       {2, 3, 5, 8, 9, 12, 16, 17, 24, 31, 32, 48, 63, 64, 65, 100, 256, 1024, 4096})
    for (const std::size_t misaligned : {0, 1, 7, 8, 60})
      for (const std::size_t skew : {0, 5}) {
        unsigned char* const to = memory + 64 + misaligned;
        std::memset(memory, 0, sizeof memory);
        Writer writer(to, size, skew);
        // On one CPU the writer never moves while we look, so the total is bounded too.
        const int wanted = size > 100 ? 500 : 8'000;
        int moved = 0, older = 0;
        for (int i = 0; moved < wanted && i < 4 * wanted; ++i) {
          const Sample s = sample(writer, to, size, i & 1);
          older += s.older;
          moved += s.moved;
        }
        all_moved += moved;
        ASSERT_EQ(older, 0) << "size " << size << " misaligned " << misaligned << " skew " << skew;
      }
  RecordProperty("samples_with_movement", all_moved);
}

template <class Word>
void expect_no_tearing_of_stores() {
  alignas(8) static Word target;
  std::memset(&target, 0, sizeof target);
  for (const std::size_t skew : {0, 1, 3}) {
    Writer writer(reinterpret_cast<unsigned char*>(&target), sizeof target, skew);
    while (writer.started() < 3) sched_yield();
    for (int i = 0; i < 100'000; ++i) {
      const Word seen = __atomic_load_n(&target, __ATOMIC_ACQUIRE);
      unsigned char bytes[sizeof seen];
      std::memcpy(bytes, &seen, sizeof seen);
      for (const unsigned char b : bytes) ASSERT_EQ(b, bytes[0]) << sizeof seen << ' ' << skew;
    }
  }
}

TEST(GuardedPlacement, AnAlignedWordIsStoredAtOnce) {
  expect_no_tearing_of_stores<std::uint64_t>();
  expect_no_tearing_of_stores<std::uint32_t>();
  expect_no_tearing_of_stores<std::uint16_t>();
}

template <class Word>
void expect_no_tearing_of_loads() {
  alignas(8) static Word source;
  std::atomic<bool> stop{false};
  std::thread application([&] {
    for (Word g = 0; !stop; ++g)
      __atomic_store_n(&source,
                       static_cast<Word>((g & 0xff) * (static_cast<Word>(~Word{0}) / 0xff)),
                       __ATOMIC_RELEASE);
  });
  alignas(8) unsigned char to[sizeof(Word) + 8];
  for (int i = 0; i < 100'000; ++i) {
    unsigned char* bytes = to + i % 8;
    EXPECT_TRUE(guarded_copy(bytes, &source, sizeof source));
    for (std::size_t b = 0; b < sizeof source; ++b) EXPECT_EQ(bytes[b], bytes[0]) << sizeof source;
  }
  stop = true;
  application.join();
}

TEST(GuardedPlacement, AnAlignedWordIsLoadedAtOnce) {
  expect_no_tearing_of_loads<std::uint64_t>();
  expect_no_tearing_of_loads<std::uint32_t>();
  expect_no_tearing_of_loads<std::uint16_t>();
}

}  // namespace
}  // namespace adverb
