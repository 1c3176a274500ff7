// SPDX-License-Identifier: Apache-2.0
// No exception crosses the C boundary, and no thread is cancelled inside a call that works on the
// device (a cancelled thread would leave locks held).  Calls that block for the application
// (get_cq_event, get_async_event, the waits for acknowledgements) stand outside, because a
// cancelled thread must be able to unwind through them.  Posting and polling need no guard: there
// is no cancellation point on the data path (port/uncancelled.hpp).
#pragma once

#include <pthread.h>

#include <cerrno>
#include <new>
#include <type_traits>

#include "nic/log.hpp"

namespace adverb::verbs {

class NotCancelled {
 public:
  NotCancelled() { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  ~NotCancelled() { pthread_setcancelstate(before_, nullptr); }
  NotCancelled(const NotCancelled&) = delete;

 private:
  int before_{};
};

// What a call returns that returns an errno.  A kernel's refusal leaves it in errno as well, and
// programs read either.
inline int answer(int error) {
  if (error > 0) errno = error;
  return error;
}

// Runs f; an exception becomes an errno: the return value, or errno and a null pointer.  An int
// that f returns is an errno, or negative.
template <class F>
auto guarded(F&& f) noexcept -> std::invoke_result_t<F> {
  using R = std::invoke_result_t<F>;
  NotCancelled guard;
  int error;
  try {
    if constexpr (std::is_same_v<R, int>)
      return answer(f());
    else
      return f();
  } catch (const std::bad_alloc&) {
    error = ENOMEM;
  } catch (...) {
    error = EIO;
  }
  if constexpr (std::is_pointer_v<R>) {
    errno = error;
    return nullptr;
  } else if constexpr (std::is_same_v<R, int>) {
    return answer(error);
  } else if constexpr (!std::is_void_v<R>) {
    return error;
  }
}

// A creator's failure: null with errno, after a line in the log that says why.
template <class... A>
std::nullptr_t fail(int error, fmt::format_string<A...> format, A&&... args) {
  nic::log(nic::LogLevel::warn, format, std::forward<A>(args)...);
  errno = error;
  return nullptr;
}

// The same for calls that return the errno.
template <class... A>
int refuse(int error, fmt::format_string<A...> format, A&&... args) {
  nic::log(nic::LogLevel::warn, format, std::forward<A>(args)...);
  return error;
}

}  // namespace adverb::verbs
