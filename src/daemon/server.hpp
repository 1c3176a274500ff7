// SPDX-License-Identifier: Apache-2.0
// adverbd itself: one thread, one epoll.  Hands out slots and the members of each local address's
// socket pool, watches its clients, and drains what arrives for nobody.  Never in the data path
// where the kernel steers.
//
// Always true: a slot is free, or its owner is known (connected), or its owner is believed to live
// without a connection (orphan: after a take-over, or a connection that was closed without
// goodbye).  The daemon holds every socket of every pool, and polls those of slot 0 and of the free
// slots.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "daemon/descriptors.hpp"
#include "daemon/protocol.hpp"
#include "daemon/slot_table.hpp"
#include "daemon/xrc_memory.hpp"
#include "port/udp_receiver.hpp"

namespace adverb::daemon {

struct ServerConfig {
  unsigned slots = default_slots;
  bool verbose = false;  // to stderr
};

class Server {
 public:
  enum class Start { listening, another_runs, failed };

  explicit Server(ServerConfig config) : config_(config) {}
  Start listen();  // leaves errno when it failed
  void run();      // returns a second after the last client went

 private:
  struct Pool {
    Gid gid{};
    unsigned ifindex = 0;
    bool steered = true;
    Descriptors sockets;  // by slot
    Descriptors vaults;
    // Slot 0: hands on what belongs to others (all of it where the kernel refused steering, and the
    // rest of a bundle whose first segment was a stray).
    port::PortCounters counters;
    std::unique_ptr<port::UdpReceiver> strays;
  };
  // An XRC domain that belongs to an inode, as long as some slot has it open.
  struct Domain {
    XrcMemory memory;
    std::set<unsigned> slots;
    std::set<unsigned> dead;  // still to be taken out of the memory
  };
  struct Connection {
    Descriptor socket;
    int pid = 0;
    bool same_user = false;
    unsigned slot = 0;
    long long idle_deadline = 0;     // for those that took no slot
    std::vector<const Pool*> pools;  // whose socket it has
    std::optional<Request> pending;  // waits for a hand-over
    long long pending_deadline = 0;
  };
  struct Slot {
    enum State { free, connected, orphan } state = free;
    std::uint32_t connection = 0;
    int pid = 0;
    Descriptor pidfd;
  };

  void accept_clients();
  void on_connection(std::uint32_t id);
  void on_pidfd(unsigned slot);
  void on_socket(std::uint32_t pool, unsigned slot);
  void on_time();
  int next_timeout() const;

  void handle(std::uint32_t id, const Request&, Descriptors&);
  void take_slot(std::uint32_t id, const Request&);
  void resume(std::uint32_t id, const Request&, Descriptors&);
  void hand_pool(std::uint32_t id, const Request&, Descriptors&);
  void local_address(std::uint32_t id, const Request&);
  void status(std::uint32_t id);
  void retry_pending();
  // server_xrc.cpp
  void open_xrcd(std::uint32_t id, const Request&);
  void close_xrcd(std::uint32_t id, const Request&);
  void hand_xrcd(std::uint32_t id, const Request&, Descriptors&);
  void leave_domains(unsigned slot);
  void bury();
  bool names_a_target(unsigned slot) const;

  bool have_table();  // makes one unless predecessors may still hand theirs over
  bool awaits_handover() const;
  void adopt(SlotTable);
  void occupy(unsigned slot, Slot::State, int pid, Descriptor pidfd, std::uint32_t connection);
  void release(unsigned slot);
  void forget_credit(unsigned slot);
  bool owner_lives(unsigned slot) const;
  bool relay_bound(unsigned slot) const;
  unsigned pick_free_slot();
  bool waits_for_port(Connection&, const Request&);
  Pool* make_pool(std::uint32_t id, const Request&);
  Pool* find_pool(const Gid&, unsigned ifindex);
  void add_pool(std::unique_ptr<Pool>);
  void receive_strays(Pool&);
  void watch_free_sockets(unsigned slot, bool on);
  void drop_connection(std::uint32_t id);
  void reply(std::uint32_t id, const Request&, Reply, const std::vector<int>& descriptors = {});
  void refuse(std::uint32_t id, const Request&, int error, const std::string& message);
  bool add_to_epoll(int fd, std::uint64_t tag);
  template <class... A>
  void say(const char* format, A&&...);

  ServerConfig config_;
  Descriptor listener_, epoll_;
  std::optional<SlotTable> table_;
  std::vector<Slot> slots_;
  std::deque<unsigned> free_;
  long long no_wait_until_ = 0;  // for a port that somebody else has
  std::vector<std::unique_ptr<Pool>> pools_;
  std::map<XrcKey, Domain> domains_;
  std::map<std::uint32_t, Connection> connections_;
  std::uint32_t next_connection_ = 1;
  bool predecessors_ = false;  // living relay sockets were found at start
  long long handover_deadline_ = 0;
  long long idle_since_ = 0;  // 0: somebody is here
  long long next_orphan_check_ = 0;
};

}  // namespace adverb::daemon
