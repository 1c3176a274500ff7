// SPDX-License-Identifier: Apache-2.0
// The tree of files of this process: when it is made, renewed and removed.  Each process has its
// own, since devices, and what their counters say, are a process's own.
#include "verbs/sysfs.hpp"

#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include "nic/log.hpp"
#include "nic/private_folder.hpp"
#include "verbs/guard.hpp"

namespace adverb::verbs {
namespace {

constexpr std::int64_t renewal_ns = 100'000'000;

std::int64_t now_ns() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * std::int64_t{1'000'000'000} + t.tv_nsec;
}

class Sysfs {
 public:
  static Sysfs& instance() {
    static auto* sysfs = new Sysfs;
    return *sysfs;
  }
  const char* look(const char* path);
  void remove();

 private:
  Sysfs();
  bool ours() const { return tree_ && pid_ == getpid() && uid_ == geteuid(); }
  bool make();
  int renew(bool counters);

  std::mutex mutex_;
  std::atomic<pid_t> holder_{0};  // the thread that has the mutex
  std::unique_ptr<nic::FileTree> tree_;
  pid_t pid_ = 0;
  uid_t uid_ = 0;
  std::int64_t renewed_ = 0;
  bool complained_ = false, over_ = false;
};

Sysfs::Sysfs() {
  // The handlers of open devices come first, so that a fork takes their locks after this one, as
  // renew() does.
  nic::Device::opened();
  pthread_atfork([] { instance().mutex_.lock(); }, [] { instance().mutex_.unlock(); },
                 [] { instance().mutex_.unlock(); });
}

bool Sysfs::make() {
  const std::string root = nic::make_private_folder();
  if (root.empty()) {
    if (!std::exchange(complained_, true))
      nic::log(nic::LogLevel::warn,
               "no folder for /sys/class/infiniband ($XDG_RUNTIME_DIR, /dev/shm, $TMPDIR, /tmp): "
               "{}; programs that read it see no device",
               std::strerror(errno));
    return false;
  }
  if (ours()) nic::remove_private_folder(tree_->root());
  tree_ = std::make_unique<nic::FileTree>(root);
  pid_ = getpid();
  uid_ = geteuid();
  renewed_ = 0;
  return true;
}

int Sysfs::renew(bool counters) {
  const std::int64_t now = now_ns();
  if (renewed_ == 0 || now - renewed_ >= renewal_ns) {
    if (const int error = tree_->become(sysfs_content())) return error;
    renewed_ = now;
    return 0;
  }
  return counters ? refresh_counters(*tree_) : 0;
}

// A handler of a signal that came while this thread was here takes the tree as it is.
const char* Sysfs::look(const char* path) {
  if (holder_.load(std::memory_order_relaxed) == gettid())
    return ours() && renewed_ ? tree_->root().c_str() : nullptr;
  std::lock_guard hold(mutex_);
  if (over_) return nullptr;
  holder_.store(gettid(), std::memory_order_relaxed);
  const char* root = nullptr;
  const bool counters = std::strstr(path, "counters/") != nullptr;
  // Somebody may have removed the folder, or this process has changed its root: then a new one.
  for (int attempt = 0; attempt < 2 && !root; ++attempt) {
    if ((!ours() || attempt > 0) && !make()) break;
    if (renew(counters) == 0) root = tree_->root().c_str();
  }
  holder_.store(0, std::memory_order_relaxed);
  return root;
}

void Sysfs::remove() {
  if (!mutex_.try_lock()) return;  // the thread that has it is cut off by the process's end
  over_ = true;
  if (ours()) nic::remove_private_folder(tree_->root());
  mutex_.unlock();
}

std::atomic<bool> used{false};

// Behind the application's own exit handlers, which may still look.
__attribute__((destructor)) void at_end() {
  if (used.load()) Sysfs::instance().remove();
}

}  // namespace
}  // namespace adverb::verbs

using namespace adverb::verbs;

ADVERB_API const char* adverb_sysfs(const char* path) {
  used.store(true, std::memory_order_relaxed);
  return guarded([&] { return Sysfs::instance().look(path); });
}
