// SPDX-License-Identifier: Apache-2.0
#include "daemon/client.hpp"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>

#include "daemon/descriptors.hpp"
#include "daemon/launch.hpp"
#include "daemon/protocol.hpp"
#include "daemon/slot_table.hpp"

namespace adverb::daemon {

namespace {

constexpr long long patience_ms = 8000;     // for a daemon that starts or takes over
constexpr long long launch_pause_ms = 300;  // between two attempts to start one

void sleep_ms(long ms) {
  timespec t{0, ms * 1000000};
  ::nanosleep(&t, nullptr);
}

std::unexpected<ClientError> fail(int error, std::string message) {
  return std::unexpected(ClientError{error, std::move(message)});
}

// Anyone can squat on an abstract name.
std::expected<void, ClientError> check_peer(int socket) {
  ucred peer{};
  socklen_t n = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &n) < 0)
    return fail(errno, "cannot tell who answers for adverbd");
  if (peer.uid == ::geteuid() || peer.uid == 0) return {};
  return fail(EPERM,
              fmt::format("the socket name @{} is held by user {} (process {}), which is not this "
                          "user's adverbd; stop that process",
                          daemon_name(::geteuid()), peer.uid, peer.pid));
}

// The one or several answers of connect() that mean "nobody listens".
bool nobody_listens(int error) { return error == ECONNREFUSED || error == ENOENT; }

struct PoolKey {
  Gid gid;
  unsigned ifindex;
  friend bool operator<(const PoolKey& a, const PoolKey& b) {
    return std::tie(a.gid.bytes, a.ifindex) < std::tie(b.gid.bytes, b.ifindex);
  }
};

struct HeldPool {
  Descriptors vaults;
  std::uint32_t flags = 0;
};

Request request_of(RequestKind kind, const XrcKey& key) {
  Request r;
  r.kind = kind;
  std::memcpy(&r.gid.bytes[0], &key.device, 8);
  std::memcpy(&r.gid.bytes[8], &key.inode, 8);
  r.ifindex = key.ifindex;
  return r;
}

// A daemon that was asked to start.
class Launcher {
 public:
  bool running() {
    if (!report_) return false;
    char text[256];
    const ssize_t n = ::read(report_.get(), text, sizeof text);
    if (n > 0) complaint_.append(text, static_cast<std::size_t>(n));
    if (n == 0 || now_ms() >= give_up_) report_.reset();
    return static_cast<bool>(report_);
  }
  std::expected<void, ClientError> start() {
    if (running() || now_ms() < next_) return {};
    next_ = now_ms() + launch_pause_ms;
    give_up_ = now_ms() + patience_ms / 2;
    complaint_.clear();
    auto report = launch_daemon();
    if (!report) return std::unexpected(report.error());
    report_ = std::move(*report);
    return {};
  }
  // What it said instead of listening, first line.
  std::string complaint() const { return complaint_.substr(0, complaint_.find('\n')); }

 private:
  Descriptor report_;
  std::string complaint_;
  long long next_ = 0, give_up_ = 0;
};

}  // namespace

struct Client::State {
  std::mutex mutex;
  const int pid = ::getpid();
  Launcher launcher;
  Descriptor connection, watch, relay;
  bool resuming = false;  // the resume was sent, its answer has not come
  bool detached = false;  // the slot cannot be handed over any more
  std::optional<SlotTable> table;
  unsigned slot = 0;
  std::uint32_t serial = 0;
  bool unsteered = false;
  std::map<PoolKey, HeldPool> pools;
  std::map<XrcKey, Descriptor> domains;

  std::expected<void, ClientError> take_slot(long long deadline);
  std::expected<void, ClientError> reach_daemon(long long deadline);
  std::expected<void, ClientError> bind_relay();
  // nullopt: the daemon went away.
  std::optional<Reply> transact(Request, Descriptors&, long long deadline);
  std::optional<Reply> await_reply(std::uint32_t serial, Descriptors&, long long deadline);
  void use(Descriptor);
  void drop();
  bool alive() const;
  bool recover();
  bool send_resume(int socket);
  // What the daemon answers, however often it is another one; the caller has no lock.
  std::expected<Descriptors, ClientError> ask(const Request&, std::uint32_t* flags);
};

void Client::State::use(Descriptor socket) {
  connection = std::move(socket);
  epoll_event hang_up{};
  hang_up.events = EPOLLRDHUP;  // EPOLLHUP comes by itself; answers do not wake the watcher
  ::epoll_ctl(watch.get(), EPOLL_CTL_ADD, connection.get(), &hang_up);
}

void Client::State::drop() {
  if (connection) ::epoll_ctl(watch.get(), EPOLL_CTL_DEL, connection.get(), nullptr);
  connection.reset();
  resuming = false;
}

bool Client::State::alive() const {
  char byte;
  if (!connection) return false;
  const ssize_t n = ::recv(connection.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}

std::optional<Reply> Client::State::await_reply(std::uint32_t want, Descriptors& descriptors,
                                                long long deadline) {
  while (wait_readable(connection.get(), deadline)) {
    Reply reply;
    descriptors.clear();
    const ssize_t n =
        receive_message(connection.get(), &reply, sizeof reply, descriptors, MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN) continue;
    if (n < 0 && errno == EMFILE) {
      reply.error = EMFILE;
      std::strcpy(reply.message.data(), "too many open files (ulimit -n)");
      return reply;
    }
    if (n != sizeof reply) return std::nullopt;
    reply.message.back() = 0;
    if (!compatible(reply.magic, reply.lowest, reply.highest)) {
      reply.error = EPROTO;
      fmt::format_to_n(reply.message.data(), reply.message.size() - 1,
                       "the running adverbd speaks protocol {} to {}, this library {} to {}",
                       reply.lowest, reply.highest, lowest_version, highest_version);
      return reply;
    }
    if (reply.serial == want) return reply;  // else: late, of a request that was given up
  }
  Reply late;
  late.error = ETIMEDOUT;
  std::strcpy(late.message.data(), "adverbd does not answer");
  return late;
}

std::optional<Reply> Client::State::transact(Request request, Descriptors& descriptors,
                                             long long deadline) {
  request.serial = ++serial;
  if (!send_message(connection.get(), &request, sizeof request, {})) return std::nullopt;
  return await_reply(request.serial, descriptors, deadline);
}

std::expected<void, ClientError> Client::State::reach_daemon(long long deadline) {
  int error = 0;
  while (now_ms() < deadline) {
    Descriptor socket = connect_abstract(SOCK_SEQPACKET, daemon_name(::geteuid()));
    if (socket) {
      if (auto ok = check_peer(socket.get()); !ok) return ok;
      use(std::move(socket));
      return {};
    }
    error = errno;
    if (error != EAGAIN && !nobody_listens(error))
      return fail(error, fmt::format("cannot reach adverbd: {}", std::strerror(error)));
    if (nobody_listens(error) && !launcher.running()) {
      if (const auto why = launcher.complaint(); !why.empty())
        return fail(ECHILD, "adverbd did not start: " + why);
      if (auto ok = launcher.start(); !ok) return ok;
    }
    sleep_ms(1);
  }
  return fail(ETIMEDOUT, fmt::format("adverbd cannot be reached: {}", std::strerror(error)));
}

std::expected<void, ClientError> Client::State::take_slot(long long deadline) {
  for (;;) {
    if (auto ok = reach_daemon(deadline); !ok) return ok;
    Descriptors descriptors;
    Request request;
    request.kind = RequestKind::take_slot;
    auto reply = transact(request, descriptors, deadline);
    if (!reply) {  // it ended just now
      drop();
      sleep_ms(2);
      continue;
    }
    if (reply->error) return fail(reply->error, reply->message.data());
    if (descriptors.size() != 1) return fail(EPROTO, "adverbd sent no shared memory");
    table = SlotTable::map(std::move(descriptors[0]));
    if (!table) return fail(errno, "adverbd's shared memory is not what it should be");
    if (reply->slot == 0 || reply->slot >= table->slots())
      return fail(EPROTO, "adverbd handed out a slot that does not exist");
    slot = reply->slot;
    return bind_relay();
  }
}

std::expected<void, ClientError> Client::State::bind_relay() {
  const std::string name = table->relay_prefix(::geteuid()) + std::to_string(slot);
  relay = bind_abstract(SOCK_DGRAM, name);
  if (!relay)
    return fail(errno,
                fmt::format("cannot bind the relay socket @{}: {}", name, std::strerror(errno)));
  return {};
}

bool Client::State::send_resume(int socket) {
  Request request;
  request.kind = RequestKind::resume;
  request.slot = slot;
  request.serial = ++serial;
  const int memory = table->descriptor();
  if (!send_message(socket, &request, sizeof request, {&memory, 1})) return false;
  for (const auto& [key, pool] : pools) {
    Request hand;
    hand.kind = RequestKind::hand_pool;
    hand.gid = key.gid;
    hand.ifindex = key.ifindex;
    hand.flags = pool.flags;
    std::vector<int> vaults;
    for (const auto& v : pool.vaults) vaults.push_back(v.get());
    if (!send_message(socket, &hand, sizeof hand, vaults)) return false;
  }
  for (const auto& [key, memory_of_domain] : domains) {
    const Request hand = request_of(RequestKind::hand_xrcd, key);
    const int fd = memory_of_domain.get();
    if (!send_message(socket, &hand, sizeof hand, {&fd, 1})) return false;
  }
  return true;
}

// One step; true when there is nothing left to do.
bool Client::State::recover() {
  if (detached || (!resuming && alive())) return true;
  if (!resuming) {
    drop();
    Descriptor socket = connect_abstract(SOCK_SEQPACKET, daemon_name(::geteuid()));
    if (!socket) {
      if (nobody_listens(errno)) (void)launcher.start();
      return false;
    }
    launcher.running();
    if (!check_peer(socket.get()) || !send_resume(socket.get())) return false;
    use(std::move(socket));
    resuming = true;
  }
  constexpr long long step_ms = 2;
  if (!wait_readable(connection.get(), now_ms() + step_ms)) return false;
  Descriptors none;
  auto reply = await_reply(serial, none, now_ms());
  if (!reply) {
    drop();
    return false;
  }
  if (reply->error == ETIMEDOUT) return false;
  resuming = false;
  if (reply->error) {
    drop();
    detached = true;
  }
  return true;
}

Client::Client() : state_(std::make_unique<State>()) {}

Client::~Client() {
  State& s = *state_;
  if (s.pid != ::getpid()) return;  // a forked child: the slot is the parent's
  std::lock_guard lock(s.mutex);
  if (!s.connection) return;
  Request goodbye;
  goodbye.kind = RequestKind::goodbye;
  s.relay.reset();  // first: the next owner of the slot binds the same name
  send_message(s.connection.get(), &goodbye, sizeof goodbye, {});
}

std::expected<std::unique_ptr<Client>, ClientError> Client::connect() {
  std::unique_ptr<Client> client(new Client);
  State& s = *client->state_;
  s.watch.reset(::epoll_create1(EPOLL_CLOEXEC));
  if (!s.watch) return fail(errno, "cannot watch adverbd: too many open files");
  if (auto ok = s.take_slot(now_ms() + patience_ms); !ok) return std::unexpected(ok.error());
  return client;
}

unsigned Client::slot() const { return state_->slot; }

bool Client::steered() const {
  std::lock_guard lock(state_->mutex);
  return !state_->unsteered;
}

std::string Client::relay_name_prefix() const { return state_->table->relay_prefix(::geteuid()); }

int Client::take_relay_socket() { return ::fcntl(state_->relay.get(), F_DUPFD_CLOEXEC, 3); }

std::span<engine::CreditLine> Client::credit_lines() const { return state_->table->credit(); }

int Client::watch_descriptor() const { return state_->watch.get(); }

bool Client::recover() {
  std::unique_lock lock(state_->mutex, std::try_to_lock);
  return lock && state_->recover();
}

std::expected<Descriptors, ClientError> Client::State::ask(const Request& request,
                                                           std::uint32_t* flags) {
  const long long deadline = now_ms() + patience_ms;
  for (; now_ms() < deadline; sleep_ms(2)) {
    std::lock_guard lock(mutex);
    if (!recover()) continue;
    if (detached)
      return fail(ESTALE, "this process's slot was lost while it stood still; start it again");
    Descriptors descriptors;
    auto reply = transact(request, descriptors, deadline);
    if (!reply) continue;
    if (reply->error) return fail(reply->error, reply->message.data());
    *flags = reply->flags;
    return descriptors;
  }
  return fail(ETIMEDOUT, "adverbd cannot be reached");
}

std::expected<int, ClientError> Client::receive_socket(const Gid& gid, unsigned ifindex) {
  State& s = *state_;
  Request request;
  request.kind = RequestKind::local_address;
  request.gid = gid;
  request.ifindex = is_link_local(gid) ? ifindex : 0;
  HeldPool pool;
  auto descriptors = s.ask(request, &pool.flags);
  if (!descriptors) return std::unexpected(descriptors.error());
  if (descriptors->size() < 2) return fail(EPROTO, "adverbd sent no socket");
  std::move(descriptors->begin() + 1, descriptors->end(), std::back_inserter(pool.vaults));
  std::lock_guard lock(s.mutex);
  s.unsteered |= (pool.flags & flag_unsteered) != 0;
  s.pools.insert_or_assign(PoolKey{request.gid, request.ifindex}, std::move(pool));
  return (*descriptors)[0].release();
}

std::expected<int, ClientError> Client::open_xrcd(const XrcKey& key, bool create, bool exclusive) {
  State& s = *state_;
  Request request = request_of(RequestKind::open_xrcd, key);
  request.flags = (create ? flag_create : 0) | (exclusive ? flag_exclusive : 0);
  std::uint32_t none = 0;
  auto descriptors = s.ask(request, &none);
  if (!descriptors) return std::unexpected(descriptors.error());
  if (descriptors->size() != 1) return fail(EPROTO, "adverbd sent no memory of the XRC domain");
  const int fd = ::fcntl((*descriptors)[0].get(), F_DUPFD_CLOEXEC, 3);
  if (fd < 0) return fail(errno, std::strerror(errno));
  std::lock_guard lock(s.mutex);
  s.domains.insert_or_assign(key, std::move((*descriptors)[0]));
  return fd;
}

void Client::close_xrcd(const XrcKey& key) {
  State& s = *state_;
  if (s.pid != ::getpid()) return;
  std::lock_guard lock(s.mutex);
  s.domains.erase(key);
  if (!s.connection || s.resuming) return;  // the next daemon hears of what is open only
  constexpr long long most_ms = 1000;
  Descriptors none;
  (void)s.transact(request_of(RequestKind::close_xrcd, key), none, now_ms() + most_ms);
}

std::expected<std::string, ClientError> daemon_status() {
  Descriptor socket = connect_abstract(SOCK_SEQPACKET, daemon_name(::geteuid()));
  if (!socket) return fail(errno, "no adverbd runs for this user in this network namespace");
  if (auto ok = check_peer(socket.get()); !ok) return std::unexpected(ok.error());
  Request request;
  request.kind = RequestKind::status;
  std::string text(status_bytes, '\0');
  Descriptors none;
  if (!send_message(socket.get(), &request, sizeof request, {}) ||
      !wait_readable(socket.get(), now_ms() + patience_ms))
    return fail(ETIMEDOUT, "adverbd does not answer");
  const ssize_t n = receive_message(socket.get(), text.data(), text.size(), none, MSG_DONTWAIT);
  if (n <= 0) return fail(n < 0 ? errno : ECONNRESET, "adverbd does not answer");
  text.resize(static_cast<std::size_t>(n));
  return text;
}

}  // namespace adverb::daemon
