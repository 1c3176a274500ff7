// SPDX-License-Identifier: Apache-2.0
// Scenarios as JSON.  One list of members for each struct serves both directions; a member that is
// not named has its default, and one that nobody knows is an error.
#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>

#include "faults/rule.hpp"
#include "sim/scenario.hpp"

namespace adverb::sim {

namespace {

using Json = nlohmann::ordered_json;

template <class E>
struct Word {
  E value;
  const char* word;
};

constexpr Word<Happening> happening_words[] = {
    {Happening::partition, "partition"}, {Happening::blackhole, "blackhole"},
    {Happening::clog, "clog"},           {Happening::pause, "pause"},
    {Happening::crash, "crash"},         {Happening::deregister, "deregister"},
    {Happening::error, "error"},         {Happening::destroy, "destroy"},
    {Happening::ghost, "ghost"}};
constexpr Word<Wrong> wrong_words[] = {
    {Wrong::none, "none"},           {Wrong::key, "key"},
    {Wrong::domain, "domain"},       {Wrong::range, "range"},
    {Wrong::rights, "rights"},       {Wrong::alignment, "alignment"},
    {Wrong::local_key, "local_key"}, {Wrong::long_send, "long_send"}};
constexpr Word<engine::QpType> type_words[] = {
    {engine::QpType::rc, "RC"}, {engine::QpType::uc, "UC"}, {engine::QpType::ud, "UD"}};
constexpr Word<engine::WrOpcode> opcode_words[] = {
    {engine::WrOpcode::rdma_write, "RDMA_WRITE"},
    {engine::WrOpcode::rdma_write_with_imm, "RDMA_WRITE_WITH_IMM"},
    {engine::WrOpcode::send, "SEND"},
    {engine::WrOpcode::send_with_imm, "SEND_WITH_IMM"},
    {engine::WrOpcode::rdma_read, "RDMA_READ"},
    {engine::WrOpcode::atomic_cmp_and_swp, "ATOMIC_CMP_AND_SWP"},
    {engine::WrOpcode::atomic_fetch_and_add, "ATOMIC_FETCH_AND_ADD"},
    {engine::WrOpcode::send_with_inv, "SEND_WITH_INV"},
    {engine::WrOpcode::flush, "FLUSH"},
    {engine::WrOpcode::atomic_write, "ATOMIC_WRITE"}};
constexpr Word<engine::WcStatus> status_words[] = {
    {engine::WcStatus::success, "SUCCESS"},
    {engine::WcStatus::retry_exc_err, "RETRY_EXC_ERR"},
    {engine::WcStatus::rnr_retry_exc_err, "RNR_RETRY_EXC_ERR"},
    {engine::WcStatus::rem_access_err, "REM_ACCESS_ERR"},
    {engine::WcStatus::rem_inv_req_err, "REM_INV_REQ_ERR"},
    {engine::WcStatus::loc_prot_err, "LOC_PROT_ERR"}};
constexpr Word<std::uint8_t> flag_words[] = {{engine::send_fence, "fence"},
                                             {engine::send_signaled, "signaled"},
                                             {engine::send_solicited, "solicited"},
                                             {engine::send_inline, "inline"}};

[[noreturn]] void wrong(const std::string& what) { throw std::runtime_error(what); }

template <class E, std::size_t N>
const char* word_of(const Word<E> (&words)[N], E value) {
  for (const auto& w : words)
    if (w.value == value) return w.word;
  return "?";
}
template <class E, std::size_t N>
E value_of(const Word<E> (&words)[N], const std::string& word) {
  for (const auto& w : words)
    if (word == w.word) return w.value;
  std::string known;
  for (const auto& w : words) known += fmt::format("{}{}", known.empty() ? "" : ", ", w.word);
  wrong(fmt::format("\"{}\" is none of {}", word, known));
}

// Writes the members that differ from those of a default object.
class Writer {
 public:
  template <class T>
  void operator()(const char* name, const T& value, const T& usual) {
    if (!(value == usual)) json[name] = value;
  }
  template <class E, std::size_t N>
  void choice(const char* name, const E& value, const E&, const Word<E> (&words)[N]) {
    json[name] = word_of(words, value);
  }
  void time(const char* name, const Nanoseconds& value, const Nanoseconds& usual) {
    if (value != usual) json[name] = value;
  }
  Json json = Json::object();
};

// Reads the members that are there, and remembers which names exist.
class Reader {
 public:
  Reader(const Json& json, std::string where) : json_(json), where_(std::move(where)) {
    if (!json.is_object()) wrong(where_ + " is no object");
  }
  template <class T>
  void operator()(const char* name, T& value, const T&) {
    read(name, [&](const Json& j) {
      if constexpr (std::is_same_v<T, bool>) {
        if (!j.is_boolean()) wrong("is neither true nor false");
      } else if constexpr (std::is_integral_v<T>) {
        if (!j.is_number_integer()) wrong("is no whole number");
        if (std::is_unsigned_v<T> && j.is_number_integer() && !j.is_number_unsigned())
          wrong("is below zero");
        if (j.is_number_unsigned() &&
            j.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<T>::max()))
          wrong("is too large");
      }
      value = j.get<T>();
    });
  }
  template <class E, std::size_t N>
  void choice(const char* name, E& value, const E&, const Word<E> (&words)[N]) {
    read(name, [&](const Json& j) { value = value_of(words, j.get<std::string>()); });
  }
  void time(const char* name, Nanoseconds& value, const Nanoseconds& usual) {
    (*this)(name, value, usual);
  }
  template <class F>
  void read(const char* name, F&& f) {
    known_.emplace_back(name);
    const auto at = json_.find(name);
    if (at == json_.end()) return;
    try {
      f(*at);
    } catch (const std::exception& e) {
      const std::string text = e.what();
      wrong(fmt::format("{}{}: {}", where_, name, text));
    }
  }
  void finish() const {
    for (const auto& [name, value] : json_.items())
      if (std::find(known_.begin(), known_.end(), name) == known_.end())
        wrong(fmt::format("{}{}: no such member", where_, name));
  }

 private:
  const Json& json_;
  std::string where_;
  std::vector<std::string> known_;
};

// --- the members

template <class V, class T>
void visit_rule(V& v, T& x) {
  const Rule d;
  v("rule", x.rule, d.rule);
  v("from", x.from, d.from);
  v("to", x.to, d.to);
  v.time("late", x.late, d.late);
}
template <class V, class T>
void visit_event(V& v, T& x) {
  const Event d;
  v.choice("what", x.what, d.what, happening_words);
  v.time("at", x.at, d.at);
  v.time("duration", x.duration, d.duration);
  v("host", x.host, d.host);
  v("peer", x.peer, d.peer);
  v("pair", x.pair, d.pair);
  v("side", x.side, d.side);
}
template <class V, class T>
void visit_link(V& v, T& x) {
  const LinkSpec d;
  v("megabits", x.megabits, d.megabits);
  v.time("delay", x.delay, d.delay);
  v("mtu", x.mtu, d.mtu);
  v("queue_bytes", x.queue_bytes, d.queue_bytes);
}
template <class V, class T>
void visit_host(V& v, T& x) {
  const HostSpec d;
  v("window", x.window, d.window);
  v("max_window", x.max_window, d.max_window);
  v("read_budget", x.read_budget, d.read_budget);
  v("read_chunk", x.read_chunk, d.read_chunk);
  v("credits", x.credits, d.credits);
  v("ipv6", x.ipv6, d.ipv6);
  v("receive_buffer", x.receive_buffer, d.receive_buffer);
  v.time("step", x.step, d.step);
  v("burst_frames", x.burst_frames, d.burst_frames);
  v("srq_depth", x.srq_depth, d.srq_depth);
}
template <class V, class T>
void visit_work(V& v, T& x) {
  const Work d;
  v.choice("opcode", x.opcode, d.opcode, opcode_words);
  v("length", x.length, d.length);
  v("repeat", x.repeat, d.repeat);
  v.choice("wrong", x.wrong, d.wrong, wrong_words);
}
template <class V, class T>
void visit_side(V& v, T& x) {
  const SideSpec d;
  v("first_psn", x.first_psn, d.first_psn);
  v("operations", x.operations, d.operations);
}
template <class V, class T>
void visit_pair(V& v, T& x) {
  const PairSpec d;
  v.choice("type", x.type, d.type, type_words);
  v("depth", x.depth, d.depth);
  v("receive_depth", x.receive_depth, d.receive_depth);
  v("max_sge", x.max_sge, d.max_sge);
  v("max_inline", x.max_inline, d.max_inline);
  v("rd_atomic", x.rd_atomic, d.rd_atomic);
  v("timeout", x.timeout, d.timeout);
  v("retry_cnt", x.retry_cnt, d.retry_cnt);
  v("rnr_retry", x.rnr_retry, d.rnr_retry);
  v("min_rnr_timer", x.min_rnr_timer, d.min_rnr_timer);
  v("srq", x.srq, d.srq);
  v("max_size", x.max_size, d.max_size);
  v("mix", x.mix, d.mix);
  v("unsignaled", x.unsignaled, d.unsignaled);
  v("fence", x.fence, d.fence);
  v("solicited", x.solicited, d.solicited);
  v("inlined", x.inlined, d.inlined);
  v("wrong", x.wrong, d.wrong);
  v("receive_lag", x.receive_lag, d.receive_lag);
  v.time("first_receive", x.first_receive, d.first_receive);
  v.time("think", x.think, d.think);
}

// --- writing

Json write(const Work& w) {
  Writer v;
  visit_work(v, w);
  Json flags = Json::array();
  for (const auto& f : flag_words)
    if (w.flags & f.value) flags.push_back(f.word);
  v.json["flags"] = flags;
  return v.json;
}
Json write(const PairSpec& p) {
  Writer v;
  v.json["hosts"] = {p.host[0], p.host[1]};
  v.json["mtu"] = engine::bytes_of(p.mtu);
  visit_pair(v, p);
  v.json["sides"] = Json::array();
  for (const SideSpec& side : p.side) {
    Writer s;
    visit_side(s, side);
    for (const Work& w : side.work) s.json["work"].push_back(write(w));
    v.json["sides"].push_back(s.json);
  }
  return v.json;
}
template <class T, class F>
Json list(const std::vector<T>& all, F&& visit) {
  Json out = Json::array();
  for (const T& x : all) {
    Writer v;
    visit(v, x);
    out.push_back(v.json);
  }
  return out;
}

// --- reading

std::uint8_t read_flags(const Json& j) {
  std::uint8_t flags = 0;
  for (const auto& word : j)
    flags = static_cast<std::uint8_t>(flags | value_of(flag_words, word.get<std::string>()));
  return flags;
}
engine::Mtu read_mtu(const Json& j) {
  for (unsigned m = 1; m <= 5; ++m)
    if (engine::bytes_of(static_cast<engine::Mtu>(m)) == j.get<std::uint32_t>())
      return static_cast<engine::Mtu>(m);
  wrong("is none of 256, 512, 1024, 2048, 4096");
}
template <class T, class F>
std::vector<T> read_list(const Json& j, const std::string& where, F&& read_one) {
  if (!j.is_array()) wrong("is no list");
  std::vector<T> all;
  for (std::size_t i = 0; i < j.size(); ++i) {
    T x;
    Reader v(j[i], fmt::format("{}[{}].", where, i));
    read_one(v, x);
    v.finish();
    all.push_back(std::move(x));
  }
  return all;
}
void read_side(Reader& v, SideSpec& side) {
  visit_side(v, side);
  v.read("work", [&](const Json& j) {
    side.work = read_list<Work>(j, "work", [](Reader& r, Work& w) {
      visit_work(r, w);
      r.read("flags", [&](const Json& f) { w.flags = read_flags(f); });
    });
  });
}
void read_pair(Reader& v, PairSpec& p) {
  visit_pair(v, p);
  v.read("hosts", [&](const Json& j) {
    if (j.size() != 2) wrong("are not two");
    for (unsigned i = 0; i < 2; ++i) p.host[i] = j[i].get<int>();
  });
  v.read("mtu", [&](const Json& j) { p.mtu = read_mtu(j); });
  v.read("sides", [&](const Json& j) {
    auto sides = read_list<SideSpec>(j, "sides", read_side);
    if (sides.size() != 2) wrong("are not two");
    std::move(sides.begin(), sides.end(), p.side);
  });
}
template <class V, class T>
void visit_expectation(V& v, T& x) {
  const Expectation d;
  v.time("error_after", x.error_after, d.error_after);
  v.time("error_before", x.error_before, d.error_before);
  v.time("finish_after", x.finish_after, d.finish_after);
  v.time("finish_before", x.finish_before, d.finish_before);
}
void read_expectation(const Json& j, Expectation& x) {
  Reader v(j, "expect.");
  visit_expectation(v, x);
  v.read("error", [&](const Json& e) {
    x.says_error = true;
    for (unsigned i = 0; i < 2; ++i)
      x.error[i] = value_of(status_words, e.at(i).get<std::string>());
  });
  v.finish();
}

// The rule language knows more than what a link can do to a frame.
void check_rule(const Rule& r) {
  const faults::Parsed parsed = faults::parse(r.rule, "rules");
  for (const auto& e : parsed.errors) wrong(fmt::format("{} (in \"{}\")", e.text(), r.rule));
  for (const faults::Rule& rule : parsed.rules)
    if (rule.action > faults::Action::corrupt || rule.sealed ||
        rule.direction == faults::Direction::rx)
      wrong(fmt::format("rules: \"{}\": a link can drop, duplicate, delay, reorder and corrupt",
                        r.rule));
}

// What the world would trip over.
void check(const Scenario& s) {
  const int hosts = static_cast<int>(s.hosts.size()), pairs = static_cast<int>(s.pairs.size());
  if (hosts < 2 || hosts > 250) wrong("hosts: 2 to 250");
  if (!s.link.megabits) wrong("link.megabits: at least 1");
  auto is_host = [&](int h) { return h >= 0 && h < hosts; };
  for (const HostSpec& h : s.hosts)
    if (!h.step || !h.burst_frames || !h.read_chunk || !h.srq_depth)
      wrong("hosts: step, burst_frames, read_chunk and srq_depth are at least 1");
  for (const PairSpec& p : s.pairs) {
    if (!is_host(p.host[0]) || !is_host(p.host[1]) || p.host[0] == p.host[1])
      wrong("pairs: hosts are two different ones that exist");
    if (!p.depth || !p.receive_depth || p.depth > 1024 || p.receive_depth > 1024)
      wrong("pairs: depth and receive_depth are 1 to 1024");
    if (!p.max_sge || p.max_sge > 32 || p.max_inline < 8 || p.max_inline > 1024)
      wrong("pairs: max_sge is 1 to 32, max_inline 8 to 1024");
    if (p.timeout > 31 || p.retry_cnt > 7 || p.rnr_retry > 7 || p.min_rnr_timer > 31 ||
        p.rd_atomic > 128 || !p.rd_atomic || p.max_size > 1 << 24)
      wrong("pairs: an attribute is out of its range");
    for (const SideSpec& side : p.side)
      for (const Work& w : side.work)
        if (w.length > p.max_size) wrong("pairs: work is longer than max_size");
  }
  for (const Event& e : s.events)
    if (!is_host(e.host) || (e.peer != anybody && !is_host(e.peer)) || e.pair < 0 ||
        e.pair >= pairs || e.side < 0 || e.side > 1)
      wrong("events: a host, peer, pair or side that does not exist");
  for (const Rule& r : s.rules)
    if ((r.from != anybody && !is_host(r.from)) || (r.to != anybody && !is_host(r.to)))
      wrong("rules: a host that does not exist");
  for (const Rule& r : s.rules) check_rule(r);
}

}  // namespace

std::string to_json(const Scenario& s) {
  Json out;
  const Scenario d;
  out["name"] = s.name;
  out["seed"] = s.seed;
  out["heal"] = s.heal;
  if (s.liveness != d.liveness) out["liveness"] = s.liveness;
  Writer link;
  visit_link(link, s.link);
  out["link"] = link.json;
  out["hosts"] = list(s.hosts, [](Writer& v, const HostSpec& h) { visit_host(v, h); });
  out["pairs"] = Json::array();
  for (const PairSpec& p : s.pairs) out["pairs"].push_back(write(p));
  out["rules"] = list(s.rules, [](Writer& v, const Rule& r) { visit_rule(v, r); });
  out["events"] = list(s.events, [](Writer& v, const Event& e) { visit_event(v, e); });
  if (!(s.expect == d.expect)) {
    Writer v;
    visit_expectation(v, s.expect);
    if (s.expect.says_error)
      v.json["error"] = {word_of(status_words, s.expect.error[0]),
                         word_of(status_words, s.expect.error[1])};
    out["expect"] = v.json;
  }
  return out.dump(1) + "\n";
}

Scenario scenario_from_json(const std::string& text) {
  Json json;
  try {
    json = Json::parse(text);
  } catch (const std::exception& e) {
    wrong(e.what());
  }
  Scenario s;
  const Scenario d;
  Reader v(json, "");
  v("name", s.name, d.name);
  v("seed", s.seed, d.seed);
  v("heal", s.heal, d.heal);
  v("liveness", s.liveness, d.liveness);
  v.read("link", [&](const Json& j) {
    Reader r(j, "link.");
    visit_link(r, s.link);
    r.finish();
  });
  v.read("hosts", [&](const Json& j) {
    s.hosts = read_list<HostSpec>(j, "hosts", [](Reader& r, HostSpec& h) { visit_host(r, h); });
  });
  v.read("pairs", [&](const Json& j) { s.pairs = read_list<PairSpec>(j, "pairs", read_pair); });
  v.read("rules", [&](const Json& j) {
    s.rules = read_list<Rule>(j, "rules", [](Reader& r, Rule& x) { visit_rule(r, x); });
  });
  v.read("events", [&](const Json& j) {
    s.events = read_list<Event>(j, "events", [](Reader& r, Event& x) { visit_event(r, x); });
  });
  v.read("expect", [&](const Json& j) { read_expectation(j, s.expect); });
  v.finish();
  check(s);
  return s;
}

}  // namespace adverb::sim
