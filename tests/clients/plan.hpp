// SPDX-License-Identifier: Apache-2.0
// What a requester will do, as a function of a seed: the responder computes the same plan and so
// knows each message's kind, place, size and content before it arrives.
//
// A stream is one direction of one queue pair.  It goes in rounds of up to `depth` operations.  The
// last operation of a round takes a receive and waits for the READs before it (fence); when it has
// arrived, the responder checks the whole round and hands out a credit.  Two rounds may be under
// way: each has one half of an arena.
#pragma once

#include <vector>

#include "tests/clients/kit.hpp"

namespace adverb::clients {

struct Setup {
  std::uint64_t seed;
  std::uint32_t qps, depth, max_size, mtu;  // mtu in bytes
  std::uint32_t rounds[2];                  // of a stream: the client's, the server's
  ibv_qp_type type;
};

enum class What : std::uint8_t {
  send,
  send_imm,
  write,
  write_imm,
  read_pattern,  // of a region that never changes
  read_back,     // of what a WRITE of the same round put there
  add_own,       // atomics on a word that this queue pair alone uses
  swap_own,
  swap_own_refused,
  add_shared,  // on a word of all queue pairs
};
constexpr unsigned what_count = 10;
constexpr const char* name_of[what_count] = {
    "SEND",      "SEND_WITH_IMM", "WRITE",   "WRITE_WITH_IMM",   "READ",
    "READ BACK", "FETCH_ADD",     "CMP_SWP", "CMP_SWP, refused", "FETCH_ADD, shared",
};

struct Op {
  What what;
  std::uint32_t size, offset;  // offset in a half, of source and destination alike
  std::uint64_t content;       // the seed of the payload; a random number for atomics
  std::uint32_t imm;
  std::uint32_t source;  // read_pattern: offset in the pattern; read_back: number of the WRITE
};
using Round = std::vector<Op>;

constexpr std::uint32_t guard_size = 64, grh_room = 64, pattern_size = 1 << 20;
constexpr std::uint32_t max_depth = 200;
constexpr std::uint8_t guard_byte = 0xa5;

inline std::uint32_t half_size(const Setup& s) { return 2 * s.max_size + (64 << 10); }
inline bool takes_receive(What w) {
  return w == What::send || w == What::send_imm || w == What::write_imm;
}
inline bool has_imm(What w) { return w == What::send_imm || w == What::write_imm; }
inline bool returns_data(What w) { return w >= What::read_pattern; }
inline bool is_atomic(What w) { return w >= What::add_own; }

inline std::uint32_t pick_size(const Setup& s, Prng& prng) {
  const auto below = [&](std::uint64_t n) { return static_cast<std::uint32_t>(prng.next() % n); };
  const std::uint32_t packets = s.mtu * (1 + below(4));
  std::uint32_t size = 0;
  switch (below(10)) {
    case 0:
      size = 0;
      break;
    case 1:
      size = 1 + below(7);
      break;
    case 2:
      size = below(64);
      break;
    case 3:
      size = below(4096) | 1;
      break;
    case 4:
      size = packets;
      break;
    case 5:
      size = packets + 1;
      break;
    case 6:
      size = packets - 1;
      break;
    case 7:
      size = below(65536);
      break;
    case 8:
      size = below(4) ? below(s.mtu) : below(s.max_size + 1);
      break;
    case 9:
      size = below(8) ? s.mtu * 64 + below(3) - 1 : s.max_size;
      break;
  }
  return std::min(size, s.max_size);
}

inline What pick_what(const Setup& s, const Round& round, Prng& prng, std::uint32_t& source) {
  static constexpr What rc[] = {What::send,       What::send_imm,        What::write,
                                What::write,      What::write_imm,       What::read_pattern,
                                What::read_back,  What::add_own,         What::swap_own,
                                What::add_shared, What::swap_own_refused};
  static constexpr What uc[] = {What::send, What::send_imm, What::write, What::write_imm};
  if (s.type == IBV_QPT_UD) return uc[prng.next() % 2];
  if (s.type == IBV_QPT_UC) return uc[prng.next() % 4];
  const What what = rc[prng.next() % std::size(rc)];
  if (what != What::read_back) return what;
  for (std::uint32_t i = static_cast<std::uint32_t>(round.size()); i-- > 0;)
    if (source = i; round[i].what == What::write) return what;
  return What::read_pattern;
}

// Each operation has its place in the half: [guard][room for a GRH][payload].
inline Round plan_round(const Setup& s, unsigned direction, unsigned qp, std::uint32_t number) {
  Prng prng(SplitMix::mix(SplitMix::mix(s.seed + direction * 4096 + qp) + number));
  Round round;
  const std::uint32_t count = 1 + static_cast<std::uint32_t>(prng.next() % s.depth);
  std::uint32_t at = 0;
  while (round.size() < count) {
    Op op{};
    op.what = pick_what(s, round, prng, op.source);
    op.content = prng.next();
    const bool last = round.size() + 1 == count;
    if (last) op.what = s.type == IBV_QPT_UD || prng.next() % 2 ? What::send_imm : What::write_imm;
    op.imm = last ? number : static_cast<std::uint32_t>(prng.next());
    op.size = is_atomic(op.what)              ? 8
              : op.what == What::read_back    ? round[op.source].size
              : op.what == What::read_pattern ? std::min(pick_size(s, prng), pattern_size)
                                              : pick_size(s, prng);
    if (op.what == What::read_pattern)
      op.source = static_cast<std::uint32_t>(prng.next() % (pattern_size - op.size + 1)) & ~7u;
    op.offset = at + guard_size + grh_room;
    op.offset += is_atomic(op.what) ? -op.offset & 7 : static_cast<std::uint32_t>(prng.next() % 8);
    const std::uint32_t others = static_cast<std::uint32_t>(count - round.size()) * 256;
    if (op.offset + op.size + others > half_size(s)) {  // no room: an empty one
      op.what = last ? What::send_imm : What::send;
      op.size = 0;
    }
    at = op.offset + op.size;
    round.push_back(op);
  }
  return round;
}

// Calls f(begin, size) for each guard of a round, in the half's coordinates.
template <class F>
void for_each_guard(const Round& round, F&& f) {
  std::uint32_t at = 0;
  for (const Op& op : round) {
    f(at, guard_size);
    at = op.offset + op.size;
  }
  f(at, guard_size);
}

}  // namespace adverb::clients
