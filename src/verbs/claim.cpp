// SPDX-License-Identifier: Apache-2.0
#include "verbs/claim.hpp"

#include <cerrno>

#include "verbs/guard.hpp"

namespace adverb::verbs {

void Claim::take_back(std::uint64_t amount) {
  if (use_ && amount)
    use_->taken[static_cast<unsigned>(limit_)].fetch_sub(amount, std::memory_order_relaxed);
}

int Claim::hold(Use& use, Limit l, std::uint64_t amount, const char* who) {
  use_ = &use;
  limit_ = l;
  if (amount <= amount_) {
    take_back(amount_ - amount);
    amount_ = amount;
    return 0;
  }
  const std::uint64_t more = amount - amount_, most = limit(l);
  auto& taken = use.taken[static_cast<unsigned>(l)];
  std::uint64_t now = taken.load(std::memory_order_relaxed);
  do {
    if (now > most || more > most - now)
      return refuse(ENOMEM, "{}: {} {}, of which {} are in use", who, nic::name_of(l), most, now);
  } while (!taken.compare_exchange_weak(now, now + more, std::memory_order_relaxed));
  amount_ = amount;
  return 0;
}

}  // namespace adverb::verbs
