// SPDX-License-Identifier: Apache-2.0
// Preloaded into a program it makes the kernel look like one with net.core.rmem_max at its usual
// 212992 for a user without privileges; that limit is of the whole machine, so a test cannot set
// it.
#include <dlfcn.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

extern "C" [[gnu::visibility("default")]] int setsockopt(int fd, int level, int name,
                                                         const void* value,
                                                         socklen_t length) noexcept {
  using Call = int (*)(int, int, int, const void*, socklen_t);
  static const Call real = reinterpret_cast<Call>(dlsym(RTLD_NEXT, "setsockopt"));
  int size = 0;
  if (level == SOL_SOCKET && name == SO_RCVBUFFORCE) {
    errno = EPERM;
    return -1;
  }
  if (level == SOL_SOCKET && name == SO_RCVBUF && length == sizeof size) {
    std::memcpy(&size, value, sizeof size);
    size = std::min(size, 212992);
    value = &size;
  }
  return real(fd, level, name, value, length);
}
