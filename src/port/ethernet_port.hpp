// SPDX-License-Identifier: Apache-2.0
// A port that adds whole Ethernet frames to another one's: what raw packet queue pairs send and
// receive.  Nothing is open until it is asked for, and nothing is received unless somebody watches.
//
// What this host sends comes back to watchers as a NIC loops it back: frames to its own address and
// to groups; sniffers see the rest as well.
#pragma once

#include <array>
#include <memory>

#include "port/packet_socket.hpp"
#include "port/port.hpp"

namespace adverb::port {

struct EthernetPortConfig {
  unsigned ifindex = 0;
  std::array<std::uint8_t, 6> mac{};
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
  void add_address(const LocalAddress& a) override { inner_->add_address(a); }
  void remove_address(unsigned gid_index) override { inner_->remove_address(gid_index); }
  int join(const Gid& group) override { return inner_->join(group); }
  void leave(const Gid& group) override { inner_->leave(group); }
  int open_ethernet() override;
  int watch_ethernet(bool on) override;

 private:
  static constexpr unsigned frames_at_once = 32;
  static constexpr std::size_t most_bytes = (1 << 16) + 64, staging_bytes = 1 << 20;

  bool receive_own();
  void accept(const EthernetFrame&);

  std::unique_ptr<Port> inner_;
  EthernetPortConfig config_;
  int epoll_ = -1, sender_ = -1, watcher_ = -1;
  unsigned turn_ = 0;

  unsigned count_ = 0;
  std::unique_ptr<engine::RxFrame[]> frames_;
  std::unique_ptr<std::uint8_t[]> staging_;
  PortCounters own_;
  mutable PortCounters merged_;
};

}  // namespace adverb::port
