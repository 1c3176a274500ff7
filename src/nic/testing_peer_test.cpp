// SPDX-License-Identifier: Apache-2.0
// The helpers of testing.hpp and main().
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>

#include "daemon/client.hpp"
#include "nic/log.hpp"
#include "nic/testing.hpp"

namespace adverb::nic::testing {

using engine::Cqe;
using engine::QpAttributes;
using engine::QpState;
using engine::WrOpcode;
using Clock = std::chrono::steady_clock;

namespace {

constexpr auto patience = std::chrono::seconds(20);
constexpr engine::PdId pd = 1;

bool send_all(int fd, const void* data, std::size_t n) {
  return ::send(fd, data, n, MSG_NOSIGNAL) == static_cast<ssize_t>(n);
}

bool receive_all(int fd, void* data, std::size_t n) {
  pollfd p{fd, POLLIN, 0};
  if (::poll(&p, 1, 20'000) != 1) return false;
  return ::recv(fd, data, n, MSG_WAITALL) == static_cast<ssize_t>(n);
}

}  // namespace

static bool own_namespace = false;

void enter_own_namespace() {
  own_namespace = unshare(CLONE_NEWNET) == 0 && std::system("ip link set lo up") == 0;
}

bool in_own_namespace() { return own_namespace; }

// The library starts adverbd in a child that shares its memory until exec.  ThreadSanitizer follows
// that child into exec with the state of the calling thread, and ignores what this thread
// synchronises ever after.  So start it from here.
static void start_daemon_for_sanitizer() {
#if defined(__SANITIZE_THREAD__)
  const auto daemon = std::filesystem::canonical("/proc/self/exe").parent_path() / "adverbd";
  std::string name = daemon;
  char* arguments[] = {name.data(), nullptr};
  pid_t pid;
  if (posix_spawn(&pid, daemon.c_str(), nullptr, nullptr, arguments, environ) != 0) return;
  while (!daemon::daemon_status() && waitpid(pid, nullptr, WNOHANG) >= 0) sched_yield();
#endif
}

std::expected<std::shared_ptr<Device>, OpenError> open_loopback() {
  const auto daemon = std::filesystem::canonical("/proc/self/exe").parent_path() / "adverbd";
  setenv("ADVERB_DAEMON", daemon.c_str(), 0);
  for (const DeviceInfo& info : enumerate())
    if (info.netdev == "lo") return Device::open(info);
  return std::unexpected(OpenError{ENODEV, "lo is down"});
}

Endpoint::Endpoint(std::shared_ptr<Device> d, std::size_t bytes, unsigned depth)
    : device(std::move(d)), memory(bytes) {
  device->with_engine([&](engine::Engine& e, Instant) {
    cq = e.create_cq(4 * depth, this);
    engine::QpInit init;
    init.pd = pd;
    init.send_cq = init.recv_cq = cq;
    init.max_send_wr = init.max_recv_wr = depth;
    init.user = this;
    qp = e.create_qp(init);
    engine::MemoryRegion region;
    region.iova = reinterpret_cast<std::uint64_t>(memory.data());
    region.base = reinterpret_cast<std::byte*>(memory.data());
    region.length = memory.size();
    region.access = engine::access_local_write | engine::access_remote_write |
                    engine::access_remote_read | engine::access_remote_atomic;
    region.pd = pd;
    region_ = e.keys().add(region);
  });
}

Endpoint::~Endpoint() {
  if (!device || device->dead()) return;
  device->destroy_qp(qp);
  EXPECT_TRUE(device->destroy_cq(cq));
  device->with_engine([&](engine::Engine& e, Instant) { e.keys().remove(*region_); });
}

Address Endpoint::address() const {
  Address a;
  a.gid = device->info().gids[0];
  a.qpn = qp->qpn.raw();
  a.psn = 0x123456;
  a.rkey = region_->key;
  a.memory = reinterpret_cast<std::uint64_t>(memory.data());
  return a;
}

void Endpoint::modify(const QpAttributes& attributes, std::uint32_t mask) {
  const auto result = device->with_engine(
      [&](engine::Engine& e, Instant now) { return e.modify_qp(now, *qp, attributes, mask); });
  ASSERT_TRUE(result.ok()) << (result.what ? result.what : "transition") << " " << result.value;
}

bool Endpoint::connect(const Address& to, std::uint8_t timeout, std::uint8_t retries) {
  using namespace engine;
  remote = to;
  QpAttributes a;
  a.state = QpState::init;
  a.access_flags = access_remote_write | access_remote_read | access_remote_atomic;
  modify(a, attr_state | attr_pkey_index | attr_port | attr_access_flags);
  a.state = QpState::rtr;
  a.path_mtu = device->info().active_mtu;
  a.dest_qpn = Qpn(to.qpn);
  a.rq_psn = Psn(to.psn);
  a.av.dgid = to.gid;
  a.max_dest_rd_atomic = a.max_rd_atomic = 16;
  a.min_rnr_timer = 1;
  modify(a, attr_state | attr_av | attr_path_mtu | attr_dest_qpn | attr_rq_psn |
                attr_max_dest_rd_atomic | attr_min_rnr_timer);
  a.state = QpState::rts;
  a.timeout = timeout;
  a.retry_cnt = retries;
  a.rnr_retry = 7;
  a.sq_psn = Psn(address().psn);
  modify(a, attr_state | attr_timeout | attr_retry_cnt | attr_rnr_retry | attr_sq_psn |
                attr_max_qp_rd_atomic);
  return qp->state == QpState::rts;
}

bool Endpoint::post(WrOpcode opcode, std::uint64_t wr_id, std::size_t offset, std::uint32_t length,
                    std::uint64_t remote_offset) {
  {
    std::lock_guard hold(qp->sq->lock);
    engine::SendWqe* wqe = qp->sq->reserve();
    if (!wqe) return false;
    wqe->wr_id = wr_id;
    wqe->opcode = opcode;
    wqe->flags = engine::send_signaled;
    wqe->num_sge = 1;
    wqe->length = length;
    wqe->remote_addr = remote.memory + remote_offset;
    wqe->rkey = remote.rkey;
    qp->sq->sges_of_reserved()[0] = {reinterpret_cast<std::uint64_t>(memory.data()) + offset,
                                     length, region_->key};
    qp->sq->publish();
  }
  device->doorbell(*qp);
  return true;
}

bool Endpoint::post_recv(std::uint64_t wr_id, std::size_t offset, std::uint32_t length) {
  const engine::Sge sge{reinterpret_cast<std::uint64_t>(memory.data()) + offset, length,
                        region_->key};
  std::lock_guard hold(qp->rq->lock);
  return qp->rq->post(wr_id, {&sge, 1});
}

Cqe Endpoint::completion() {
  Cqe cqe;
  for (const auto end = Clock::now() + patience; Clock::now() < end;)
    if (poll(1, &cqe) == 1) return cqe;
  ADD_FAILURE() << "no completion";
  cqe.status = engine::WcStatus::general_err;
  return cqe;
}

// --- the peer

Peer::Peer(Endpoint& ours, std::vector<std::string> environment) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) std::abort();
  pid_ = fork();
  if (pid_ == 0) {
    const int inherited = dup(pair[1]);  // without close-on-exec
    for (const auto& e : environment) putenv(const_cast<char*>(e.c_str()));
    execl("/proc/self/exe", "nic_test", "--peer", std::to_string(inherited).c_str(), nullptr);
    _exit(127);
  }
  close(pair[1]);
  socket_ = pair[0];
  const Address us = ours.address();
  if (!send_all(socket_, &us, sizeof us) || !receive_all(socket_, &address_, sizeof address_))
    ADD_FAILURE() << "the peer did not start";
}

Peer::~Peer() {
  if (socket_ >= 0) close(socket_);
  socket_ = -1;
  if (pid_ > 0) wait();
}

void Peer::command(char c) {
  char answer = 0;
  EXPECT_TRUE(send_all(socket_, &c, 1) && receive_all(socket_, &answer, 1) && answer == c)
      << "peer lost at command " << c;
}

void Peer::start_polling() { command('P'); }
void Peer::stop_polling() { command('S'); }

PeerReport Peer::report() {
  PeerReport r;
  command('R');
  EXPECT_TRUE(receive_all(socket_, &r, sizeof r));
  return r;
}

void Peer::kill() {
  ::kill(pid_, SIGKILL);
  wait();
}

int Peer::wait() {
  int status = 0;
  if (socket_ >= 0) close(socket_);
  socket_ = -1;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  return status;
}

namespace {

PeerReport make_report(const Device& device) {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  const ThreadCounters c = device.thread_counters();
  return {.cpu_ns = std::uint64_t(t.tv_sec) * 1'000'000'000 + t.tv_nsec,
          .background_wakeups = c.background_wakeups,
          .background_bursts = c.background_bursts,
          .background_ticks = c.background_ticks,
          .caller_bursts = c.caller_bursts,
          .kicks = c.kicks};
}

void answer_completions(Endpoint& endpoint) {
  Cqe cqe[16];
  const unsigned n = endpoint.poll(16, cqe);
  for (unsigned i = 0; i < n; ++i) {
    if (cqe[i].opcode != engine::WcOpcode::recv || cqe[i].status != engine::WcStatus::success)
      continue;
    endpoint.post_recv(cqe[i].wr_id, 0, 64);
    endpoint.post(WrOpcode::send, 0, 64, 8);
  }
}

}  // namespace

int peer_main(int socket) {
  auto device = open_loopback();
  if (!device) return std::fprintf(stderr, "peer: %s\n", device.error().message.c_str()), 1;
  Endpoint endpoint(*device);
  Address them;
  const Address us = endpoint.address();
  if (!receive_all(socket, &them, sizeof them) || !endpoint.connect(them)) return 2;
  for (unsigned i = 0; i < 128; ++i) endpoint.post_recv(i, 0, 64);
  if (!send_all(socket, &us, sizeof us)) return 3;
  bool polling = false;
  for (;;) {
    char c;
    if (polling)
      for (int i = 0; i < 256; ++i) answer_completions(endpoint);
    const ssize_t n = recv(socket, &c, 1, polling ? MSG_DONTWAIT : 0);
    if (n < 0 && errno == EAGAIN) continue;
    if (n <= 0) return 0;
    if (c == 'P') polling = true;
    if (c == 'S') polling = false;
    if (!send_all(socket, &c, 1)) return 0;
    const PeerReport r = make_report(**device);
    if (c == 'R' && !send_all(socket, &r, sizeof r)) return 0;
  }
}

}  // namespace adverb::nic::testing

#if defined(__SANITIZE_THREAD__)
// A forked child opens a device of its own, whose thread the sanitizer would refuse.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_options() {
  return "die_after_fork=0";
}
#endif

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--peer")
    return adverb::nic::testing::peer_main(std::atoi(argv[2]));
  adverb::nic::testing::enter_own_namespace();
  adverb::nic::testing::start_daemon_for_sanitizer();
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
