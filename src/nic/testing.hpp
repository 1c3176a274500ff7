// SPDX-License-Identifier: Apache-2.0
// For the tests of src/nic: a device with the objects that one connection needs, used as the verbs
// shell uses it, and a peer process with another.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "nic/device.hpp"

namespace adverb::nic::testing {

// What two ends tell each other; goes over a socket as bytes.
struct Address {
  Gid gid{};
  std::uint32_t qpn{}, psn{}, rkey{};
  std::uint64_t memory{};
};

// A network namespace of this process and its peers, so that nobody else's adverbd serves the
// tests.  Needs privilege; otherwise the tests share the machine's loopback interface.
void enter_own_namespace();
bool in_own_namespace();

// Opens the loopback interface's device with the adverbd of this build tree.
std::expected<std::shared_ptr<Device>, OpenError> open_loopback();

// A CQ, an RC QP and a registered buffer.
class Endpoint {
 public:
  explicit Endpoint(std::shared_ptr<Device>, std::size_t bytes = 1 << 20, unsigned depth = 256);
  ~Endpoint();
  Endpoint(const Endpoint&) = delete;

  Address address() const;
  // To RTS.  `timeout`: code of the local ACK timeout.
  bool connect(const Address&, std::uint8_t timeout = 14, std::uint8_t retries = 7);

  // As post_send and post_recv do.  False: the queue is full.
  bool post(engine::WrOpcode, std::uint64_t wr_id, std::size_t offset, std::uint32_t length,
            std::uint64_t remote_offset = 0);
  bool post_recv(std::uint64_t wr_id, std::size_t offset, std::uint32_t length);
  unsigned poll(unsigned n, engine::Cqe* out) { return device->poll(*cq, n, out); }
  // Polls until one entry came; fails the test after some seconds.
  engine::Cqe completion();

  std::shared_ptr<Device> device;
  engine::CompletionQueue* cq = nullptr;
  engine::QueuePair* qp = nullptr;
  std::vector<std::uint8_t> memory;
  Address remote;

 private:
  void modify(const engine::QpAttributes&, std::uint32_t mask);
  engine::MemoryRegion* region_ = nullptr;
};

// What a peer reports of itself.
struct PeerReport {
  std::uint64_t cpu_ns{};
  std::uint64_t background_wakeups{}, background_bursts{}, background_ticks{}, caller_bursts{};
  std::uint64_t kicks{};
};

// Another process of this test program with an Endpoint that is connected to ours.
class Peer {
 public:
  explicit Peer(Endpoint&, std::vector<std::string> environment = {});
  ~Peer();  // lets it end

  void start_polling();  // it polls its CQ, and answers each receive completion with a SEND
  void stop_polling();   // returns when it has stopped
  PeerReport report();
  void kill();
  int wait();  // for its end; the status of waitpid
  const Address& address() const { return address_; }
  pid_t pid() const { return pid_; }

 private:
  void command(char c);
  pid_t pid_ = -1;
  int socket_ = -1;
  Address address_;
};

// The other side of Peer: main() of the process.
int peer_main(int socket);

}  // namespace adverb::nic::testing
