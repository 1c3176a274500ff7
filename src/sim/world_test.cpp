// SPDX-License-Identifier: Apache-2.0
// The simulator itself: it is deterministic, says what is wrong, and shrinks what fails.
#include "sim/world.hpp"

#include <gtest/gtest.h>

#include "sim/shrink.hpp"

namespace adverb::sim {
namespace {

Result run(const Scenario& s) {
  Trace trace;
  World world(s, trace);
  return world.run();
}

Scenario two_hosts() {
  Scenario s;
  s.name = "two hosts";
  s.pairs.resize(1);
  s.heal = 1'000'000;
  return s;
}

TEST(World, TheSameSeedIsTheSameRun) {
  const Result a = run(draw_scenario(5)), b = run(draw_scenario(5)), c = run(draw_scenario(6));
  EXPECT_EQ(a.hash, b.hash);
  EXPECT_EQ(a.end, b.end);
  EXPECT_NE(a.hash, c.hash);
}

TEST(World, AGoodNetworkLosesNothingAndFailsNothing) {
  const Result r = run(two_hosts());
  EXPECT_EQ(r.violation, "");
  EXPECT_EQ(r.completions_in_error, 0u);
  EXPECT_GE(r.operations, 200u);
}

// What must be refused is refused, and each time the connection is made anew.
TEST(World, WrongRequestsAreRefused) {
  Scenario s = two_hosts();
  s.pairs[0].wrong = 30'000;
  const Result r = run(s);
  EXPECT_EQ(r.violation, "");
  EXPECT_GT(r.completions_in_error, 0u);
  EXPECT_GT(r.generations, 1u);
}

TEST(World, ExpectationsThatDoNotHoldAreViolations) {
  Scenario s = two_hosts();
  s.expect.finish_after = 500'000'000;
  EXPECT_NE(run(s).violation.find("expected 500000000"), std::string::npos) << run(s).violation;
}

// A timer that never runs, and a peer that nothing reaches until long after: not done in time.
TEST(World, ASilentPeerWithoutATimerIsFoundOut) {
  Scenario s = two_hosts();
  s.pairs[0].timeout = 0;
  s.rules = {{.rule = "drop SEND|WRITE nth 1"}};
  const Result r = run(s);
  EXPECT_EQ(r.violation, "");  // the application tears it down
  EXPECT_GT(r.generations, 1u);
}

TEST(Scenario, JsonAndBackIsTheSame) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    const Scenario s = draw_scenario(seed);
    const Scenario back = scenario_from_json(to_json(s));
    EXPECT_TRUE(s == back) << seed;
  }
}

std::string error_of(const std::string& json) {
  try {
    (void)scenario_from_json(json);
  } catch (const std::exception& e) {
    return e.what();
  }
  return "none";
}

TEST(Scenario, MistakesAreNamed) {
  EXPECT_EQ(error_of(R"({"sede": 1})"), "sede: no such member");
  EXPECT_EQ(error_of(R"({"seed": "x"})"), "seed: is no whole number");
  EXPECT_EQ(error_of(R"({"seed": -1})"), "seed: is below zero");
  EXPECT_EQ(error_of(R"({"pairs": [{"depht": 1}]})"), "pairs: pairs[0].depht: no such member");
  EXPECT_EQ(error_of(R"({"pairs": [{"timeout": 300}]})"), "pairs: pairs[0].timeout: is too large");
  EXPECT_EQ(error_of(R"({"pairs": [{"hosts": [0, 7]}]})"),
            "pairs: hosts are two different ones that exist");
  EXPECT_NE(error_of(R"({"rules": [{"rule": "dorp"}]})").find("did you mean \"drop\""),
            std::string::npos);
  EXPECT_NE(error_of(R"({"rules": [{"rule": "fail reg_mr ENOMEM"}]})").find("a link can drop"),
            std::string::npos);
  EXPECT_NE(error_of("{").find("parse error"), std::string::npos);
}

// Of ten pairs, three events and two rules only the pair that matters is left.
TEST(Shrink, KeepsWhatMakesItFail) {
  Scenario s = two_hosts();
  s.pairs.resize(10);
  s.pairs[4].srq = true;
  s.rules = {{.rule = "drop prob 1%"}, {.rule = "duplicate prob 1%"}};
  s.events.resize(3, Event{.what = Happening::pause});
  const Scenario small = shrink(
      s,
      [](const Scenario& t) {
        for (const PairSpec& p : t.pairs)
          if (p.srq && p.side[1].operations >= 7) return true;
        return false;
      },
      1000);
  ASSERT_EQ(small.pairs.size(), 1u);
  EXPECT_TRUE(small.rules.empty());
  EXPECT_TRUE(small.events.empty());
  EXPECT_EQ(small.pairs[0].side[1].operations, 7u);
  EXPECT_EQ(small.pairs[0].side[0].operations, 0u);
}

TEST(EventQueue, TimeThenOrder) {
  EventQueue q;
  q.add(5, Due::step, 1);
  q.add(3, Due::step, 2);
  q.add(5, Due::step, 3);
  q.add(3, Due::step, 4);
  std::vector<unsigned> order;
  while (!q.empty()) order.push_back(q.take().who);
  EXPECT_EQ(order, (std::vector<unsigned>{2, 4, 1, 3}));
}

}  // namespace
}  // namespace adverb::sim
