// SPDX-License-Identifier: Apache-2.0
#include "daemon/vault.hpp"

#include <errno.h>
#include <sys/socket.h>

#include <algorithm>

#include "daemon/protocol.hpp"

namespace adverb::daemon {

Descriptors lock_away(std::span<const int> descriptors) {
  Descriptors vaults;
  while (!descriptors.empty()) {
    const auto part = descriptors.first(std::min(descriptors.size(), descriptors_per_message));
    descriptors = descriptors.subspan(part.size());
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) < 0) return {};
    Descriptor in(ends[0]), vault(ends[1]);
    const char mark = 'v';
    if (!send_message(in.get(), &mark, 1, part)) {
      const int saved = errno;
      vaults.clear();
      errno = saved;
      return vaults;
    }
    vaults.push_back(std::move(vault));
  }
  return vaults;
}

Descriptors peek(int vault) {
  Descriptors out;
  char mark;
  if (receive_message(vault, &mark, 1, out, MSG_PEEK | MSG_DONTWAIT) != 1) out.clear();
  return out;
}

}  // namespace adverb::daemon
