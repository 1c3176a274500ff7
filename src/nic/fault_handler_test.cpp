// SPDX-License-Identifier: Apache-2.0
#include "nic/fault_handler.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

#include "base/guarded.hpp"

namespace adverb::nic {
namespace {

void* forbidden_page() {
  return mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

// Not inlined and not instrumented: a plain fault of the application's.
__attribute__((noinline, no_sanitize("address", "undefined"))) void touch(volatile char* p) {
  *p = 1;
}

class FaultHandlerDeathTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  static void set_handler(int signal, void (*handler)(int)) {
    struct sigaction action{};
    action.sa_handler = handler;
    sigaction(signal, &action, nullptr);
  }
};

TEST(FaultHandler, AGuardedCopyFails) {
  install_fault_handler();
  char byte = 1;
  void* page = forbidden_page();
  EXPECT_FALSE(guarded_copy(page, &byte, 1));
  EXPECT_FALSE(guarded_copy(&byte, page, 1));
  munmap(page, 4096);
  EXPECT_FALSE(guarded_copy(&byte, page, 1));
}

TEST(FaultHandler, AFileThatWasTruncatedIsAFault) {
  install_fault_handler();
  const int fd = memfd_create("truncated", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(fd, 4096), 0);
  void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  char byte = 1;
  EXPECT_TRUE(guarded_copy(page, &byte, 1));
  ASSERT_EQ(ftruncate(fd, 0), 0);
  EXPECT_FALSE(guarded_copy(page, &byte, 1));
  munmap(page, 4096);
  close(fd);
}

TEST_F(FaultHandlerDeathTest, OtherFaultsStillKill) {
  EXPECT_EXIT(
      {
        set_handler(SIGSEGV, SIG_DFL);
        install_fault_handler();
        touch(static_cast<volatile char*>(forbidden_page()));
      },
      testing::KilledBySignal(SIGSEGV), "");
}

TEST_F(FaultHandlerDeathTest, ASignalThatWasSentStillKills) {
  EXPECT_EXIT(
      {
        set_handler(SIGBUS, SIG_DFL);
        install_fault_handler();
        kill(getpid(), SIGBUS);
        pause();
      },
      testing::KilledBySignal(SIGBUS), "");
}

TEST_F(FaultHandlerDeathTest, TheHandlerThatWasThereBeforeIsCalled) {
  EXPECT_EXIT(
      {
        set_handler(SIGSEGV, [](int) { _exit(42); });
        install_fault_handler();
        char byte = 0;
        if (guarded_copy(forbidden_page(), &byte, 1)) _exit(1);  // not its business
        touch(static_cast<volatile char*>(forbidden_page()));
      },
      testing::ExitedWithCode(42), "");
}

}  // namespace
}  // namespace adverb::nic
