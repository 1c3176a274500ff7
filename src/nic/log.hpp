// SPDX-License-Identifier: Apache-2.0
// The control plane's log: one line to stderr (or ADVERB_LOG_FILE), `adverb: warn: ...`. ADVERB_LOG
// is error, warn (default), info or debug.  Never called on the data path.
#pragma once

#include <fmt/format.h>

#include <string_view>

namespace adverb::nic {

enum class LogLevel { error, warn, info, debug };
bool log_enabled(LogLevel);
void log_line(LogLevel, std::string_view);

template <class... A>
void log(LogLevel level, fmt::format_string<A...> format, A&&... args) {
  if (log_enabled(level)) log_line(level, fmt::format(format, std::forward<A>(args)...));
}

}  // namespace adverb::nic
