// SPDX-License-Identifier: Apache-2.0
// What the whole process has: a network namespace, and a device in it.
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "verbs_calls/session.hpp"

namespace adverb::fuzz {
namespace {

// Before there are threads: a network namespace where port 4791 is ours, if this may be.  The
// adverbd of the same build serves it.
bool enter_namespace() {
  const auto here = std::filesystem::canonical("/proc/self/exe").parent_path();
  setenv("ADVERB_DAEMON", (here / "adverbd").c_str(), 0);
  setenv("ADVERB_LOG", "error", 0);
  setenv("ADVERB_DEVICE", "lo", 1);
  if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return false;
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq r{};
  std::strcpy(r.ifr_name, "lo");
  r.ifr_flags = IFF_UP;
  const bool up = ioctl(fd, SIOCSIFFLAGS, &r) == 0;
  close(fd);
  return up;
}
const bool in_namespace = enter_namespace();

}  // namespace

ibv_device* device() {
  static ibv_device* const it = [] {
    ibv_device** list = ibv_get_device_list(nullptr);
    REQUIRE(list && list[0]);
    ibv_device* first = list[0];
    ibv_free_device_list(list);
    static ibv_context* const keeper = ibv_open_device(first);
    REQUIRE(keeper);
    return first;
  }();
  return it;
}

}  // namespace adverb::fuzz
