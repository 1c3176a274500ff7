// SPDX-License-Identifier: Apache-2.0
// adverbd: started on demand by the library, gone a second after its last client.  Until it
// detaches, its stderr is the library's pipe: the end of that says that a daemon listens.
#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <string_view>

#include "daemon/server.hpp"

namespace {

using namespace adverb::daemon;

constexpr const char* help =
    "adverbd: hands out Adverb's slots and sockets to the processes of one user in one network "
    "namespace\n"
    "\n"
    "The library starts it when a device is opened; it ends within two seconds of its last "
    "client.\n"
    "\n"
    "  --foreground  stay attached and say what happens\n"
    "  --no-fork     detach without a second process (the library starts it so)\n"
    "  --system      serve all users (not there yet)\n"
    "  --version     print the version\n"
    "  --help        print this\n"
    "\n"
    "ADVERB_SLOTS=N   processes (with adverbd itself) that may share an address, 2 to 1022, "
    "default 64\n";

// The pools' sockets lie in flight, which the kernel counts against this limit.
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
}

unsigned wanted_slots() {
  const char* set = ::getenv("ADVERB_SLOTS");
  if (!set) return default_slots;
  char* end;
  const long n = std::strtol(set, &end, 10);
  if (*end || n < 2 || n > static_cast<long>(slot_limit) - 2) {
    fmt::print(stderr, "adverbd: ADVERB_SLOTS={} is not 2 to {}; using {}\n", set, slot_limit - 2,
               default_slots);
    return default_slots;
  }
  return static_cast<unsigned>(n);
}

void detach() {
  ::setsid();
  const int null = ::open("/dev/null", O_RDWR);
  for (int fd = 0; null >= 0 && fd < 3; ++fd) ::dup2(null, fd);
  if (null > 2) ::close(null);
  if (::chdir("/") < 0) { /* stays where it is */
  }
}

int serve(bool foreground, bool may_fork) {
  ::signal(SIGPIPE, SIG_IGN);
  if (!foreground) ::syscall(SYS_close_range, 3u, ~0u, 0u);
  raise_descriptor_limit();
  Server server({.slots = wanted_slots(), .verbose = foreground});
  switch (server.listen()) {
    case Server::Start::another_runs:
      if (foreground) fmt::print(stderr, "adverbd: another one runs for this user\n");
      return 0;
    case Server::Start::failed:
      fmt::print(stderr, "adverbd: cannot listen: {}\n", std::strerror(errno));
      return 1;
    case Server::Start::listening:
      break;
  }
  if (!foreground) {
    const pid_t child = may_fork ? ::fork() : 0;
    if (child < 0) return 1;
    if (child > 0) ::_exit(0);
    detach();
  }
  server.run();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  bool foreground = false, may_fork = true;
  for (int i = 1; i < argc; ++i) {
    const std::string_view a(argv[i]);
    if (a == "--foreground") {
      foreground = true;
    } else if (a == "--no-fork") {
      may_fork = false;
    } else if (a == "--version") {
      fmt::print("adverbd {}\n", ADVERB_VERSION);
      return 0;
    } else if (a == "--help") {
      fmt::print("{}", help);
      return 0;
    } else if (a == "--system") {
      fmt::print(stderr,
                 "adverbd: --system is not implemented; every user gets an adverbd of his own\n");
      return 2;
    } else {
      fmt::print(stderr, "adverbd: unknown option {}; see adverbd --help\n", a);
      return 2;
    }
  }
  try {
    return serve(foreground, may_fork);
  } catch (const std::exception& e) {
    fmt::print(stderr, "adverbd: {}\n", e.what());
    return 1;
  }
}
