// SPDX-License-Identifier: Apache-2.0
// What is to happen, in order of virtual time in picoseconds; at one time in the order in which it
// was planned.  The order depends on nothing else, no pointer and no hash.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace adverb::sim {

using Picoseconds = std::uint64_t;
constexpr Picoseconds picoseconds(std::uint64_t nanoseconds) { return nanoseconds * 1000; }

enum class Due : std::uint8_t { arrival, release, step, event, pair, boot, heal };

struct Item {
  Picoseconds at;
  std::uint64_t order;
  Due due;
  std::uint32_t who;    // host, pair or event
  std::uint32_t frame;  // of an arrival or a release
};

class EventQueue {
 public:
  void add(Picoseconds at, Due due, std::uint32_t who, std::uint32_t frame = 0) {
    heap_.push_back({at, planned_++, due, who, frame});
    std::push_heap(heap_.begin(), heap_.end(), later);
  }
  bool empty() const { return heap_.empty(); }
  const Item& next() const { return heap_.front(); }
  Item take() {
    std::pop_heap(heap_.begin(), heap_.end(), later);
    Item item = heap_.back();
    heap_.pop_back();
    return item;
  }
  std::uint64_t planned() const { return planned_; }

 private:
  static bool later(const Item& a, const Item& b) {
    return a.at != b.at ? a.at > b.at : a.order > b.order;
  }
  std::vector<Item> heap_;
  std::uint64_t planned_ = 0;
};

}  // namespace adverb::sim
