// SPDX-License-Identifier: Apache-2.0
// The TCP connection over which two programs tell each other what verbs needs: queue pair numbers,
// keys, and at the end what each has counted.  Values travel as they lie in memory; both ends run
// the same program.
#pragma once

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <type_traits>

#include "tests/clients/kit.hpp"

namespace adverb::clients {

class SideChannel {
 public:
  SideChannel() = default;
  explicit SideChannel(int fd) : fd_(fd) {}
  int fd() const { return fd_; }

  template <class T>
  void put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (::send(fd_, &value, sizeof value, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof value))
      die(exit_failed, "side channel: the peer is gone");
  }
  template <class T>
  T get() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    if (::recv(fd_, &value, sizeof value, MSG_WAITALL) != static_cast<ssize_t>(sizeof value))
      die(exit_failed, "side channel: the peer is gone");
    return value;
  }
  template <class T>
  T exchange(const T& value) {
    put(value);
    return get<T>();
  }
  void close() { ::close(fd_); }

 private:
  int fd_ = -1;
};

inline addrinfo* resolve(const char* host, const std::string& port, int flags) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  if (const int error = getaddrinfo(host, port.c_str(), &hints, &found))
    die(exit_usage, "%s: %s", host ? host : "*", gai_strerror(error));
  return found;
}

inline int listen_on(const std::string& address, const std::string& port) {
  addrinfo* at = resolve(address.empty() ? "0.0.0.0" : address.c_str(), port, AI_PASSIVE);
  const int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int one = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (bind(fd, at->ai_addr, at->ai_addrlen) != 0 || listen(fd, 64) != 0)
    die(exit_failed, "listen on port %s: %s", port.c_str(), std::strerror(errno));
  freeaddrinfo(at);
  return fd;
}

inline SideChannel connect_to(const std::string& host, const std::string& port) {
  addrinfo* at = resolve(host.c_str(), port, 0);
  const int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(fd, at->ai_addr, at->ai_addrlen) != 0)
    die(exit_failed, "connect to %s: %s", host.c_str(), std::strerror(errno));
  freeaddrinfo(at);
  return SideChannel(fd);
}

}  // namespace adverb::clients
