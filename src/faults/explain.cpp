// SPDX-License-Identifier: Apache-2.0
// Rules as sentences, for `adverb faults --check`.
#include "faults/rule.hpp"
#include "faults/values.hpp"
#include "wire/aeth.hpp"

namespace adverb::faults {
namespace {

std::string number(std::uint64_t n) { return std::to_string(n); }

std::string hex(std::uint32_t n) {
  std::string text;
  do text.insert(text.begin(), "0123456789abcdef"[n & 15]);
  while (n >>= 4);
  return "0x" + text;
}

std::string ordinal(std::uint64_t n) {
  const char* end = n % 100 / 10 == 1 ? "th"
                    : n % 10 == 1     ? "st"
                    : n % 10 == 2     ? "nd"
                    : n % 10 == 3     ? "rd"
                                      : "th";
  return number(n) + end;
}

std::string packets(std::uint64_t n) { return number(n) + (n == 1 ? " packet" : " packets"); }

std::string nak_text(std::uint8_t syndrome) {
  if (wire::aeth_kind(syndrome) == wire::AethKind::rnr_nak)
    return "RNR NAK, timer " + to_text(wire::rnr_timer(wire::aeth_value(syndrome)));
  return "NAK " + std::string(name_of(naks(), syndrome));
}

std::string position(const Rule& r) {
  if (!r.bit) return "a random bit";
  if (r.whole_byte) return "byte " + number(*r.bit / 8);
  return "bit " + number(*r.bit % 8) + " (from the most significant one) of byte " +
         number(*r.bit / 8);
}

std::string action_text(const Rule& r) {
  switch (r.action) {
    case Action::drop:
      return "drop";
    case Action::duplicate:
      return r.count == 1 ? "repeat once" : "repeat " + number(r.count) + " times";
    case Action::delay:
      return "delay by " + to_text(r.time);
    case Action::reorder:
      return "hold back until " + packets(r.count) +
             " more of the queue pair went by (10ms at most)";
    case Action::corrupt:
      return "flip " + position(r) +
             (r.sealed ? ", with an ICRC that is right again" : " on the wire (the ICRC shows it)");
    case Action::answer:
      return "answer with " + nak_text(r.syndrome);
    case Action::fail:
      return "fail ibv_" + std::string(name_of(r.call)) + " with " +
             std::string(name_of(errnos(), r.error)) + " (" + number(r.error) + ")";
    case Action::event:
      return "raise IBV_EVENT_" + std::string(name_of(events(), r.event));
    case Action::port_down:
      return r.time == Duration{} ? "take the port down"
                                  : "take the port down for " + to_text(r.time);
    case Action::port_up:
      return "bring the port up";
  }
  return {};
}

// The names that make up exactly this set, groups first.
std::string opcodes_text(const OpcodeSet& set) {
  std::string text;
  OpcodeSet left = set;
  const auto take = [&](std::string_view name, const OpcodeSet& part) {
    if (part.none() || (part & ~set).any() || (part & left).none()) return;
    if (!text.empty()) text += " or ";
    text += name;
    left &= ~part;
  };
  for (const OpcodeGroup& g : opcode_groups()) take(g.name, *find_opcodes(g.name));
  for (const auto& o : wire::operations) take(o.name, *find_opcodes(o.name));
  return text;
}

std::string packets_text(const Rule& r) {
  std::string text = r.direction == Direction::tx   ? "sent "
                     : r.direction == Direction::rx ? "received "
                                                    : "";
  if (r.transport)
    for (const auto& t : wire::transports)
      if (t.transport == *r.transport) (text += t.name) += " ";
  const bool all = r.opcodes.all();
  text += all ? "packets" : opcodes_text(r.opcodes) + " packets";
  if (r.action == Action::answer && all) text = "received requests";
  if (r.qp) text += " of QP " + hex(r.qp->raw());
  if (r.peer || r.peer_qp) text += r.direction == Direction::rx ? " from" : " to or from";
  if (r.peer) text += " " + to_text(*r.peer);
  if (r.peer_qp) text += " QP " + hex(r.peer_qp->raw());
  if (r.psn.kind != PsnRange::all) {
    const char* plus = r.psn.kind == PsnRange::relative ? "first+" : "";
    text += std::string(" with PSN ") + plus + number(r.psn.first);
    if (r.psn.last != r.psn.first) text += std::string(" to ") + plus + number(r.psn.last);
  }
  return text;
}

std::string which_text(const Rule& r) {
  std::string text;
  const auto add = [&](const std::string& part) { text += ", " + part; };
  if (r.after) add("after the first " + number(r.after));
  if (r.nth) add("the " + ordinal(r.nth) + " one");
  if (r.every) add(r.every == 1 ? "each one" : "every " + ordinal(r.every) + " one");
  if (r.first != Rule().first) add("the first " + number(r.first));
  if (r.chance != Rule::certain) {
    std::string percent = number(r.chance / 10'000'000);
    if (std::uint32_t rest = r.chance % 10'000'000) {
      percent += '.';
      for (std::uint32_t unit = 1'000'000; rest; rest %= unit, unit /= 10)
        percent += static_cast<char>('0' + rest / unit);
    }
    add("each with a probability of " + percent + "% (seed " + number(r.seed) + ")");
  }
  if (r.times != Rule().times) add("at most " + number(r.times) + " times");
  return text;
}

std::string when_text(const Rule& r) {
  const char* since = r.of_calls() ? " since the first call" : " since the device was opened";
  if (r.at) return ", " + to_text(*r.at) + since;
  if (r.from == Duration{} && r.until == Duration::max()) return {};
  std::string text = ", from " + to_text(r.from);
  if (r.until != Duration::max()) text += " until " + to_text(r.until);
  return text + since;
}

}  // namespace

std::string explain(const Rule& r) {
  std::string text = action_text(r);
  if (r.of_packets()) {
    const bool acts_on_packet =
        r.action != Action::event && r.action != Action::port_down && r.action != Action::port_up;
    text += (acts_on_packet ? ": " : ", by ") + packets_text(r);
  } else if (r.timed() && (r.qp || r.transport)) {
    text += ": " + packets_text(r);
  } else if (r.of_calls()) {
    text += which_text(r).empty() ? ": every call" : ": of its calls";
  }
  return text + (r.timed() ? "" : which_text(r)) + when_text(r);
}

}  // namespace adverb::faults
