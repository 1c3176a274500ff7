// SPDX-License-Identifier: Apache-2.0
#include "nic/enumerate.hpp"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <string>
#include <thread>

namespace adverb::nic {
namespace {

std::string text(const Gid& g) {
  char out[INET6_ADDRSTRLEN] = "";
  inet_ntop(AF_INET6, g.bytes.data(), out, sizeof out);
  return out;
}

std::vector<std::string> gids(const DeviceInfo& d) {
  std::vector<std::string> out;
  for (const Gid& g : d.gids)
    if (!g.is_zero()) out.push_back(text(g));
  return out;
}

// Runs `setup` with the shell in a new network namespace, and enumerates there.  The namespace goes
// with the thread.
bool enumerate_in_namespace(const std::string& setup, std::vector<DeviceInfo>& out) {
  bool able = false;
  std::thread([&] {
    if (unshare(CLONE_NEWNET) != 0) return;
    able = std::system(("{ " + setup + " ; } >/dev/null 2>&1").c_str()) == 0;
    out = enumerate();
  }).join();
  return able;
}

struct ScopedEnv {
  ScopedEnv(const char* name, const char* value) : name(name) { setenv(name, value, 1); }
  ~ScopedEnv() { unsetenv(name); }
  const char* name;
};

TEST(Enumerate, LoopbackAloneIsTheFirstDevice) {
  std::vector<DeviceInfo> d;
  if (!enumerate_in_namespace("ip link set lo up", d)) GTEST_SKIP() << "no network namespaces";
  ASSERT_EQ(d.size(), 1u);
  EXPECT_EQ(d[0].name, "adverb0");
  EXPECT_EQ(d[0].netdev, "lo");
  EXPECT_EQ(d[0].active_mtu, engine::Mtu::mtu_4096);
  EXPECT_THAT(gids(d[0]), testing::ElementsAre("::ffff:127.0.0.1", "::1"));
  EXPECT_TRUE(d[0].up);
  EXPECT_NE(d[0].guid, (std::array<std::uint8_t, 8>{}));
}

TEST(Enumerate, NothingWhenNothingIsUp) {
  std::vector<DeviceInfo> d;
  if (!enumerate_in_namespace("true", d)) GTEST_SKIP() << "no network namespaces";
  EXPECT_TRUE(d.empty());
}

const char* const two_links =
    "ip link set lo up && ip link add va address 02:00:00:00:00:0a type veth peer name vb && "
    "ip link set va up mtu 1500 && ip link set vb up mtu 9000 && ip addr add 10.9.0.1/24 dev va && "
    "ip addr add fd00::1/64 dev va nodad && ip addr add 10.9.1.1/24 dev vb";

TEST(Enumerate, DevicesByIndexLoopbackLast) {
  std::vector<DeviceInfo> d;
  if (!enumerate_in_namespace(two_links, d)) GTEST_SKIP() << "no network namespaces";
  ASSERT_EQ(d.size(), 3u);
  EXPECT_LT(d[0].ifindex, d[1].ifindex);
  EXPECT_EQ(d[2].netdev, "lo");
  EXPECT_EQ(d[2].name, "adverb2");
  for (const auto& x : d) {
    EXPECT_EQ(x.active_mtu, x.netdev == "va" ? engine::Mtu::mtu_1024 : engine::Mtu::mtu_4096)
        << x.netdev;
    EXPECT_TRUE(x.gids.back().is_zero());
  }
}

TEST(Enumerate, Ipv4FirstThenGlobalIpv6) {
  std::vector<DeviceInfo> d;
  if (!enumerate_in_namespace(two_links, d)) GTEST_SKIP() << "no network namespaces";
  for (const auto& x : d) {
    if (x.netdev != "va") continue;
    const auto all = gids(x);
    ASSERT_GE(all.size(), 2u);
    EXPECT_EQ(all[0], "::ffff:10.9.0.1");
    EXPECT_EQ(all[1], "fd00::1");
    EXPECT_EQ(x.guid, (std::array<std::uint8_t, 8>{0x00, 0, 0, 0xff, 0xfe, 0, 0, 0x0a}));
    return;
  }
  FAIL() << "no device for va";
}

TEST(Enumerate, WithoutIpv4TheFirstGidIsIpv6AndTentativeOnesAreLeftOut) {
  std::vector<DeviceInfo> d;
  // vb has no carrier (its peer is down), so its link-local address stays tentative.
  if (!enumerate_in_namespace("ip link set lo up && ip link add va type veth peer name vb && "
                              "ip link set vb up && ip addr add fd00::2/64 dev vb nodad",
                              d))
    GTEST_SKIP() << "no network namespaces";
  ASSERT_EQ(d.size(), 2u);
  EXPECT_EQ(d[0].netdev, "vb");
  EXPECT_THAT(gids(d[0]), testing::ElementsAre("fd00::2"));
  EXPECT_FALSE(d[0].up);
}

// An application holds indices, so entries do not move.
TEST(Enumerate, GidsKeepTheirPlaceWhenOthersComeAndGo) {
  const auto gid = [](std::uint8_t n) {
    Gid g;
    if (n) g.bytes[0] = 0xfd, g.bytes[15] = n;
    return g;
  };
  const auto table = [&](std::initializer_list<std::uint8_t> list) {
    GidTable t{};
    std::transform(list.begin(), list.end(), t.begin(), gid);
    return t;
  };
  EXPECT_EQ(follow(table({1, 2, 3}), table({1, 2, 3})), table({1, 2, 3}));
  EXPECT_EQ(follow(table({1, 2, 3}), table({3, 1})), table({1, 0, 3}));
  EXPECT_EQ(follow(table({1, 0, 3}), table({4, 1, 3, 5})), table({1, 4, 3, 5}));
  EXPECT_EQ(follow(table({1, 2}), table({7, 8})), table({7, 8}));
  EXPECT_EQ(follow(table({}), table({1, 2, 3, 4, 5, 6, 7})), table({1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(follow(table({1, 2, 3, 4, 5, 6, 7}), table({})), table({}));
}

TEST(Enumerate, NoIpv6AtAll) {
  std::vector<DeviceInfo> d;
  if (!enumerate_in_namespace("echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6; "
                              "echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6; "
                              "ip link set lo up",
                              d))
    GTEST_SKIP() << "no network namespaces";
  ASSERT_EQ(d.size(), 1u);
  EXPECT_EQ(gids(d[0])[0], "::ffff:127.0.0.1");
}

TEST(Enumerate, AtMostSevenGids) {
  std::vector<DeviceInfo> d;
  if (!enumerate_in_namespace(
          "ip link set lo up; for i in 2 3 4 5 6 7 8 9; do ip addr add 127.0.0.$i/8 dev lo; done",
          d))
    GTEST_SKIP() << "no network namespaces";
  ASSERT_EQ(d.size(), 1u);
  EXPECT_EQ(gids(d[0]).size(), 7u);
  EXPECT_TRUE(d[0].gids[7].is_zero());
}

TEST(Enumerate, GuidsDifferAlsoWhenMacAddressesDoNot) {
  std::vector<DeviceInfo> d;
  if (!enumerate_in_namespace("ip link set lo up && ip link add va type veth peer name vb && "
                              "ip link set va address 02:00:00:00:00:01 && "
                              "ip link set vb address 02:00:00:00:00:01 && ip link set va up && "
                              "ip link set vb up && ip addr add 10.9.0.1/24 dev va && "
                              "ip addr add 10.9.1.1/24 dev vb",
                              d))
    GTEST_SKIP() << "no network namespaces";
  std::set<std::array<std::uint8_t, 8>> guids;
  for (const auto& x : d) guids.insert(x.guid);
  EXPECT_EQ(guids.size(), 3u);
}

TEST(Enumerate, EnvironmentSelectsAndNames) {
  std::vector<DeviceInfo> d;
  ScopedEnv name("ADVERB_DEVICE_NAME", "rocep");
  ScopedEnv which("ADVERB_DEVICE", "vb,lo");
  if (!enumerate_in_namespace(two_links, d)) GTEST_SKIP() << "no network namespaces";
  ASSERT_EQ(d.size(), 2u);
  EXPECT_EQ(d[0].netdev, "vb");
  EXPECT_EQ(d[0].name.substr(0, 5), "rocep");
  EXPECT_EQ(d[1].name, "rocep2");  // names do not depend on what is selected
}

TEST(Enumerate, MtuCap) {
  std::vector<DeviceInfo> d;
  ScopedEnv cap("ADVERB_MTU", "2048");
  if (!enumerate_in_namespace("ip link set lo up", d)) GTEST_SKIP() << "no network namespaces";
  ASSERT_EQ(d.size(), 1u);
  EXPECT_EQ(d[0].active_mtu, engine::Mtu::mtu_2048);
}

TEST(Enumerate, TheSameTwice) {
  const auto a = enumerate(), b = enumerate();
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].name, b[i].name);
    EXPECT_EQ(a[i].guid, b[i].guid);
  }
}

}  // namespace
}  // namespace adverb::nic
