// SPDX-License-Identifier: Apache-2.0
// Mutations of scripts (script.hpp): records are inserted, removed, repeated, exchanged and crossed
// over as wholes, and libFuzzer's own mutations work inside one record.
#include <algorithm>
#include <cstring>
#include <vector>

#include "script.hpp"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max);

using adverb::fuzz::record_bytes;

namespace {

class Random {
 public:
  explicit Random(unsigned seed) : x_(seed * 2654435761u + 1) {}
  std::size_t below(std::size_t n) {
    x_ ^= x_ << 13, x_ ^= x_ >> 17, x_ ^= x_ << 5;
    return n ? x_ % n : 0;
  }

 private:
  std::uint32_t x_;
};

void mutate_one(std::uint8_t* record) {
  const std::size_t n = LLVMFuzzerMutate(record, record_bytes, record_bytes);
  if (n < record_bytes) std::memset(record + n, 0, record_bytes - n);
}

// Any action; arguments are small more often than not.
void fill(std::uint8_t* record, Random& random) {
  for (std::size_t i = 0; i < record_bytes; ++i)
    record[i] = static_cast<std::uint8_t>(random.below(i && random.below(2) ? 8 : 256));
}

// Makes room at record `at`; the copy there is what stood there.
std::size_t repeat(std::uint8_t* data, std::size_t records, std::size_t at, std::size_t from) {
  std::uint8_t copy[record_bytes];
  std::memcpy(copy, data + from * record_bytes, record_bytes);
  std::memmove(data + (at + 1) * record_bytes, data + at * record_bytes,
               (records - at) * record_bytes);
  std::memcpy(data + at * record_bytes, copy, record_bytes);
  return records + 1;
}

}  // namespace

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max, unsigned seed) {
  Random random(seed);
  const std::size_t room = max / record_bytes;
  if (room == 0) return size;
  std::size_t n = std::min((size + record_bytes - 1) / record_bytes, room);
  if (n * record_bytes > size) std::memset(data + size, 0, n * record_bytes - size);
  if (n == 0) std::memset(data, 0, record_bytes), n = 1;
  const std::size_t at = random.below(n), other = random.below(n);
  std::uint8_t* record = data + at * record_bytes;
  switch (random.below(12)) {
    case 0:
      if (n < room) n = repeat(data, n, at, other);
      break;
    case 1:
      if (n < room) n = repeat(data, n, at, other), mutate_one(record);
      break;
    case 2:
      if (n == 1) break;
      std::memmove(record, record + record_bytes, (n - at - 1) * record_bytes);
      --n;
      break;
    case 3:
      std::swap_ranges(record, record + record_bytes, data + other * record_bytes);
      break;
    case 4:
      n = std::max<std::size_t>(1, at);  // the rest does not matter
      break;
    case 5:  // another action with the same arguments
      *record = static_cast<std::uint8_t>(random.below(256));
      break;
    case 6:
    case 7:
      if (n < room) n = repeat(data, n, at, other), fill(record, random);
      break;
    default:
      mutate_one(record);
  }
  return n * record_bytes;
}

extern "C" std::size_t LLVMFuzzerCustomCrossOver(const std::uint8_t* a, std::size_t a_size,
                                                 const std::uint8_t* b, std::size_t b_size,
                                                 std::uint8_t* out, std::size_t max,
                                                 unsigned seed) {
  Random random(seed);
  const auto cut = [&](std::size_t size) { return random.below(size / record_bytes + 1); };
  const std::size_t head = std::min(cut(a_size) * record_bytes, max);
  const std::size_t from = cut(b_size) * record_bytes;
  const std::size_t tail = std::min(b_size - from, max - head);
  std::memcpy(out, a, head);
  std::memcpy(out + head, b + from, tail);
  return head + tail;
}
