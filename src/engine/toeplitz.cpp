// SPDX-License-Identifier: Apache-2.0
#include "engine/toeplitz.hpp"

#include "base/assert.hpp"

namespace adverb::engine {

std::uint32_t toeplitz_hash(const ToeplitzKey& key, std::span<const std::uint8_t> input) {
  ASSERT(input.size() <= toeplitz_most_input);
  std::uint64_t window = 0;  // in its low 40 bits, all of the key that one byte of input needs
  for (unsigned i = 0; i < 4; ++i) window = window << 8 | key[i];
  std::uint32_t hash = 0;
  for (std::size_t i = 0; i < input.size(); ++i) {
    window = window << 8 | key[i + 4];
    for (unsigned bit = 0; bit < 8; ++bit) {
      const std::uint32_t is_set = input[i] >> (7 - bit) & 1u;
      hash ^= static_cast<std::uint32_t>(window >> (8 - bit)) & (0u - is_set);
    }
  }
  return hash;
}

}  // namespace adverb::engine
