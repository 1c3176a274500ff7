// SPDX-License-Identifier: Apache-2.0
#include "daemon/server.hpp"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <system_error>

#include "daemon/vault.hpp"
#include "port/steering.hpp"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

namespace adverb::daemon {

namespace {

constexpr long long linger_ms = 1000;      // after the last client
constexpr long long no_wait_ms = 10000;    // after a wait for a port that was in vain
constexpr long long handover_ms = 2000;    // predecessors' clients have this long to come
constexpr long long idle_limit_ms = 5000;  // a connection that wants nothing
constexpr long long orphan_check_ms = 250;
constexpr long long retry_ms = 10;
constexpr std::size_t connection_limit = 4096, foreign_limit = 64;

enum Tag : std::uint64_t { tag_listener = 1, tag_connection, tag_pidfd, tag_socket };
std::uint64_t make_tag(Tag kind, std::uint64_t a = 0, std::uint64_t b = 0) {
  return static_cast<std::uint64_t>(kind) << 60 | a << 16 | b;
}

ucred peer_of(int socket) {
  ucred peer{};
  socklen_t n = sizeof peer;
  ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &n);
  return peer;
}

Descriptor open_pidfd(int pid) {
  if (pid <= 0) return {};
  return Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0u)));
}

Descriptor peer_pidfd(int socket, int pid) {
  int fd = -1;
  socklen_t n = sizeof fd;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &n) == 0) return Descriptor(fd);
  return open_pidfd(pid);
}

bool pidfd_dead(int fd) {
  pollfd p{fd, POLLIN, 0};
  return ::poll(&p, 1, 0) > 0;
}

// Takes out up to `most` datagrams; true when it is empty.
bool drain(int socket, int most) {
  char byte;
  for (int i = 0; i < most; ++i)
    if (::recv(socket, &byte, 1, MSG_DONTWAIT | MSG_TRUNC) < 0 && errno != EINTR)
      return errno == EAGAIN;
  return false;
}

std::string text_of(const Gid& gid) {
  char text[INET6_ADDRSTRLEN] = "";
  if (gid.is_v4())
    ::inet_ntop(AF_INET, &gid.bytes[12], text, sizeof text);
  else
    ::inet_ntop(AF_INET6, gid.bytes.data(), text, sizeof text);
  return text;
}

std::string command_of(int pid) {
  std::ifstream file(fmt::format("/proc/{}/comm", pid));
  std::string name;
  std::getline(file, name);
  for (char& c : name)
    if (c < ' ' || c > '~' || c == '"' || c == '\\') c = '?';
  return name;
}

// Whether somebody in this namespace still has a relay socket of this user: clients of an adverbd
// that died.
bool relay_sockets_exist(unsigned uid) {
  std::ifstream file("/proc/net/unix");
  const std::string want = "@" + relay_root(uid);
  for (std::string line; std::getline(file, line);)
    if (line.find(want) != std::string::npos) return true;
  return false;
}

bool is_pool_socket(int fd, const Gid& gid) {
  sockaddr_in6 a{};
  socklen_t n = sizeof a;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&a), &n) < 0) return false;
  if (a.sin6_family == AF_INET6)
    return ntohs(a.sin6_port) == port::roce_port && !std::memcmp(&a.sin6_addr, &gid.bytes, 16);
  sockaddr_in v4;
  std::memcpy(&v4, &a, sizeof v4);
  return v4.sin_family == AF_INET && ntohs(v4.sin_port) == port::roce_port &&
         Gid::from_v4(v4.sin_addr.s_addr) == gid;
}

}  // namespace

template <class... A>
void Server::say(const char* format, A&&... arguments) {
  if (config_.verbose)
    fmt::print(stderr, "adverbd: {}\n", fmt::vformat(format, fmt::make_format_args(arguments...)));
}

// --- start

Server::Start Server::listen() {
  const unsigned uid = ::geteuid();
  listener_ = bind_abstract(SOCK_SEQPACKET, daemon_name(uid));
  if (!listener_) return errno == EADDRINUSE ? Start::another_runs : Start::failed;
  predecessors_ = relay_sockets_exist(uid);
  handover_deadline_ = now_ms() + handover_ms;
  epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_ || !add_to_epoll(listener_.get(), make_tag(tag_listener))) return Start::failed;
  if (::listen(listener_.get(), 1024) < 0) return Start::failed;
  return Start::listening;
}

void Server::run() {
  idle_since_ = now_ms();
  for (;;) {
    epoll_event events[64];
    const int n = ::epoll_wait(epoll_.get(), events, 64, next_timeout());
    if (n < 0 && errno != EINTR) return;
    for (int i = 0; i < n; ++i) {
      const std::uint64_t tag = events[i].data.u64, a = tag << 4 >> 20, b = tag & 0xffff;
      switch (tag >> 60) {
        case tag_listener:
          accept_clients();
          break;
        case tag_connection:
          on_connection(static_cast<std::uint32_t>(a));
          break;
        case tag_pidfd:
          on_pidfd(static_cast<unsigned>(b));
          break;
        case tag_socket:
          on_socket(static_cast<std::uint32_t>(a), static_cast<unsigned>(b));
          break;
      }
    }
    retry_pending();
    on_time();
    if (idle_since_ && now_ms() - idle_since_ >= linger_ms) return;
  }
}

bool Server::add_to_epoll(int fd, std::uint64_t tag) {
  epoll_event e{};
  e.events = EPOLLIN;
  e.data.u64 = tag;
  return ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &e) == 0;
}

int Server::next_timeout() const {
  const long long now = now_ms();
  long long at = now + 60000;
  if (idle_since_) at = std::min(at, idle_since_ + linger_ms);
  for (const auto& [id, c] : connections_) {
    if (c.pending) at = std::min(at, now + retry_ms);
    if (!c.slot) at = std::min(at, c.idle_deadline);
  }
  for (const auto& [key, domain] : domains_)
    if (!domain.dead.empty()) at = std::min(at, std::max(now, next_orphan_check_));
  for (const Slot& s : slots_)
    if (s.state == Slot::orphan) at = std::min(at, std::max(now, next_orphan_check_));
  return static_cast<int>(std::clamp(at - now, 0LL, 60000LL));
}

void Server::on_time() {
  const long long now = now_ms();
  bool busy = !connections_.empty();
  for (auto it = connections_.begin(); it != connections_.end();) {
    const auto id = it->first;
    const bool late = !it->second.slot && !it->second.pending && now >= it->second.idle_deadline;
    ++it;
    if (late) drop_connection(id);
  }
  const bool check = now >= next_orphan_check_;
  if (check) {
    next_orphan_check_ = now + orphan_check_ms;
    bury();
  }
  for (unsigned s = 1; s < slots_.size(); ++s) {
    if (check && slots_[s].state == Slot::orphan && !owner_lives(s)) release(s);
    busy |= slots_[s].state != Slot::free;
  }
  if (busy)
    idle_since_ = 0;
  else if (!idle_since_)
    idle_since_ = now;
}

// --- connections

void Server::accept_clients() {
  for (;;) {
    Descriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) return;
    const ucred peer = peer_of(socket.get());
    const bool same_user = peer.uid == ::geteuid();
    const auto foreign = std::count_if(connections_.begin(), connections_.end(),
                                       [](const auto& c) { return !c.second.same_user; });
    if (connections_.size() >= connection_limit) continue;
    if (!same_user && static_cast<std::size_t>(foreign) >= foreign_limit) continue;
    const std::uint32_t id = next_connection_++;
    if (!add_to_epoll(socket.get(), make_tag(tag_connection, id))) continue;
    Connection c;
    c.socket = std::move(socket);
    c.pid = peer.pid;
    c.same_user = same_user;
    c.idle_deadline = now_ms() + idle_limit_ms;
    connections_.emplace(id, std::move(c));
    idle_since_ = 0;
  }
}

void Server::on_connection(std::uint32_t id) {
  for (int most = 64; most > 0; --most) {
    auto it = connections_.find(id);
    if (it == connections_.end()) return;
    Request request;
    Descriptors descriptors;
    const ssize_t n = receive_message(it->second.socket.get(), &request, sizeof request,
                                      descriptors, MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN) return;
    if (n < 0 && errno == EMFILE) continue;  // a pool that we cannot hold
    if (n != sizeof request || request.magic != protocol_magic) return drop_connection(id);
    handle(id, request, descriptors);
  }
}

void Server::drop_connection(std::uint32_t id) {
  auto it = connections_.find(id);
  if (it == connections_.end()) return;
  const unsigned slot = it->second.slot;
  connections_.erase(it);
  if (!slot) return;
  // Somebody closed it without goodbye: gone (exec closes the relay socket too, maybe a moment
  // later), or it lost only this descriptor and goes on.
  slots_[slot].connection = 0;
  slots_[slot].state = Slot::orphan;
  if (!owner_lives(slot)) release(slot);
}

void Server::handle(std::uint32_t id, const Request& request, Descriptors& descriptors) {
  Connection& c = connections_.at(id);
  if (!c.same_user) {
    refuse(id, request, EPERM,
           fmt::format("this adverbd serves user {} only (process {})", ::geteuid(), ::getpid()));
    return;
  }
  if (!compatible(request.magic, request.lowest, request.highest)) {
    refuse(id, request, EPROTO,
           fmt::format("this adverbd speaks protocol {} to {}, the client {} to {}", lowest_version,
                       highest_version, request.lowest, request.highest));
    return;
  }
  switch (request.kind) {
    case RequestKind::take_slot:
      return take_slot(id, request);
    case RequestKind::resume:
      return resume(id, request, descriptors);
    case RequestKind::hand_pool:
      return hand_pool(id, request, descriptors);
    case RequestKind::local_address:
      return local_address(id, request);
    case RequestKind::goodbye: {
      const unsigned slot = c.slot;
      c.slot = 0;
      if (slot) release(slot);
      return drop_connection(id);
    }
    case RequestKind::status:
      return status(id);
    case RequestKind::open_xrcd:
      return open_xrcd(id, request);
    case RequestKind::close_xrcd:
      return close_xrcd(id, request);
    case RequestKind::hand_xrcd:
      return hand_xrcd(id, request, descriptors);
  }
  refuse(id, request, EOPNOTSUPP, "this adverbd does not know that request");
}

void Server::reply(std::uint32_t id, const Request& request, Reply r,
                   const std::vector<int>& descriptors) {
  auto it = connections_.find(id);
  if (it == connections_.end()) return;
  it->second.pending.reset();
  r.kind = request.kind;
  r.serial = request.serial;
  r.slots = table_ ? table_->slots() : 0;
  if (send_message(it->second.socket.get(), &r, sizeof r, descriptors, MSG_DONTWAIT)) return;
  if (errno == ETOOMANYREFS && !descriptors.empty())
    return refuse(
        id, request, ETOOMANYREFS,
        "too many descriptors in flight for this user: raise `ulimit -n` or lower ADVERB_SLOTS");
  drop_connection(id);
}

void Server::refuse(std::uint32_t id, const Request& request, int error,
                    const std::string& message) {
  say("refused: {}", message);
  Reply r;
  r.error = error;
  std::strncpy(r.message.data(), message.c_str(), r.message.size() - 1);
  reply(id, request, r);
}

void Server::retry_pending() {
  std::vector<std::uint32_t> waiting;
  for (const auto& [id, c] : connections_)
    if (c.pending) waiting.push_back(id);
  for (const auto id : waiting) {
    auto it = connections_.find(id);
    if (it == connections_.end() || !it->second.pending) continue;
    const Request request = *it->second.pending;
    if (request.kind == RequestKind::take_slot)
      take_slot(id, request);
    else if (request.kind == RequestKind::open_xrcd)
      open_xrcd(id, request);
    else
      local_address(id, request);
  }
}

// --- slots

bool Server::awaits_handover() const {
  return predecessors_ && !table_ && now_ms() < handover_deadline_;
}

bool Server::have_table() {
  if (table_) return true;
  auto table = SlotTable::create(config_.slots);
  if (!table) return false;
  table_ = std::move(table);
  slots_.resize(table_->slots());
  for (unsigned s = 1; s < table_->slots(); ++s) free_.push_back(s);
  return true;
}

// The table of an adverbd that died: whoever still lives keeps his slot.
void Server::adopt(SlotTable table) {
  table_ = std::move(table);
  slots_.resize(table_->slots());
  auto& memory = table_->memory();
  const bool same_namespace = memory.header.pid_namespace == own_pid_namespace();
  for (unsigned s = 1; s < slots_.size(); ++s) {
    SlotOwner& owner = memory.owners[s];
    if (!owner.taken) {
      free_.push_back(s);
      continue;
    }
    const int pid = same_namespace ? owner.pid.load() : 0;
    slots_[s].state = Slot::orphan;
    slots_[s].pid = pid;
    if (!owner_lives(s)) {
      release(s);
      continue;
    }
    occupy(s, Slot::orphan, pid, open_pidfd(pid), 0);
  }
  memory.header.pid_namespace = own_pid_namespace();
  std::stable_sort(free_.begin(), free_.end(), [&](unsigned a, unsigned b) {
    return memory.owners[a].released < memory.owners[b].released;
  });
}

void Server::occupy(unsigned slot, Slot::State state, int pid, Descriptor pidfd,
                    std::uint32_t connection) {
  Slot& s = slots_[slot];
  s.state = state;
  s.pid = pid;
  s.connection = connection;
  s.pidfd = std::move(pidfd);
  if (s.pidfd) add_to_epoll(s.pidfd.get(), make_tag(tag_pidfd, 0, slot));
  SlotOwner& owner = table_->memory().owners[slot];
  owner.pid = pid;
  owner.start_time = pid > 0 ? process_start_time(pid) : 0;
  owner.taken = 1;
}

void Server::release(unsigned slot) {
  Slot& s = slots_[slot];
  if (s.state == Slot::free) return;
  say("slot {} is free (process {})", slot, s.pid);
  if (auto it = connections_.find(s.connection); it != connections_.end()) {
    it->second.slot = 0;
    connections_.erase(it);
  }
  s = Slot{};
  auto& memory = table_->memory();
  memory.owners[slot].pid = 0;
  memory.owners[slot].start_time = 0;
  memory.owners[slot].released = ++memory.header.releases;
  memory.owners[slot].taken = 0;
  free_.push_back(slot);
  leave_domains(slot);
  watch_free_sockets(slot, true);
  forget_credit(slot);
}

// Nobody takes out what was put into the sockets of the dead, and part of it the dead may have read
// without saying so: senders do not wait for that.
void Server::forget_credit(unsigned slot) {
  auto& credit = table_->credit()[slot];
  credit.consumed = credit.enqueued.load();
}

bool Server::relay_bound(unsigned slot) const {
  const auto name = table_->relay_prefix(::geteuid()) + std::to_string(slot);
  return static_cast<bool>(connect_abstract(SOCK_DGRAM, name)) || errno != ECONNREFUSED;
}

bool Server::owner_lives(unsigned slot) const {
  const Slot& s = slots_[slot];
  if (s.pidfd && pidfd_dead(s.pidfd.get())) return false;
  if (s.pid > 0 && ::kill(s.pid, 0) < 0 && errno == ESRCH) return false;
  const auto started = table_->memory().owners[slot].start_time.load();
  if (const auto now = s.pid > 0 ? process_start_time(s.pid) : 0; now && started && now != started)
    return false;
  return relay_bound(slot);
}

void Server::on_pidfd(unsigned slot) {
  if (slot >= slots_.size() || !slots_[slot].pidfd || !pidfd_dead(slots_[slot].pidfd.get())) return;
  release(slot);
}

// First in, first out.  A name that is still bound belongs to a forked child of the last owner, and
// an XRC target that others hold goes on under the last owner's number.
unsigned Server::pick_free_slot() {
  for (std::size_t i = free_.size(); i > 0; --i) {
    const unsigned slot = free_.front();
    free_.pop_front();
    if (!relay_bound(slot) && !names_a_target(slot)) return slot;
    free_.push_back(slot);
  }
  return 0;
}

void Server::take_slot(std::uint32_t id, const Request& request) {
  Connection& c = connections_.at(id);
  if (c.slot) return refuse(id, request, EINVAL, "this connection has a slot");
  if (awaits_handover()) {
    c.pending = request;
    return;
  }
  if (!have_table()) return refuse(id, request, errno, "adverbd cannot make its shared memory");
  const unsigned slot = pick_free_slot();
  if (!slot)
    return refuse(
        id, request, EBUSY,
        fmt::format(
            "all {} slots are taken: raise ADVERB_SLOTS (up to {}) before the first process starts",
            slots_.size() - 1, slot_limit - 2));
  watch_free_sockets(slot, false);
  forget_credit(slot);
  occupy(slot, Slot::connected, c.pid, peer_pidfd(c.socket.get(), c.pid), id);
  c.slot = slot;
  say("slot {} is process {}'s", slot, c.pid);
  Reply r;
  r.slot = slot;
  reply(id, request, r, {table_->descriptor()});
}

void Server::resume(std::uint32_t id, const Request& request, Descriptors& descriptors) {
  Connection& c = connections_.at(id);
  auto theirs = descriptors.size() == 1 ? SlotTable::map(std::move(descriptors[0])) : std::nullopt;
  if (!theirs || c.slot) return refuse(id, request, EPROTO, "a resume needs the shared memory");
  if (!table_)
    adopt(std::move(*theirs));
  else {
    struct stat ours, other;
    if (::fstat(table_->descriptor(), &ours) < 0 || ::fstat(theirs->descriptor(), &other) < 0 ||
        ours.st_ino != other.st_ino || ours.st_dev != other.st_dev)
      return refuse(id, request, ESTALE, "another adverbd's slot; start the process again");
  }
  const unsigned slot = request.slot;
  if (slot == 0 || slot >= slots_.size() || slots_[slot].state == Slot::connected)
    return refuse(id, request, ESTALE, "that slot is not the client's");
  if (slots_[slot].state == Slot::free) {
    std::erase(free_, slot);
    watch_free_sockets(slot, false);
  }
  occupy(slot, Slot::connected, c.pid, peer_pidfd(c.socket.get(), c.pid), id);
  c.slot = slot;
  say("slot {} is process {}'s, taken over", slot, c.pid);
  Reply r;
  r.slot = slot;
  reply(id, request, r);
}

// --- pools

Server::Pool* Server::find_pool(const Gid& gid, unsigned ifindex) {
  for (auto& p : pools_)
    if (p->gid == gid && p->ifindex == ifindex) return p.get();
  return nullptr;
}

void Server::add_pool(std::unique_ptr<Pool> fresh) {
  Pool& pool = *pools_.emplace_back(std::move(fresh));
  const std::size_t index = pools_.size() - 1;
  port::UdpPortConfig config;
  config.slot = 0;
  config.gro = false;
  config.relay_name_prefix = table_->relay_prefix(::geteuid());
  config.addresses.push_back(
      {.gid = pool.gid,
       .ifindex = pool.ifindex,
       .receive_socket = ::fcntl(pool.sockets[0].get(), F_DUPFD_CLOEXEC, 3)});
  try {
    pool.strays = std::make_unique<port::UdpReceiver>(config, pool.counters);
    add_to_epoll(pool.strays->wait_descriptor(), make_tag(tag_socket, index, 0));
  } catch (const std::system_error& e) {  // out of descriptors: slot 0 fills up, the others go on
    say("slot 0 of {}: {}", text_of(pool.gid), e.what());
  }
  for (unsigned s = 1; s < slots_.size(); ++s)
    if (slots_[s].state == Slot::free)
      add_to_epoll(pool.sockets[s].get(), make_tag(tag_socket, index, s));
}

void Server::receive_strays(Pool& pool) {
  if (!pool.strays) return;
  bool empty = false;
  constexpr int turns = 256;                                              // then somebody else's
  for (int i = 0; i < turns && !empty; ++i) pool.strays->receive(empty);  // QPN 0 and 1: nobody yet
  if (empty) forget_credit(0);
}

void Server::watch_free_sockets(unsigned slot, bool on) {
  for (std::size_t i = 0; i < pools_.size(); ++i) {
    const int fd = pools_[i]->sockets[slot].get();
    if (on)
      add_to_epoll(fd, make_tag(tag_socket, i, slot));
    else
      ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  }
}

void Server::on_socket(std::uint32_t index, unsigned slot) {
  if (index >= pools_.size() || slot >= slots_.size()) return;
  if (slot == 0) return receive_strays(*pools_[index]);
  if (slots_[slot].state != Slot::free) return;
  constexpr int burst = 4096;  // then somebody else's turn
  if (!drain(pools_[index]->sockets[slot].get(), burst)) return;
  forget_credit(slot);
}

void Server::hand_pool(std::uint32_t id, const Request& request, Descriptors& vaults) {
  Connection& c = connections_.at(id);
  if (!c.slot) return;
  if (const Pool* known = find_pool(request.gid, request.ifindex)) {
    c.pools.push_back(known);
    return;
  }
  auto fresh = std::make_unique<Pool>();
  Pool& pool = *fresh;
  pool.gid = request.gid;
  pool.ifindex = request.ifindex;
  pool.steered = !(request.flags & flag_unsteered);
  for (auto& vault : vaults) {
    Descriptors part = peek(vault.get());
    std::move(part.begin(), part.end(), std::back_inserter(pool.sockets));
  }
  const bool right = pool.sockets.size() == slots_.size() &&
                     std::all_of(pool.sockets.begin(), pool.sockets.end(),
                                 [&](const auto& s) { return is_pool_socket(s.get(), pool.gid); });
  if (!right) {
    say("a pool of {} came with {} sockets", text_of(pool.gid), pool.sockets.size());
    return;
  }
  pool.vaults = std::move(vaults);
  say("{} taken over", text_of(pool.gid));
  add_pool(std::move(fresh));
  c.pools.push_back(pools_.back().get());
}

// Makes the pool of an address, or answers the request (or keeps it for later) and returns null.
// Whoever has the port may let go of it soon: clients of the last adverbd hand it over, and another
// user's adverbd ends a second after its last client.  Who has waited in vain once (for rxe, say)
// does not wait again and again.
bool Server::waits_for_port(Connection& c, const Request& request) {
  const long long now = now_ms();
  if (!c.pending) {
    if (!predecessors_ && now < no_wait_until_) return false;
    c.pending_deadline = now + handover_ms;
    say("{} is somebody else's: waiting until it is free", text_of(request.gid));
  }
  if (now < c.pending_deadline) {
    c.pending = request;
    return true;
  }
  no_wait_until_ = now + no_wait_ms;
  return false;
}

Server::Pool* Server::make_pool(std::uint32_t id, const Request& request) {
  Connection& c = connections_.at(id);
  const auto count = static_cast<unsigned>(slots_.size());
  auto made = port::create_pool(request.gid, request.ifindex, count);
  if (!made) {
    const auto& e = made.error();
    if (e.kind == port::PoolError::address_in_use && waits_for_port(c, request)) return nullptr;
    const bool files = e.error == EMFILE || e.error == ENFILE;
    const char* advice = files ? ": raise `ulimit -n` or lower ADVERB_SLOTS" : "";
    refuse(id, request, e.error, e.message + advice);
    return nullptr;
  }
  auto fresh = std::make_unique<Pool>();
  fresh->gid = request.gid;
  fresh->ifindex = request.ifindex;
  fresh->steered = made->steered;
  for (int fd : made->sockets) fresh->sockets.emplace_back(fd);
  fresh->vaults = lock_away(made->sockets);
  if (fresh->vaults.empty()) {
    refuse(id, request, errno,
           fmt::format(
               "cannot keep {} sockets of {} open ({}): raise `ulimit -n` or lower ADVERB_SLOTS",
               count, text_of(request.gid), std::strerror(errno)));
    return nullptr;
  }
  add_pool(std::move(fresh));
  say("{} opened", text_of(request.gid));
  return pools_.back().get();
}

void Server::local_address(std::uint32_t id, const Request& request) {
  Connection& c = connections_.at(id);
  if (!c.slot) return refuse(id, request, EINVAL, "take a slot first");
  const unsigned slot = c.slot;
  Pool* pool = find_pool(request.gid, request.ifindex);
  if (!pool) pool = make_pool(id, request);
  if (!pool) return;
  if (std::find(c.pools.begin(), c.pools.end(), pool) == c.pools.end()) {
    constexpr int all = 1 << 16;  // what the last owner did not read
    drain(pool->sockets[slot].get(), all);
    c.pools.push_back(pool);
  }
  std::vector<int> descriptors{pool->sockets[slot].get()};
  for (const auto& v : pool->vaults) descriptors.push_back(v.get());
  Reply r;
  r.slot = slot;
  r.flags = pool->steered ? 0 : flag_unsteered;
  reply(id, request, r, descriptors);
}

void Server::status(std::uint32_t id) {
  std::string text = fmt::format("{{\"pid\":{},\"uid\":{},\"slots\":{},\"addresses\":[", ::getpid(),
                                 ::geteuid(), table_ ? table_->slots() : config_.slots);
  for (std::size_t i = 0; i < pools_.size(); ++i)
    text += fmt::format("{}{{\"address\":\"{}\",\"steered\":{}}}", i ? "," : "",
                        text_of(pools_[i]->gid), pools_[i]->steered);
  text += "],\"clients\":[";
  bool first = true;
  for (unsigned s = 1; s < slots_.size(); ++s) {
    if (slots_[s].state == Slot::free) continue;
    text += fmt::format("{}{{\"slot\":{},\"pid\":{},\"comm\":\"{}\",\"connected\":{}}}",
                        first ? "" : ",", s, slots_[s].pid, command_of(slots_[s].pid),
                        slots_[s].state == Slot::connected);
    first = false;
  }
  text += "]}";
  if (!send_message(connections_.at(id).socket.get(), text.data(), text.size(), {}, MSG_DONTWAIT))
    drop_connection(id);
}

}  // namespace adverb::daemon
