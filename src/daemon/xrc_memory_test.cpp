// SPDX-License-Identifier: Apache-2.0
// The memory of a shared XRC domain: who holds what, and what is left of those who are killed.
#include "daemon/xrc_memory.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

namespace adverb::daemon {
namespace {

constexpr Qpn number = Qpn::of(5, 7);

XrcMemory make() {
  auto memory = XrcMemory::create();
  if (!memory) std::abort();
  return std::move(*memory);
}
// As another process has it.
XrcMemory map_again(const XrcMemory& memory) {
  auto other = XrcMemory::map(Descriptor(::fcntl(memory.descriptor(), F_DUPFD_CLOEXEC, 3)));
  if (!other) std::abort();
  return std::move(*other);
}
// Runs f in a process that is then killed.
void in_killed_process(const std::function<void()>& f) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    f();
    ::raise(SIGKILL);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

TEST(XrcMemory, TargetsAreFoundByNumberInEveryProcess) {
  XrcMemory a = make(), b = map_again(a);
  EXPECT_EQ(b.find(number), nullptr);
  engine::SharedTarget* made = a.create(number, 5);
  ASSERT_TRUE(made);
  made->copies[0].progress.msn = 42;
  engine::SharedTarget* found = b.find(number);
  ASSERT_TRUE(found);
  EXPECT_NE(found, made);
  EXPECT_EQ(found->copies[0].progress.msn, 42u);
  EXPECT_EQ(b.create(number, 6), nullptr) << "the number is taken";
  EXPECT_TRUE(b.create(Qpn::of(6, 1), 6));
}

TEST(XrcMemory, TheLastHolderTakesItOut) {
  XrcMemory m = make();
  engine::SharedTarget* t = m.create(number, 5);
  ASSERT_TRUE(t);
  EXPECT_TRUE(m.hold(*t, 64));  // another word of bits
  EXPECT_TRUE(m.hold(*t, 6));
  EXPECT_FALSE(m.release(*t, 5));
  EXPECT_TRUE(m.has_number_of(5)) << "whoever made it";
  EXPECT_FALSE(m.release(*t, 64));
  EXPECT_EQ(m.find(number), t);
  const std::uint32_t news = m.news();
  EXPECT_TRUE(m.release(*t, 6));
  EXPECT_EQ(m.find(number), nullptr);
  EXPECT_NE(m.news(), news);
  EXPECT_FALSE(m.has_number_of(5));
  EXPECT_FALSE(m.hold(*t, 6)) << "it is gone";
}

TEST(XrcMemory, RecordsAreUsedAgainAndBeginAnew) {
  XrcMemory m = make();
  engine::SharedTarget* t = m.create(number, 5);
  ASSERT_TRUE(t);
  t->copies[0].progress.expected = t->copies[1].progress.expected = Psn(99);
  ASSERT_TRUE(m.release(*t, 5));
  engine::SharedTarget* again = m.create(Qpn::of(5, 8), 5);
  EXPECT_EQ(again, t);
  EXPECT_EQ(again->copies[0].progress.expected, Psn(0));
  EXPECT_EQ(again->copies[1].progress.expected, Psn(0));
}

TEST(XrcMemory, TheDeadHoldNothing) {
  XrcMemory m = make();
  in_killed_process([&] {
    XrcMemory theirs = map_again(m);
    if (!theirs.create(number, 5) || !theirs.create(Qpn::of(5, 8), 5)) ::_exit(1);
  });
  engine::SharedTarget* t = m.find(number);
  ASSERT_TRUE(t);
  EXPECT_TRUE(m.hold(*t, 6));
  EXPECT_TRUE(m.forget_slot(5));
  EXPECT_EQ(m.find(number), t) << "6 holds it";
  EXPECT_EQ(m.find(Qpn::of(5, 8)), nullptr) << "nobody does";
}

// Whoever dies with the lock of a target leaves it to the next one.
TEST(XrcMemory, LocksOfTheDeadAreFree) {
  XrcMemory m = make();
  engine::SharedTarget* t = m.create(number, 5);
  ASSERT_TRUE(t);
  for (int i = 0; i < 3; ++i) {
    in_killed_process([&] {
      XrcMemory theirs = map_again(m);
      if (!theirs.lock(*theirs.find(number))) ::_exit(1);
      ::raise(SIGKILL);  // while the memory is still there
    });
    ASSERT_TRUE(m.lock(*t));
    m.unlock(*t);
  }
}

TEST(XrcMemory, WhoWaitsForALockGivesUpSoon) {
  XrcMemory m = make();
  engine::SharedTarget* t = m.create(number, 5);
  ASSERT_TRUE(t);
  ASSERT_TRUE(m.lock(*t));
  const pid_t pid = ::fork();
  if (pid == 0) {
    XrcMemory theirs = map_again(m);
    ::alarm(10);
    ::_exit(theirs.lock(*theirs.find(number)) ? 1 : 0);
  }
  int status = -1;
  ::waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
  m.unlock(*t);
}

TEST(XrcMemory, WhatIsNoDomainIsRefused) {
  EXPECT_FALSE(XrcMemory::map(Descriptor(::memfd_create("x", MFD_CLOEXEC))));
  EXPECT_FALSE(XrcMemory::map(Descriptor(::open("/dev/null", O_RDWR | O_CLOEXEC))));
  Descriptor zero(::memfd_create("x", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(zero.get(), sizeof(XrcSegment)), 0);
  ::fcntl(zero.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
  EXPECT_FALSE(XrcMemory::map(std::move(zero))) << "it has no header";
}

}  // namespace
}  // namespace adverb::daemon
