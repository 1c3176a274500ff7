// SPDX-License-Identifier: Apache-2.0
// Devices on the loopback interface, with the real adverbd: data, threads, events, fork, death of a
// peer.
#include <gmock/gmock.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <numeric>
#include <thread>

#include "daemon/client.hpp"
#include "nic/testing.hpp"

namespace adverb::nic {
namespace {

using engine::Cqe;
using engine::WcStatus;
using engine::WrOpcode;
using testing::Endpoint;
using testing::Peer;
using testing::PeerReport;
using Clock = std::chrono::steady_clock;

class DeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened = testing::open_loopback();
    ASSERT_TRUE(opened) << opened.error().message;
    device = *opened;
  }
  std::shared_ptr<Device> device;
};

void connect_to_each_other(Endpoint& a, Endpoint& b) {
  ASSERT_TRUE(a.connect(b.address()));
  ASSERT_TRUE(b.connect(a.address()));
}

void fill(std::vector<std::uint8_t>& v, unsigned seed) {
  for (std::size_t i = 0; i < v.size(); ++i)
    v[i] = static_cast<std::uint8_t>(i * 31 + i / 251 + seed);
}

TEST_F(DeviceTest, OneDevicePerProcessAndName) {
  auto again = testing::open_loopback();
  ASSERT_TRUE(again);
  EXPECT_EQ(again->get(), device.get());
}

TEST_F(DeviceTest, OpenedAgainAfterTheLastClose) {
  for (int i = 0; i < 3; ++i) {
    device.reset();
    auto again = testing::open_loopback();
    ASSERT_TRUE(again) << again.error().message;
    device = *again;
  }
  Endpoint a(device), b(device);
  connect_to_each_other(a, b);
  ASSERT_TRUE(a.post(WrOpcode::rdma_write, 1, 0, 8));
  EXPECT_EQ(a.completion().status, WcStatus::success);
}

class DeviceData : public DeviceTest, public ::testing::WithParamInterface<std::uint32_t> {};

TEST_P(DeviceData, WriteReadAndSendCarryTheBytes) {
  Endpoint a(device), b(device);
  connect_to_each_other(a, b);
  const std::uint32_t n = GetParam();
  fill(a.memory, 1);
  ASSERT_TRUE(a.post(WrOpcode::rdma_write, 1, 0, n));
  EXPECT_EQ(a.completion().status, WcStatus::success);
  EXPECT_TRUE(std::equal(a.memory.begin(), a.memory.begin() + n, b.memory.begin()));
  EXPECT_TRUE(std::all_of(b.memory.begin() + n, b.memory.end(), [](auto x) { return x == 0; }));

  fill(b.memory, 2);
  ASSERT_TRUE(a.post(WrOpcode::rdma_read, 2, 0, n));
  EXPECT_EQ(a.completion().status, WcStatus::success);
  EXPECT_TRUE(std::equal(a.memory.begin(), a.memory.begin() + n, b.memory.begin()));

  fill(a.memory, 3);
  ASSERT_TRUE(b.post_recv(7, 0, static_cast<std::uint32_t>(b.memory.size())));
  ASSERT_TRUE(a.post(WrOpcode::send, 3, 0, n));
  const Cqe received = b.completion();
  EXPECT_EQ(received.status, WcStatus::success);
  EXPECT_EQ(received.wr_id, 7u);
  EXPECT_EQ(received.byte_len, n);
  EXPECT_TRUE(std::equal(a.memory.begin(), a.memory.begin() + n, b.memory.begin()));
  EXPECT_EQ(a.completion().wr_id, 3u);
}

INSTANTIATE_TEST_SUITE_P(Sizes, DeviceData,
                         ::testing::Values(0u, 1u, 8u, 4095u, 4096u, 4097u, 65536u, 1000003u));

TEST_F(DeviceTest, AnotherProcessThatNeverPollsIsWrittenTo) {
  Endpoint a(device);
  Peer peer(a);
  ASSERT_TRUE(a.connect(peer.address()));
  std::vector<double> us;
  for (int i = 0; i < 500; ++i) {
    const auto start = Clock::now();
    ASSERT_TRUE(a.post(WrOpcode::rdma_write, i, 0, 8));
    ASSERT_EQ(a.completion().status, WcStatus::success);
    us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
  }
  std::nth_element(us.begin(), us.begin() + 250, us.end());
  std::printf("[ measured ] WRITE to a peer that never polls: median %.1f us\n", us[250]);
  EXPECT_EQ(device->engine_counters().retry_exceeded_err, 0u);
  const PeerReport r = peer.report();
  EXPECT_GE(r.background_bursts, 1u);
  EXPECT_EQ(r.caller_bursts, 0u);
}

TEST_F(DeviceTest, WhatOneWritesTheOtherReads) {
  Endpoint a(device);
  Peer peer(a);
  ASSERT_TRUE(a.connect(peer.address()));
  fill(a.memory, 9);
  const std::vector<std::uint8_t> sent = a.memory;
  const auto n = static_cast<std::uint32_t>(a.memory.size());
  ASSERT_TRUE(a.post(WrOpcode::rdma_write, 1, 0, n));
  ASSERT_EQ(a.completion().status, WcStatus::success);
  std::fill(a.memory.begin(), a.memory.end(), 0);
  ASSERT_TRUE(a.post(WrOpcode::rdma_read, 2, 0, n));
  ASSERT_EQ(a.completion().status, WcStatus::success);
  EXPECT_EQ(a.memory, sent);
}

// D3: while the application polls, the background thread is not woken.
TEST_F(DeviceTest, APollingPeerIsLeftAlone) {
  Endpoint a(device);
  Peer peer(a);
  ASSERT_TRUE(a.connect(peer.address()));
  const auto echo = [&](int n) {
    for (int i = 0; i < n; ++i) {
      ASSERT_TRUE(a.post_recv(i, 0, 64));
      ASSERT_TRUE(a.post(WrOpcode::send, i, 64, 8));
      for (int entries = 0; entries < 2; ++entries)
        ASSERT_EQ(a.completion().status, WcStatus::success);
    }
  };
  peer.start_polling();
  echo(500);
  const PeerReport before = peer.report();
  const auto start = Clock::now();
  constexpr unsigned messages = 5000;
  echo(messages);
  const double us = std::chrono::duration<double, std::micro>(Clock::now() - start).count();
  const PeerReport after = peer.report();
  std::printf("[ measured ] SEND half round trip %.2f us; wake-ups %lu, ticks %lu in %u messages\n",
              us / messages / 2, after.background_wakeups - before.background_wakeups,
              after.background_ticks - before.background_ticks, messages);
  // Whatever else runs here may take a poller's CPU; then the thread rightly takes over for a
  // while.
  EXPECT_LT(after.background_wakeups - before.background_wakeups, messages / 2);
  EXPECT_GE(after.caller_bursts - before.caller_bursts, messages / 2);
}

TEST_F(DeviceTest, APeerThatHasJustStoppedPollingStillAnswers) {
  Endpoint a(device);
  Peer peer(a);
  ASSERT_TRUE(a.connect(peer.address()));
  std::vector<double> us;
  for (int i = 0; i < 50; ++i) {
    peer.start_polling();
    for (int k = 0; k < 50; ++k) {
      ASSERT_TRUE(a.post(WrOpcode::rdma_write, i, 0, 8));
      ASSERT_EQ(a.completion().status, WcStatus::success);
    }
    peer.stop_polling();
    const auto start = Clock::now();
    ASSERT_TRUE(a.post(WrOpcode::rdma_write, i, 0, 8));
    ASSERT_EQ(a.completion().status, WcStatus::success);
    us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
  }
  std::sort(us.begin(), us.end());
  std::printf(
      "[ measured ] WRITE to a peer that just stopped polling: median %.0f us, worst %.0f us\n",
      us[25], us.back());
  EXPECT_EQ(device->engine_counters().retry_exceeded_err, 0u);
}

// D3: an idle process with a QP in RTS does nothing.
TEST_F(DeviceTest, AnIdlePeerSleeps) {
  Endpoint a(device);
  Peer peer(a);
  ASSERT_TRUE(a.connect(peer.address()));
  ASSERT_TRUE(a.post(WrOpcode::rdma_write, 0, 0, 8));
  ASSERT_EQ(a.completion().status, WcStatus::success);
  const PeerReport before = peer.report();
  // The passage of time is what is tested here.
  std::this_thread::sleep_for(std::chrono::seconds(2));
  const PeerReport after = peer.report();
  std::printf("[ measured ] idle: %.3f %% of a core, %lu wake-ups in 2 s\n",
              static_cast<double>(after.cpu_ns - before.cpu_ns) / 2e9 * 100,
              after.background_wakeups - before.background_wakeups);
  EXPECT_LE(after.background_wakeups - before.background_wakeups, 20u);
  EXPECT_EQ(after.background_ticks, before.background_ticks);
}

TEST_F(DeviceTest, AKilledPeerIsReportedAndClosingDoesNotHang) {
  Endpoint a(device);
  {
    Peer peer(a);
    ASSERT_TRUE(a.connect(peer.address(), 16, 1));
    ASSERT_TRUE(a.post(WrOpcode::rdma_write, 1, 0, 8));
    ASSERT_EQ(a.completion().status, WcStatus::success);
    peer.kill();
  }
  ASSERT_TRUE(a.post(WrOpcode::rdma_write, 2, 0, 8));
  const Cqe cqe = a.completion();
  EXPECT_EQ(cqe.wr_id, 2u);
  EXPECT_EQ(cqe.status, WcStatus::retry_exc_err);
}

TEST_F(DeviceTest, UnansweredWorkDoesNotHinderDestruction) {
  Endpoint a(device);
  Peer peer(a);
  ASSERT_TRUE(a.connect(peer.address()));
  peer.kill();
  for (int i = 0; i < 32; ++i) ASSERT_TRUE(a.post(WrOpcode::rdma_write, i, 0, 1 << 20));
}

// The process that serves this namespace's slots; 0 when none does.
pid_t daemon_pid() {
  const auto status = daemon::daemon_status();
  const std::string mark = "\"pid\":";
  return status ? std::atoi(status->c_str() + status->find(mark) + mark.size()) : 0;
}

bool serves_us(pid_t not_this_one) {
  const auto status = daemon::daemon_status();
  if (!status || daemon_pid() == not_this_one) return false;
  const auto us = status->find("\"pid\":" + std::to_string(getpid()) + ",");
  return us != status->npos && status->find("\"connected\":true", us) < status->find('}', us);
}

TEST_F(DeviceTest, AKilledDaemonDisturbsNoConnectionAndIsReplaced) {
  if (!testing::in_own_namespace()) GTEST_SKIP() << "adverbd may serve others";
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "starting a daemon confuses the sanitizer (testing_peer_test.cpp)";
#endif
  Endpoint a(device);
  Peer peer(a);
  ASSERT_TRUE(a.connect(peer.address()));
  const pid_t first = daemon_pid();
  ASSERT_GT(first, 0);
  ASSERT_EQ(kill(first, SIGKILL), 0);
  const auto end = Clock::now() + std::chrono::seconds(20);
  // Traffic goes on until the background thread has found or started the next one.
  do {
    ASSERT_TRUE(a.post(WrOpcode::rdma_write, 1, 0, 4096));
    ASSERT_EQ(a.completion().status, WcStatus::success);
  } while (!serves_us(first) && Clock::now() < end);
  EXPECT_TRUE(serves_us(first));
  Endpoint b(device);
  Peer another(b);
  ASSERT_TRUE(b.connect(another.address()));
  ASSERT_TRUE(b.post(WrOpcode::rdma_write, 2, 0, 4096));
  EXPECT_EQ(b.completion().status, WcStatus::success);
}

// --- events

class CountingSink : public EventSink {
 public:
  CountingSink() : fd(eventfd(0, EFD_CLOEXEC)) {}
  ~CountingSink() override { close(fd); }
  void on_event(const engine::EventRecord& e) override {
    if (forbidden.load() == reinterpret_cast<std::uintptr_t>(e.user)) wrong = true;
    if (e.kind != engine::EventRecord::completion) return;
    const std::uint64_t one = 1;
    EXPECT_EQ(write(fd, &one, sizeof one), ssize_t{sizeof one});
  }
  void on_port_event(engine::AsyncEvent) override {}
  int fd;
  std::atomic<std::uintptr_t> forbidden{0};
  std::atomic<bool> wrong{false};
};

TEST_F(DeviceTest, ASleepingReceiverIsWoken) {
  CountingSink sink;
  device->attach(&sink);
  {
    Endpoint a(device), b(device);
    connect_to_each_other(a, b);
    for (int i = 0; i < 200; ++i) {
      ASSERT_TRUE(b.post_recv(i, 0, 64));
      device->arm(*b.cq, false);
      Cqe cqe;
      ASSERT_EQ(b.poll(1, &cqe), 0u);
      ASSERT_TRUE(a.post(WrOpcode::send, i, 0, 8));
      std::uint64_t events;
      ASSERT_EQ(read(sink.fd, &events, sizeof events), ssize_t{sizeof events});  // ctest bounds it
      EXPECT_EQ(events, 1u);
      EXPECT_EQ(b.completion().wr_id, static_cast<std::uint64_t>(i));
      EXPECT_EQ(a.completion().status, WcStatus::success);
    }
  }
  device->detach(&sink);
}

TEST_F(DeviceTest, NoEventAfterDestroy) {
  CountingSink sink;
  device->attach(&sink);
  for (int i = 0; i < 100; ++i) {
    auto a = std::make_unique<Endpoint>(device, 4096);
    auto b = std::make_unique<Endpoint>(device, 4096);
    connect_to_each_other(*a, *b);
    ASSERT_TRUE(b->post_recv(0, 0, 64));
    device->arm(*b->cq, false);
    ASSERT_TRUE(a->post(WrOpcode::send, i, 0, 8));  // the event may come at any time now
    const auto gone = reinterpret_cast<std::uintptr_t>(b.get());
    b.reset();
    sink.forbidden = gone;
    a.reset();
    EXPECT_FALSE(sink.wrong);
    sink.forbidden = 0;
  }
  device->detach(&sink);
}

// --- threads

TEST_F(DeviceTest, FourThreadsOnOneQueuePair) {
  Endpoint a(device, 1 << 16), b(device, 1 << 16);
  connect_to_each_other(a, b);
  constexpr int threads = 4, each = 3000;
  std::atomic<int> completed{0};
  std::vector<std::atomic<int>> seen(threads * each);
  std::vector<std::thread> pool;
  for (int t = 0; t < threads; ++t)
    pool.emplace_back([&, t] {
      Cqe cqe[8];
      const auto reap = [&] {
        const unsigned n = a.poll(8, cqe);
        for (unsigned i = 0; i < n; ++i) {
          EXPECT_EQ(cqe[i].status, WcStatus::success);
          ++seen[cqe[i].wr_id];
        }
        completed += static_cast<int>(n);
      };
      const auto end = Clock::now() + std::chrono::seconds(60);
      for (int i = 0; i < each && Clock::now() < end;) {
        if (a.post(WrOpcode::rdma_write, t * each + i, 0, 64))
          ++i;
        else
          reap();
      }
      while (completed < threads * each && Clock::now() < end) reap();
    });
  for (auto& t : pool) t.join();
  EXPECT_EQ(completed, threads * each);
  EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](auto& n) { return n == 1; }));
}

TEST_F(DeviceTest, ControlCallsGoThroughWhileOthersPoll) {
  Endpoint a(device, 4096), b(device, 4096);
  connect_to_each_other(a, b);
  std::atomic<bool> done{false};
  std::vector<std::thread> pollers;
  for (int t = 0; t < 3; ++t)
    pollers.emplace_back([&] {
      Cqe cqe;
      while (!done) b.poll(1, &cqe);
    });
  for (int i = 0; i < 200; ++i) Endpoint(device, 4096, 16);
  done = true;
  for (auto& t : pollers) t.join();
}

// --- fork

TEST_F(DeviceTest, AForkedChildHasNothingAndMayOpenItsOwn) {
  Endpoint a(device), b(device);
  connect_to_each_other(a, b);
  ASSERT_TRUE(a.post(WrOpcode::rdma_write, 1, 0, 8));
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    Cqe cqe;
    if (!device->dead() || a.poll(1, &cqe) != 0) _exit(10);
    device->doorbell(*a.qp);
    device->arm(*a.cq, false);
    if (device->with_engine([](engine::Engine&, Instant) { return true; })) _exit(11);
    a.device.reset(), b.device.reset(), device.reset();
    auto own = testing::open_loopback();
    if (!own || (*own)->dead()) _exit(12);
    Endpoint c(*own), d(*own);
    if (!c.connect(d.address()) || !d.connect(c.address())) _exit(13);
    if (!c.post(WrOpcode::rdma_write, 5, 0, 4096)) _exit(14);
    const Cqe done = c.completion();
    _exit(done.status == WcStatus::success && done.wr_id == 5 ? 0 : 15);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(a.completion().wr_id, 1u);
  ASSERT_TRUE(a.post(WrOpcode::rdma_write, 2, 0, 8));
  EXPECT_EQ(a.completion().wr_id, 2u);
}

TEST_F(DeviceTest, ForksDuringTrafficDisturbNobody) {
  Endpoint a(device);
  Peer peer(a);
  ASSERT_TRUE(a.connect(peer.address()));
  std::fflush(nullptr);
  for (int i = 0; i < 20; ++i) {
    for (int k = 0; k < 16; ++k) ASSERT_TRUE(a.post(WrOpcode::rdma_write, k, 0, 1 << 16));
    const pid_t child = fork();
    if (child == 0) _exit(device->dead() ? 0 : 1);
    for (int k = 0; k < 16; ++k) ASSERT_EQ(a.completion().status, WcStatus::success);
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
}

// --- what it says of itself

TEST_F(DeviceTest, StatisticsAreWrittenWhenTheDeviceIsClosed) {
  const std::string path = "/tmp/nic_test_stats." + std::to_string(getpid());
  {
    Endpoint a(device);
    Peer peer(a, {"ADVERB_STATS=" + path});
    ASSERT_TRUE(a.connect(peer.address()));
    ASSERT_TRUE(a.post(WrOpcode::rdma_write, 1, 0, 8));
    ASSERT_EQ(a.completion().status, WcStatus::success);
  }
  std::ifstream file(path);
  std::string line, more;
  ASSERT_TRUE(std::getline(file, line));
  EXPECT_FALSE(std::getline(file, more));
  unlink(path.c_str());
  EXPECT_THAT(
      line, ::testing::StartsWith("{\"device\":\"" + device->info().name + "\",\"netdev\":\"lo\""));
  EXPECT_THAT(line, ::testing::HasSubstr("\"rcvd_pkts\":"));
  EXPECT_THAT(line, ::testing::HasSubstr("\"background_wakeups\":"));
  EXPECT_THAT(line, ::testing::EndsWith("}}"));
}

}  // namespace
}  // namespace adverb::nic
