// SPDX-License-Identifier: Apache-2.0
// C60: a stranger on the host throws packets at UDP port 4791, from the very address that the queue
// pair's peer has.  Each is answered with a NAK or counted, and the process goes on.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <memory>

#include "nic/testing.hpp"
#include "port/port.hpp"
#include "wire/testing.hpp"

namespace adverb::nic {
namespace {

using engine::QpState;
using engine::WcStatus;
using engine::WrOpcode;
using testing::Endpoint;
using wire::Operation;
using wire::Transport;
using wire::testing::Bytes;

class Stranger {
 public:
  explicit Stranger(const Gid& at) : socket_(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = at.v4();
    EXPECT_EQ(::bind(socket_, reinterpret_cast<sockaddr*>(&a), sizeof a), 0);
    socklen_t n = sizeof a;
    EXPECT_EQ(::getsockname(socket_, reinterpret_cast<sockaddr*>(&a), &n), 0);
    path_ = {at, at, ntohs(a.sin_port)};
    a.sin_port = htons(path_.destination_port);
    EXPECT_EQ(::connect(socket_, reinterpret_cast<sockaddr*>(&a), sizeof a), 0);
  }
  ~Stranger() { ::close(socket_); }
  void send(const Bytes& b) {
    EXPECT_EQ(::send(socket_, b.data(), b.size(), 0), ssize_t(b.size()));
  }
  // With the right ICRC, whatever the packet is.
  void send(const wire::Packet& p) { send(wire::testing::with_icrc(p, path_, 0)); }
  const wire::IcrcPath& path() const { return path_; }

 private:
  int socket_;
  wire::IcrcPath path_;
};

class Hostile : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened = testing::open_loopback();
    ASSERT_TRUE(opened) << opened.error().message;
    device = *opened;
    victim = std::make_unique<Endpoint>(device);
    ASSERT_TRUE(victim->connect(victim->address()));
    ASSERT_TRUE(victim->post_recv(1, 0, 1 << 16));
    stranger = std::make_unique<Stranger>(device->info().gids[0]);
  }
  // The next request that the victim expects.
  wire::Packet packet(Operation operation, std::span<const std::uint8_t> payload = {}) const {
    wire::Packet p;
    p.bth.opcode = wire::opcode_of(Transport::rc, operation);
    p.bth.dest_qp = victim->qp->qpn;
    p.bth.psn = Psn(victim->address().psn);
    p.bth.pad_count = static_cast<std::uint8_t>(wire::pad_of(payload.size()));
    p.payload = payload;
    return p;
  }
  template <class F>
  void eventually(F&& f) const {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!f() && std::chrono::steady_clock::now() < end) device->progress();
    EXPECT_TRUE(f());
  }
  void counted(std::uint64_t port::PortCounters::* counter, std::uint64_t before) const {
    eventually([&] { return device->port_counters().*counter != before; });
    EXPECT_EQ(device->port_counters().*counter, before + 1);
    EXPECT_EQ(victim->qp->state, QpState::rts);
  }
  // A right SEND still arrives.
  void lives() {
    ASSERT_TRUE(victim->post(WrOpcode::send, 2, 0, 100));
    EXPECT_EQ(victim->completion().status, WcStatus::success);
    EXPECT_EQ(victim->completion().status, WcStatus::success);
  }
  // An invalid request: one NAK, the QP's error state, and the open receive completes in error.
  void refused(const wire::Packet& p) {
    const auto naks = device->engine_counters().sent_naks;
    stranger->send(p);
    eventually([&] { return device->engine_counters().sent_naks == naks + 1; });
    EXPECT_EQ(victim->qp->state, QpState::error);
    EXPECT_NE(victim->completion().status, WcStatus::success);
  }

  std::shared_ptr<Device> device;
  std::unique_ptr<Endpoint> victim;
  std::unique_ptr<Stranger> stranger;
};

TEST_F(Hostile, C60_BytesThatAreNoPacketAreCounted) {
  using port::PortCounters;
  const std::uint8_t payload[8] = {};
  Bytes right =
      wire::testing::with_icrc(packet(Operation::send_only, payload), stranger->path(), 0);
  auto wrong = [&](std::size_t at, std::uint8_t value) {
    Bytes b = right;
    b[at] = value;
    return b;
  };
  auto counters = device->port_counters();
  for (const std::size_t n : {0, 1, 6}) stranger->send(Bytes(right.begin(), right.begin() + n));
  stranger->send(Bytes(right.begin(), right.begin() + 15));  // names the QP
  counted(&PortCounters::drop_decode_short, counters.drop_decode_short);
  stranger->send(wrong(0, 0xff));
  counted(&PortCounters::drop_decode_opcode, counters.drop_decode_opcode);
  stranger->send(wrong(1, 0x41));
  counted(&PortCounters::drop_decode_version, counters.drop_decode_version);
  stranger->send(wrong(right.size() - 1, static_cast<std::uint8_t>(right.back() ^ 1)));
  counted(&PortCounters::drop_icrc, counters.drop_icrc);
  wire::Packet padded = packet(Operation::send_only);
  padded.bth.pad_count = 3;
  Bytes b = wire::testing::bytes_of(padded);
  b.resize(12 + 4);  // BTH and ICRC: nothing that could be pad
  stranger->send(b);
  counted(&PortCounters::drop_decode_pad, counters.drop_decode_pad);
  lives();
}

TEST_F(Hostile, C60_AWrongPKeyIsCounted) {
  const auto before = device->engine_counters().drop_pkey;
  wire::Packet p = packet(Operation::send_only);
  p.bth.pkey = 0x1234;
  stranger->send(p);
  eventually([&] { return device->engine_counters().drop_pkey == before + 1; });
  EXPECT_EQ(victim->qp->state, QpState::rts);
  lives();
}

//= IBTA 9.7.4.1.6
TEST_F(Hostile, C60_AFirstShorterThanThePathMtuIsAnInvalidRequest) {
  const std::uint8_t payload[64] = {};
  refused(packet(Operation::send_first, payload));
}

TEST_F(Hostile, C60_AnEmptyLastIsAnInvalidRequest) {
  const Bytes full(bytes_of(device->info().active_mtu), 1);
  stranger->send(packet(Operation::send_first, full));
  const Psn next(victim->address().psn + 1);
  eventually([&] {
    return device->with_engine(
        [&](engine::Engine&, Instant) { return victim->qp->resp.expected == next; });
  });
  wire::Packet last = packet(Operation::send_last);
  last.bth.psn = last.bth.psn + 1;
  refused(last);
}

}  // namespace
}  // namespace adverb::nic
