// SPDX-License-Identifier: Apache-2.0
// The process's open devices, shared by name, and what fork() does to them.  It has static storage
// and is never destroyed, since the application's exit handlers may still use devices.
#pragma once

#include <condition_variable>
#include <expected>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "nic/device_impl.hpp"

namespace adverb::nic {

class Registry {
 public:
  static Registry& instance();

  std::expected<std::shared_ptr<Device>, OpenError> open(const DeviceInfo&);
  std::vector<std::shared_ptr<Device>> opened();

 private:
  struct Entry {
    std::weak_ptr<Device> shared;
    Device::Impl* impl;  // lives as long as the entry
  };
  using Made = std::expected<std::unique_ptr<Device::Impl>, OpenError>;

  Registry();
  Made make(const DeviceInfo&);
  std::expected<std::shared_ptr<daemon::Client>, OpenError> connect();
  void close(Device*);

  static void before_fork();
  static void after_fork_in_parent();
  static void after_fork_in_child();
  static void at_exit();

  // Recursive: taking a slot may start adverbd, and so fork, in the midst of open().
  std::recursive_mutex mutex_;
  std::condition_variable_any closed_;
  std::map<std::string, Entry> devices_;
  std::weak_ptr<daemon::Client> client_;
};

}  // namespace adverb::nic
