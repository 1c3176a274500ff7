// SPDX-License-Identifier: Apache-2.0
// The links between hosts: each ordered pair has a rate, a delay, a queue and what the rules do to
// it. Frames carry real wire bytes and ICRC from BTH on.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/burst.hpp"
#include "faults/matcher.hpp"
#include "sim/event_queue.hpp"
#include "sim/scenario.hpp"
#include "sim/trace.hpp"
#include "wire/icrc_prefixes.hpp"

namespace adverb::sim {

struct Frame {
  std::uint32_t size = 0;  // BTH to ICRC
  std::uint16_t from = 0, to = 0;
  std::uint16_t source_port = 0;
  bool large = false;
  engine::AddressVector av{};
  std::uint8_t* bytes = nullptr;
};

// Frames that are under way, by number; freed ones are used again.
class FramePool {
 public:
  std::uint32_t take(std::uint32_t size);
  std::uint32_t copy(std::uint32_t frame);
  void give(std::uint32_t frame);
  Frame& at(std::uint32_t frame) { return frames_[frame]; }
  std::size_t in_use() const { return used_; }

 private:
  static constexpr std::uint32_t small_bytes = 320;
  std::vector<Frame> frames_;
  std::vector<std::unique_ptr<std::uint8_t[]>> memory_;
  std::vector<std::uint32_t> free_[2];  // small, large
  std::size_t used_ = 0;
};

// What became of a link's frames: sent + duplicated = delivered + lost + under way.
struct LinkCounts {
  std::uint64_t sent = 0, duplicated = 0, delivered = 0, lost = 0, disturbed = 0;
};

class Network {
 public:
  Network(const Scenario&, EventQueue&, Trace&);

  void set_address(unsigned host, const Gid& gid) { gids_[host] = gid; }
  const Gid& address(unsigned host) const { return gids_[host]; }
  // Computes the ICRC and sends; the host that has the destination's address gets an arrival.
  // `first`: PSN of the first request of the exchange that the frame belongs to, for rules.
  void send(Picoseconds now, unsigned from, const engine::TxFrame&, const std::uint8_t* bytes,
            std::optional<Psn> first);
  // Nobody went by: a frame that was held for reordering goes now.
  void release(Picoseconds now, std::uint32_t frame);
  // The frame's packet, if its ICRC is right: what a port does on receive.
  bool valid(const Frame&);
  // An arrival was taken off the queue: delivered, or lost because nobody was there to take it.
  void arrived(const Frame&, bool delivered);
  // Puts a forged frame on the link from -> to, to arrive at once.
  void inject(Picoseconds now, unsigned from, unsigned to, std::span<const std::uint8_t> bytes);

  void partition(unsigned host, int peer, Picoseconds until, bool both_ways);
  void clog(unsigned host, int peer, Picoseconds until);
  // From now on nothing happens to frames; what was held comes when it was to come.
  void heal();
  // Was anything lost, changed, or made late on the way from -> to?
  bool disturbed(unsigned from, unsigned to) const { return link(from, to).counts.disturbed != 0; }
  // Frames that were lost between the two, either way.
  std::uint64_t losses(unsigned a, unsigned b) const {
    return link(a, b).counts.lost + link(b, a).counts.lost;
  }
  // Throws when frames came out of nowhere or vanished; nothing may be under way any more.
  void check_conservation() const;
  FramePool& frames() { return pool_; }
  std::uint64_t sent() const { return sent_; }
  Picoseconds latest_arrival() const { return latest_arrival_; }

 private:
  // A frame that lets others of its queue pair go first.
  struct Held {
    std::uint32_t frame, left;
    Qpn qp;
  };
  struct Link {
    Picoseconds free_at = 0, down_until = 0, clogged_until = 0;
    std::vector<faults::Rule> rules;
    std::vector<Nanoseconds> late;  // of each
    std::unique_ptr<faults::Matcher> matcher;
    Prng random{0};
    std::vector<Held> held;
    LinkCounts counts;
  };
  Link& link(unsigned from, unsigned to) { return links_[from * hosts_ + to]; }
  const Link& link(unsigned from, unsigned to) const { return links_[from * hosts_ + to]; }
  int host_of(const Gid&) const;
  const wire::IcrcPrefix& prefix(const Frame&);
  void read_rules();
  bool disturb(Picoseconds now, Link&, std::uint32_t frame, const engine::TxFrame&,
               std::optional<Psn> first);
  Picoseconds some_late(Link&);
  void pass(Picoseconds now, Link&, std::uint32_t frame, Picoseconds extra);
  void went_by(Picoseconds now, Link&, Qpn);
  void damage(Frame&, const faults::Decision&);
  void lose(Picoseconds now, Link&, std::uint32_t frame, const char* why);
  void deliver(Picoseconds at, Link&, std::uint32_t frame);

  const Scenario& s_;
  EventQueue& queue_;
  Trace& trace_;
  unsigned hosts_;
  std::vector<Link> links_;
  std::vector<Gid> gids_;
  FramePool pool_;
  wire::IcrcPrefixes prefixes_;
  bool healed_ = false;
  std::uint64_t sent_ = 0;
  Picoseconds latest_arrival_ = 0;
};

}  // namespace adverb::sim
