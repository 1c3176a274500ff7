// SPDX-License-Identifier: Apache-2.0
// The receiving half of a UdpPort: one recvmsg a call with UDP_GRO, its segments decoded, their
// ICRCs checked, frames of other slots handed on.
//
// Which socket is read: the one that had data last, as long as it has (a system call less than
// asking first); else, and every eighth call, the next one that the epoll instance says is
// readable.  So "all empty" is always the epoll instance's word for every socket at once.
//
// Relay (design D5): a kernel's GRO, or a kernel without steering, may hand us frames of another
// slot.  Adjacent ones go on as one unix datagram, a RelayHeader and the segments as they came.
#pragma once

#include <sys/uio.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/burst.hpp"
#include "port/udp_port.hpp"
#include "wire/icrc_prefixes.hpp"

namespace adverb::port {

class UdpReceiver {
 public:
  static constexpr unsigned max_segments = 128;  // that a kernel ever sends in one bundle
  static constexpr std::size_t staging_bytes = 65536;
  // A socket that was readable is read on; every so many calls the others have their turn.
  static constexpr unsigned calls_per_turn = 16;

  // Owns the config's receive sockets and relay socket, also when it throws std::system_error.
  UdpReceiver(const UdpPortConfig&, PortCounters&);
  ~UdpReceiver();

  std::span<const engine::RxFrame> receive(bool& all_empty,
                                           Port::Look look = Port::Look::everywhere);
  // As of Port.
  void add(const LocalAddress&);
  void remove(unsigned gid_index);
  int join(const Gid& group);
  void leave(const Gid& group);
  int wait_descriptor() const { return epoll_; }
  std::uint64_t receive_buffer() const { return receive_buffer_; }

 private:
  // What is known of all segments of one recvmsg.
  struct Datagram {
    Gid source{}, destination{};
    std::uint32_t flow_label{};
    std::uint16_t source_port{};
    std::uint8_t traffic_class{}, hop_limit{64};
    bool verified = false;  // a relay: the ICRCs were right
    bool to_group = false;  // multicast: nobody else's to have
    std::size_t size{}, segment{};
  };
  // Follows the IPv4 Identification of a sender, which the ICRC covers and a socket does not show.
  struct IdentificationGuess {
    std::uint16_t next = 0, step = 1, last = 0;
    bool seen = false;
  };
  struct RelayRun {
    unsigned slot = 0, queue_pair = 0;  // by steering, and of the destination QPN
    std::size_t begin = 0, end = 0;
    unsigned frames = 0;
  };

  static constexpr unsigned no_gid = ~0u, group = ~1u;
  struct Source {
    int fd = -1;                  // -1: a free place
    unsigned gid_index = no_gid;  // none: the relay socket; group: that of an MGID
    Gid gid{};
  };

  void open();
  void place(const Source&);
  void listen(std::size_t which);
  void close_all();
  int next_readable();
  bool read(int which);
  bool read_udp(int which, Datagram&);
  bool read_relay(Datagram&);
  void segments(const Datagram&);
  void accept(const Datagram&, std::size_t offset, std::size_t size, IdentificationGuess&);
  bool icrc_right(const Datagram&, std::span<const std::uint8_t>, IdentificationGuess&);
  bool is_ours(const Datagram&, const wire::Packet&) const;
  void relay(const Datagram&, const wire::Packet&, std::size_t offset, std::size_t size);
  void flush_relay(const Datagram&);
  bool send_relay(unsigned slot, std::span<iovec, 2>);

  PortCounters& counters_;
  unsigned slot_, ifindex_;
  std::vector<Source> sources_;  // epoll knows them by their place here; places are used again
  std::string relay_prefix_;
  int relay_socket_ = -1, relay_sender_ = -1, epoll_ = -1;
  bool gro_;
  std::uint64_t wanted_buffer_, receive_buffer_ = 0;

  int hot_ = -1;         // had data at the last call
  int last_ = -1;        // had data last
  unsigned streak_ = 0;  // calls since another one was asked for
  std::uint16_t single_id_ = 0;
  RelayRun run_;
  wire::IcrcPrefixes prefixes_;

  unsigned count_ = 0;
  std::unique_ptr<engine::RxFrame[]> frames_;
  std::unique_ptr<std::uint8_t[]> staging_;
};

}  // namespace adverb::port
