// SPDX-License-Identifier: Apache-2.0
// What really leaves and arrives over a link of MTU 1500: a veth pair between two network
// namespaces, with the bundles segmented by the sender's kernel.  The ICRC is summed here bit by
// bit over the captured headers, by annex A17.3.3 and nothing of src/wire.  Needs root (or user
// namespaces), ip and ethtool; else skipped.
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "port/netdev_probe.hpp"
#include "port/testing.hpp"

namespace adverb::port {
namespace {

using namespace testing;

bool run(const std::string& command) {
  return std::system((command + " >/dev/null 2>&1").c_str()) == 0;
}

// The kernel drops what is sent before it has noticed that the link is up.
bool running(const char* device) {
  int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq r{};
  std::strcpy(r.ifr_name, device);
  auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  bool up = false;
  while (!up && std::chrono::steady_clock::now() < deadline) {
    up = ::ioctl(fd, SIOCGIFFLAGS, &r) == 0 && r.ifr_flags & IFF_RUNNING;
    if (!up) std::this_thread::yield();
  }
  ::close(fd);
  return up;
}

// A thread in a network namespace of its own that does what it is given, one thing at a time.
class Elsewhere {
 public:
  // False when there can be no namespace.
  bool start() {
    bool ok = false;
    do_([&] { ok = ::unshare(CLONE_NEWNET) == 0; });
    return ok;
  }
  ~Elsewhere() {
    do_([this] { stop_ = true; });
    thread_.join();
  }
  void operator()(std::function<void()> f) { do_(std::move(f)); }
  int tid() {
    int tid = 0;
    do_([&] { tid = static_cast<int>(::syscall(SYS_gettid)); });
    return tid;
  }

 private:
  void do_(std::function<void()> f) {
    std::unique_lock lock(mutex_);
    work_ = std::move(f);
    changed_.notify_all();
    changed_.wait(lock, [&] { return !work_; });
  }
  void loop() {
    std::unique_lock lock(mutex_);
    while (!stop_) {
      changed_.wait(lock, [&] { return static_cast<bool>(work_); });
      work_();
      work_ = nullptr;
      changed_.notify_all();
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> work_;
  bool stop_ = false;
  std::thread thread_{[this] { loop(); }};
};

Gid local_v6(std::uint8_t last) {  // fd77::
  Gid g;
  g.bytes[0] = 0xfd, g.bytes[1] = 0x77, g.bytes[15] = last;
  return g;
}

// near0 here, far0 there.
class WireTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (!in_namespace || !there.start()) GTEST_SKIP() << "needs network namespaces";
    auto far_namespace = std::to_string(there.tid());
    if (!run("ip link add near0 mtu 1500 type veth peer name far0 mtu 1500") ||
        !run("ip link set far0 netns " + far_namespace))
      GTEST_SKIP() << "needs veth and ip";
    bool ok =
        run("ip addr add 10.77.0.1/24 dev near0 && ip addr add fd77::1/64 dev near0 nodad && "
            "ip link set near0 up");
    there([&] {
      ok &=
          run("ip link set lo up && ip addr add 10.77.0.2/24 dev far0 && "
              "ip addr add fd77::2/64 dev far0 nodad && ip link set far0 up");
    });
    there([&] { ok &= running("far0"); });
    ASSERT_TRUE(ok && running("near0"));
  }
  void TearDown() override { run("ip link del near0"); }
  bool segment_in_software() { return run("ethtool -K near0 tx-udp-segmentation off"); }

  bool v6 = GetParam();
  Gid near = v6 ? local_v6(1) : v4(10, 77, 0, 1), far = v6 ? local_v6(2) : v4(10, 77, 0, 2);
  Elsewhere there;
};
INSTANTIATE_TEST_SUITE_P(Families, WireTest, ::testing::Bool(),
                         [](auto& i) { return i.param ? "v6" : "v4"; });

// Reads until `n` frames are there, or for at most ten seconds.
std::vector<Seen> await(UdpPort& port, std::size_t n) {
  std::vector<Seen> all;
  while (all.size() < n) {
    pollfd p{port.wait_descriptors()[0], POLLIN, 0};
    if (::poll(&p, 1, 10'000) != 1) break;
    for (auto& s : receive_all(port)) all.push_back(s);
  }
  return all;
}

std::uint32_t crc32_by_bits(const Bytes& bytes) {
  std::uint32_t r = 0xffffffff;
  for (auto b : bytes) {
    r ^= b;
    for (int i = 0; i < 8; ++i) r = r & 1 ? r >> 1 ^ 0xedb88320 : r >> 1;
  }
  return ~r;
}

// Of a whole packet as it was captured, from the IP header on.
std::uint32_t icrc_of(Bytes ip, bool v6) {
  std::size_t udp = v6 ? 40 : 20;
  ip.resize(ip.size() - 4);
  if (v6) {
    ip[0] |= 0x0f, ip[1] = ip[2] = ip[3] = 0xff;  // traffic class, flow label
    ip[7] = 0xff;                                 // hop limit
  } else {
    ip[1] = 0xff;            // TOS
    ip[8] = 0xff;            // TTL
    ip[10] = ip[11] = 0xff;  // header checksum
  }
  ip[udp + 6] = ip[udp + 7] = 0xff;  // UDP checksum
  ip[udp + 8 + 4] = 0xff;            // BTH: FECN, BECN, reserved
  ip.insert(ip.begin(), 8, 0xff);    // LRH
  return crc32_by_bits(ip);
}

// RoCEv2 packets that come in by the device, from the IP header on.
struct Capture {
  int fd = -1;
  bool open(const char* device) {
    fd = ::socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    sockaddr_ll at{};
    at.sll_family = AF_PACKET;
    at.sll_protocol = htons(ETH_P_ALL);
    at.sll_ifindex = static_cast<int>(::if_nametoindex(device));
    set_option(fd, SOL_SOCKET, SO_RCVBUFFORCE, 8 << 20);
    return fd >= 0 && ::bind(fd, reinterpret_cast<sockaddr*>(&at), sizeof at) == 0;
  }
  ~Capture() { ::close(fd); }
  std::vector<Bytes> await(std::size_t n, bool v6) {
    std::vector<Bytes> all;
    while (all.size() < n) {
      pollfd p{fd, POLLIN, 0};
      if (::poll(&p, 1, 10'000) != 1) break;
      Bytes b(70000);
      ssize_t size = ::recv(fd, b.data(), b.size(), 0);
      std::size_t udp = v6 ? 40 : 20;
      if (size < static_cast<ssize_t>(udp + 8 + 16) || b[0] >> 4 != (v6 ? 6 : 4)) continue;
      if (b[v6 ? 6 : 9] != IPPROTO_UDP || (b[udp + 2] << 8 | b[udp + 3]) != roce_port) continue;
      b.resize(static_cast<std::size_t>(size));
      all.push_back(std::move(b));
    }
    return all;
  }
};

TEST_P(WireTest, EverySegmentLeavesWithItsOwnRightIcrc) {
  if (!segment_in_software()) GTEST_SKIP() << "needs ethtool";
  Capture capture;
  there([&] { EXPECT_TRUE(capture.open("far0")); });
  Host host({near}, 2);
  std::vector<Frame> f;
  for (std::uint32_t i = 0; i < 40; ++i)
    f.push_back({Qpn::of(1, 5), Qpn::of(3, 9), far, i < 39 ? 1024u : 77u, i, 0x6a, 7});
  f.push_back({Qpn::of(1, 5), Qpn::of(3, 9), far, 256, 40, 0x6a, 7});
  send(host.slot(1), f);
  auto packets = capture.await(f.size(), v6);
  ASSERT_EQ(packets.size(), f.size());
  for (unsigned k = 0; k < packets.size(); ++k) {
    auto& ip = packets[k];
    std::size_t udp = v6 ? 40 : 20;
    if (!v6) {
      EXPECT_EQ(ip[4] << 8 | ip[5], k < 40 ? k : 0) << "Identification";
      EXPECT_EQ(ip[6] << 8 | ip[7], 0x4000) << "DF";
      EXPECT_EQ(ip[1], 0x6a);
      EXPECT_EQ(ip[8], 7);
    } else {
      EXPECT_EQ(ip[0] << 8 | (ip[1] & 0xf0), 0x66a0);
      EXPECT_EQ(ip[7], 7);
    }
    EXPECT_GE(ip[udp] << 8 | ip[udp + 1], 0xC000) << "source port";
    EXPECT_EQ(Bytes(ip.begin() + static_cast<long>(udp) + 8, ip.end() - 4), frame_bytes(f[k]));
    std::uint32_t icrc = icrc_of(ip, v6);
    for (unsigned i = 0; i < 4; ++i)
      EXPECT_EQ(ip[ip.size() - 4 + i], icrc >> 8 * i & 255) << "packet " << k;
  }
}

TEST_P(WireTest, SegmentsArriveWithAndWithoutTheReceiversGro) {
  for (bool software : {false, true})
    for (bool gro : {false, true}) {
      if (software && !segment_in_software()) GTEST_SKIP() << "needs ethtool";
      Host here({near}, 2);
      std::unique_ptr<Host> remote;
      there([&] {
        run(std::string("ethtool -K far0 gro ") + (gro ? "on" : "off"));
        remote = std::make_unique<Host>(std::vector{far}, 4);
      });
      std::vector<Frame> f, to[2];
      for (std::uint32_t i = 0; i < 200; ++i) {
        unsigned slot = i / 7 % 2 + 2;
        f.push_back({Qpn::of(1, 5), Qpn::of(slot, 9), far, 1024, i});
        to[slot - 2].push_back(f.back());
      }
      send(here.slot(1), f);
      std::vector<Seen> got[2];
      there([&] {
        for (unsigned s : {0u, 1u}) got[s] = await(remote->slot(2 + s), to[s].size());
      });
      for (unsigned s : {0u, 1u}) {
        auto& c = remote->slot(2 + s).counters();
        ASSERT_EQ(got[s].size(), to[s].size());
        for (std::size_t i = 0; i < to[s].size(); ++i) {
          EXPECT_EQ(got[s][i].psn, to[s][i].psn);
          EXPECT_TRUE(got[s][i].payload == payload_of(to[s][i].psn, 1024));
        }
        EXPECT_EQ(c.drop_icrc, 0u);
        EXPECT_EQ(c.relayed_out, 0u) << "a source port of its own keeps each slot's packets apart";
      }
      there([&] { remote.reset(); });
    }
}

TEST_P(WireTest, AFrameAboveTheMtuIsLostAndCounted) {
  Host host({near}, 2);
  std::vector<Frame> f(3, {Qpn::of(1, 5), Qpn::of(3, 9), far, 2048});
  send(host.slot(1), f);
  EXPECT_EQ(host.slot(1).counters().tx_too_big, 3u);
}

TEST_P(WireTest, TheProbeSeesWhatTheDeviceDoes) {
  auto first = prove_gso(near);
  EXPECT_EQ(first.proof, GsoProof::whole) << first.detail;
  if (!segment_in_software()) GTEST_SKIP() << "needs ethtool";
  auto second = prove_gso(near);
  EXPECT_EQ(second.proof, GsoProof::proved) << second.detail;
}

TEST(Probe, OnLoopbackBundlesStayWhole) {
  if (!in_namespace) GTEST_SKIP() << "needs a network namespace";
  for (auto& gid : {v4(127, 0, 0, 1), v6_loopback()}) {
    auto report = prove_gso(gid);
    EXPECT_EQ(report.proof, GsoProof::whole) << report.detail;
  }
}

TEST(Probe, WithoutTheCapabilityOrTheAddressNothingIsProved) {
  EXPECT_EQ(prove_gso(v4(192, 0, 2, 77)).proof, GsoProof::unproved);
  pid_t child = ::fork();
  if (child == 0) {
    if (::setuid(65534) != 0) ::_exit(2);
    ::_exit(prove_gso(v4(127, 0, 0, 1)).proof == GsoProof::unproved ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 2) GTEST_SKIP() << "cannot drop the capability";
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace adverb::port
