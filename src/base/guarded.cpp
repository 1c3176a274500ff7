// SPDX-License-Identifier: Apache-2.0
// The C++ face of guarded.S and the way back from a fault: a table of instruction ranges, each with
// the instruction at which a fault in it resumes.
#if defined(__x86_64__)
#include "base/guarded.hpp"

#include <sys/ucontext.h>

extern "C" {
[[gnu::visibility("hidden")]] bool adverb_guarded_copy(void*, const void*, std::size_t);
[[gnu::visibility("hidden")]] bool adverb_guarded_fetch_add(std::uint64_t*, std::uint64_t,
                                                            std::uint64_t*);
[[gnu::visibility("hidden")]] bool adverb_guarded_compare_swap(std::uint64_t*, std::uint64_t,
                                                               std::uint64_t, std::uint64_t*);
struct AdverbGuardedExit {
  std::int32_t start, end, resume;  // each relative to its own address
};
[[gnu::visibility("hidden")]] extern const AdverbGuardedExit adverb_guarded_exits[];
[[gnu::visibility("hidden")]] extern const AdverbGuardedExit adverb_guarded_exits_end[];
}

namespace adverb {

bool guarded_copy(void* destination, const void* source, std::size_t size) {
  return adverb_guarded_copy(destination, source, size);
}

bool guarded_fetch_add(std::uint64_t* target, std::uint64_t add, std::uint64_t* original) {
  return adverb_guarded_fetch_add(target, add, original);
}

bool guarded_compare_swap(std::uint64_t* target, std::uint64_t compare, std::uint64_t swap,
                          std::uint64_t* original) {
  return adverb_guarded_compare_swap(target, compare, swap, original);
}

namespace {
std::uintptr_t address_of(const std::int32_t& relative) {
  return reinterpret_cast<std::uintptr_t>(&relative) + static_cast<std::intptr_t>(relative);
}
}  // namespace

bool guarded_recover(void* ucontext) {
  auto& rip = static_cast<ucontext_t*>(ucontext)->uc_mcontext.gregs[REG_RIP];
  const auto at = static_cast<std::uintptr_t>(rip);
  for (const AdverbGuardedExit* e = adverb_guarded_exits; e != adverb_guarded_exits_end; ++e) {
    if (at < address_of(e->start) || at >= address_of(e->end)) continue;
    rip = static_cast<greg_t>(address_of(e->resume));
    return true;
  }
  return false;
}

}  // namespace adverb
#endif
