// SPDX-License-Identifier: Apache-2.0
// Every test runs in a process of its own in a network namespace of its own, with real adverbds.
// Other processes are forked from there and report through a pipe; whatever is left over is killed
// by its process id.
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "daemon/client.hpp"
#include "daemon/descriptors.hpp"
#include "daemon/protocol.hpp"
#include "daemon/vault.hpp"
#include "port/steering.hpp"
#include "port/udp_port.hpp"
#include "wire/icrc.hpp"

namespace adverb::daemon {
namespace {

using namespace std::chrono_literals;

Gid gid_of(const char* v4) { return Gid::from_v4(::inet_addr(v4)); }
const Gid local = gid_of("127.0.0.1");

bool lo_up() {
  Descriptor s(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq r{};
  std::strcpy(r.ifr_name, "lo");
  r.ifr_flags = IFF_UP | IFF_RUNNING;
  return ::ioctl(s.get(), SIOCSIFFLAGS, &r) == 0;
}

int daemon_pid() {  // 0: none
  auto text = daemon_status();
  int pid = 0;
  if (text) std::sscanf(text->c_str(), "{\"pid\":%d", &pid);
  return pid;
}

// Polls a condition that other processes bring about; false after ten seconds.
bool eventually(const std::function<bool()>& f) {
  for (const auto end = now_ms() + 10000; now_ms() < end; std::this_thread::sleep_for(1ms))
    if (f()) return true;
  return false;
}

// What a child prints: lines to its pipe, `hold` until the parent lets go.
class Process {
 public:
  struct Ends {
    int out, in;
    void say(const std::string& line) const {
      const std::string text = line + "\n";
      if (::write(out, text.data(), text.size()) < 0) ::_exit(9);
    }
    std::string wait() const { return read_line(in); }  // empty: let go
  };

  explicit Process(const std::function<void(const Ends&)>& body) {
    int up[2], down[2];
    if (::pipe2(up, O_CLOEXEC) < 0 || ::pipe2(down, O_CLOEXEC) < 0) std::abort();
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::close(up[0]);
      ::close(down[1]);
      body({up[1], down[0]});
      ::_exit(0);
    }
    ::close(up[1]);
    ::close(down[0]);
    from_ = up[0];
    to_ = down[1];
  }
  Process(Process&& o) noexcept
      : pid_(std::exchange(o.pid_, 0)),
        from_(std::exchange(o.from_, -1)),
        to_(std::exchange(o.to_, -1)) {}
  ~Process() {
    kill();
    if (from_ >= 0) ::close(from_);
  }

  int pid() const { return pid_; }
  std::string line() const { return read_line(from_); }
  void tell(const std::string& line) const {
    const std::string text = line + "\n";
    if (::write(to_, text.data(), text.size()) < 0) ADD_FAILURE() << "the process is gone";
  }
  int finish() {  // lets it go; its exit status
    if (to_ >= 0) ::close(std::exchange(to_, -1));
    int status = -1;
    if (pid_ > 0) ::waitpid(std::exchange(pid_, 0), &status, 0);
    return status;
  }
  void kill() {
    if (pid_ > 0) ::kill(pid_, SIGKILL);
    finish();
  }

 private:
  static std::string read_line(int fd) {
    std::string text;
    for (char c; wait_readable(fd, now_ms() + 20000) && ::read(fd, &c, 1) == 1 && c != '\n';)
      text += c;
    return text;
  }
  int pid_ = 0, from_ = -1, to_ = -1;
};

// Runs the body in a process with its own network namespace; its failures become this test's.
void isolated(const std::function<void()>& body, unsigned uid = 0) {
  std::fflush(nullptr);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::alarm(120);
    ::setenv("ADVERB_SLOTS", "64", 1);
    if (::unshare(CLONE_NEWNET) < 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNET) < 0) ::_exit(77);
    if (!lo_up()) ::_exit(77);
    if (uid && (::setresgid(uid, uid, uid) < 0 || ::setresuid(uid, uid, uid) < 0)) ::_exit(77);
    body();
    if (const int daemon = daemon_pid()) ::kill(daemon, SIGKILL);
    std::fflush(nullptr);
    ::_exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
    GTEST_SKIP() << "network namespaces (or other users) are not permitted here";
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
      << "status " << status << ", see above";
}

std::unique_ptr<Client> connect_or_fail() {
  auto client = Client::connect();
  if (client) return std::move(*client);
  ADD_FAILURE() << client.error().message;
  return nullptr;
}

int socket_or_fail(Client& client, const Gid& gid = local) {
  auto fd = client.receive_socket(gid, 1);
  if (fd) return *fd;
  ADD_FAILURE() << fd.error().message;
  return -1;
}

// A datagram to the slot: what counts is the BTH's destination QPN.
void send_to_slot(unsigned slot, std::uint8_t mark, const Gid& to = local) {
  Descriptor s(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  std::uint8_t frame[32]{};
  const auto qpn = Qpn::of(slot, 5).raw();
  frame[5] = static_cast<std::uint8_t>(qpn >> 16);
  frame[6] = static_cast<std::uint8_t>(qpn >> 8);
  frame[7] = static_cast<std::uint8_t>(qpn);
  frame[31] = mark;
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_port = htons(port::roce_port);
  a.sin_addr.s_addr = to.v4();
  ASSERT_EQ(::sendto(s.get(), frame, sizeof frame, 0, reinterpret_cast<sockaddr*>(&a), sizeof a),
            32);
}

// The mark of the next datagram; -1: none there.
int take_mark(int socket) {
  std::uint8_t frame[64];
  return ::recv(socket, frame, sizeof frame, MSG_DONTWAIT) == 32 ? frame[31] : -1;
}

void expect_arrives(unsigned slot, int socket, std::uint8_t mark, const Gid& at = local) {
  send_to_slot(slot, mark, at);
  EXPECT_EQ(take_mark(socket), mark) << "slot " << slot;
  EXPECT_EQ(take_mark(socket), -1);
}

bool recovered(Client& client) {
  return eventually([&] { return client.recover(); });
}

bool hung_up(const Client& client) {
  pollfd p{client.watch_descriptor(), POLLIN, 0};
  return ::poll(&p, 1, 10000) == 1;
}

int kill_daemon() {
  const int pid = daemon_pid();
  EXPECT_GT(pid, 0);
  if (pid > 0) ::kill(pid, SIGKILL);
  EXPECT_TRUE(eventually([] { return daemon_pid() == 0; }));
  return pid;
}

std::size_t open_descriptors(int pid) {
  std::size_t n = 0;
  DIR* d = ::opendir(fmt::format("/proc/{}/fd", pid).c_str());
  while (d && ::readdir(d)) ++n;
  if (d) ::closedir(d);
  return n;
}

TEST(Vault, KeepsDescriptorsInOrderAfterTheSenderIsClosed) {
  std::vector<int> originals;
  std::vector<ino_t> inodes;
  struct stat s;
  for (int i = 0; i < 300; ++i) {
    originals.push_back(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    ::fstat(originals.back(), &s);
    inodes.push_back(s.st_ino);
  }
  Descriptors vaults = lock_away(originals);
  ASSERT_EQ(vaults.size(), 2u);
  for (int fd : originals) ::close(fd);
  for (int round = 0; round < 3; ++round) {
    std::vector<ino_t> seen;
    for (auto& v : vaults)
      for (auto& fd : peek(v.get())) {
        ASSERT_EQ(::fstat(fd.get(), &s), 0);
        seen.push_back(s.st_ino);
      }
    EXPECT_EQ(seen, inodes);
  }
}

TEST(Daemon, StartsOnDemandAndEndsWithinTwoSecondsOfItsLastClient) {
  isolated([] {
    EXPECT_EQ(daemon_pid(), 0);
    auto client = connect_or_fail();
    ASSERT_TRUE(client);
    EXPECT_GE(client->slot(), 1u);
    const int pid = daemon_pid();
    ASSERT_GT(pid, 0);
    const auto session = ::getsid(pid);
    EXPECT_NE(session, ::getsid(0));
    char text[64] = "";
    ASSERT_GT(::readlink(fmt::format("/proc/{}/fd/1", pid).c_str(), text, sizeof text), 0);
    EXPECT_STREQ(text, "/dev/null");
    Descriptor handle(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0u)));
    client.reset();
    const auto left = now_ms();
    EXPECT_TRUE(wait_readable(handle.get(), left + 10000));
    EXPECT_LE(now_ms() - left, 2000);
  });
}

TEST(Daemon, SixteenProcessesAtOnceShareOneDaemonAndOneAddress) {
  isolated([] {
    std::vector<Process> processes;
    for (int i = 0; i < 16; ++i)
      processes.emplace_back([](const Process::Ends& ends) {
        auto client = Client::connect();
        auto fd = client ? (*client)->receive_socket(local, 1)
                         : std::expected<int, ClientError>(std::unexpected(client.error()));
        if (!fd) return ends.say(fd.error().message);
        ends.say(fmt::format("{} {}", (*client)->slot(), daemon_pid()));
        ends.wait();
        ends.say(std::to_string(take_mark(*fd)));
        ends.wait();
      });
    std::set<unsigned> slots;
    std::set<int> daemons;
    std::vector<unsigned> slot_of;
    for (auto& p : processes) {
      unsigned slot = 0;
      int daemon = 0;
      const auto line = p.line();
      ASSERT_EQ(std::sscanf(line.c_str(), "%u %d", &slot, &daemon), 2) << line;
      slots.insert(slot);
      daemons.insert(daemon);
      slot_of.push_back(slot);
    }
    EXPECT_EQ(slots.size(), 16u);
    EXPECT_FALSE(slots.contains(0));
    EXPECT_EQ(daemons.size(), 1u);
    for (unsigned slot : slot_of) send_to_slot(slot, static_cast<std::uint8_t>(slot + 100));
    for (std::size_t i = 0; i < 16; ++i) {
      processes[i].tell("read");
      EXPECT_EQ(processes[i].line(), std::to_string(slot_of[i] + 100));
    }
  });
}

TEST(Daemon, ItsDeathDisturbsNobodyAndTheNextOneKnowsEverySlot) {
  isolated([] {
    auto a = connect_or_fail(), b = connect_or_fail();
    ASSERT_TRUE(a && b);
    const int fa = socket_or_fail(*a), fb = socket_or_fail(*b);
    const unsigned sa = a->slot(), sb = b->slot();
    const int first = kill_daemon();
    expect_arrives(sa, fa, 1);
    expect_arrives(sb, fb, 2);
    ASSERT_TRUE(hung_up(*a));
    ASSERT_TRUE(recovered(*a));
    // b has not come back: a newcomer gets neither of the two slots.
    auto c = connect_or_fail();
    ASSERT_TRUE(c);
    EXPECT_NE(daemon_pid(), first);
    EXPECT_NE(c->slot(), sa);
    EXPECT_NE(c->slot(), sb);
    const int fc = socket_or_fail(*c);
    ASSERT_TRUE(recovered(*b));
    EXPECT_EQ(a->slot(), sa);
    EXPECT_EQ(b->slot(), sb);
    expect_arrives(sa, fa, 3);
    expect_arrives(sb, fb, 4);
    expect_arrives(c->slot(), fc, 5);
    for (int fd : {fa, fb, fc}) ::close(fd);
  });
}

TEST(Daemon, ANewcomerMayComeBeforeTheOldClientsAfterItsDeath) {
  isolated([] {
    auto a = connect_or_fail();
    ASSERT_TRUE(a);
    const int fa = socket_or_fail(*a);
    kill_daemon();
    Process newcomer([](const Process::Ends& ends) {
      auto c = Client::connect();
      if (!c) return ends.say(c.error().message);
      auto fd = (*c)->receive_socket(local, 1);
      ends.say(fd ? std::to_string((*c)->slot()) : fd.error().message);
      ends.wait();
      ends.say(std::to_string(take_mark(*fd)));
      ends.wait();
    });
    ASSERT_TRUE(eventually([&] { return daemon_pid() > 0; }));  // the newcomer's, waiting for us
    ASSERT_TRUE(recovered(*a));
    const auto line = newcomer.line();
    const unsigned slot = static_cast<unsigned>(std::atoi(line.c_str()));
    ASSERT_NE(slot, 0u) << line;
    EXPECT_NE(slot, a->slot());
    send_to_slot(slot, 77);
    newcomer.tell("read");
    EXPECT_EQ(newcomer.line(), "77");
    expect_arrives(a->slot(), fa, 78);
    ::close(fa);
  });
}

TEST(Daemon, AKilledClientsSlotIsDrainedAndGivenOutAgain) {
  isolated([] {
    ::setenv("ADVERB_SLOTS", "4", 1);  // 1 to 3
    auto a = connect_or_fail();
    ASSERT_TRUE(a);
    const int fa = socket_or_fail(*a);
    Process victim([](const Process::Ends& ends) {
      auto c = Client::connect();
      auto fd = (*c)->receive_socket(local, 1);
      ends.say(fd ? std::to_string((*c)->slot()) : fd.error().message);
      ends.wait();
    });
    const unsigned slot = static_cast<unsigned>(std::atoi(victim.line().c_str()));
    ASSERT_NE(slot, 0u);
    kill_daemon();
    ASSERT_TRUE(recovered(*a));
    send_to_slot(slot, 66);  // lies in the socket when its owner dies
    victim.kill();
    send_to_slot(slot, 67);
    auto b = connect_or_fail(), c = connect_or_fail();  // one of them gets the free one
    ASSERT_TRUE(b && c);
    const auto& heir = b->slot() == slot ? b : c;
    ASSERT_EQ(heir->slot(), slot);
    auto refused = Client::connect();
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().error, EBUSY);
    const int fd = socket_or_fail(*heir);
    EXPECT_EQ(take_mark(fd), -1) << "a dead process's packets";
    expect_arrives(slot, fd, 68);
    expect_arrives(a->slot(), fa, 69);
    ::close(fa);
    ::close(fd);
  });
}

TEST(Daemon, ForkedChildKeepsNeitherTheSlotNorSaysGoodbye) {
  isolated([] {
    auto a = connect_or_fail();
    ASSERT_TRUE(a);
    const int fa = socket_or_fail(*a);
    Process child([&](const Process::Ends& ends) {
      a.reset();  // in the child: only closes
      ends.say("done");
      ends.wait();
    });
    EXPECT_EQ(child.line(), "done");
    auto b = connect_or_fail();
    ASSERT_TRUE(b);
    EXPECT_NE(b->slot(), a->slot());
    EXPECT_TRUE(a->recover());
    expect_arrives(a->slot(), fa, 5);
    ::close(fa);
  });
}

TEST(Daemon, ItDiesThenAClientDiesUnderTrafficThenAnotherStarts) {
  isolated([] {
    ::setenv("ADVERB_SLOTS", "3", 1);  // 1 and 2
    auto a = connect_or_fail();
    ASSERT_TRUE(a);
    const int fa = socket_or_fail(*a);
    for (int round = 0; round < 3; ++round) {
      Process victim([](const Process::Ends& ends) {
        auto c = Client::connect();
        auto fd = c ? (*c)->receive_socket(local, 1)
                    : std::expected<int, ClientError>(std::unexpected(c.error()));
        ends.say(fd ? std::to_string((*c)->slot()) : fd.error().message);
        ends.wait();
      });
      const auto line = victim.line();
      const unsigned slot = static_cast<unsigned>(std::atoi(line.c_str()));
      ASSERT_NE(slot, 0u) << line;
      kill_daemon();
      victim.kill();
      for (int i = 0; i < 50; ++i) {  // what the dead one gets takes nothing from the living
        send_to_slot(slot, 1);
        expect_arrives(a->slot(), fa, static_cast<std::uint8_t>(i));
      }
      ASSERT_TRUE(recovered(*a));
    }
    ::close(fa);
  });
}

TEST(Daemon, BothDieAndTheNextProcessStartsAfresh) {
  isolated([] {
    Process first([](const Process::Ends& ends) {
      auto c = Client::connect();
      ends.say(c && (*c)->receive_socket(local, 1) ? "up" : "failed");
      ends.wait();
    });
    ASSERT_EQ(first.line(), "up");
    kill_daemon();
    first.kill();
    auto b = connect_or_fail();
    ASSERT_TRUE(b);
    const int fb = socket_or_fail(*b);
    expect_arrives(b->slot(), fb, 9);
    ::close(fb);
  });
}

TEST(Daemon, SlotZeroHandsOnTheRestOfABundle) {
  isolated([] {
    auto a = connect_or_fail();
    ASSERT_TRUE(a);
    port::UdpPortConfig config;
    config.slot = a->slot();
    config.addresses.push_back({.gid = local, .ifindex = 1, .receive_socket = socket_or_fail(*a)});
    config.relay_socket = a->take_relay_socket();
    config.relay_name_prefix = a->relay_name_prefix();
    port::UdpPort port(config);
    Descriptor sender(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_in from{.sin_family = AF_INET, .sin_port = htons(0xc001)};
    from.sin_addr.s_addr = local.v4();
    ASSERT_EQ(::bind(sender.get(), reinterpret_cast<sockaddr*>(&from), sizeof from), 0);
    // UD-less SEND only frames without payload: BTH and ICRC; the first is steered to slot 0.
    constexpr std::size_t bth = 12;
    std::vector<std::uint8_t> bundle;
    for (std::uint16_t k = 0; k < 2; ++k) {
      std::uint8_t frame[bth + 4] = {0x04, 0x40, 0xff, 0xff};
      const auto qpn = k == 0 ? 1u : Qpn::of(a->slot(), 7).raw();
      for (int i = 0; i < 3; ++i) frame[5 + i] = static_cast<std::uint8_t>(qpn >> (16 - 8 * i));
      const wire::IcrcPrefix prefix({local, local, 0xc001}, bth);
      const auto icrc = prefix.icrc({frame, bth}, k);
      for (int i = 0; i < 4; ++i) frame[bth + i] = static_cast<std::uint8_t>(icrc >> 8 * i);
      bundle.insert(bundle.end(), frame, frame + sizeof frame);
    }
    constexpr int udp_segment = 103, size = bth + 4;
    ASSERT_EQ(::setsockopt(sender.get(), IPPROTO_UDP, udp_segment, &size, sizeof size), 0);
    sockaddr_in to{.sin_family = AF_INET, .sin_port = htons(port::roce_port)};
    to.sin_addr.s_addr = local.v4();
    ASSERT_EQ(::sendto(sender.get(), bundle.data(), bundle.size(), 0,
                       reinterpret_cast<sockaddr*>(&to), sizeof to),
              2 * size);
    std::uint32_t got = 0;
    EXPECT_TRUE(eventually([&] {
      bool empty = false;
      for (const auto& f : port.receive(empty)) got = f.packet.bth.dest_qp.raw();
      return got != 0;
    }));
    EXPECT_EQ(got, Qpn::of(a->slot(), 7).raw());
    EXPECT_EQ(port.counters().relayed_in, 1u);
  });
}

TEST(Daemon, ServesAnUnprivilegedUserWithFiveAddressesAndFewDescriptors) {
  isolated(
      [] {
        const rlimit files{1024, 1024}, locked{64 << 10, 64 << 10};
        ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &files), 0);
        ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &locked), 0);
        auto a = connect_or_fail();
        ASSERT_TRUE(a);
        std::vector<int> sockets;
        std::vector<Gid> gids;
        for (int i = 1; i <= 5; ++i) {
          gids.push_back(gid_of(fmt::format("127.0.0.{}", i).c_str()));
          sockets.push_back(socket_or_fail(*a, gids.back()));
        }
        for (int i = 0; i < 5; ++i)
          expect_arrives(a->slot(), sockets[i], static_cast<std::uint8_t>(i), gids[i]);
        kill_daemon();
        ASSERT_TRUE(recovered(*a));
        auto b = connect_or_fail();
        ASSERT_TRUE(b);
        for (int i = 0; i < 5; ++i) {
          const int fd = socket_or_fail(*b, gids[i]);
          expect_arrives(b->slot(), fd, static_cast<std::uint8_t>(i + 10), gids[i]);
          ::close(fd);
        }
        // More than fits is refused with advice, and what works goes on working.
        std::string message;
        for (int i = 6; i < 40 && message.empty(); ++i) {
          auto fd = b->receive_socket(gid_of(fmt::format("127.0.0.{}", i).c_str()), 1);
          if (fd)
            ::close(*fd);
          else
            message = fd.error().message;
        }
        EXPECT_NE(message.find("ulimit -n"), std::string::npos) << message;
        expect_arrives(a->slot(), sockets[0], 99, gids[0]);
        for (int fd : sockets) ::close(fd);
      },
      65534);
}

TEST(Daemon, RefusesAnotherUsersSocketUnderItsName) {
  isolated([] {
    Descriptor squatter = bind_abstract(SOCK_SEQPACKET, daemon_name(65534));
    ASSERT_TRUE(squatter);
    Process user([&](const Process::Ends& ends) {
      // The listener's credentials are those of listen().
      if (::setresuid(65533, 65533, 65533) < 0) return ends.say("not permitted");
      ::listen(squatter.get(), 1);
      ends.say("listening");
      ends.wait();
    });
    const auto line = user.line();
    if (line == "not permitted") GTEST_SKIP() << "this user cannot become another";
    Process victim([](const Process::Ends& ends) {
      if (::setresuid(65534, 65534, 65534) < 0) return ends.say("cannot become another user");
      auto c = Client::connect();
      ends.say(c ? "was fooled" : fmt::format("{} {}", c.error().error, c.error().message));
      ends.wait();
    });
    const auto said = victim.line();
    EXPECT_EQ(std::atoi(said.c_str()), EPERM) << said;
    EXPECT_NE(said.find("user 65533"), std::string::npos) << said;
  });
}

// Somebody else has port 4791 of `local`.
static Descriptor take_port() {
  Descriptor other(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in a{.sin_family = AF_INET, .sin_port = htons(port::roce_port)};
  a.sin_addr.s_addr = local.v4();
  EXPECT_EQ(::bind(other.get(), reinterpret_cast<sockaddr*>(&a), sizeof a), 0);
  return other;
}

TEST(Daemon, AddressOfSomebodyElseIsAClearError) {
  isolated([] {
    const Descriptor other = take_port();
    auto client = connect_or_fail();
    ASSERT_TRUE(client);
    auto fd = client->receive_socket(local, 1);
    ASSERT_FALSE(fd);
    EXPECT_EQ(fd.error().error, EADDRINUSE);
    EXPECT_NE(fd.error().message.find("4791 of 127.0.0.1 is taken"), std::string::npos);
  });
}

// Another user's adverbd, say, that ends soon after its last client.
TEST(Daemon, AnAddressThatIsLetGoOfSoonIsWaitedFor) {
  isolated([] {
    Descriptor other = take_port();
    auto client = connect_or_fail();
    ASSERT_TRUE(client);
    std::jthread soon([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      other = {};
    });
    auto fd = client->receive_socket(local, 1);
    ASSERT_TRUE(fd) << fd.error().message;
    ::close(*fd);
  });
}

TEST(Daemon, NothingLeaksOverManyConnections) {
  isolated([] {
    auto a = connect_or_fail();
    ASSERT_TRUE(a);
    ::close(socket_or_fail(*a));
    const int daemon = daemon_pid();
    auto once = [] {
      auto c = connect_or_fail();
      if (c) ::close(socket_or_fail(*c));
    };
    once();
    EXPECT_TRUE(
        eventually([] { return daemon_status()->find("},{\"slot\"") == std::string::npos; }));
    const auto ours = open_descriptors(::getpid()), theirs = open_descriptors(daemon);
    for (int i = 0; i < 200; ++i) once();
    // `theirs` may have counted the status connection.
    EXPECT_EQ(open_descriptors(::getpid()), ours);
    EXPECT_TRUE(eventually([&] { return open_descriptors(daemon) <= theirs; }))
        << open_descriptors(daemon) << " instead of " << theirs;
    EXPECT_EQ(daemon_pid(), daemon);
  });
}

TEST(Daemon, HoldsNoPipeOfTheProcessThatStartedIt) {
  isolated([] {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);  // inheritable, as a shell's
    Process starter([&](const Process::Ends& talk) {
      ::dup2(ends[1], 1);
      ::dup2(ends[1], 2);
      ::close(ends[0]);
      auto c = Client::connect();
      talk.say(c ? "up" : c.error().message);
      talk.wait();
    });
    ::close(ends[1]);
    EXPECT_EQ(starter.line(), "up");
    const int daemon = daemon_pid();
    starter.kill();
    pollfd p{ends[0], POLLIN, 0};
    EXPECT_EQ(::poll(&p, 1, 10000), 1);
    EXPECT_TRUE(p.revents & POLLHUP);
    EXPECT_EQ(::kill(daemon, 0), 0) << "the pipe closed only because the daemon ended";
    ::close(ends[0]);
  });
}

TEST(Daemon, SaysWhyItCannotStart) {
  isolated([] {
    ::setenv("ADVERB_DAEMON", "/nonexistent/adverbd", 1);
    auto client = Client::connect();
    ASSERT_FALSE(client);
    EXPECT_EQ(client.error().error, ENOENT);
    EXPECT_NE(client.error().message.find("/nonexistent/adverbd"), std::string::npos);
    ::setenv("ADVERB_DAEMON", "/bin/rm", 1);  // complains about its option and ends
    client = Client::connect();
    ASSERT_FALSE(client);
    EXPECT_NE(client.error().message.find("--no-fork"), std::string::npos)
        << client.error().message;
  });
}

TEST(Daemon, StartsNoChildThatTheApplicationCouldReap) {
  isolated([] {
    auto a = connect_or_fail();
    ASSERT_TRUE(a);
    EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);
    EXPECT_EQ(errno, ECHILD);
  });
}

}  // namespace
}  // namespace adverb::daemon
