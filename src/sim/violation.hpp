// SPDX-License-Identifier: Apache-2.0
// A rule of the world that was broken: an engine's bug, or the oracle's.
#pragma once

#include <fmt/core.h>

#include <stdexcept>
#include <string>

namespace adverb::sim {

struct Violation : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <class... T>
[[noreturn]] void violated(fmt::format_string<T...> text, T&&... values) {
  throw Violation(fmt::format(text, std::forward<T>(values)...));
}

}  // namespace adverb::sim
