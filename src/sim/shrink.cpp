// SPDX-License-Identifier: Apache-2.0
#include "sim/shrink.hpp"

#include <algorithm>
#include <vector>

namespace adverb::sim {

namespace {

void drop_pair(Scenario& s, std::size_t i) {
  s.pairs.erase(s.pairs.begin() + static_cast<std::ptrdiff_t>(i));
  std::erase_if(s.events, [&](const Event& e) {
    return e.what >= Happening::deregister && e.pair == static_cast<int>(i);
  });
  for (Event& e : s.events)
    if (e.pair && e.pair >= static_cast<int>(i)) --e.pair;
}

// Every scenario that is one step smaller.
std::vector<Scenario> smaller(const Scenario& s) {
  std::vector<Scenario> all;
  auto add = [&](auto change) {
    Scenario t = s;
    change(t);
    if (!(t == s)) all.push_back(std::move(t));
  };
  for (std::size_t i = 0; i < s.pairs.size() && s.pairs.size() > 1; ++i)
    add([&](Scenario& t) { drop_pair(t, i); });
  for (std::size_t i = 0; i < s.events.size(); ++i)
    add([&](Scenario& t) { t.events.erase(t.events.begin() + static_cast<std::ptrdiff_t>(i)); });
  for (std::size_t i = 0; i < s.rules.size(); ++i)
    add([&](Scenario& t) { t.rules.erase(t.rules.begin() + static_cast<std::ptrdiff_t>(i)); });
  for (std::size_t i = 0; i < s.pairs.size(); ++i)
    for (unsigned side = 0; side < 2; ++side) {
      add([&](Scenario& t) { t.pairs[i].side[side].operations = 0; });
      add([&](Scenario& t) { t.pairs[i].side[side].operations /= 2; });
      add([&](Scenario& t) {
        auto& n = t.pairs[i].side[side].operations;
        if (n) --n;
      });
    }
  const PairSpec usual;
  for (std::size_t i = 0; i < s.pairs.size(); ++i) {
    add([&](Scenario& t) { t.pairs[i].wrong = 0; });
    add([&](Scenario& t) { t.pairs[i].receive_lag = 0; });
    add([&](Scenario& t) { t.pairs[i].think = 0; });
    add([&](Scenario& t) { t.pairs[i].fence = t.pairs[i].solicited = t.pairs[i].inlined = 0; });
    add([&](Scenario& t) { t.pairs[i].unsignaled = 0; });
    add([&](Scenario& t) { t.pairs[i].srq = false; });
    add([&](Scenario& t) { t.pairs[i].max_sge = 1; });
    for (unsigned o = 0; o < 16; ++o)
      if (s.pairs[i].mix >> o & 1) add([&](Scenario& t) { t.pairs[i].mix &= ~(1u << o); });
    add([&](Scenario& t) { t.pairs[i].mix &= 0xffff; });
    add([&](Scenario& t) { t.pairs[i].max_size = std::max(64u, t.pairs[i].max_size / 2); });
  }
  for (std::size_t h = 0; h < s.hosts.size(); ++h)
    add([&](Scenario& t) {
      const bool ipv6 = t.hosts[h].ipv6;
      t.hosts[h] = HostSpec{};
      t.hosts[h].ipv6 = ipv6;
    });
  add([](Scenario& t) { t.link = LinkSpec{}; });
  return all;
}

}  // namespace

Scenario shrink(Scenario failing, const std::function<bool(const Scenario&)>& fails,
                unsigned tries) {
  for (bool smaller_found = true; smaller_found && tries;) {
    smaller_found = false;
    for (Scenario& candidate : smaller(failing)) {
      if (!tries--) break;
      if (!fails(candidate)) continue;
      failing = std::move(candidate);
      smaller_found = true;
      break;
    }
  }
  return failing;
}

}  // namespace adverb::sim
