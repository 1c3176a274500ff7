// SPDX-License-Identifier: Apache-2.0
// A port that adds to another one's what travels in Ethernet frames of its own: RoCE v1, and what
// raw packet queue pairs send and receive.  Nothing is open until it is asked for.
//
//   - RoCE v1 (annex A16): a socket for each slot, with a filter that looks at the destination QPN.
//     What is for this host itself goes by the loopback interface, as IP does.
//   - Raw frames are received only while somebody watches.  What this host sends comes back to
//     watchers as a NIC loops it back: frames to its own address and to groups; sniffers see the
//     rest as well.
#pragma once

#include <array>
#include <memory>

#include "port/packet_socket.hpp"
#include "port/port.hpp"
#include "wire/icrc_prefixes.hpp"
#include "wire/roce_v1.hpp"

namespace adverb::port {

struct EthernetPortConfig {
  unsigned slot = 1;
  unsigned ifindex = 0;
  wire::Mac mac{};
  bool loopback = false;  // the loopback interface: what is sent comes in by itself
  std::uint64_t receive_buffer = 8 << 20;
};

class EthernetPort final : public Port {
 public:
  EthernetPort(std::unique_ptr<Port> inner, const EthernetPortConfig&);
  ~EthernetPort() override;

  std::span<const engine::RxFrame> receive(bool& all_empty, Look look = Look::everywhere) override;
  void send(engine::TxBurst&) override;
  std::vector<int> wait_descriptors() const override;
  const PortCounters& counters() const override;
  void add_address(const LocalAddress&) override;
  void remove_address(unsigned gid_index) override;
  int join(const Gid& group) override;
  void leave(const Gid& group) override;
  int open_ethernet() override;
  int watch_ethernet(bool on) override;

 private:
  static constexpr unsigned frames_at_once = 32, most_gids = 16;
  static constexpr std::size_t most_bytes = (1 << 16) + 64, staging_bytes = 1 << 20;

  int open_receiver(unsigned ifindex, unsigned ether_type);
  void close_receiver(int& fd);
  bool serves_v1() const;
  void change_membership(int option, const Gid& group);
  bool receive_own();
  bool drain(int fd, std::size_t& at);
  bool accept_raw(const EthernetFrame&);
  bool accept_v1(const EthernetFrame&);
  int send_v1(engine::TxBurst&, const engine::TxFrame&);

  std::unique_ptr<Port> inner_;
  EthernetPortConfig config_;
  int epoll_ = -1, sender_ = -1;
  int watcher_ = -1, v1_ = -1, v1_local_ = -1;  // receivers
  std::array<Gid, most_gids> v1_gids_{};
  unsigned turn_ = 0;
  wire::IcrcPrefixes prefixes_;

  unsigned count_ = 0;
  std::unique_ptr<engine::RxFrame[]> frames_;
  std::unique_ptr<std::uint8_t[]> staging_;
  PortCounters own_;
  mutable PortCounters merged_;
};

}  // namespace adverb::port
