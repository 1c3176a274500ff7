// SPDX-License-Identifier: Apache-2.0
// The rule language's reader.  One function a construct; the first mistake of a rule ends it, with
// the column of the word that is wrong and what could stand there.
#include <algorithm>
#include <array>

#include "faults/rule.hpp"
#include "faults/values.hpp"
#include "wire/aeth.hpp"
#include "wire/packet.hpp"

namespace adverb::faults {
namespace {

using std::string_view;

constexpr std::uint32_t most_packet_bytes = wire::max_header_bytes + 4096 + 4;

struct ActionWord {
  string_view name;
  Action action;
};
constexpr auto actions = std::to_array<ActionWord>({
    {"drop", Action::drop},
    {"duplicate", Action::duplicate},
    {"delay", Action::delay},
    {"reorder", Action::reorder},
    {"corrupt", Action::corrupt},
    {"answer", Action::answer},
    {"fail", Action::fail},
    {"event", Action::event},
    {"port", Action::port_down},
});

constexpr auto condition_words =
    std::to_array<string_view>({"tx", "rx", "qp", "peer", "peer_qp", "psn", "nth", "every", "first",
                                "after", "times", "prob", "seed", "from", "until", "at"});

constexpr auto transport_words = std::to_array<Word>({
    {"RC", static_cast<int>(wire::Transport::rc)},
    {"UC", static_cast<int>(wire::Transport::uc)},
    {"UD", static_cast<int>(wire::Transport::ud)},
    {"XRC", static_cast<int>(wire::Transport::xrc)},
});

std::string quoted(string_view word) { return "\"" + std::string(word) + "\""; }

std::string joined(auto&& list, auto&& name_of) {
  std::string text;
  for (const auto& item : list) {
    if (!text.empty()) text += ", ";
    text += name_of(item);
  }
  return text;
}

std::vector<string_view> names(std::span<const Word> words) {
  std::vector<string_view> out;
  for (const Word& w : words) out.push_back(w.name);
  return out;
}

class RuleParser {
 public:
  RuleParser(string_view line, std::size_t begin, std::size_t end) : line_(line) {
    while (begin < end) {
      const auto is_blank = [&](std::size_t i) { return line[i] == ' ' || line[i] == '\t'; };
      if (is_blank(begin)) {
        ++begin;
        continue;
      }
      std::size_t stop = begin;
      while (stop < end && !is_blank(stop)) ++stop;
      words_.push_back(line.substr(begin, stop - begin));
      begin = stop;
    }
    end_ = words_.empty() ? end : static_cast<std::size_t>(words_.back().end() - line.begin());
  }

  bool empty() const { return words_.empty(); }
  string_view text() const {
    const auto from = static_cast<std::size_t>(words_.front().begin() - line_.begin());
    return line_.substr(from, end_ - from);
  }
  bool read(Rule& r) {
    if (!read_action(r)) return false;
    while (at_ < words_.size())
      if (!read_condition(r)) return false;
    return check(r);
  }
  unsigned column() const { return column_; }
  const std::string& message() const { return message_; }

 private:
  // --- words
  bool more() const { return at_ < words_.size(); }
  bool is(string_view word) const { return more() && same_word(words_[at_], word); }
  string_view take() { return words_[at_++]; }
  bool wrong(std::size_t word, std::string message) {
    const std::size_t at = word < words_.size()
                               ? static_cast<std::size_t>(words_[word].begin() - line_.begin())
                               : end_;
    column_ = static_cast<unsigned>(at) + 1;
    message_ = std::move(message);
    return false;
  }
  // The word at `at_` is none of `known`, or missing.
  bool unknown(const char* what, std::span<const string_view> known, const std::string& expected) {
    if (!more()) return wrong(at_, std::string(what) + " is missing: expected " + expected);
    std::string message = "unknown " + std::string(what) + " " + quoted(words_[at_]);
    const string_view near = nearest(words_[at_], known);
    message += near.empty() ? ": expected " + expected : "; did you mean " + quoted(near) + "?";
    return wrong(at_, message);
  }
  bool unknown(const char* what, std::span<const Word> known) {
    return unknown(what, names(known), joined(known, [](const Word& w) { return w.name; }));
  }
  // What stands behind a word, or a message that begins with that word.
  template <class T>
  bool value(T& out, auto&& reader, const char* expected) {
    const std::string after = std::string(words_[at_ - 1]);
    if (!more()) return wrong(at_, after + ": expected " + expected);
    const auto v = reader(words_[at_]);
    if (!v) return wrong(at_, after + ": " + quoted(words_[at_]) + " is not " + expected);
    out = static_cast<T>(*v);
    ++at_;
    return true;
  }
  template <class T>
  bool number(T& out, std::uint64_t least, std::uint64_t most, const char* expected) {
    return value(
        out,
        [&](string_view text) {
          auto n = read_number(text, most);
          return n && *n >= least ? n : std::nullopt;
        },
        expected);
  }
  bool count(auto& out) { return number(out, 1, 1ull << 48, "a number from 1"); }
  bool time(Duration& out, const char* expected = "a time such as 10ms (units: ns, us, ms, s)") {
    return value(out, read_time, expected);
  }
  bool starts_number() const { return more() && words_[at_][0] >= '0' && words_[at_][0] <= '9'; }

  // --- actions
  bool read_action(Rule&);
  bool read_corrupt(Rule&);
  bool read_answer(Rule&);
  bool read_fail(Rule&);
  bool read_event(Rule&);
  bool read_port(Rule&);

  // --- conditions
  bool read_condition(Rule&);
  bool read_packet_condition(Rule&, string_view word, bool& known);
  bool read_qp(Rule&);
  bool read_psn(Rule&);
  bool read_opcodes(Rule&);
  bool once(std::size_t bit, std::size_t word);

  bool check(const Rule&);

  string_view line_;
  std::vector<string_view> words_;
  std::size_t at_ = 0, end_ = 0;
  std::uint32_t seen_ = 0;  // condition words
  std::size_t seed_at_ = 0, at_at_ = 0, direction_at_ = 0, packet_at_ = 0;
  bool prob_ = false;
  unsigned column_ = 0;
  std::string message_;
};

bool RuleParser::read_action(Rule& r) {
  const auto list = joined(actions, [](const ActionWord& a) { return a.name; });
  const auto found = std::ranges::find_if(actions, [&](const ActionWord& a) { return is(a.name); });
  if (found == actions.end()) {
    std::vector<string_view> known;
    for (const ActionWord& a : actions) known.push_back(a.name);
    return unknown("action", known, list);
  }
  ++at_;
  r.action = found->action;
  switch (r.action) {
    case Action::duplicate:
      if (starts_number()) return number(r.count, 1, 1000, "a number of copies from 1 to 1000");
      return true;
    case Action::delay:
      if (!time(r.time)) return false;
      return r.time > Duration{} || wrong(at_ - 1, "delay: the time must be more than zero");
    case Action::reorder:
      if (starts_number()) return number(r.count, 1, 1000, "a number of packets from 1 to 1000");
      return true;
    case Action::corrupt:
      return read_corrupt(r);
    case Action::answer:
      return read_answer(r);
    case Action::fail:
      return read_fail(r);
    case Action::event:
      return read_event(r);
    case Action::port_down:
      return read_port(r);
    default:
      return true;
  }
}

bool RuleParser::read_corrupt(Rule& r) {
  std::uint32_t position = 0;
  if (is("bit")) {
    ++at_;
    if (!number(position, 0, most_packet_bytes * 8 - 1, "the number of a bit of the packet"))
      return false;
    r.bit = position;
  } else if (is("byte")) {
    ++at_;
    if (!number(position, 0, most_packet_bytes - 1, "the number of a byte of the packet"))
      return false;
    r.bit = position * 8;
    r.whole_byte = true;
  }
  if (is("sealed")) {
    ++at_;
    r.sealed = true;
  }
  return true;
}

bool RuleParser::read_answer(Rule& r) {
  const auto syndrome = more() ? find(naks(), words_[at_]) : std::nullopt;
  if (!syndrome) return unknown("NAK", naks());
  const bool rnr = is("rnr");
  ++at_;
  r.syndrome = static_cast<std::uint8_t>(*syndrome);
  r.direction = Direction::rx;
  if (!rnr) return true;
  unsigned code = 12;  // 0.64 ms
  if (starts_number() && !number(code, 0, 31, "an RNR timer code from 0 to 31")) return false;
  r.syndrome = wire::make_rnr_nak(code);
  return true;
}

bool RuleParser::read_fail(Rule& r) {
  string_view verb = more() ? words_[at_] : string_view();
  constexpr string_view prefix = "ibv_";
  if (verb.size() > prefix.size() && same_word(verb.substr(0, prefix.size()), prefix))
    verb.remove_prefix(prefix.size());
  const auto call = find(calls(), verb);
  if (!call) return unknown("verb", calls());
  ++at_;
  r.call = static_cast<Call>(*call);
  if (starts_number()) return number(r.error, 1, 4095, "an errno");
  const auto error = more() ? find(errnos(), words_[at_]) : std::nullopt;
  if (!error) return unknown("errno", names(errnos()), "an errno such as ENOMEM, EINVAL or EAGAIN");
  ++at_;
  r.error = *error;
  return true;
}

bool RuleParser::read_event(Rule& r) {
  string_view name = more() ? words_[at_] : string_view();
  constexpr string_view prefix = "IBV_EVENT_";
  if (name.size() > prefix.size() && same_word(name.substr(0, prefix.size()), prefix))
    name.remove_prefix(prefix.size());
  const auto event = find(events(), name);
  if (!event) return unknown("event", events());
  ++at_;
  r.event = static_cast<std::uint8_t>(*event);
  return true;
}

bool RuleParser::read_port(Rule& r) {
  constexpr string_view known[] = {"down", "up"};
  if (!is("down") && !is("up")) return unknown("port state", known, "down or up");
  r.action = is("up") ? Action::port_up : Action::port_down;
  ++at_;
  if (r.action == Action::port_up || !starts_number()) return true;
  return time(r.time);
}

// A condition stands once.
bool RuleParser::once(std::size_t bit, std::size_t word) {
  if (seen_ >> bit & 1) return wrong(word, quoted(words_[word]) + " stands twice");
  seen_ |= 1u << bit;
  return true;
}

bool RuleParser::read_condition(Rule& r) {
  const std::size_t word = at_;
  const auto found = std::ranges::find_if(condition_words, [&](string_view w) { return is(w); });
  if (found == condition_words.end()) return read_opcodes(r);
  const string_view name = *found;
  if (!once(static_cast<std::size_t>(found - condition_words.begin()), word)) return false;
  ++at_;
  bool known = false;
  if (!read_packet_condition(r, name, known)) return false;
  if (known) {
    r.names_packets = true;
    packet_at_ = word;
    return true;
  }
  if (name == "nth") return count(r.nth);
  if (name == "every") return count(r.every);
  if (name == "first") return count(r.first);
  if (name == "after") return count(r.after);
  if (name == "times") return count(r.times);
  prob_ = prob_ || name == "prob";
  if (name == "prob")
    return value(r.chance, read_chance, "a probability such as 1% or 0.01 (above 0, at most 1)");
  if (name == "seed") {
    seed_at_ = word;
    return number(r.seed, 0, ~0ull, "a number");
  }
  if (name == "from") return time(r.from);
  if (name == "until") return time(r.until);
  at_at_ = word;
  Duration at{};
  if (!time(at)) return false;
  r.at = at;
  return true;
}

bool RuleParser::read_packet_condition(Rule& r, string_view name, bool& known) {
  known = true;
  if (name == "tx" || name == "rx") {
    const std::size_t word = at_ - 1;
    if (direction_at_)
      return wrong(word, "tx and rx exclude one another; without either a rule means both");
    if (r.action == Action::answer && name == "tx")
      return wrong(word, "answer: requests are answered where they are received, that is rx");
    direction_at_ = word;
    r.direction = name == "tx" ? Direction::tx : Direction::rx;
    return true;
  }
  if (name == "qp") return read_qp(r);
  if (name == "psn") return read_psn(r);
  if (name == "peer_qp") {
    std::uint32_t qpn = 0;
    if (!number(qpn, 0, 0xffffff, "a queue pair number (24 bits)")) return false;
    r.peer_qp = Qpn(qpn);
    return true;
  }
  if (name == "peer") {
    Gid gid;
    if (!value(gid, read_address, "an IPv4 or IPv6 address")) return false;
    r.peer = gid;
    return true;
  }
  known = false;
  return true;
}

bool RuleParser::read_qp(Rule& r) {
  constexpr const char* expected = "a queue pair number (24 bits), RC, UC, UD or XRC";
  if (more()) {
    if (const auto transport = find(transport_words, words_[at_])) {
      ++at_;
      r.transport = static_cast<wire::Transport>(*transport);
      return true;
    }
  }
  std::uint32_t qpn = 0;
  if (!number(qpn, 0, 0xffffff, expected)) return false;
  r.qp = Qpn(qpn);
  return true;
}

bool RuleParser::read_psn(Rule& r) {
  constexpr const char* expected = "a PSN (24 bits), a range such as 5-9, or +5 from the first on";
  return value(
      r.psn,
      [](string_view text) -> std::optional<PsnRange> {
        PsnRange range{.kind = PsnRange::absolute};
        if (text.starts_with('+')) {
          range.kind = PsnRange::relative;
          text.remove_prefix(1);
        }
        const std::size_t dash = text.find('-');
        const auto first = read_number(text.substr(0, dash), 0xffffff);
        const auto last =
            dash == string_view::npos ? first : read_number(text.substr(dash + 1), 0xffffff);
        if (!first || !last) return std::nullopt;
        if (range.kind == PsnRange::relative && *last < *first) return std::nullopt;
        range.first = static_cast<std::uint32_t>(*first);
        range.last = static_cast<std::uint32_t>(*last);
        return range;
      },
      expected);
}

// A|B|C
bool RuleParser::read_opcodes(Rule& r) {
  constexpr std::size_t opcode_bit = 31;
  const std::size_t word = at_;
  OpcodeSet set;
  string_view rest = words_[word];
  for (;;) {
    const std::size_t bar = rest.find('|');
    const string_view name = rest.substr(0, bar);
    const auto found = find_opcodes(name);
    constexpr string_view of_actions[] = {"bit", "byte", "sealed", "down", "up"};
    if (std::ranges::any_of(of_actions, [&](auto w) { return same_word(w, name); }))
      return wrong(word, quoted(name) + " stands directly behind the action that it belongs to");
    if (!found) {
      std::vector<string_view> known(condition_words.begin(), condition_words.end());
      for (const OpcodeGroup& g : opcode_groups()) known.push_back(g.name);
      for (const auto& o : wire::operations) known.push_back(o.name);
      const bool rdma = same_word(name.substr(0, 5), "RDMA_");
      const string_view near = nearest(rdma ? name.substr(5) : name, known);
      return wrong(word, "unknown condition or opcode " + quoted(name) +
                             (near.empty() ? ": expected an opcode (SEND, ACK, ...) or one of " +
                                                 joined(condition_words, [](auto w) { return w; })
                                           : "; did you mean " + quoted(near) + "?"));
    }
    set |= *found;
    if (bar == string_view::npos) break;
    rest.remove_prefix(bar + 1);
  }
  if (seen_ >> opcode_bit & 1)
    return wrong(word, "a second opcode: write alternatives as one word, SEND|WRITE");
  seen_ |= 1u << opcode_bit;
  r.opcodes = set;
  r.names_packets = true;
  packet_at_ = word;
  ++at_;
  return true;
}

// What words that are right each do not fit together.
bool RuleParser::check(const Rule& r) {
  const bool draws = prob_ || (r.action == Action::corrupt && !r.bit);
  if (seed_at_ && !draws) return wrong(seed_at_, "seed goes with prob");
  if (r.nth && (r.every || r.first != Rule().first || r.times != Rule().times))
    return wrong(0, "nth is one packet or call: it does not go with every, first or times");
  if (r.until <= r.from) return wrong(0, "until is not later than from");
  if (r.of_calls() && r.names_packets)
    return wrong(packet_at_, "fail: a verb has no " + quoted(words_[packet_at_]) +
                                 "; use nth, every, first, after, times, prob, from, until");
  if (r.timed()) {
    const bool can =
        r.action == Action::event || r.action == Action::port_down || r.action == Action::port_up;
    if (!can) return wrong(at_at_, "at goes with event and port; use from and until here");
    const bool counts = r.nth || r.every || r.after || r.first != Rule().first ||
                        r.times != Rule().times || r.chance != Rule::certain ||
                        r.from != Duration{} || r.until != Duration::max();
    const bool packets = r.direction != Direction::both || r.opcodes != Rule().opcodes || r.peer ||
                         r.peer_qp || r.psn.kind != PsnRange::all;
    if (counts || packets)
      return wrong(at_at_, "at is a time of its own: it goes with qp only, not with packets");
  } else if (!r.names_packets && r.from == Duration{} && !r.nth && !r.after &&
             (r.action == Action::event || r.action == Action::port_down ||
              r.action == Action::port_up)) {
    return wrong(words_.size(), "when? expected at TIME, or packets such as: rx SEND nth 10");
  }
  return true;
}

}  // namespace

Parsed parse(std::string_view text, std::string_view source) {
  Parsed out;
  for (unsigned number = 1; !text.empty() || number == 1; ++number) {
    const std::size_t end = text.find('\n');
    string_view line = text.substr(0, end);
    text.remove_prefix(end == string_view::npos ? text.size() : end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    const std::size_t rules_end = std::min(line.find('#'), line.size());
    for (std::size_t begin = 0; begin <= rules_end;) {
      const std::size_t stop = std::min(line.find(';', begin), rules_end);
      RuleParser parser(line, begin, stop);
      begin = stop + 1;
      if (parser.empty()) continue;
      Rule rule;
      rule.text = parser.text();
      rule.source = source;
      rule.line = number;
      if (parser.read(rule)) {
        out.rules.push_back(std::move(rule));
      } else {
        out.errors.push_back({std::string(source), number, parser.column(), parser.message()});
      }
    }
  }
  return out;
}

std::string ParseError::text() const {
  return source + ":" + std::to_string(line) + ":" + std::to_string(column) + ": " + message;
}

}  // namespace adverb::faults
