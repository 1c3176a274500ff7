// SPDX-License-Identifier: Apache-2.0
// What we measure ourselves against, in the same run: the distance between the two cores, and the
// best UDP ping-pong that sockets allow (two processes, each polling a non-blocking socket on a
// core of its own).
//
//   adverb_bench_peers c2c                       half round trip of a cache line, ns
//   adverb_bench_peers udp ADDRESS BYTES COUNT   half round trip of a datagram, ns: median and 99th
//   percentile
//   adverb_bench_peers bundle ADDRESS BYTES MORE COUNT   the same of two datagrams of BYTES and
//   MORE bytes, in one send call and one receive call: what a message and an ACK take
#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

void pin(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  sched_setaffinity(0, sizeof set, &set);
}

double half_ns(Clock::time_point from, int trips) {
  return std::chrono::duration<double, std::nano>(Clock::now() - from).count() / trips / 2;
}

int c2c() {
  constexpr int trips = 50000, warm = 5000;
  void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto* flag = new (page) std::atomic<int>(0);
  auto wait_for = [&](int v) {
    while (flag->load(std::memory_order_acquire) != v) __builtin_ia32_pause();
  };
  pid_t child = fork();
  pin(child ? 0 : 1);
  Clock::time_point begin;
  for (int i = 0; i < trips + warm; ++i) {
    if (i == warm) begin = Clock::now();
    if (child) {
      flag->store(2 * i + 1, std::memory_order_release);
      wait_for(2 * i + 2);
    } else {
      wait_for(2 * i + 1);
      flag->store(2 * i + 2, std::memory_order_release);
    }
  }
  if (!child) _exit(0);
  double ns = half_ns(begin, trips);
  waitpid(child, nullptr, 0);
  fmt::print("{:.0f}\n", ns);
  return 0;
}

struct End {
  int fd;
  sockaddr_in self{}, peer{};
};

End open_end(const char* address) {
  End e{socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0)};
  e.self.sin_family = AF_INET;
  inet_pton(AF_INET, address, &e.self.sin_addr);
  socklen_t size = sizeof e.self;
  if (e.fd < 0 || bind(e.fd, reinterpret_cast<sockaddr*>(&e.self), size) ||
      getsockname(e.fd, reinterpret_cast<sockaddr*>(&e.self), &size)) {
    perror("bind");
    exit(1);
  }
  return e;
}

// A message of `bytes`, and if `more` is not 0 a second one of that size in the same calls.
struct Load {
  std::size_t bytes, more;
};

void send(const End& e, char* buffer, Load load) {
  iovec iov{buffer, load.bytes + load.more};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(std::uint16_t))] = {};
  msghdr m{};
  m.msg_name = const_cast<sockaddr_in*>(&e.peer), m.msg_namelen = sizeof e.peer;
  m.msg_iov = &iov, m.msg_iovlen = 1;
  if (load.more) {
    m.msg_control = control, m.msg_controllen = sizeof control;
    cmsghdr* c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_UDP, c->cmsg_type = UDP_SEGMENT, c->cmsg_len = CMSG_LEN(2);
    const auto segment = static_cast<std::uint16_t>(load.bytes);
    std::memcpy(CMSG_DATA(c), &segment, sizeof segment);
  }
  if (sendmsg(e.fd, &m, 0) < 0) exit(1);
}

// How many bytes came; what a receiver of bundles must know of them is asked for too.
ssize_t receive(const End& e, char* buffer) {
  alignas(cmsghdr) char control[128];
  sockaddr_in from;
  iovec iov{buffer, 65536};
  msghdr m{};
  m.msg_name = &from, m.msg_namelen = sizeof from;
  m.msg_iov = &iov, m.msg_iovlen = 1;
  m.msg_control = control, m.msg_controllen = sizeof control;
  return recvmsg(e.fd, &m, 0);
}

void trip(const End& e, char* buffer, Load load, bool ping) {
  if (ping) send(e, buffer, load);
  while (load.more ? receive(e, buffer) < 0 : recv(e.fd, buffer, 65536, 0) < 0)
    if (errno != EAGAIN) exit(1);
  if (!ping) send(e, buffer, load);
}

int udp(const char* address, Load load, int count) {
  End a = open_end(address), b = open_end(address);
  a.peer = b.self;
  b.peer = a.self;
  const int on = 1;
  for (const End& e : {a, b})
    if (load.more && (setsockopt(e.fd, SOL_UDP, UDP_GRO, &on, sizeof on) ||
                      setsockopt(e.fd, IPPROTO_IP, IP_RECVTOS, &on, sizeof on)))
      return perror("setsockopt"), 1;
  std::vector<char> buffer(65536);
  pid_t child = fork();
  pin(child ? 0 : 1);
  if (!child) {
    for (int i = 0; i < count + 1000; ++i) trip(b, buffer.data(), load, false);
    _exit(0);
  }
  std::vector<double> ns;
  ns.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count + 1000; ++i) {
    auto begin = Clock::now();
    trip(a, buffer.data(), load, true);
    if (i >= 1000) ns.push_back(half_ns(begin, 1));
  }
  waitpid(child, nullptr, 0);
  std::sort(ns.begin(), ns.end());
  fmt::print("{:.0f} {:.0f}\n", ns[ns.size() / 2], ns[ns.size() * 99 / 100]);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::string_view what = argc > 1 ? argv[1] : "";
  if (what == "c2c") return c2c();
  if (what == "udp" && argc == 5)
    return udp(argv[2], {std::strtoul(argv[3], nullptr, 10), 0}, atoi(argv[4]));
  if (what == "bundle" && argc == 6)
    return udp(argv[2], {std::strtoul(argv[3], nullptr, 10), std::strtoul(argv[4], nullptr, 10)},
               atoi(argv[5]));
  fmt::print(stderr, "usage: {} c2c | udp ADDRESS BYTES COUNT | bundle ADDRESS BYTES MORE COUNT\n",
             argv[0]);
  return 2;
}
