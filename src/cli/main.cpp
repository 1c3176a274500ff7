// SPDX-License-Identifier: Apache-2.0
// The `adverb` command: parses the command line and hands over to one function per subcommand.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "cli/devices.hpp"
#include "cli/doctor.hpp"
#include "cli/faults.hpp"
#include "cli/profiles.hpp"
#include "cli/run.hpp"
#include "cli/sim.hpp"

namespace {

// Every option of `run` has a variable, so that a job starter can set it too.
struct RunOption {
  const char *option, *variable;
  const char* type;  // of its value; null: a flag
  const char* help;
};
constexpr RunOption run_options[] = {
    {"--device", "ADVERB_DEVICE", "NAME,...",
     "show only these devices or network interfaces (adverb0, eth0)"},
    {"--device-name", "ADVERB_DEVICE_NAME", "PREFIX",
     "call devices PREFIX0, PREFIX1, ... (default adverb; mlx5_ for programs that look at it)"},
    {"--vendor-id", "ADVERB_VENDOR_ID", "N",
     "vendor_id that programs see (default 0xadbe, or 0x02c9 with a part id)"},
    {"--part-id", "ADVERB_PART_ID", "N",
     "vendor_part_id that programs see, such as 4119 (ConnectX-5)"},
    {"--profile", "ADVERB_PROFILE", "mlx5|rxe|strict",
     "whose behaviour to show where devices differ (default mlx5; adverb profiles)"},
    {"--limits", "ADVERB_LIMITS", "NAME=VALUE,...",
     "imitate a smaller NIC: max_qp=16,max_mr=8,memlock=64k (adverb profiles lists them)"},
    {"--gid-layout", "ADVERB_GID_LAYOUT", "default|mlx5|rxe",
     "order of the GID table: index 0 works; 3 is IPv4, with RoCE v1 entries; 1 is IPv4"},
    {"--gso", "ADVERB_GSO", "on|off", "hand the kernel many packets in one call (default on)"},
    {"--log", "ADVERB_LOG", "LEVEL",
     "error, warn, info or debug (default warn), to standard error"},
    {"--faults", "ADVERB_FAULTS", "FILE",
     "make the network and the device fail by these rules, one a line (adverb faults --help)"},
    {"--fault", "ADVERB_FAULT", "RULE", "one rule more, such as 'drop tx ACK nth 3'; repeatable"},
    {"--faults-report", "ADVERB_FAULTS_REPORT", nullptr,
     "when the program ends, say how often each rule acted, over all its processes"},
    {"--faults-must-fire", "ADVERB_FAULTS_MUST_FIRE", nullptr,
     "fail (status 123) when the program succeeds although a rule never acted"},
    {"--stats", "ADVERB_STATS", "stderr|FILE", "write counters as JSON when the program ends"},
};

constexpr const char* examples = R"(Examples:
  adverb run -- ibv_devinfo                        see the device a program gets
  adverb run -- ib_write_bw                        start a server ...
  adverb run -- ib_write_bw 192.0.2.7              ... and, on another host, its client
  adverb run --device lo -- ibv_rc_pingpong        both on this host: server,
  adverb run --device lo -- ibv_rc_pingpong localhost     and client
  adverb run -- mpirun -np 4 ./prog                everything that mpirun starts here
  adverb sim --seeds 1..1000                       the transport in simulated bad networks
  adverb doctor                                    what would stop Adverb on this machine

Adverb needs no kernel module, no root and no RDMA hardware.  On the wire it speaks RoCE v2 (UDP
port 4791), so the peer may be a hardware NIC, the kernel's soft-RoCE or another Adverb.)";

bool is_flag(const std::string& word) {
  return std::ranges::any_of(run_options,
                             [&](const RunOption& o) { return !o.type && word == o.option; });
}

// The program may go elsewhere before it reads the rules.
std::string absolute(const std::string& path) { return std::filesystem::absolute(path).string(); }

constexpr const char* rule_help = R"(Rules, one a line; # begins a comment:
  drop | duplicate [N] | delay TIME | reorder [N] | corrupt [bit N | byte N] [sealed]
  answer remote_access | remote_operational | invalid_request | psn_sequence | rnr [TIMER]
  fail VERB ERRNO
  event EVENT
  port down [TIME] | port up
and behind them, which packets (calls, times):
  tx | rx    SEND, WRITE_ONLY|ACK, any ...    qp N | qp RC    peer ADDRESS    peer_qp N
  psn N | N-M | +N (from the first)    after N    nth N | every N | first N    times N
  prob 1% [seed N]    from TIME    until TIME    at TIME
Examples:
  drop tx ATOMIC_ACK every 3
  delay 200ms rx READ_RESPONSE first 5
  fail reg_mr ENOMEM nth 2
  port down 500ms at 1s
docs/faults.md has all of it.)";

// Splits off PROG ARG... : what follows `--`, or the first word that is no option of `run`.
std::vector<std::string> split_program(std::vector<std::string>& words) {
  if (words.empty() || words[0] != "run") return {};
  std::size_t i = 1;
  while (i < words.size() && words[i].starts_with('-') && words[i] != "--") {
    const bool alone = words[i].find('=') != std::string::npos || words[i] == "--help" ||
                       words[i] == "-h" || is_flag(words[i]);
    i = std::min(words.size(), i + (alone ? 1 : 2));
  }
  const std::size_t program = i < words.size() && words[i] == "--" ? i + 1 : i;
  std::vector<std::string> command(words.begin() + static_cast<std::ptrdiff_t>(program),
                                   words.end());
  words.resize(i);
  return command;
}

constexpr const char* sim_examples = R"(Examples:
  adverb sim --seeds 1..10000                  many runs, each with its own faults
  adverb sim --seed 8471 --trace               one of them, an event a line
  adverb sim --seed 8471 --dump s.json         what it consists of, to change ...
  adverb sim --scenario s.json --pcap s.pcap   ... and to run; then wireshark s.pcap

A failure prints what was violated and how to see it again, and writes a smaller scenario that
fails as well.  Exit status: 0 all held, 1 something was violated, 2 wrong arguments.)";

void add_sim_options(CLI::App& sim, adverb::cli::SimOptions& o) {
  CLI::Option* seed = sim.add_option("--seed", o.seeds.first, "run this seed")->type_name("N");
  CLI::Option* seeds =
      sim.add_option("--seeds", "run these seeds, on all cores")->type_name("A..B");
  CLI::Option* scenario = sim.add_option("--scenario", o.scenario, "run this file (docs/sim.md)");
  seeds->check(CLI::Validator(
      [](const std::string& text) {
        unsigned long long a = 0, b = 0;
        char end = 0;
        const int n = std::sscanf(text.c_str(), "%llu..%llu%c", &a, &b, &end);
        return n == 2 && a <= b ? std::string() : "expected A..B, such as 1..1000";
      },
      ""));
  seed->excludes(seeds, scenario);
  seeds->excludes(scenario);
  scenario->type_name("FILE");
  sim.add_option("-j,--jobs", o.seeds.jobs, "processes (default: one per core)")->type_name("N");
  sim.add_flag("--trace", o.trace, "print a line per event")->excludes(seeds);
  sim.add_option("--pcap", o.pcap, "write every frame that is sent, with virtual times")
      ->type_name("FILE")
      ->excludes(seeds);
  sim.add_option("--dump", o.dump, "write the scenario as JSON")
      ->type_name("FILE")
      ->excludes(seeds);
  sim.add_option("--save", o.save, "where a failure's smaller scenario goes (sim-SEED.json)")
      ->type_name("FILE");
  sim.add_flag("!--no-shrink", o.shrink, "look for no smaller scenario");
  sim.add_flag("--keep-going", o.seeds.keep_going, "run the other seeds after one has failed");
  sim.add_flag("--hashes", o.seeds.hashes, "print the hash of each seed's run");
  sim.add_flag("--bench", o.bench, "measure the simulator");
  sim.footer(sim_examples);
}

int run_sim(const CLI::App& sim, adverb::cli::SimOptions& o) {
  o.seeds.last = o.seeds.first;
  if (sim.count("--seeds")) {
    const auto range = sim.get_option("--seeds")->as<std::string>();
    std::sscanf(range.c_str(), "%lu..%lu", &o.seeds.first, &o.seeds.last);
  }
  return adverb::cli::sim(o);
}

int start(std::vector<std::string> words) {
  CLI::App app{"Adverb: run any RDMA program unmodified, over an RDMA NIC in software."};
  app.footer(examples);
  app.set_version_flag("--version", "adverb " ADVERB_VERSION);
  app.require_subcommand(1);

  std::vector<std::string> command = split_program(words);
  std::map<std::string, std::string> values;
  CLI::App* run = app.add_subcommand("run", "run a program (and all that it starts) over Adverb");
  run->footer("Usage: adverb run [OPTIONS] [--] PROG [ARG...]");
  for (const RunOption& o : run_options) {
    const std::string help = std::string(o.help) + "; " + o.variable;
    if (!o.type) {
      run->add_flag_callback(o.option, [&values, &o] { values[o.variable] = "1"; }, help);
      continue;
    }
    CLI::Option* option = run->add_option(o.option, values[o.variable], help);
    option->type_name(o.type);
    if (o.option == std::string("--fault"))
      option->multi_option_policy(CLI::MultiOptionPolicy::Join)->delimiter('\n');
    if (o.option == std::string("--faults")) option->transform(absolute);
    if (o.option == std::string("--gso")) option->check(CLI::IsMember({"on", "off"}));
    if (o.option == std::string("--log"))
      option->check(CLI::IsMember({"error", "warn", "info", "debug"}));
  }
  bool json = false;
  CLI::App* devices = app.add_subcommand("devices", "list the devices that programs see here");
  devices->add_flag("--json", json, "machine-readable");
  CLI::App* profiles = app.add_subcommand(
      "profiles", "list in what the profiles of adverb run differ, and the limits it can set");
  CLI::App* doctor =
      app.add_subcommand("doctor", "say what would stop Adverb on this machine, and the remedy");
  doctor->add_flag("--json", json, "machine-readable");

  adverb::cli::SimOptions sim_options;
  CLI::App* sim = app.add_subcommand("sim", "run the engine in a deterministic world");
  add_sim_options(*sim, sim_options);
  std::string rules;
  CLI::App* faults =
      app.add_subcommand("faults", "look at fault rules for adverb run --faults, before it is run");
  faults->add_option("--check", rules, "say what each rule of FILE does, or what is wrong with it")
      ->type_name("FILE|-")
      ->required();
  faults->footer(rule_help);

  if (words.empty()) words = {"--help"};
  std::reverse(words.begin(), words.end());  // as CLI11 wants them
  try {
    app.parse(words);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : run->parsed() ? adverb::cli::exit_failure : 2;
  }
  if (profiles->parsed()) return adverb::cli::profiles();
  if (devices->parsed()) return adverb::cli::devices(json);
  if (faults->parsed()) return adverb::cli::check_faults(rules);
  if (doctor->parsed()) return adverb::cli::doctor(json);
  if (sim->parsed()) return run_sim(*sim, sim_options);
  if (command.empty()) {
    fmt::print(stderr, "adverb: run: no program; adverb run [OPTIONS] -- PROG [ARG...]\n");
    return adverb::cli::exit_failure;
  }
  std::vector<adverb::cli::Variable> variables;
  for (const auto& [name, value] : values)
    if (!value.empty()) variables.push_back({name, value});
  return adverb::cli::run(variables, std::move(command));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return start({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    fmt::print(stderr, "adverb: {}\n", error.what());
    return adverb::cli::exit_failure;
  }
}
