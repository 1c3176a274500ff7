// SPDX-License-Identifier: Apache-2.0
// The XRC domains of a device (ibv_open_xrcd(3)).  A domain that belongs to an inode is one and the
// same to all who open it by that inode; one without is its opener's alone.
#pragma once

#include <sys/types.h>

#include <expected>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "engine/types.hpp"

namespace adverb::nic {

struct OpenError {
  int error;            // errno
  std::string message;  // one line that says what to do
};

// Lives as long as somebody has it open.
struct XrcDomain {
  engine::XrcdId id{};
};

class XrcDomains {
 public:
  // fd -1: a new domain without an inode.  Else the domain of that file's inode; `flags` are those
  // of open(2): O_CREAT makes it if there is none, O_EXCL refuses it if there is one.  The errors
  // are the kernel's: EBADF, EAGAIN (none is there, and O_CREAT was not given), EINVAL (O_EXCL).
  std::expected<std::shared_ptr<XrcDomain>, OpenError> open(int fd, int flags);

 private:
  using Inode = std::pair<dev_t, ino_t>;
  std::mutex mutex_;
  std::map<Inode, std::weak_ptr<XrcDomain>> by_inode_;
  engine::XrcdId last_id_ = 0;
};

}  // namespace adverb::nic
