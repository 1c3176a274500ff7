// SPDX-License-Identifier: Apache-2.0
// For tests only: a host in a network namespace of its own (where the machine allows that), with a
// pool and a UdpPort for each of some slots, and frames to send between them.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "port/address.hpp"
#include "port/steering.hpp"
#include "port/udp_port.hpp"
#include "wire/testing.hpp"

namespace adverb::port::testing {

using wire::testing::Bytes;

inline constexpr wire::Opcode send_only{0x04};

inline Gid v4(std::uint8_t a, std::uint8_t b, std::uint8_t c, std::uint8_t d) {
  const std::uint8_t bytes[4] = {a, b, c, d};
  std::uint32_t word;
  std::memcpy(&word, bytes, 4);
  return Gid::from_v4(word);
}
inline Gid v6_loopback() {
  Gid g;
  g.bytes[15] = 1;
  return g;
}

// Port 4791 of the loopback addresses may be in use on this machine: a namespace has its own.
// Called once, before there are threads.  False: not allowed here, the tests then run where they
// are.
inline bool enter_namespace() {
  if (::unshare(CLONE_NEWNET) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return false;
  int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq r{};
  std::strcpy(r.ifr_name, "lo");
  ::ioctl(fd, SIOCGIFFLAGS, &r);
  r.ifr_flags |= IFF_UP;
  ::ioctl(fd, SIOCSIFFLAGS, &r);
  ::close(fd);
  return true;
}
inline const bool in_namespace = enter_namespace();

inline bool set_mtu(const char* interface, int mtu) {
  int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq r{};
  std::strcpy(r.ifr_name, interface);
  r.ifr_mtu = mtu;
  bool ok = ::ioctl(fd, SIOCSIFMTU, &r) == 0;
  ::close(fd);
  return ok;
}

struct Frame {
  Qpn src, dest;
  Gid dgid;
  std::size_t payload = 64;
  std::uint32_t psn = 0;
  std::uint8_t traffic_class = 0, hop_limit = 64, sgid_index = 0;
};

inline Bytes payload_of(std::uint32_t psn, std::size_t size) {
  Bytes b(size);
  for (std::size_t i = 0; i < size; ++i) b[i] = static_cast<std::uint8_t>(psn * 31 + i);
  return b;
}
// BTH to pad.
inline Bytes frame_bytes(const Frame& f) {
  Bytes payload = payload_of(f.psn, f.payload);
  wire::Packet p;
  p.bth.opcode = send_only;
  p.bth.dest_qp = f.dest;
  p.bth.psn = Psn(f.psn);
  p.bth.pad_count = static_cast<std::uint8_t>(wire::pad_of(payload.size()));
  p.payload = payload;
  return wire::testing::bytes_of(p);
}
inline Bytes with_icrc(const Frame& f, const Gid& source, std::uint16_t port, std::uint16_t id) {
  Bytes b = frame_bytes(f);
  std::uint32_t icrc = wire::IcrcPrefix({source, f.dgid, port}, b.size()).icrc(b, id);
  for (int i = 0; i < 4; ++i) b.push_back(static_cast<std::uint8_t>(icrc >> 8 * i));
  return b;
}

// A burst that owns its arena.
struct Burst {
  std::vector<std::uint8_t> arena =
      std::vector<std::uint8_t>(engine::TxBurst::max_frames * engine::TxBurst::max_frame);
  engine::TxBurst burst{arena};
  void add(const Frame& f) {
    ASSERT_TRUE(burst.has_room());
    Bytes b = frame_bytes(f);
    std::memcpy(burst.next(), b.data(), b.size());
    engine::AddressVector av;
    av.dgid = f.dgid, av.traffic_class = f.traffic_class, av.hop_limit = f.hop_limit;
    av.sgid_index = f.sgid_index;
    burst.commit(static_cast<std::uint32_t>(b.size()), av, f.dest, f.src);
  }
};
inline void send(UdpPort& port, const std::vector<Frame>& frames) {
  Burst b;
  for (auto& f : frames) b.add(f);
  port.send(b.burst);
}

// What a receiver saw of a frame.
struct Seen {
  std::uint32_t psn;
  Qpn dest;
  Gid source, destination;
  std::uint8_t traffic_class, hop_limit;
  Bytes payload;
};
inline Seen seen(const engine::RxFrame& f) {
  auto& p = f.packet;
  return {p.bth.psn.raw(),
          p.bth.dest_qp,
          f.source,
          f.destination,
          f.traffic_class,
          f.hop_limit,
          Bytes(p.payload.begin(), p.payload.end())};
}
// Reads until the port says that all is empty.  (Loopback delivers before send returns.)
inline std::vector<Seen> receive_all(UdpPort& port) {
  std::vector<Seen> all;
  for (bool empty = false; !empty;)
    for (auto& f : port.receive(empty)) all.push_back(seen(f));
  return all;
}
inline void expect_frame(const Seen& s, const Frame& f, const Gid& source) {
  EXPECT_EQ(s.psn, f.psn);
  EXPECT_EQ(s.dest.raw(), f.dest.raw());
  EXPECT_TRUE(s.source == source && s.destination == f.dgid);
  EXPECT_EQ(s.traffic_class, f.traffic_class);
  EXPECT_EQ(s.hop_limit, f.hop_limit);
  EXPECT_TRUE(s.payload == payload_of(f.psn, f.payload)) << "payload of psn " << f.psn;
}
inline void expect_frames(const std::vector<Seen>& s, const std::vector<Frame>& f,
                          const Gid& source) {
  ASSERT_EQ(s.size(), f.size());
  for (std::size_t i = 0; i < f.size(); ++i) expect_frame(s[i], f[i], source);
}

inline int bound_relay(const std::string& prefix, unsigned slot) {
  int fd = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  sockaddr_un a{};
  a.sun_family = AF_UNIX;
  std::string name = prefix + std::to_string(slot);
  std::memcpy(a.sun_path + 1, name.data(), name.size());
  auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  EXPECT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&a), length), 0);
  return fd;
}

// Ports for slots 1 to `slots` - 1 on the given addresses; GID indices are their places.
class Host {
 public:
  Host(std::vector<Gid> gids, unsigned slots, UdpPortConfig base = {}, unsigned ifindex = 0) {
    std::string prefix = "adverb-port-test." + std::to_string(::getpid()) + ".";
    std::vector<Pool> pools;
    for (auto& g : gids) {
      auto pool = create_pool(g, ifindex, slots);
      if (!pool) throw std::runtime_error(pool.error().message);
      pools.push_back(*pool);
    }
    for (auto& p : pools) zero_.push_back(p.sockets[0]);
    for (unsigned slot = 1; slot < slots; ++slot) {
      UdpPortConfig c = base;
      c.slot = slot;
      for (unsigned i = 0; i < gids.size(); ++i)
        c.addresses.push_back({i, gids[i], ifindex, pools[i].sockets[slot]});
      c.relay_name_prefix = prefix;
      c.relay_socket = bound_relay(prefix, slot);
      ports_.push_back(std::make_unique<UdpPort>(c));
    }
  }
  ~Host() {
    for (int fd : zero_) ::close(fd);
  }
  UdpPort& slot(unsigned s) { return *ports_[s - 1]; }
  int slot_zero(unsigned address = 0) const { return zero_[address]; }

 private:
  std::vector<std::unique_ptr<UdpPort>> ports_;
  std::vector<int> zero_;
};

// A socket that is no Adverb: sends what it is told to, in bundles if asked.
class Stranger {
 public:
  explicit Stranger(const Gid& local) : local_(local) {
    fd_ = ::socket(family_of(local), SOCK_DGRAM | SOCK_CLOEXEC, 0);
    SocketAddress a;
    socklen_t n = to_address(local, 0, 0, a);
    EXPECT_EQ(::bind(fd_, &a.any, n), 0);
    n = sizeof a;
    EXPECT_EQ(::getsockname(fd_, &a.any, &n), 0);
    port_ = port_of(a);
  }
  ~Stranger() { ::close(fd_); }
  std::uint16_t port() const { return port_; }
  int fd() const { return fd_; }
  const Gid& gid() const { return local_; }
  void send(const Gid& to, const Bytes& bytes, std::uint16_t segment = 0) {
    constexpr int udp_segment = 103;
    int size = segment;
    ASSERT_EQ(::setsockopt(fd_, IPPROTO_UDP, udp_segment, &size, sizeof size), 0);
    SocketAddress a;
    socklen_t n = to_address(to, roce_port, 0, a);
    ASSERT_EQ(::sendto(fd_, bytes.data(), bytes.size(), 0, &a.any, n),
              static_cast<ssize_t>(bytes.size()));
  }

 private:
  Gid local_;
  int fd_;
  std::uint16_t port_;
};

}  // namespace adverb::port::testing
