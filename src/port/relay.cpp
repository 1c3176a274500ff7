// SPDX-License-Identifier: Apache-2.0
#include "port/relay.hpp"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

namespace adverb::port {

RelayBell::RelayBell(std::string name_prefix)
    : prefix_(std::move(name_prefix)),
      socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)) {}

RelayBell::~RelayBell() {
  if (socket_ >= 0) ::close(socket_);
}

// Who is not there, or has much to read already, needs no waking.
void RelayBell::ring(unsigned slot) {
  const std::string name = prefix_ + std::to_string(slot);
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  const std::size_t n = std::min(name.size(), sizeof to.sun_path - 1);
  std::memcpy(to.sun_path + 1, name.data(), n);
  const RelayHeader bell;
  (void)::sendto(socket_, &bell, sizeof bell, MSG_DONTWAIT | MSG_NOSIGNAL,
                 reinterpret_cast<const sockaddr*>(&to),
                 static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + n));
}

}  // namespace adverb::port
