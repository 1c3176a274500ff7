// SPDX-License-Identifier: Apache-2.0
#include "cli/sim.hpp"

#include <fmt/core.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <fstream>
#include <memory>
#include <sstream>
#include <stdexcept>

#include "sim/shrink.hpp"

namespace adverb::cli {

namespace {

constexpr int failed_run = 1;
constexpr unsigned shrink_tries = 600;

[[noreturn]] void wrong_file(const std::string& path) {
  throw std::runtime_error(fmt::format("sim: {}: {}", path, std::strerror(errno)));
}

sim::Scenario read_scenario(const std::string& path) {
  std::ifstream file(path);
  if (!file) wrong_file(path);
  std::stringstream text;
  text << file.rdbuf();
  try {
    return sim::scenario_from_json(text.str());
  } catch (const std::exception& e) {
    throw std::runtime_error(fmt::format("sim: {}: {}", path, e.what()));
  }
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) wrong_file(path);
}

// Here and now, with what the user wants to see of it.
sim::Result run_here(const sim::Scenario& scenario, const SimOptions& o) {
  sim::Trace trace;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> pcap(nullptr, std::fclose);
  if (o.trace) trace.lines = stdout;
  if (!o.pcap.empty()) {
    pcap.reset(std::fopen(o.pcap.c_str(), "wb"));
    if (!pcap) wrong_file(o.pcap);
    trace.pcap = pcap.get();
    trace.begin_pcap();
  }
  sim::World world(scenario, trace);
  return world.run();
}

// A smaller scenario that fails as well, in a file.
void save_smaller(const sim::Scenario& scenario, const SimOptions& o) {
  fmt::print(stderr, "looking for a smaller scenario that fails ...\n");
  sim::Scenario small = sim::shrink(
      scenario, [](const sim::Scenario& s) { return run_apart(s).violation[0] != 0; },
      shrink_tries);
  const Report r = run_apart(small);
  const std::string path = o.save.empty() ? fmt::format("sim-{}.json", scenario.seed) : o.save;
  write_file(path, sim::to_json(small));
  std::uint64_t operations = 0;
  for (const auto& p : small.pairs)
    for (const auto& side : p.side) operations += side.operations;
  fmt::print(stderr,
             "smaller: {} hosts, {} pairs, {} operations, {} rules, {} events: {}\n"
             "replay:  adverb sim --scenario {} --trace\n",
             small.hosts.size(), small.pairs.size(), operations, small.rules.size(),
             small.events.size(), r.violation, path);
}

void complain(const std::string& what, const std::string& violation, const std::string& replay) {
  fmt::print(stderr, "adverb: sim: {}: {}\nreplay:  adverb sim {}\n", what, violation, replay);
}

int run_one(const sim::Scenario& scenario, const SimOptions& o) {
  const bool watched = o.trace || !o.pcap.empty();
  const bool file = !o.scenario.empty();
  const std::string replay = file ? fmt::format("--scenario {} --trace", o.scenario)
                                  : fmt::format("--seed {} --trace", scenario.seed);
  std::string violation;
  if (watched) {
    const sim::Result r = run_here(scenario, o);
    violation = r.violation;
    if (r.ok()) fmt::print("{}: all held; hash {:016x}\n", scenario.name, r.hash);
  } else {
    const Report r = run_apart(scenario);
    violation = r.violation;
    if (violation.empty())
      fmt::print(
          "{}: all held; {} operations, {} frames, {:.3f} ms of virtual time; hash {:016x}\n",
          scenario.name, r.operations, r.frames, static_cast<double>(r.end) / 1e9, r.hash);
  }
  if (violation.empty()) return 0;
  complain(scenario.name, violation, replay);
  if (o.shrink && !watched && !file) save_smaller(scenario, o);
  return failed_run;
}

// --- how fast

void bench_one(unsigned hosts, unsigned pairs) {
  sim::Scenario s;
  s.name = fmt::format("{} hosts", hosts);
  s.hosts.resize(hosts);
  s.link.megabits = 100'000;
  for (unsigned i = 0; i < pairs; ++i) {
    sim::PairSpec p;
    p.host[0] = static_cast<int>(i % hosts);
    p.host[1] = static_cast<int>((i + 1 + i / hosts) % hosts);
    p.mtu = engine::Mtu::mtu_4096;
    p.max_size = 16384;
    for (auto& side : p.side) side.operations = 200'000 / pairs;
    s.pairs.push_back(p);
  }
  sim::Trace trace;
  const std::clock_t begun = std::clock();
  sim::World world(s, trace);
  const sim::Result r = world.run();
  const double real = static_cast<double>(std::clock() - begun) / CLOCKS_PER_SEC;  // of a core
  const double virtual_time = static_cast<double>(r.end) / 1e12;
  fmt::print(
      "{:>3} hosts, {:>3} pairs: {:.1f} Mevents/s, {:.1f} Mframes/s, {:.2f} Moperations/s; "
      "1 s of virtual time takes {:.1f} s{}\n",
      hosts, pairs, static_cast<double>(r.events) / real / 1e6,
      static_cast<double>(r.frames) / real / 1e6, static_cast<double>(r.operations) / real / 1e6,
      real / virtual_time, r.ok() ? "" : "; " + r.violation);
}

}  // namespace

int sim(const SimOptions& o) {
  if (o.bench) {
    bench_one(2, 4);
    bench_one(64, 256);
    return 0;
  }
  const bool one = !o.scenario.empty() || o.seeds.first == o.seeds.last;
  if (one && !o.seeds.hashes) {
    const sim::Scenario scenario =
        o.scenario.empty() ? sim::draw_scenario(o.seeds.first) : read_scenario(o.scenario);
    if (!o.dump.empty()) write_file(o.dump, sim::to_json(scenario));
    return run_one(scenario, o);
  }
  const auto failure = run_seeds(o.seeds);
  if (!failure) return 0;
  complain(fmt::format("seed {}", failure->seed), failure->violation,
           fmt::format("--seed {} --trace", failure->seed));
  if (o.shrink && !o.seeds.keep_going) save_smaller(sim::draw_scenario(failure->seed), o);
  return failed_run;
}

}  // namespace adverb::cli
