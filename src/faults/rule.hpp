// SPDX-License-Identifier: Apache-2.0
// A fault rule as a value: what is to happen, and to which packets, calls or times.  docs/faults.md
// has the language; parse() reads it.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.hpp"
#include "faults/words.hpp"

namespace adverb::faults {

enum class Action : std::uint8_t {
  drop,
  duplicate,
  delay,
  reorder,
  corrupt,
  answer,     // our responder refuses the request
  fail,       // a verb
  event,      // an asynchronous event
  port_down,  // for `time`, or until a port_up
  port_up,
};

// As this process sees it; bits, so that a rule may name both.
enum class Direction : std::uint8_t { tx = 1, rx = 2, both = 3 };

// Which PSNs: [first, last], as they stand or counted from the first PSN of the queue pair's
// requests in that direction.
struct PsnRange {
  enum Kind : std::uint8_t { all, absolute, relative } kind = all;
  std::uint32_t first = 0, last = 0;
};

struct Rule {
  std::string text, source;  // as written, and where: file:line
  unsigned line = 0;

  Action action{};
  std::uint32_t count = 1;           // duplicate: copies more; reorder: packets that go first
  Duration time{};                   // delay; port_down: zero is for ever
  std::optional<std::uint32_t> bit;  // corrupt: from the BTH's first, most significant one; or any
  bool whole_byte = false;           // corrupt: all eight from `bit` on
  bool sealed = false;               // corrupt: with an ICRC that is right again
  std::uint8_t syndrome = 0;         // answer: of the AETH
  Call call{};                       // fail
  int error = 0;                     // fail: errno
  std::uint8_t event = 0;            // numbered as ibv_event_type

  // --- which packets
  Direction direction = Direction::both;
  OpcodeSet opcodes = OpcodeSet().set();
  std::optional<Qpn> qp;
  std::optional<wire::Transport> transport;  // qp RC
  std::optional<Qpn> peer_qp;
  std::optional<Gid> peer;
  PsnRange psn;
  bool names_packets = false;  // one of the conditions above stands there

  // --- which of those, in this order: behind the first `after`, counted anew
  std::uint64_t after = 0;
  std::uint64_t nth = 0, every = 0;  // zero: not said
  std::uint64_t first = std::numeric_limits<std::uint64_t>::max();
  std::uint32_t chance = certain;  // in a thousand millionths
  std::uint64_t seed = 1;
  std::uint64_t times = std::numeric_limits<std::uint64_t>::max();  // hits at most
  static constexpr std::uint32_t certain = 1'000'000'000;

  // --- when, since the device was opened (calls: since the rules were read)
  Duration from{}, until = Duration::max();
  std::optional<Duration> at;  // event, port: once, then

  bool of_calls() const { return action == Action::fail; }
  bool timed() const { return at.has_value(); }
  bool of_packets() const { return !of_calls() && !timed(); }
};

struct ParseError {
  std::string source;
  unsigned line = 0, column = 0;  // both from 1
  std::string message;
  std::string text() const;  // source:line:column: message
};

struct Parsed {
  std::vector<Rule> rules;
  std::vector<ParseError> errors;  // at most one a rule
};

// Reads rules, one a line (or several with `;` between); `source` is the file's name, for messages.
Parsed parse(std::string_view text, std::string_view source);

// What the rule does, as a sentence for people.
std::string explain(const Rule&);

std::string to_text(Duration);  // 200ms, 1.5s
std::string to_text(const Gid&);

}  // namespace adverb::faults
