// SPDX-License-Identifier: Apache-2.0
// Owned descriptors, and messages that carry them.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace adverb::daemon {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& o) noexcept : fd_(o.release()) {}
  Descriptor& operator=(Descriptor&& o) noexcept {
    if (this != &o) reset(o.release());
    return *this;
  }
  ~Descriptor() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset(int fd = -1) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

using Descriptors = std::vector<Descriptor>;

// One message with descriptors; false leaves errno.  Never raises SIGPIPE.
bool send_message(int socket, const void* data, std::size_t size, std::span<const int> descriptors,
                  int flags = 0);
// Bytes of one message (0: the other side is gone), -1 leaves errno.  The descriptors are
// close-on-exec; a message that was cut short (of bytes or descriptors) is an error.
ssize_t receive_message(int socket, void* data, std::size_t size, Descriptors& descriptors,
                        int flags);

// A unix socket bound (or connected) to an abstract name; empty leaves errno.
Descriptor bind_abstract(int type, std::string_view name);
Descriptor connect_abstract(int type, std::string_view name);

// Waits for readability until the deadline (CLOCK_MONOTONIC milliseconds).
bool wait_readable(int fd, long long deadline_ms);
long long now_ms();

}  // namespace adverb::daemon
