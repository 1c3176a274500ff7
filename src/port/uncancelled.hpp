// SPDX-License-Identifier: Apache-2.0
// The system calls of the data path, by number.  glibc's functions are cancellation points
// (pthreads(7)): a thread that is cancelled in one while it holds the engine would keep it for
// ever, and each call pays for the possibility.  Results and errno as in the manual pages.
#pragma once

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <ctime>

namespace adverb::port::uncancelled {

inline ssize_t sendmsg(int fd, const msghdr* m, int flags) {
  return ::syscall(SYS_sendmsg, fd, m, flags);
}

inline int sendmmsg(int fd, mmsghdr* m, unsigned count, int flags) {
  return static_cast<int>(::syscall(SYS_sendmmsg, fd, m, count, flags));
}

inline ssize_t recvmsg(int fd, msghdr* m, int flags) {
  return ::syscall(SYS_recvmsg, fd, m, flags);
}

inline ssize_t write(int fd, const void* data, std::size_t size) {
  return ::syscall(SYS_write, fd, data, size);
}

// Ends early when a signal comes.
inline int nanosleep(const timespec& time) {
  return static_cast<int>(::syscall(SYS_nanosleep, &time, nullptr));
}

}  // namespace adverb::port::uncancelled
