// SPDX-License-Identifier: Apache-2.0
// The engine's boundary: frames in, frames out.  A port fills RxFrames and sends a TxBurst; in the
// simulator a link does.  Frame bytes run from the BTH to the pad; the ICRC belongs to whoever
// knows the IP header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/types.hpp"
#include "wire/packet.hpp"

namespace adverb::engine {

// A decoded packet whose ICRC was right, with what the layers below said of it.  Its payload lives
// until the call that it is handed to returns.  Of a whole Ethernet frame the payload is all that
// there is.
struct RxFrame {
  wire::Packet packet;
  Gid source{}, destination{};
  std::uint32_t flow_label{};
  std::uint8_t traffic_class{};  // the whole TOS byte: DSCP and ECN
  std::uint8_t hop_limit{64};
  Protocol protocol{};
  bool outgoing{false};  // Ethernet: this host sent it, which only sniffers are to see
  // A fault rule's answer: the responder refuses this request, if it is in sequence, as if a check
  // had failed whose NAK has this AETH syndrome.  Zero: no such rule.
  std::uint8_t forced_syndrome{0};
  bool congestion_experienced() const { return (traffic_class & 3) == 3; }
};

// One frame of a TxBurst: `size` bytes at `offset` of the arena, followed by 4 bytes of room for
// the ICRC.
struct TxFrame {
  std::uint32_t offset{};
  std::uint32_t size{};  // BTH to pad; of an Ethernet frame all
  AddressVector av{};
  Qpn dest_qp{}, src_qp{};
  unsigned slot{};  // of the process that the receiving host steers it to
  Protocol protocol{};
  // XORed into the ICRC: zero, unless a fault rule damages the frame behind the sum.
  std::uint32_t icrc_error{};
};

// What one call of Engine::transmit may produce: bounded, in one arena, frames adjacent in the
// order made, so that a run of equal-sized frames for one destination is a GSO bundle without
// copying.
class TxBurst {
 public:
  static constexpr unsigned max_frames = 256;
  static constexpr unsigned icrc_bytes = 4;
  static constexpr unsigned max_frame = wire::max_header_bytes + 4096 + icrc_bytes + 4;

  // The arena is the caller's; at least one max_frame.
  explicit TxBurst(std::span<std::uint8_t> arena) : arena_(arena) {}

  bool has_room(std::size_t bytes = max_frame) const {
    return count_ < max_frames && arena_.size() - used_ >= bytes;
  }
  // Where the next frame's BTH goes; valid when has_room().
  std::uint8_t* next() { return arena_.data() + used_; }
  // `steered`: the number in the packet whose slot says where it goes, wire::steering_number.
  void commit(std::uint32_t size, const AddressVector& av, Qpn dest_qp, Qpn src_qp, Qpn steered,
              Protocol protocol = Protocol::roce_v2) {
    frames_[count_++] = TxFrame{
        static_cast<std::uint32_t>(used_), size, av, dest_qp, src_qp, steered.slot(), protocol, 0};
    used_ += size + icrc_bytes;
  }
  void commit(std::uint32_t size, const AddressVector& av, Qpn dest_qp, Qpn src_qp) {
    commit(size, av, dest_qp, src_qp, dest_qp);
  }
  // The last frame's ICRC will be wrong by this.
  void spoil_icrc(std::uint32_t error) { frames_[count_ - 1].icrc_error = error; }
  std::span<const TxFrame> frames() const { return {frames_, count_}; }
  std::uint8_t* bytes(const TxFrame& f) { return arena_.data() + f.offset; }
  const std::uint8_t* bytes(const TxFrame& f) const { return arena_.data() + f.offset; }
  void clear() { count_ = 0, used_ = 0; }
  bool empty() const { return count_ == 0; }

 private:
  std::span<std::uint8_t> arena_;
  std::size_t used_ = 0;
  unsigned count_ = 0;
  TxFrame frames_[max_frames];
};

}  // namespace adverb::engine
