// SPDX-License-Identifier: Apache-2.0
#include "faults/words.hpp"

#include <algorithm>
#include <cerrno>

#include "wire/aeth.hpp"

namespace adverb::faults {
namespace {

using wire::OpcodeInfo;
using wire::Verb;

constexpr auto call_words = std::to_array<Word>({
#define ADVERB_FAULT_CALL(name) {#name, static_cast<int>(Call::name)},
    ADVERB_FAULT_CALLS(ADVERB_FAULT_CALL)
#undef ADVERB_FAULT_CALL
});

constexpr auto errno_words = std::to_array<Word>({
#define ADVERB_ERRNO(name) {#name, name},
    ADVERB_ERRNO(EPERM) ADVERB_ERRNO(ENOENT) ADVERB_ERRNO(EINTR) ADVERB_ERRNO(EIO) ADVERB_ERRNO(
        ENXIO) ADVERB_ERRNO(EBADF) ADVERB_ERRNO(EAGAIN) ADVERB_ERRNO(ENOMEM) ADVERB_ERRNO(EACCES)
        ADVERB_ERRNO(EFAULT) ADVERB_ERRNO(EBUSY) ADVERB_ERRNO(EEXIST) ADVERB_ERRNO(ENODEV)
            ADVERB_ERRNO(EINVAL) ADVERB_ERRNO(ENFILE) ADVERB_ERRNO(EMFILE) ADVERB_ERRNO(ENOTTY)
                ADVERB_ERRNO(EFBIG) ADVERB_ERRNO(ENOSPC) ADVERB_ERRNO(EPIPE) ADVERB_ERRNO(ERANGE)
                    ADVERB_ERRNO(EDEADLK) ADVERB_ERRNO(ENOSYS) ADVERB_ERRNO(ENODATA) ADVERB_ERRNO(
                        ETIME) ADVERB_ERRNO(EPROTO) ADVERB_ERRNO(EOVERFLOW) ADVERB_ERRNO(EMSGSIZE)
                        ADVERB_ERRNO(EPROTONOSUPPORT) ADVERB_ERRNO(EOPNOTSUPP) ADVERB_ERRNO(
                            EAFNOSUPPORT) ADVERB_ERRNO(EADDRINUSE) ADVERB_ERRNO(EADDRNOTAVAIL)
                            ADVERB_ERRNO(ENETDOWN) ADVERB_ERRNO(ENETUNREACH) ADVERB_ERRNO(
                                ECONNABORTED) ADVERB_ERRNO(ECONNRESET) ADVERB_ERRNO(ENOBUFS)
                                ADVERB_ERRNO(EISCONN) ADVERB_ERRNO(ENOTCONN) ADVERB_ERRNO(ETIMEDOUT)
                                    ADVERB_ERRNO(ECONNREFUSED) ADVERB_ERRNO(EHOSTUNREACH)
                                        ADVERB_ERRNO(EALREADY) ADVERB_ERRNO(EINPROGRESS)
                                            ADVERB_ERRNO(ECANCELED)
#undef ADVERB_ERRNO
                                                {"ENOTSUP", ENOTSUP},
    {"EWOULDBLOCK", EWOULDBLOCK},
});

constexpr auto event_words = std::to_array<Word>({
    {"CQ_ERR", 0},
    {"QP_FATAL", 1},
    {"QP_REQ_ERR", 2},
    {"QP_ACCESS_ERR", 3},
    {"COMM_EST", 4},
    {"SQ_DRAINED", 5},
    {"PATH_MIG", 6},
    {"PATH_MIG_ERR", 7},
    {"DEVICE_FATAL", 8},
    {"PORT_ACTIVE", 9},
    {"PORT_ERR", 10},
    {"LID_CHANGE", 11},
    {"PKEY_CHANGE", 12},
    {"SM_CHANGE", 13},
    {"SRQ_ERR", 14},
    {"SRQ_LIMIT_REACHED", 15},
    {"QP_LAST_WQE_REACHED", 16},
    {"CLIENT_REREGISTER", 17},
    {"GID_CHANGE", 18},
    {"WQ_FATAL", 19},
});

constexpr auto nak_words = std::to_array<Word>({
    {"psn_sequence", wire::make_nak(wire::NakCode::psn_sequence_error)},
    {"invalid_request", wire::make_nak(wire::NakCode::invalid_request)},
    {"remote_access", wire::make_nak(wire::NakCode::remote_access_error)},
    {"remote_operational", wire::make_nak(wire::NakCode::remote_operational_error)},
    {"rnr", wire::make_rnr_nak(0)},
});

template <Verb... v>
bool is(const OpcodeInfo& o) {
  return ((o.verb == v) || ...);
}

constexpr auto groups = std::to_array<OpcodeGroup>({
    {"any", "every packet", [](const OpcodeInfo&) { return true; }},
    {"REQUEST", "every request",
     [](const OpcodeInfo& o) { return !wire::is_response(o.verb) && o.verb != Verb::cnp; }},
    {"RESPONSE", "every acknowledge, READ response and ATOMIC acknowledge",
     [](const OpcodeInfo& o) { return wire::is_response(o.verb); }},
    {"SEND", "every SEND packet", is<Verb::send>},
    {"WRITE", "every RDMA WRITE packet", is<Verb::write>},
    {"READ", "RDMA READ requests", is<Verb::read>},
    {"READ_RESPONSE", "every RDMA READ response packet", is<Verb::read_response>},
    {"ACK", "ACKNOWLEDGE packets: ACK, NAK and RNR NAK", is<Verb::ack>},
    {"ATOMIC", "COMPARE_SWAP and FETCH_ADD", is<Verb::atomic>},
    {"ATOMIC_ACK", "ATOMIC ACKNOWLEDGE packets", is<Verb::atomic_ack>},
    {"CNP", "congestion notification packets", is<Verb::cnp>},
});

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

OpcodeSet all_that(auto&& holds) {
  OpcodeSet set;
  for (std::size_t i = 0; i < wire::opcodes.size(); ++i)
    if (wire::opcodes[i] && holds(wire::opcodes[i])) set.set(i);
  return set;
}

// Edits (insert, delete, replace, swap of neighbours) that make `a` of `b`.
std::size_t distance(std::string_view a, std::string_view b) {
  constexpr std::size_t most = 24;
  if (a.size() > most || b.size() > most) return most;
  std::size_t d[most + 1][most + 1];
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (!i || !j) {
        d[i][j] = i + j;
        continue;
      }
      const bool same = lower(a[i - 1]) == lower(b[j - 1]);
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + !same});
      if (i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) &&
          lower(a[i - 2]) == lower(b[j - 1]))
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

std::string_view name_of(Call c) { return call_words[static_cast<std::size_t>(c)].name; }
std::span<const Word> calls() { return call_words; }
std::span<const Word> errnos() { return errno_words; }
std::span<const Word> events() { return event_words; }
std::span<const Word> naks() { return nak_words; }
std::span<const OpcodeGroup> opcode_groups() { return groups; }

bool same_word(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, [](char x, char y) { return lower(x) == lower(y); });
}

std::optional<int> find(std::span<const Word> words, std::string_view name) {
  for (const Word& w : words)
    if (same_word(w.name, name)) return w.value;
  return std::nullopt;
}

std::string_view name_of(std::span<const Word> words, int value) {
  for (const Word& w : words)
    if (w.value == value) return w.name;
  return "?";
}

std::optional<OpcodeSet> find_opcodes(std::string_view name) {
  for (const OpcodeGroup& g : groups)
    if (same_word(g.name, name)) return all_that(g.holds);
  constexpr std::string_view rdma = "RDMA_";
  if (name.size() > rdma.size() && same_word(name.substr(0, rdma.size()), rdma)) {
    const auto set = find_opcodes(name.substr(rdma.size()));
    const OpcodeSet rdma_ones = all_that(is<Verb::write, Verb::read, Verb::read_response>);
    return set && (*set & ~rdma_ones).none() ? set : std::nullopt;
  }
  const OpcodeSet set = all_that([&](const OpcodeInfo& o) { return same_word(o.name, name); });
  return set.any() ? std::optional(set) : std::nullopt;
}

std::string_view nearest(std::string_view word, std::span<const std::string_view> known) {
  std::string_view best;
  std::size_t least = std::max<std::size_t>(1, word.size() / 3) + 1;
  for (const std::string_view k : known) {
    const std::size_t d = distance(word, k);
    if (d < least) least = d, best = k;
  }
  return best;
}

}  // namespace adverb::faults
