// SPDX-License-Identifier: Apache-2.0
// Small deterministic generators: the same seed gives the same numbers on every machine, for ever.
// None of them is cryptographic, and there is no global one: whoever needs numbers is handed a
// generator.
#pragma once

#include <cstdint>

namespace adverb {

// splitmix64 (Steele, Lea, Flood): 64 bits of state, every value once in 2^64.  Also spreads seeds.
class SplitMix {
 public:
  constexpr explicit SplitMix(std::uint64_t seed) : state_(seed) {}
  constexpr std::uint64_t next() { return mix(state_ += 0x9e3779b97f4a7c15); }
  // A bijection of 64 bits in which each input bit moves about half of the output.
  static constexpr std::uint64_t mix(std::uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }

 private:
  std::uint64_t state_;
};

// xoshiro256** (Blackman, Vigna): for simulations and tests.  Also a UniformRandomBitGenerator.
class Prng {
 public:
  using result_type = std::uint64_t;
  constexpr explicit Prng(std::uint64_t seed) {
    SplitMix spread(seed);
    for (auto& word : s_) word = spread.next();
  }
  constexpr std::uint64_t next() {
    const std::uint64_t result = rotate(s_[1] * 5, 7) * 9;
    const std::uint64_t t = s_[1] << 17;
    s_[2] ^= s_[0];
    s_[3] ^= s_[1];
    s_[1] ^= s_[2];
    s_[0] ^= s_[3];
    s_[2] ^= t;
    s_[3] = rotate(s_[3], 45);
    return result;
  }
  // In [0, bound), without bias that 2^64 draws would show; bound 0 gives 0.
  constexpr std::uint64_t below(std::uint64_t bound) {
    using Wide = unsigned __int128;
    return static_cast<std::uint64_t>(static_cast<Wide>(next()) * bound >> 64);
  }
  // In [low, high], both included.
  constexpr std::uint64_t between(std::uint64_t low, std::uint64_t high) {
    return low + below(high - low + 1);
  }
  // True in `numerator` of `denominator` draws.
  constexpr bool chance(std::uint64_t numerator, std::uint64_t denominator) {
    return below(denominator) < numerator;
  }

  static constexpr std::uint64_t min() { return 0; }
  static constexpr std::uint64_t max() { return ~std::uint64_t{0}; }
  constexpr std::uint64_t operator()() { return next(); }

 private:
  static constexpr std::uint64_t rotate(std::uint64_t x, unsigned n) {
    return x << n | x >> (64 - n);
  }
  std::uint64_t s_[4]{};
};

}  // namespace adverb
