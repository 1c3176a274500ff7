// SPDX-License-Identifier: Apache-2.0
#include "nic/fault_handler.hpp"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <mutex>

#include "base/guarded.hpp"

namespace adverb::nic {
namespace {

struct sigaction previous_segv, previous_bus;

void become_default(int signal) {
  struct sigaction action{};
  action.sa_handler = SIG_DFL;
  sigemptyset(&action.sa_mask);
  sigaction(signal, &action, nullptr);
}

// As the kernel would have called it: with its mask, and once only if it asked for that.
void call_previous(struct sigaction& previous, int signal, siginfo_t* info, void* context) {
  sigset_t mask = previous.sa_mask;
  if (!(previous.sa_flags & SA_NODEFER)) sigaddset(&mask, signal);
  pthread_sigmask(SIG_BLOCK, &mask, nullptr);
  const struct sigaction target = previous;
  if (previous.sa_flags & SA_RESETHAND) {
    previous.sa_handler = SIG_DFL;
    previous.sa_flags = 0;
  }
  if (target.sa_flags & SA_SIGINFO)
    target.sa_sigaction(signal, info, context);
  else
    target.sa_handler(signal);
}

void on_fault(int signal, siginfo_t* info, void* context) {
  const int saved = errno;
  const bool sent = info->si_code <= 0;  // by kill() or the like: no instruction faulted
  if (!sent && guarded_recover(context)) return;
  struct sigaction& previous = signal == SIGSEGV ? previous_segv : previous_bus;
  const bool plain = !(previous.sa_flags & SA_SIGINFO);
  if (plain && previous.sa_handler == SIG_IGN && sent) return;
  if (plain && (previous.sa_handler == SIG_DFL || previous.sa_handler == SIG_IGN)) {
    become_default(signal);
    // A fault is executed again on return and kills where it happened; a signal that was sent is
    // not.
    if (sent) raise(signal);
    return;
  }
  call_previous(previous, signal, info, context);
  errno = saved;
}

}  // namespace

void install_fault_handler() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action{};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigemptyset(&action.sa_mask);
    sigaction(SIGSEGV, nullptr, &previous_segv);
    sigaction(SIGBUS, nullptr, &previous_bus);
    sigaction(SIGSEGV, &action, nullptr);
    sigaction(SIGBUS, &action, nullptr);
  });
}

}  // namespace adverb::nic
