// SPDX-License-Identifier: Apache-2.0
// One stream of random numbers for each (seed, purpose, entity): what one part of the world draws
// does not move what another draws, so that a scenario with a part taken away stays comparable.
#pragma once

#include <cstdint>

#include "base/prng.hpp"

namespace adverb::sim {

enum class Purpose : std::uint64_t { swarm = 1, library, engine, rule, host, operation, pair };

inline std::uint64_t derive(std::uint64_t seed, Purpose purpose, std::uint64_t entity) {
  return SplitMix::mix(SplitMix::mix(seed * 64 + static_cast<std::uint64_t>(purpose)) +
                       entity * 0x9e3779b97f4a7c15);
}
inline Prng stream(std::uint64_t seed, Purpose purpose, std::uint64_t entity) {
  return Prng(derive(seed, purpose, entity));
}

}  // namespace adverb::sim
