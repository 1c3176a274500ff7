// SPDX-License-Identifier: Apache-2.0
// The XRC domains of a device (ibv_open_xrcd(3)).  A domain that belongs to an inode is one and the
// same to all processes of the user that open it by that inode (docs/adr/0006); one without is its
// opener's alone.
#pragma once

#include <expected>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "daemon/client.hpp"
#include "engine/engine.hpp"

namespace adverb::nic {

struct OpenError {
  int error;            // errno
  std::string message;  // one line that says what to do
};

class SharedDomain;

struct XrcDomain {
  engine::XrcdId id{};
  daemon::XrcKey key{};
  std::unique_ptr<SharedDomain> shared;  // null: this process's alone
  std::uint32_t opened = 1;

  XrcDomain(engine::XrcdId, const daemon::XrcKey&, std::unique_ptr<SharedDomain>);
  ~XrcDomain();
  engine::TargetStore* store() const;
};

class XrcDomains {
 public:
  // Runs a function alone with the engine.
  using WithEngine = std::function<void(const std::function<void(engine::Engine&)>&)>;

  // fd -1: a new domain without an inode.  Else the domain of that file's inode; `flags` are those
  // of open(2): O_CREAT makes it if there is none, O_EXCL refuses it if there is one.  The errors
  // are the kernel's: EBADF, EAGAIN (none is there, and O_CREAT was not given), EINVAL (O_EXCL).
  std::expected<XrcDomain*, OpenError> open(int fd, int flags, daemon::Client&,
                                            std::uint32_t ifindex, const WithEngine&);
  // Once for each open, when nothing that was made with it is left.
  void close(XrcDomain*, daemon::Client&, const WithEngine&);

 private:
  std::expected<XrcDomain*, OpenError> share(const daemon::XrcKey&, int flags, daemon::Client&,
                                             const WithEngine&);
  XrcDomain* enter(std::unique_ptr<XrcDomain>);
  std::mutex mutex_;
  std::map<XrcDomain*, std::unique_ptr<XrcDomain>> domains_;
  engine::XrcdId last_id_ = 0;
};

}  // namespace adverb::nic
