// SPDX-License-Identifier: Apache-2.0
// What objects take of a device's limits (nic/limits.hpp).  An object holds a Claim for each limit
// that counts it, and gives back when it is deleted.  Counted is what this process has on a device,
// over all its contexts.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "nic/settings.hpp"

namespace adverb::verbs {

using nic::Limit;
using nic::Point;

inline std::uint64_t limit(Limit l) { return nic::settings().limits[l]; }
inline std::uint32_t limit32(Limit l) { return static_cast<std::uint32_t>(limit(l)); }
inline const nic::Behaviour& behaviour() { return nic::settings().behaviour; }

struct Use {
  std::array<std::atomic<std::uint64_t>, nic::limits> taken{};
  void clear() {
    for (auto& t : taken) t.store(0, std::memory_order_relaxed);
  }
};

class Claim {
 public:
  Claim() = default;
  Claim(const Claim&) = delete;
  ~Claim() { take_back(amount_); }
  // Holds `amount` from now on.  ENOMEM, after a line in the log that begins with `who`, when that
  // is more than is left; then nothing changes.
  int hold(Use&, Limit, std::uint64_t amount, const char* who);
  std::uint64_t amount() const { return amount_; }

 private:
  void take_back(std::uint64_t amount);
  Use* use_ = nullptr;
  Limit limit_{};
  std::uint64_t amount_ = 0;
};

}  // namespace adverb::verbs
