// SPDX-License-Identifier: Apache-2.0
#include "nic/log.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <string>

#include "port/uncancelled.hpp"

namespace adverb::nic {
namespace {

constexpr std::array<std::string_view, 4> names{"error", "warn", "info", "debug"};

LogLevel level_from_environment() {
  const char* text = std::getenv("ADVERB_LOG");
  for (unsigned i = 0; text && i < names.size(); ++i)
    if (names[i] == text) return static_cast<LogLevel>(i);
  return LogLevel::warn;
}

// The file is opened anew for each line: no descriptor is kept that the application could close, or
// that a forked child would inherit.
int open_target() {
  const char* path = secure_getenv("ADVERB_LOG_FILE");
  if (!path || !*path) return -1;
  return ::open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, 0644);
}

}  // namespace

bool log_enabled(LogLevel level) {
  static const LogLevel limit = level_from_environment();
  return level <= limit;
}

void log_line(LogLevel level, std::string_view text) {
  const int saved = errno;
  std::string line = "adverb: ";
  line += names[static_cast<unsigned>(level)];
  line += ": ";
  for (const char c : text) line += c == '\n' || c == '\r' ? ' ' : c;
  line += '\n';
  const int file = open_target();
  // One write, so that lines of several processes do not mix.  Nobody to tell when it fails.
  if (port::uncancelled::write(file >= 0 ? file : STDERR_FILENO, line.data(), line.size()) < 0) {
  }
  if (file >= 0) ::close(file);
  errno = saved;
}

}  // namespace adverb::nic
