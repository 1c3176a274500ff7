// SPDX-License-Identifier: Apache-2.0
#include "cli/faults.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <sstream>

namespace adverb::cli {

int check_faults(const std::string& path) {
  std::stringstream text;
  if (path == "-") {
    text << std::cin.rdbuf();
  } else {
    std::ifstream file(path);
    if (file) text << file.rdbuf();
    if (!file || file.bad()) {
      fmt::print(stderr, "adverb: {}: {}\n", path, strerror(errno));
      return 2;
    }
  }
  const faults::Parsed parsed = faults::parse(text.str(), path == "-" ? "stdin" : path);
  for (const faults::Rule& r : parsed.rules)
    fmt::print("{}:{}: {}\n", r.source, r.line, faults::explain(r));
  for (const faults::ParseError& e : parsed.errors) fmt::print(stderr, "{}\n", e.text());
  if (parsed.rules.empty() && parsed.errors.empty()) fmt::print("{}: no rules\n", path);
  return parsed.errors.empty() ? 0 : 2;
}

bool FaultCount::prepare() {
  auto rules = nic::read_fault_rules();
  if (!rules) {
    fmt::print(stderr, "adverb: fault rules:\n{}\n", rules.error());
    return false;
  }
  rules_ = std::move(*rules);
  return true;
}

bool FaultCount::share() {
  const char* chosen = std::getenv("TMPDIR");
  for (const char* place : {chosen, "/dev/shm", "/tmp", static_cast<const char*>(nullptr)}) {
    if (!place || !*place) continue;
    std::string folder = std::string(place) + "/adverb-faults-XXXXXX";
    if (!mkdtemp(folder.data())) continue;
    totals_ = nic::FaultTotals::create(folder + "/totals", rules_);
    if (totals_) {
      folder_ = folder;
      return setenv("ADVERB_FAULT_TOTALS", (folder + "/totals").c_str(), 1) == 0;
    }
    unlink((folder + "/totals").c_str());
    rmdir(folder.c_str());
  }
  fmt::print(stderr, "adverb: no folder to count fault rules in ($TMPDIR, /dev/shm, /tmp): {}\n",
             strerror(errno));
  return false;
}

void FaultCount::remove() {
  if (folder_.empty()) return;
  unlink((folder_ + "/totals").c_str());
  rmdir(folder_.c_str());
  folder_.clear();
}

static std::string place_of(const faults::Rule& r) {
  return fmt::format("{}:{}", r.source, r.line);
}

void FaultCount::report() const {
  const auto counts = totals_->counts();
  for (std::size_t i = 0; i < rules_.size(); ++i)
    fmt::print(stderr, "adverb: faults: {:>8} hits of {:>8} matches  {}: {}\n",
               counts[i].hits.load(), counts[i].matched.load(), place_of(rules_[i]),
               rules_[i].text);
}

static std::string why_not(const faults::Rule& rule, std::uint64_t matched) {
  if (!matched) return "nothing met its conditions";
  if (rule.at) return "its time came, but there was nothing to raise it for";
  return fmt::format(
      "met {} times, but never the one it waits for{}", matched,
      rule.action == faults::Action::event ? ", or with nothing to raise it for" : "");
}

bool FaultCount::all_fired() const {
  bool all = true;
  const auto counts = totals_->counts();
  for (std::size_t i = 0; i < rules_.size(); ++i) {
    if (counts[i].hits.load()) continue;
    all = false;
    fmt::print(stderr, "adverb: fault rule never fired: {}: {} ({})\n", place_of(rules_[i]),
               rules_[i].text, why_not(rules_[i], counts[i].matched.load()));
  }
  return all;
}

}  // namespace adverb::cli
