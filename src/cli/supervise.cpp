// SPDX-License-Identifier: Apache-2.0
#include "cli/supervise.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>

namespace adverb::cli {
namespace {

// In the child.  The errno of exec goes through the pipe, which a successful one closes.
[[noreturn]] void become(std::vector<std::string>& command, const sigset_t& mask, pid_t parent,
                         int report) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // as a kill of the one process would have been
  if (getppid() != parent) _exit(1);
  sigprocmask(SIG_SETMASK, &mask, nullptr);
  std::vector<char*> argv;
  for (std::string& word : command) argv.push_back(word.data());
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  const int error = errno;
  if (write(report, &error, sizeof error) < 0) _exit(1);
  _exit(1);
}

// Stops with the child, so that the shell sees the job stop.
void stop_with(pid_t child) {
  raise(SIGSTOP);
  kill(child, SIGCONT);
}

// The child's wait status when it has ended.
std::optional<int> look_at(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, WNOHANG | WUNTRACED) == child) {
    if (!WIFSTOPPED(status)) return status;
    stop_with(child);
  }
  return std::nullopt;
}

int wait_for(pid_t child, const sigset_t& all) {
  for (;;) {
    siginfo_t info{};
    const int signal = sigwaitinfo(&all, &info);
    if (signal == SIGCHLD) {
      if (const auto status = look_at(child)) return *status;
    } else if (signal > 0 && info.si_code <= 0) {
      kill(child, signal);  // what the terminal sends has reached the child too
    }
  }
}

}  // namespace

std::optional<int> supervise(std::vector<std::string>& command) {
  int report[2];
  if (pipe2(report, O_CLOEXEC) != 0) return std::nullopt;
  sigset_t all, before;
  sigfillset(&all);
  for (const int s : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT})
    sigdelset(&all, s);
  sigprocmask(SIG_BLOCK, &all, &before);
  const pid_t self = getpid();
  const pid_t child = fork();
  if (child == 0) become(command, before, self, report[1]);
  const int fork_error = errno;
  close(report[1]);
  int error = child < 0 ? fork_error : 0;
  if (child > 0 && read(report[0], &error, sizeof error) == static_cast<ssize_t>(sizeof error))
    waitpid(child, nullptr, 0);
  close(report[0]);
  if (error) {
    sigprocmask(SIG_SETMASK, &before, nullptr);
    errno = error;
    return std::nullopt;
  }
  return wait_for(child, all);
}

void end_as(int status) {
  if (WIFEXITED(status)) exit(WEXITSTATUS(status));
  const rlimit none{0, 0};
  setrlimit(RLIMIT_CORE, &none);  // the program has left its core
  const int signal = WTERMSIG(status);
  ::signal(signal, SIG_DFL);
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, signal);
  sigprocmask(SIG_UNBLOCK, &one, nullptr);
  raise(signal);
  exit(128 + signal);
}

}  // namespace adverb::cli
