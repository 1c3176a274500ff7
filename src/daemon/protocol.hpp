// SPDX-License-Identifier: Apache-2.0
// What adverbd and its clients say to each other (design D4, D5): SOCK_SEQPACKET messages of fixed
// size on the abstract name "adverb/<uid>", which the network namespace scopes; descriptors travel
// by SCM_RIGHTS.
//
// Frozen from version 1, because two Adverbs of different versions may share a namespace and a
// port: both structs, the request kinds below, and the layout of the shared memory
// (slot_table.hpp).  A later version adds kinds, uses reserved bytes (zero today) and raises
// `highest_version`; it never changes what is here.
//
//   request       descriptors               reply (descriptors)
//   take_slot     -                         slot, slots (shared memory)
//   resume        shared memory             slot; sent to the next adverbd by a client that lived
//   on hand_pool     the pool's vaults         none; follows a resume, one per local address
//   local_address -                         flags (the slot's receive socket, the pool's vaults)
//   goodbye       -                         none; the slot is free from now on
//   status        -                         one message of JSON text instead of a Reply
//   open_xrcd     -                         (the domain's memory); gid holds device and inode
//   close_xrcd    -                         empty: nothing of the client is in the domain any more
//   hand_xrcd     the domain's memory       none; as hand_pool
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/types.hpp"

namespace adverb::daemon {

inline constexpr std::uint32_t protocol_magic = 0x61647662;  // "advb"
inline constexpr std::uint16_t lowest_version = 1, highest_version = 1;
inline constexpr unsigned slot_limit = 1u << Qpn::slot_bits;  // slots that a QPN can name
inline constexpr unsigned default_slots = 64;                 // slot 0 (adverbd) among them
inline constexpr std::size_t descriptors_per_message = 253;   // the kernel's SCM_MAX_FD
inline constexpr std::size_t status_bytes = 128 << 10;

enum class RequestKind : std::uint32_t {
  take_slot = 1,
  resume = 2,
  hand_pool = 3,
  local_address = 4,
  goodbye = 5,
  status = 6,
  open_xrcd = 7,
  close_xrcd = 8,
  hand_xrcd = 9,
};

inline constexpr std::uint32_t flag_unsteered = 1;                   // of a pool
inline constexpr std::uint32_t flag_create = 1, flag_exclusive = 2;  // of open_xrcd

struct Request {
  std::uint32_t magic = protocol_magic;
  std::uint16_t lowest = lowest_version, highest = highest_version;
  std::uint64_t features = 0;
  RequestKind kind{};
  std::uint32_t slot = 0;
  std::uint32_t flags = 0;
  std::uint32_t ifindex = 0;  // scope of a link-local address, else 0
  Gid gid{};
  std::uint32_t serial = 0;  // comes back in the reply
  std::array<std::uint32_t, 3> reserved{};
};
static_assert(sizeof(Request) == 64);

struct Reply {
  std::uint32_t magic = protocol_magic;
  std::uint16_t lowest = lowest_version, highest = highest_version;
  std::uint64_t features = 0;
  RequestKind kind{};
  std::int32_t error = 0;  // errno; then `message` says what to do
  std::uint32_t slot = 0;
  std::uint32_t slots = 0;
  std::uint32_t flags = 0;
  std::uint32_t serial = 0;
  std::array<std::uint32_t, 4> reserved{};
  std::array<char, 200> message{};
};
static_assert(sizeof(Reply) == 256);

// Two sides can talk when their ranges of versions overlap.
inline bool compatible(std::uint32_t magic, std::uint16_t lowest, std::uint16_t highest) {
  return magic == protocol_magic && lowest <= highest_version && highest >= lowest_version;
}

inline bool is_link_local(const Gid& g) {
  return g.bytes[0] == 0xfe && (g.bytes[1] & 0xc0) == 0x80;
}

// Abstract socket names, without the leading NUL.
inline std::string daemon_name(unsigned uid) { return "adverb/" + std::to_string(uid); }
// Followed by 16 hexadecimal digits, '/', and the slot.
inline std::string relay_root(unsigned uid) { return daemon_name(uid) + "/relay/"; }

}  // namespace adverb::daemon
