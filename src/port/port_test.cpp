// SPDX-License-Identifier: Apache-2.0
// Two or more UdpPorts and the steered pool over the loopback device: what one sends is what the
// other sees.
#include <dlfcn.h>
#include <netinet/udp.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <array>
#include <atomic>
#include <barrier>
#include <cstdarg>
#include <set>
#include <thread>

#include "port/source_ports.hpp"
#include "port/testing.hpp"
#include "port/udp_receiver.hpp"

// The kernel's part in two tests: it refuses bundles; every allocation is counted.
namespace {
int refuse_bundles_with = 0;
std::atomic<std::uint64_t> allocations{0};

bool refuses(const msghdr* m) {
  if (refuse_bundles_with)
    for (auto* c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(const_cast<msghdr*>(m), c))
      if (c->cmsg_level == SOL_UDP && c->cmsg_type == UDP_SEGMENT) return true;
  return false;
}

long kernel(long number, const std::array<long, 6>& a) {
  register long r10 asm("r10") = a[3];
  register long r8 asm("r8") = a[4];
  register long r9 asm("r9") = a[5];
  long result;
  asm volatile("syscall"
               : "=a"(result)
               : "a"(number), "D"(a[0]), "S"(a[1]), "d"(a[2]), "r"(r10), "r"(r8), "r"(r9)
               : "rcx", "r11", "memory");
  return result < 0 && result > -4096 ? (errno = static_cast<int>(-result), -1) : result;
}
}  // namespace

extern "C" long syscall(long number, ...) noexcept {
  std::va_list list;
  va_start(list, number);
  std::array<long, 6> arguments;
  for (long& a : arguments) a = va_arg(list, long);
  va_end(list);
  if (number == SYS_sendmsg && refuses(reinterpret_cast<const msghdr*>(arguments[1])))
    return errno = refuse_bundles_with, -1;
  return kernel(number, arguments);
}

#if defined(__SANITIZE_ADDRESS__)
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*)(const volatile void*, size_t),
                                                         void (*)(const volatile void*));
static void count_allocations() {
  static int once = __sanitizer_install_malloc_and_free_hooks(
      [](const volatile void*, size_t) { ++allocations; }, [](const volatile void*) {});
  (void)once;
}
#elif defined(__SANITIZE_THREAD__)
#define ADVERB_CANNOT_COUNT 1
static void count_allocations() {}
#else
extern "C" void* __libc_malloc(size_t);
extern "C" void* __libc_calloc(size_t, size_t);
extern "C" void* malloc(size_t n) { return ++allocations, __libc_malloc(n); }
extern "C" void* calloc(size_t n, size_t m) { return ++allocations, __libc_calloc(n, m); }
static void count_allocations() {}
#endif

namespace adverb::port {
namespace {

using namespace testing;

const Gid localhost = v4(127, 0, 0, 1);

std::vector<Frame> frames(unsigned n, const Gid& to, std::size_t payload = 64, unsigned slot = 2) {
  std::vector<Frame> all;
  for (unsigned i = 0; i < n; ++i)
    all.push_back({Qpn::of(1, 5), Qpn::of(slot, 7), to, payload, 100 + i});
  return all;
}

// --- the pool

class PoolTest : public ::testing::TestWithParam<bool> {
 protected:
  Gid gid = GetParam() ? v6_loopback() : localhost;
};
INSTANTIATE_TEST_SUITE_P(Families, PoolTest, ::testing::Bool(),
                         [](auto& i) { return i.param ? "v6" : "v4"; });

// Sizes of the datagrams that wait in a socket; closes nothing.
std::vector<ssize_t> waiting(int fd) {
  std::vector<ssize_t> sizes;
  char buffer[65536];
  for (ssize_t n; (n = ::recv(fd, buffer, sizeof buffer, MSG_DONTWAIT)) >= 0;) sizes.push_back(n);
  return sizes;
}

TEST_P(PoolTest, EverySlotGetsItsOwnPacketsAndBundles) {
  constexpr unsigned slots = 8;
  auto pool = create_pool(gid, 0, slots);
  ASSERT_TRUE(pool) << pool.error().message;
  EXPECT_TRUE(pool->steered);
  ASSERT_EQ(pool->sockets.size(), slots);
  Stranger peer(gid);
  for (unsigned slot = 0; slot < slots; ++slot) {
    Frame f{Qpn(9), Qpn::of(slot, 0x3fff), gid, 40};
    Bytes b = with_icrc(f, gid, peer.port(), 0);
    peer.send(gid, b);
    Bytes three;
    for (int i = 0; i < 3; ++i) three.insert(three.end(), b.begin(), b.end());
    peer.send(gid, three, static_cast<std::uint16_t>(b.size()));
    for (unsigned s = 0; s < slots; ++s)
      EXPECT_EQ(waiting(pool->sockets[s]).size(), s == slot ? 4u : 0u) << "slot " << slot;
  }
  for (int fd : pool->sockets) ::close(fd);
}

// Requests of XRC go to the process whose SRQ they name, all else to the queue pair's.
TEST_P(PoolTest, EveryOpcodeIsSteeredByItsOwnNumber) {
  auto pool = create_pool(gid, 0, 4);
  ASSERT_TRUE(pool);
  Stranger peer(gid);
  for (unsigned opcode = 0; opcode < 256; ++opcode) {
    const wire::OpcodeInfo& info = wire::info_of(wire::Opcode(static_cast<std::uint8_t>(opcode)));
    if (!info) continue;
    Bytes b(32);
    b[0] = static_cast<std::uint8_t>(opcode);
    const std::uint32_t dest = Qpn::of(2, 1).raw(), srqn = Qpn::of(3, 1).raw();
    for (unsigned i = 0; i < 3; ++i) {
      b[5 + i] = static_cast<std::uint8_t>(dest >> (16 - 8 * i));
      b[13 + i] = static_cast<std::uint8_t>(srqn >> (16 - 8 * i));
    }
    peer.send(gid, b);
    const bool by_srq = info.has(wire::ext_xrceth);
    EXPECT_EQ(waiting(pool->sockets[2]).size(), by_srq ? 0u : 1u) << opcode << info.name;
    EXPECT_EQ(waiting(pool->sockets[3]).size(), by_srq ? 1u : 0u) << opcode << info.name;
  }
  for (int fd : pool->sockets) ::close(fd);
}

TEST_P(PoolTest, RuntsAndSlotsBeyondThePoolGoToSlotZero) {
  auto pool = create_pool(gid, 0, 4);
  ASSERT_TRUE(pool);
  Stranger peer(gid);
  peer.send(gid, Bytes(3));
  peer.send(gid, Bytes(6, 0xff));
  peer.send(gid, with_icrc({Qpn(9), Qpn::of(4, 1), gid}, gid, peer.port(), 0));
  peer.send(gid, with_icrc({Qpn(9), Qpn(0xffffff), gid}, gid, peer.port(), 0));
  EXPECT_EQ(waiting(pool->sockets[0]).size(), 4u);
  for (int fd : pool->sockets) ::close(fd);
}

// Soft-RoCE and some NICs leave the UDP checksum 0, which RFC 6936 lets a receiver refuse over
// IPv6.
TEST_P(PoolTest, DatagramsWithoutAUdpChecksumArrive) {
  auto pool = create_pool(gid, 0, 4);
  ASSERT_TRUE(pool);
  Stranger peer(gid);
  const int on = 1;
  ASSERT_EQ(gid.is_v4() ? ::setsockopt(peer.fd(), SOL_SOCKET, SO_NO_CHECK, &on, sizeof on)
                        : ::setsockopt(peer.fd(), SOL_UDP, UDP_NO_CHECK6_TX, &on, sizeof on),
            0);
  peer.send(gid, with_icrc({Qpn(9), Qpn::of(2, 1), gid}, gid, peer.port(), 0));
  EXPECT_EQ(waiting(pool->sockets[2]).size(), 1u);
  for (int fd : pool->sockets) ::close(fd);
}

TEST_P(PoolTest, TheSocketsAreNonBlockingAndCloseOnExec) {
  auto pool = create_pool(gid, 0, 3);
  ASSERT_TRUE(pool);
  for (int fd : pool->sockets) {
    EXPECT_TRUE(::fcntl(fd, F_GETFD) & FD_CLOEXEC);
    EXPECT_TRUE(::fcntl(fd, F_GETFL) & O_NONBLOCK);
    ::close(fd);
  }
}

TEST_P(PoolTest, NeverJoinsAnother) {
  auto first = create_pool(gid, 0, 4);
  ASSERT_TRUE(first);
  auto second = create_pool(gid, 0, 4);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().kind, PoolError::address_in_use);
  EXPECT_NE(second.error().message.find("4791"), std::string::npos);
  for (int fd : first->sockets) ::close(fd);
  auto third = create_pool(gid, 0, 4);
  EXPECT_TRUE(third);
  if (third)
    for (int fd : third->sockets) ::close(fd);
}

TEST_P(PoolTest, OfTwoThatTryAtOnceOneWins) {
  for (int round = 0; round < 50; ++round) {
    std::expected<Pool, PoolError> pools[2];
    std::barrier together(2);
    auto attempt = [&](int i) {
      together.arrive_and_wait();
      pools[i] = create_pool(gid, 0, 4);
    };
    std::thread other(attempt, 1);
    attempt(0);
    other.join();
    ASSERT_EQ(pools[0].has_value() + pools[1].has_value(), 1);
    for (auto& p : pools)
      if (p)
        for (int fd : p->sockets) ::close(fd);
  }
}

TEST(Pool, TellsAWildcardSocketAndAForeignAddress) {
  int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  SocketAddress any{};
  any.v4.sin_family = AF_INET;
  any.v4.sin_port = htons(roce_port);
  ASSERT_EQ(::bind(fd, &any.any, sizeof any.v4), 0);
  auto taken = create_pool(localhost, 0, 2);
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().kind, PoolError::address_in_use);
  ::close(fd);
  auto foreign = create_pool(v4(192, 0, 2, 77), 0, 2);
  ASSERT_FALSE(foreign);
  EXPECT_EQ(foreign.error().kind, PoolError::no_address);
}

// --- from port to port

class PortTest : public ::testing::TestWithParam<bool> {
 protected:
  Gid gid = GetParam() ? v6_loopback() : localhost;
};
INSTANTIATE_TEST_SUITE_P(Families, PortTest, ::testing::Bool(),
                         [](auto& i) { return i.param ? "v6" : "v4"; });

TEST_P(PortTest, RunsOfEqualFramesArriveAsOneBundle) {
  Host host({gid}, 3);
  unsigned calls = 0, bundles = 0;
  for (unsigned n : {1u, 2u, 15u, 64u}) {
    auto f = frames(n, gid);
    send(host.slot(1), f);
    bool empty;
    auto got = host.slot(2).receive(empty);
    ASSERT_EQ(got.size(), n) << "in one call";
    std::vector<Seen> all;
    for (auto& g : got) all.push_back(seen(g));
    expect_frames(all, f, gid);
    EXPECT_TRUE(receive_all(host.slot(2)).empty());
    ++calls, bundles += n > 1;
    EXPECT_EQ(host.slot(1).counters().tx_calls, calls);
    EXPECT_EQ(host.slot(1).counters().tx_bundles, bundles);
    EXPECT_EQ(host.slot(2).counters().rx_bundles, bundles);
  }
  EXPECT_EQ(host.slot(1).counters().tx_bytes, host.slot(2).counters().rx_bytes);
  EXPECT_EQ(host.slot(2).counters().rx_datagrams, 82u);
  EXPECT_EQ(host.slot(2).counters().drop_icrc, 0u);
}

TEST_P(PortTest, FramesOf4096BytesAndAShorterLast) {
  Host host({gid}, 3);
  auto f = frames(15, gid, 4096);
  f.back().payload = 700;
  send(host.slot(1), f);
  EXPECT_EQ(host.slot(1).counters().tx_calls, 1u);
  expect_frames(receive_all(host.slot(2)), f, gid);
  EXPECT_EQ(host.slot(2).counters().rx_bundles, 1u);
}

TEST_P(PortTest, ABundleNeverExceedsADatagram) {
  Host host({gid}, 3);
  auto f = frames(40, gid, 4096);
  send(host.slot(1), f);
  EXPECT_EQ(host.slot(1).counters().tx_errors, 0u);
  EXPECT_EQ(host.slot(1).counters().tx_calls, 3u);  // 15, 15, 10
  expect_frames(receive_all(host.slot(2)), f, gid);
}

TEST_P(PortTest, MixedSizes) {
  Host host({gid}, 3);
  std::vector<Frame> f;
  for (std::size_t size : {64, 64, 1, 0, 4096, 4096, 4095, 2, 2, 3, 256, 256, 255, 256, 8})
    f.push_back({Qpn::of(1, 5), Qpn::of(2, 7), gid, size, static_cast<std::uint32_t>(f.size())});
  send(host.slot(1), f);
  expect_frames(receive_all(host.slot(2)), f, gid);
}

TEST_P(PortTest, InterleavedDestinationsStayApart) {
  Host host({gid}, 4);
  std::vector<Frame> f, to[2];
  for (std::uint32_t i = 0; i < 60; ++i) {
    unsigned slot = i % 5 < 3 ? 2 : 3;
    f.push_back({Qpn::of(1, 5), Qpn::of(slot, 7), gid, 100, i});
    to[slot - 2].push_back(f.back());
  }
  send(host.slot(1), f);
  expect_frames(receive_all(host.slot(2)), to[0], gid);
  expect_frames(receive_all(host.slot(3)), to[1], gid);
  EXPECT_EQ(host.slot(2).counters().relayed_out + host.slot(3).counters().relayed_out, 0u);
}

TEST_P(PortTest, QueuePairsOfOneLocalPeerShareABundle) {
  Host host({gid}, 3);
  std::vector<Frame> f;
  for (std::uint32_t i = 0; i < 32; ++i)
    f.push_back({Qpn::of(1, i * 3), Qpn::of(2, i * 7 + 1), gid, 64, i});
  send(host.slot(1), f);
  EXPECT_EQ(host.slot(1).counters().tx_calls, 1u);
  expect_frames(receive_all(host.slot(2)), f, gid);
}

TEST_P(PortTest, TrafficClassWithEcnAndHopLimitArriveVerbatim) {
  Host host({gid}, 3);
  std::vector<Frame> f;
  for (unsigned tos = 0; tos < 256; tos += 5)
    for (unsigned k = 0; k < 2; ++k)
      f.push_back({Qpn::of(1, 5), Qpn::of(2, 7), gid, 64, 2 * tos + k,
                   static_cast<std::uint8_t>(tos), static_cast<std::uint8_t>(1 + tos / 2)});
  send(host.slot(1), f);
  expect_frames(receive_all(host.slot(2)), f, gid);
  // ECT(0) there, congestion experienced back.
  send(host.slot(2), {{Qpn::of(2, 7), Qpn::of(1, 5), gid, 0, 1, 3}});
  bool empty;
  auto back = host.slot(1).receive(empty);
  ASSERT_EQ(back.size(), 1u);
  EXPECT_TRUE(back[0].congestion_experienced());
}

TEST_P(PortTest, AHopLimitThatNobodySetIsTheDefault) {
  Host host({gid}, 3);
  auto f = frames(1, gid);
  f[0].hop_limit = 0;
  send(host.slot(1), f);
  auto got = receive_all(host.slot(2));
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].hop_limit, 64);
}

TEST_P(PortTest, WithoutGsoAndGroTheSameArrives) {
  Host host({gid}, 3, {.gso = false, .gro = false});
  auto f = frames(64, gid, 1024);
  f.back().payload = 3;
  send(host.slot(1), f);
  expect_frames(receive_all(host.slot(2)), f, gid);
  EXPECT_EQ(host.slot(1).counters().tx_bundles, 0u);
  EXPECT_EQ(host.slot(2).counters().rx_bundles, 0u);
  EXPECT_EQ(host.slot(2).counters().drop_icrc, 0u);
}

TEST_P(PortTest, BundlesForAReceiverWithoutGro) {
  Host host({gid}, 3, {.gro = false});
  auto f = frames(64, gid, 256);
  send(host.slot(1), f);
  EXPECT_EQ(host.slot(1).counters().tx_bundles, 1u);
  expect_frames(receive_all(host.slot(2)), f, gid);
  EXPECT_EQ(host.slot(2).counters().rx_bundles, 0u);
}

TEST_P(PortTest, ADeviceThatRefusesBundlesGetsSingleFramesFromThenOn) {
  for (int error : {EIO, EINVAL}) {
    Host host({gid}, 3);
    auto f = frames(20, gid);
    refuse_bundles_with = error;
    send(host.slot(1), f);
    refuse_bundles_with = 0;
    expect_frames(receive_all(host.slot(2)), f, gid);
    send(host.slot(1), f);
    expect_frames(receive_all(host.slot(2)), f, gid);
    EXPECT_EQ(host.slot(1).counters().gso_refused, 1u);
    EXPECT_EQ(host.slot(1).counters().tx_bundles, 0u);
    EXPECT_EQ(host.slot(1).counters().tx_errors, 0u);
  }
}

TEST_P(PortTest, AWrongIcrcIsDroppedAndCounted) {
  Host host({gid}, 3);
  Stranger peer(gid);
  Frame f = frames(1, gid)[0];
  Bytes good = with_icrc(f, gid, peer.port(), 0);
  for (std::size_t bit : {std::size_t{0}, good.size() / 2, good.size() - 1}) {
    Bytes bad = good;
    bad[bit == 0 ? 9 : bit] ^= 0x10;  // the PSN, the payload, the ICRC
    peer.send(gid, bad);
  }
  peer.send(gid, good);
  auto got = receive_all(host.slot(2));
  ASSERT_EQ(got.size(), 1u);
  expect_frame(got[0], f, gid);
  EXPECT_EQ(host.slot(2).counters().drop_icrc, 3u);
}

TEST_P(PortTest, OneBadSegmentLeavesTheRestOfItsBundle) {
  Host host({gid}, 3);
  Stranger peer(gid);
  Bytes bundle;
  for (std::uint16_t k = 0; k < 5; ++k) {
    Bytes b = with_icrc(frames(5, gid)[k], gid, peer.port(), k);
    if (k == 2) b[20] ^= 1;
    if (k == 3) b[0] = 0x1f;  // no such opcode
    bundle.insert(bundle.end(), b.begin(), b.end());
  }
  peer.send(gid, bundle, static_cast<std::uint16_t>(bundle.size() / 5));
  auto got = receive_all(host.slot(2));
  ASSERT_EQ(got.size(), 3u);
  EXPECT_EQ(got[2].psn, 104u);
  EXPECT_EQ(host.slot(2).counters().drop_icrc, 1u);
  EXPECT_EQ(host.slot(2).counters().drop_decode_opcode, 1u);
}

TEST(Port, AnyIpv4IdentificationIsAccepted) {
  Host host({localhost}, 3);
  Stranger peer(localhost);
  for (unsigned id : {0u, 1u, 2u, 0x1234u, 0x1235u, 0xffffu, 0u, 7u})
    peer.send(localhost, with_icrc(frames(1, localhost)[0], localhost, peer.port(),
                                   static_cast<std::uint16_t>(id)));
  EXPECT_EQ(receive_all(host.slot(2)).size(), 8u);
  EXPECT_EQ(host.slot(2).counters().drop_icrc, 0u);
}

// --- frames of other slots

TEST_P(PortTest, SegmentsOfAnotherSlotAreHandedOn) {
  Host host({gid}, 4);
  Stranger peer(gid);
  std::vector<Frame> to[2];
  Bytes bundle;
  for (std::uint16_t k = 0; k < 9; ++k) {
    unsigned slot = k == 0 || k == 4 ? 2 : 3;  // steered by the first
    Frame f{Qpn::of(1, 5), Qpn::of(slot, 7), gid, 100u - (k == 8 ? 40 : 0), k};
    to[slot - 2].push_back(f);
    Bytes b = with_icrc(f, gid, peer.port(), k);
    bundle.insert(bundle.end(), b.begin(), b.end());
  }
  peer.send(gid, bundle, 12 + 100 + 4);
  expect_frames(receive_all(host.slot(2)), to[0], gid);
  EXPECT_EQ(host.slot(2).counters().relayed_out, 7u);
  pollfd readable{host.slot(3).wait_descriptors()[0], POLLIN, 0};
  EXPECT_EQ(::poll(&readable, 1, 0), 1);
  expect_frames(receive_all(host.slot(3)), to[1], gid);
  EXPECT_EQ(host.slot(3).counters().relayed_in, 7u);
}

TEST_P(PortTest, AFrameForASlotThatNobodyHasIsCounted) {
  Host host({gid}, 3);
  Stranger peer(gid);
  Bytes bundle;
  for (std::uint16_t k = 0; k < 2; ++k) {
    Frame f{Qpn::of(1, 5), Qpn::of(k == 0 ? 2 : 77, 7), gid, 100, k};
    Bytes b = with_icrc(f, gid, peer.port(), k);
    bundle.insert(bundle.end(), b.begin(), b.end());
  }
  peer.send(gid, bundle, 12 + 100 + 4);
  EXPECT_EQ(receive_all(host.slot(2)).size(), 1u);
  EXPECT_EQ(host.slot(2).counters().drop_relay, 1u);
}

// Sends the bytes to an abstract name, as the given user.  False: cannot become that user here.
bool send_as(uid_t user, const std::string& name, const Bytes& bytes) {
  pid_t child = ::fork();
  if (child == 0) {
    if (user != ::geteuid() && ::setuid(user) != 0) ::_exit(2);
    sockaddr_un a{};
    a.sun_family = AF_UNIX;
    std::memcpy(a.sun_path + 1, name.data(), name.size());
    auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    int fd = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    ssize_t n =
        ::sendto(fd, bytes.data(), bytes.size(), 0, reinterpret_cast<sockaddr*>(&a), length);
    ::_exit(n == static_cast<ssize_t>(bytes.size()) ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 2) return false;
  EXPECT_EQ(status, 0);
  return true;
}

TEST(Port, OnlyTheSameUserMayHandFramesOn) {
  Host host({localhost}, 3);
  std::string prefix = "adverb-port-test." + std::to_string(::getpid()) + ".";
  int relay = bound_relay(prefix, 6);  // what slot 2 hands on to slot 6, for us to keep
  Stranger peer(localhost);
  Bytes bundle;
  for (std::uint16_t k = 0; k < 2; ++k) {
    Bytes b = with_icrc({Qpn::of(1, 5), Qpn::of(k == 0 ? 2 : 6, 7), localhost, 100, k}, localhost,
                        peer.port(), k);
    bundle.insert(bundle.end(), b.begin(), b.end());
  }
  peer.send(localhost, bundle, 12 + 100 + 4);
  receive_all(host.slot(2));
  Bytes handed(1000);
  ssize_t n = ::recv(relay, handed.data(), handed.size(), 0);
  ASSERT_GT(n, 0);
  handed.resize(static_cast<std::size_t>(n));
  ::close(relay);

  UdpPort six({.slot = 6, .relay_socket = bound_relay(prefix + "again.", 6)});
  ASSERT_TRUE(send_as(::geteuid(), prefix + "again.6", handed));
  EXPECT_EQ(receive_all(six).size(), 1u);
  if (!send_as(65534, prefix + "again.6", handed)) GTEST_SKIP() << "cannot be another user";
  EXPECT_TRUE(receive_all(six).empty());
  EXPECT_EQ(six.counters().drop_relay, 1u);
}

TEST(Port, RubbishOnTheRelaySocketIsCountedAndDropped) {
  Host host({localhost}, 3);
  sockaddr_un a{};
  a.sun_family = AF_UNIX;
  std::string name = "adverb-port-test." + std::to_string(::getpid()) + ".2";
  std::memcpy(a.sun_path + 1, name.data(), name.size());
  auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  int fd = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  for (std::size_t size : {0, 1, 47, 48, 100}) {
    Bytes b(size, 0x41);
    ASSERT_EQ(::sendto(fd, b.data(), size, 0, reinterpret_cast<sockaddr*>(&a), length),
              static_cast<ssize_t>(size));
  }
  ::close(fd);
  EXPECT_TRUE(receive_all(host.slot(2)).empty());
  EXPECT_EQ(host.slot(2).counters().drop_relay, 5u);
}

// --- emptiness

TEST(Port, AllEmptyIsNeverSaidWhileAFrameWaits) {
  Host host({localhost, v6_loopback()}, 3);
  auto& port = host.slot(2);
  auto to = [](const Gid& gid, std::uint8_t index) {
    auto f = frames(1, gid);
    f[0].sgid_index = index;
    return f;
  };
  bool empty = false;
  EXPECT_TRUE(port.receive(empty).empty());
  EXPECT_TRUE(empty);
  for (int round = 0; round < 20; ++round) {
    send(host.slot(1), to(localhost, 0));
    EXPECT_EQ(port.receive(empty).size(), 1u);
    EXPECT_FALSE(empty);
    send(host.slot(1), to(v6_loopback(), 1));  // on the socket that did not have data last
    EXPECT_EQ(port.receive(empty).size(), 1u);
    EXPECT_FALSE(empty);
    EXPECT_TRUE(port.receive(empty).empty());
    EXPECT_TRUE(empty);
  }
}

TEST(Port, ABusySocketDoesNotStarveAnother) {
  Host host({localhost, v6_loopback()}, 3, {.gso = false, .gro = false});
  send(host.slot(1), frames(100, localhost));
  auto f = frames(1, v6_loopback());
  f[0].sgid_index = 1;
  bool empty;
  EXPECT_EQ(host.slot(2).receive(empty).size(), 1u);
  send(host.slot(1), f);
  bool seen_v6 = false;
  for (unsigned call = 0; call < 3 * UdpReceiver::calls_per_turn && !seen_v6; ++call)
    for (auto& g : host.slot(2).receive(empty)) seen_v6 |= !g.destination.is_v4();
  EXPECT_TRUE(seen_v6);
  receive_all(host.slot(2));
  EXPECT_EQ(host.slot(2).counters().rx_datagrams, 101u);
}

TEST(Port, TheWaitDescriptorIsReadableWhenAFrameWaits) {
  Host host({localhost}, 3);
  pollfd p{host.slot(2).wait_descriptors()[0], POLLIN, 0};
  EXPECT_EQ(::poll(&p, 1, 0), 0);
  send(host.slot(1), frames(1, localhost));
  EXPECT_EQ(::poll(&p, 1, 0), 1);
  receive_all(host.slot(2));
  EXPECT_EQ(::poll(&p, 1, 0), 0);
}

TEST(Port, WhatWaitedForTheLastOwnerOfTheSlotIsThrownAway) {
  auto pool = create_pool(localhost, 0, 2);
  ASSERT_TRUE(pool);
  Stranger peer(localhost);
  Frame f{Qpn(9), Qpn::of(1, 7), localhost};
  peer.send(localhost, with_icrc(f, localhost, peer.port(), 0));
  UdpPort port({.slot = 1, .addresses = {{0, localhost, 0, pool->sockets[1]}}});
  EXPECT_TRUE(receive_all(port).empty());
  peer.send(localhost, with_icrc(f, localhost, peer.port(), 0));
  EXPECT_EQ(receive_all(port).size(), 1u);
  ::close(pool->sockets[0]);
}

// --- what cannot be sent

TEST(Port, FramesThatNobodyCanSendAreCounted) {
  Host host({localhost}, 3);
  auto f = frames(3, localhost);
  f[0].sgid_index = 9;                 // no such GID
  f[1].dgid = v6_loopback();           // not of this family
  f[2].dgid = v4(255, 255, 255, 255);  // needs a permission that nobody asked for
  send(host.slot(1), f);
  EXPECT_EQ(host.slot(1).counters().tx_errors, 3u);
  send(host.slot(1), frames(3, localhost));
  EXPECT_EQ(receive_all(host.slot(2)).size(), 3u);
}

TEST(Port, FramesAboveTheMtuAreCountedAndLeaveBundlesOn) {
  if (!in_namespace || !set_mtu("lo", 1500)) GTEST_SKIP() << "needs a network namespace";
  Host host({localhost}, 3);
  send(host.slot(1), frames(4, localhost, 4096));
  EXPECT_EQ(host.slot(1).counters().tx_too_big, 4u);
  send(host.slot(1), frames(4, localhost, 1024));
  EXPECT_EQ(receive_all(host.slot(2)).size(), 4u);
  EXPECT_EQ(host.slot(1).counters().tx_bundles, 1u);
  EXPECT_EQ(host.slot(1).counters().gso_refused, 0u);
  EXPECT_TRUE(set_mtu("lo", 65536));
}

TEST(Port, AnAbsentReceiverIsNoError) {
  Host host({localhost}, 3);
  for (int i = 0; i < 3; ++i) {
    auto f = frames(2, v4(127, 0, 0, 9));  // answers with ICMP port unreachable
    send(host.slot(1), f);
  }
  EXPECT_EQ(host.slot(1).counters().tx_errors, 0u);
  EXPECT_EQ(host.slot(1).counters().tx_datagrams, 6u);
}

TEST(Port, TellsTheReceiveBufferThatTheKernelGave) {
  auto pool = create_pool(localhost, 0, 2);
  ASSERT_TRUE(pool);
  UdpPort port(
      {.slot = 1, .addresses = {{0, localhost, 0, pool->sockets[1]}}, .receive_buffer = 100'000});
  EXPECT_EQ(port.receive_buffer(), 200'000u);
  ::close(pool->sockets[0]);
}

TEST(Port, ABadSocketIsAnExceptionAndNoLeak) {
  int pipes[2];
  ASSERT_EQ(::pipe2(pipes, O_CLOEXEC), 0);
  EXPECT_THROW(UdpPort({.slot = 1, .addresses = {{0, localhost, 0, pipes[0]}}}), std::system_error);
  EXPECT_EQ(::fcntl(pipes[0], F_GETFD), -1);  // the port owned it
  ::close(pipes[1]);
}

TEST(Port, NothingIsAllocatedPerFrame) {
#ifdef ADVERB_CANNOT_COUNT
  GTEST_SKIP() << "this sanitizer cannot count allocations";
#endif
  Host host({localhost}, 4);
  count_allocations();
  Burst bundle, singles;
  for (auto& f : frames(64, localhost)) bundle.add(f);
  for (std::uint32_t i = 0; i < 16; ++i)
    singles.add({Qpn::of(1, i), Qpn::of(2 + i % 2, 1), localhost, i, i});
  std::uint64_t got = 0, before = allocations;
  auto drain = [&](UdpPort& port) {
    for (bool empty = false; !empty;) got += port.receive(empty).size();
  };
  constexpr unsigned rounds = 1300;
  for (unsigned i = 0; i < rounds; ++i) {
    host.slot(1).send(bundle.burst);
    host.slot(1).send(singles.burst);
    drain(host.slot(2));
    drain(host.slot(3));
  }
  EXPECT_EQ(allocations - before, 0u);
  EXPECT_EQ(got, rounds * 80);
  void* volatile p = ::operator new(64);
  ::operator delete(p);
  EXPECT_GT(allocations, before) << "the counter counts";
}

// --- source ports

TEST(SourcePorts, AreTheKernelsChoice) {
  // rdma_calc_flow_label() and rdma_flow_label_to_udp_sport() of the kernel, by hand:
  // 0x11 * 0x12 = 0x132, which the folds leave alone.
  EXPECT_EQ(roce_source_port(0, Qpn(0x11), Qpn(0x12)), 0xC000 | 0x132);
  EXPECT_EQ(roce_source_port(0, Qpn(0x12), Qpn(0x11)), 0xC000 | 0x132);
  EXPECT_EQ(roce_source_port(1, Qpn(0x11), Qpn(0x12)), 0xC001);
  EXPECT_EQ(roce_source_port(0xfffff, {}, {}), 0xC000 | (0x3fff ^ 0x3f));
  EXPECT_EQ(roce_source_port(0x4000, {}, {}), 0xC001);
}

std::unique_ptr<SourcePorts> source_ports(unsigned per_peer) {
  auto p = std::make_unique<SourcePorts>();
  p->open(localhost, 0, per_peer);
  return p;
}

TEST(SourcePorts, OnePortNeverServesTwoSlotsOfOnePeer) {
  auto ports = source_ports(4);
  std::map<std::uint16_t, unsigned> slot_of;
  for (unsigned round = 0; round < 4; ++round)
    for (unsigned slot = 0; slot < 20; ++slot)
      for (unsigned pair = 0; pair < 8; ++pair) {
        auto* s = ports->find(localhost, slot, static_cast<std::uint16_t>(0xC000 + pair));
        ASSERT_TRUE(s);
        EXPECT_GE(s->port, 0xC000);
        if (round < 2) continue;  // until then sockets change hands: 20 slots want 80
        auto [at, fresh] = slot_of.try_emplace(s->port, slot);
        EXPECT_EQ(at->second, slot);
      }
  EXPECT_LE(slot_of.size(), SourcePorts::max_sockets);
}

TEST(SourcePorts, AreSpreadOverPathsAndSharedByPeers) {
  auto ports = source_ports(4);
  std::set<std::uint16_t> used;
  for (unsigned pair = 0; pair < 64; ++pair)
    used.insert(ports->find(localhost, 1, static_cast<std::uint16_t>(0xC100 + pair * 5))->port);
  EXPECT_EQ(used.size(), 4u);
  for (unsigned peer = 0; peer < 250; ++peer)
    for (unsigned pair = 0; pair < 4; ++pair)
      used.insert(ports
                      ->find(v4(10, 0, 0, static_cast<std::uint8_t>(peer)), 1,
                             static_cast<std::uint16_t>(0xC200 + pair * 5))
                      ->port);
  EXPECT_LE(used.size(), SourcePorts::max_sockets);
}

TEST(SourcePorts, MorePeerSlotsThanSocketsTakeTheLeastRecentlyUsed) {
  auto ports = source_ports(1);
  auto wanted = [](unsigned slot) { return static_cast<std::uint16_t>(0xD000 + slot * 16); };
  std::map<unsigned, std::uint16_t> port;
  for (unsigned slot = 0; slot < 64; ++slot)
    port[slot] = ports->find(localhost, slot, wanted(slot))->port;
  ASSERT_TRUE(ports->find(localhost, 0, wanted(0)));
  auto newest = ports->find(localhost, 64, wanted(64))->port;  // takes slot 1's socket
  for (unsigned slot = 0; slot < 64; ++slot) EXPECT_NE(newest, port[slot]);
  EXPECT_EQ(ports->find(localhost, 0, wanted(0))->port, port[0]);
  EXPECT_EQ(ports->find(localhost, 2, wanted(2))->port, port[2]);
}

TEST(SourcePorts, ATakenPortIsPassedOver) {
  int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  SocketAddress a;
  socklen_t n = to_address(localhost, 0xC123, 0, a);
  ASSERT_EQ(::bind(fd, &a.any, n), 0);
  auto ports = source_ports(4);
  EXPECT_EQ(ports->find(localhost, 1, 0xC123)->port, 0xC124);
  EXPECT_EQ(ports->find(localhost, 2, 0xFFFF)->port, 0xFFFF);
  ::close(fd);
}

}  // namespace
}  // namespace adverb::port
