// SPDX-License-Identifier: Apache-2.0
// The simulator with a broken engine: runs seeds FIRST to LAST until one shows it, and prints which
// and how.  Exit status 0: one did; 1: none did.
#include <fmt/core.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "base/assert.hpp"
#include "sim/scenario.hpp"
#include "sim/world.hpp"

namespace {

constexpr unsigned seconds_for_a_seed = 30;
unsigned long long seed = 0;

[[noreturn]] void caught(const char* how) {
  fmt::print("{} {}\n", seed, how);
  std::fflush(stdout);
  _exit(0);
}
void on_assert(const char* expression, const char*, int) {
  caught(fmt::format("ASSERT({})", expression).c_str());
}
void on_signal(int number) { caught(number == SIGALRM ? "does not end" : "a crash"); }

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  adverb::assert_hook = on_assert;
  for (int s : {SIGSEGV, SIGBUS, SIGILL, SIGABRT, SIGALRM}) std::signal(s, on_signal);
  const auto last = std::strtoull(argv[2], nullptr, 10);
  for (seed = std::strtoull(argv[1], nullptr, 10); seed <= last; ++seed) {
    alarm(seconds_for_a_seed);
    adverb::sim::Trace trace;
    const adverb::sim::Scenario scenario = adverb::sim::draw_scenario(seed);
    adverb::sim::World world(scenario, trace);
    const adverb::sim::Result r = world.run();
    if (!r.ok()) caught(r.violation.c_str());
  }
  return 1;
}
