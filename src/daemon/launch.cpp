// SPDX-License-Identifier: Apache-2.0
#include "daemon/launch.hpp"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <new>
#include <string_view>
#include <vector>

extern char** environ;

namespace adverb::daemon {

namespace {

// The directory of the object that holds this code; empty when nobody knows.
std::string own_directory() {
  Dl_info info{};
  char path[PATH_MAX];
  const char* name = nullptr;
  if (::dladdr(reinterpret_cast<void*>(&find_daemon), &info) && info.dli_fname &&
      std::strchr(info.dli_fname, '/'))
    name = info.dli_fname;
  if (!name || !::realpath(name, path)) {
    if (!::realpath("/proc/self/exe", path)) return {};
  }
  std::string directory(path);
  return directory.substr(0, directory.rfind('/'));
}

// LD_LIBRARY_PATH without the places that hold our libibverbs: the daemon needs none, and a library
// that is replaced must not be held by it.
std::string cleaned_library_path(std::string_view value, std::string_view own) {
  std::string out;
  while (true) {
    const auto part = value.substr(0, value.find(':'));
    const bool ours =
        part == own || part.ends_with("/lib/adverb") || part.ends_with("/lib/adverb/");
    if (!part.empty() && !ours) out += (out.empty() ? "" : ":") + std::string(part);
    if (part.size() == value.size()) return out;
    value.remove_prefix(part.size() + 1);
  }
}

std::vector<std::string> daemon_environment() {
  std::vector<std::string> out;
  const std::string own = own_directory();
  constexpr std::string_view preload = "LD_PRELOAD=", library = "LD_LIBRARY_PATH=";
  for (char** e = environ; e && *e; ++e) {
    std::string_view v(*e);
    if (v.starts_with(preload)) continue;
    if (v.starts_with(library)) {
      if (auto path = cleaned_library_path(v.substr(library.size()), own); !path.empty())
        out.push_back(std::string(library) + path);
      continue;
    }
    out.emplace_back(v);
  }
  return out;
}

constexpr std::size_t stack_bytes = 32 << 10;  // each

// ThreadSanitizer keeps its books in the process's memory: a child that ran in it would change what
// is written there of signal handlers and of the parent's thread.
#ifdef __SANITIZE_THREAD__
constexpr int clone_flags = CLONE_VFORK;
#else
constexpr int clone_flags = CLONE_VM | CLONE_VFORK;
#endif

struct Start {
  const char* path;
  char* const* argv;
  char* const* envp;
  int report;          // becomes the daemon's stderr until it detaches
  char* second_stack;  // its top
  volatile int error;
};

// Both run in the parent's memory while the parent waits (as posix_spawn does it): system calls
// only.  The stacks and Start are in shared memory, so that the error comes back in any case.
__attribute__((no_sanitize("address", "undefined", "thread"))) int execute(void* argument) {
  auto* start = static_cast<Start*>(argument);
  ::execve(start->path, start->argv, start->envp);
  start->error = errno;
  ::_exit(127);
}

// exec makes a child's end raise SIGCHLD whatever clone() said, so the one that execs is a
// grandchild.
__attribute__((no_sanitize("address", "undefined", "thread"))) int prepare(void* argument) {
  auto* start = static_cast<Start*>(argument);
  for (int s = 1; s < NSIG; ++s) {
    struct sigaction action;
    if (::sigaction(s, nullptr, &action) == 0 && action.sa_handler != SIG_DFL) {
      action.sa_handler = SIG_DFL;
      action.sa_flags = 0;
      ::sigaction(s, &action, nullptr);
    }
  }
  int null = ::open("/dev/null", O_RDWR);
  if (null < 0) null = ::open("/", O_RDONLY | O_DIRECTORY);
  ::dup2(null, 0);
  ::dup2(null, 1);
  ::dup2(start->report, 2);
  if (::syscall(SYS_close_range, 3u, ~0u, 0u) < 0)
    for (int fd = 3; fd < 65536; ++fd) ::close(fd);
  if (::chdir("/") < 0) { /* it stays where it is */
  }
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (::clone(execute, start->second_stack, clone_flags, start) < 0) start->error = errno;
  ::_exit(0);
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (auto& s : strings) out.push_back(s.data());
  out.push_back(nullptr);
  return out;
}

}  // namespace

std::expected<std::string, ClientError> find_daemon() {
  if (const char* set = ::secure_getenv("ADVERB_DAEMON"); set && *set) {
    if (::access(set, X_OK) == 0) return std::string(set);
    return std::unexpected(ClientError{
        errno, fmt::format("ADVERB_DAEMON={} cannot be executed: {}", set, std::strerror(errno))});
  }
  const std::string directory = own_directory();
  for (const char* relative :
       {"/adverbd", "/../bin/adverbd", "/../../bin/adverbd", "/../../../bin/adverbd"}) {
    std::string path = directory + relative;
    if (!directory.empty() && ::access(path.c_str(), X_OK) == 0) return path;
  }
  return std::unexpected(ClientError{
      ENOENT, fmt::format("adverbd is not to be found near {}; set ADVERB_DAEMON to its path",
                          directory.empty() ? "this library" : directory)});
}

std::expected<Descriptor, ClientError> launch_daemon() {
  auto path = find_daemon();
  if (!path) return std::unexpected(path.error());
  std::vector<std::string> arguments{"adverbd", "--no-fork"}, environment = daemon_environment();
  auto argv = pointers(arguments), envp = pointers(environment);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0)
    return std::unexpected(ClientError{errno, "too many open files to start adverbd"});
  Descriptor report(ends[0]), low(ends[1]), in(::fcntl(low.get(), F_DUPFD_CLOEXEC, 3));
  void* shared =
      ::mmap(nullptr, 2 * stack_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED)
    return std::unexpected(ClientError{ENOMEM, "no memory to start adverbd"});
  char* first = static_cast<char*>(shared) + stack_bytes;
  // At the far end of the first stack.
  auto* start =
      new (shared) Start{path->c_str(), argv.data(), envp.data(), in.get(), first + stack_bytes, 0};
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, &before);
  // No exit signal: the application's SIGCHLD handler and its wait() never see this child.
  const int pid = ::clone(prepare, first, clone_flags, start);
  const int error = pid < 0 ? errno : start->error;
  if (pid > 0) ::waitpid(pid, nullptr, __WALL);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ::munmap(shared, 2 * stack_bytes);
  if (error)
    return std::unexpected(
        ClientError{error, fmt::format("{} cannot be started: {}", *path, std::strerror(error))});
  return report;
}

}  // namespace adverb::daemon
