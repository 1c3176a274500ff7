// SPDX-License-Identifier: Apache-2.0
#include "daemon/descriptors.hpp"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>

#include <algorithm>
#include <cstring>

#include "daemon/protocol.hpp"

namespace adverb::daemon {

namespace {

constexpr std::size_t control_bytes = CMSG_SPACE(sizeof(int) * descriptors_per_message);

socklen_t abstract_address(sockaddr_un& address, std::string_view name) {
  address = {};
  address.sun_family = AF_UNIX;
  const std::size_t n = std::min(name.size(), sizeof address.sun_path - 1);
  std::memcpy(address.sun_path + 1, name.data(), n);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + n);
}

void take_descriptors(msghdr& message, Descriptors& out) {
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < n; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
      out.emplace_back(fd);
    }
  }
}

}  // namespace

bool send_message(int socket, const void* data, std::size_t size, std::span<const int> descriptors,
                  int flags) {
  alignas(cmsghdr) char control[control_bytes];
  iovec vector{const_cast<void*>(data), size};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  if (descriptors.size() > descriptors_per_message) {
    errno = EINVAL;
    return false;
  }
  if (!descriptors.empty()) {
    std::memset(control, 0, CMSG_SPACE(descriptors.size_bytes()));
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(c), descriptors.data(), descriptors.size_bytes());
  }
  ssize_t n;
  do n = ::sendmsg(socket, &message, MSG_NOSIGNAL | flags);
  while (n < 0 && errno == EINTR);
  return n == static_cast<ssize_t>(size);
}

ssize_t receive_message(int socket, void* data, std::size_t size, Descriptors& descriptors,
                        int flags) {
  alignas(cmsghdr) char control[control_bytes];
  iovec vector{data, size};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t n;
  do n = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | flags);
  while (n < 0 && errno == EINTR);
  if (n < 0) return -1;
  take_descriptors(message, descriptors);
  if (message.msg_flags &
      (MSG_TRUNC | MSG_CTRUNC)) {  // the latter: our table of descriptors is full
    descriptors.clear();
    errno = message.msg_flags & MSG_CTRUNC ? EMFILE : EMSGSIZE;
    return -1;
  }
  return n;
}

Descriptor bind_abstract(int type, std::string_view name) {
  Descriptor fd(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address;
  const socklen_t length = abstract_address(address, name);
  if (fd && ::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), length) < 0) {
    const int saved = errno;
    fd.reset();
    errno = saved;
  }
  return fd;
}

Descriptor connect_abstract(int type, std::string_view name) {
  Descriptor fd(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address;
  const socklen_t length = abstract_address(address, name);
  if (fd && ::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), length) < 0) {
    const int saved = errno;
    fd.reset();
    errno = saved;
  }
  return fd;
}

long long now_ms() {
  timespec t;
  ::clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

bool wait_readable(int fd, long long deadline_ms) {
  for (;;) {
    pollfd p{fd, POLLIN, 0};
    const long long left = deadline_ms - now_ms();
    const int n = ::poll(&p, 1, left > 0 ? static_cast<int>(left) : 0);
    if (n > 0) return true;
    if (n == 0 && left <= 0) return false;
    if (n < 0 && errno != EINTR) return false;
  }
}

}  // namespace adverb::daemon
