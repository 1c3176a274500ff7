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
#include <vector>

#include "base/anew.hpp"
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
  const char* look(const char* path);
  void remove();

 private:
  bool ours() const { return !trees_.empty() && pid_ == getpid() && uid_ == geteuid(); }
  nic::FileTree& tree() { return *trees_.back(); }
  bool make();
  int renew(bool counters);

  std::mutex mutex_;
  std::atomic<pid_t> holder_{0};  // the thread that has the mutex
  // The last one is in use; somebody may still read the name of one before.
  std::vector<std::unique_ptr<nic::FileTree>> trees_;
  pid_t pid_ = 0;
  uid_t uid_ = 0;
  std::int64_t renewed_ = 0;
  bool complained_ = false, over_ = false;
};

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
  if (ours()) nic::remove_private_folder(tree().root());
  trees_.push_back(std::make_unique<nic::FileTree>(root));
  pid_ = getpid();
  uid_ = geteuid();
  renewed_ = 0;
  return true;
}

int Sysfs::renew(bool counters) {
  const std::int64_t now = now_ns();
  if (renewed_ == 0 || now - renewed_ >= renewal_ns) {
    if (const int error = tree().become(sysfs_content())) return error;
    renewed_ = now;
    return 0;
  }
  return counters ? refresh_counters(tree()) : 0;
}

// A handler of a signal that came while this thread was here takes the tree as it is.
const char* Sysfs::look(const char* path) {
  if (holder_.load(std::memory_order_relaxed) == gettid())
    return ours() && renewed_ ? tree().root().c_str() : nullptr;
  std::lock_guard hold(mutex_);
  if (over_) return nullptr;
  holder_.store(gettid(), std::memory_order_relaxed);
  const char* root = nullptr;
  const bool counters = std::strstr(path, "counters/") != nullptr;
  // Somebody may have removed the folder, or this process has changed its root: then a new one.
  for (int attempt = 0; attempt < 2 && !root; ++attempt) {
    if ((!ours() || attempt > 0) && !make()) break;
    if (renew(counters) == 0) root = tree().root().c_str();
  }
  holder_.store(0, std::memory_order_relaxed);
  return root;
}

void Sysfs::remove() {
  if (!mutex_.try_lock()) return;  // the thread that has it is cut off by the process's end
  over_ = true;
  if (ours()) nic::remove_private_folder(tree().root());
  mutex_.unlock();
}

// Lives for ever, and is there before any thread: a child that is forked while another thread makes
// it would wait for that one.
union Living {
  constexpr Living() : sysfs() {}
  ~Living() {}
  Sysfs sysfs;
};
constinit Living living;
std::atomic<bool> used{false};

// A fork may come in the midst of open_device, which holds what renew() waits for: so nothing waits
// at a fork, and the child begins anew.
__attribute__((constructor)) void at_load() {
  nic::Device::opened();  // the registry's handlers, before any thread as well
  pthread_atfork(nullptr, nullptr, [] {
    if (used.load(std::memory_order_relaxed)) make_anew(living.sysfs);
  });
}

// Behind the application's own exit handlers, which may still look.
__attribute__((destructor)) void at_end() {
  if (used.load(std::memory_order_relaxed)) living.sysfs.remove();
}

}  // namespace
}  // namespace adverb::verbs

using namespace adverb::verbs;

ADVERB_API const char* adverb_sysfs(const char* path) {
  used.store(true, std::memory_order_relaxed);
  return guarded([&] { return living.sysfs.look(path); });
}
