// SPDX-License-Identifier: Apache-2.0
#include "nic/private_folder.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace adverb::nic {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

int open_folder(int at, const char* name) {
  return openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

// Calls f(name) for each entry; `fd` stays the caller's.
template <class F>
void for_each_entry(int fd, F&& f) {
  const int copy = open_folder(fd, ".");
  if (copy < 0) return;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(fdopendir(copy), closedir);
  if (!folder) {
    close(copy);
    return;
  }
  while (const dirent* entry = readdir(folder.get()))
    if (std::strcmp(entry->d_name, ".") != 0 && std::strcmp(entry->d_name, "..") != 0)
      f(entry->d_name);
}

void remove_tree(int at, const char* name) {
  if (unlinkat(at, name, 0) == 0) return;
  if (const Descriptor folder(open_folder(at, name)); folder.get() >= 0)
    for_each_entry(folder.get(), [&](const char* entry) { remove_tree(folder.get(), entry); });
  unlinkat(at, name, AT_REMOVEDIR);
}

// Clock ticks after boot; 0: unknown.
unsigned long long start_of(int pid) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(
      std::fopen(fmt::format("/proc/{}/stat", pid).c_str(), "re"), std::fclose);
  char line[1024];
  if (!file || !std::fgets(line, sizeof line, file.get())) return 0;
  const char* text = std::strrchr(line, ')');  // the program's name may hold anything
  for (int field = 2; text && field < 22; ++field) text = std::strchr(text + 1, ' ');
  return text ? std::strtoull(text, nullptr, 10) : 0;
}

struct Owner {
  unsigned long long pid_namespace;
  int pid;
  unsigned long long start;
};

unsigned long long own_pid_namespace() {
  struct stat st{};
  return stat("/proc/self/ns/pid", &st) == 0 ? st.st_ino : 0;
}

bool is_alive(const Owner& o) {
  if (kill(o.pid, 0) != 0 && errno == ESRCH) return false;
  const unsigned long long start = start_of(o.pid);
  return start == 0 || o.start == 0 || start == o.start;
}

// Of another PID namespace nobody here can say whether it lives.
void sweep(int folder, const Owner& self) {
  for_each_entry(folder, [&](const char* name) {
    Owner o{};
    if (std::sscanf(name, "sysfs-%llu-%d-%llu", &o.pid_namespace, &o.pid, &o.start) != 3) return;
    if (o.pid_namespace != self.pid_namespace || o.pid <= 0) return;
    if (o.pid == self.pid || !is_alive(o)) remove_tree(folder, name);
  });
}

// The user's folder at that place: ours alone and no symbolic link, or nothing.
int open_users_folder(const std::string& path) {
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return -1;
  const int fd = open_folder(AT_FDCWD, path.c_str());
  struct stat st{};
  if (fd >= 0 && fstat(fd, &st) == 0 && st.st_uid == geteuid() &&
      ((st.st_mode & 07777) == 0700 || fchmod(fd, 0700) == 0))
    return fd;
  if (fd >= 0) {
    close(fd);
    errno = EPERM;
  }
  return -1;
}

std::string make_below(const char* place, const Owner& self) {
  const std::unique_ptr<char, void (*)(void*)> base(realpath(place, nullptr), std::free);
  if (!base) return {};
  const std::string path = fmt::format("{}/adverb-{}", base.get(), geteuid());
  const Descriptor folder(open_users_folder(path));
  if (folder.get() < 0) return {};
  sweep(folder.get(), self);
  const std::string name = fmt::format("sysfs-{}-{}-{}", self.pid_namespace, self.pid, self.start);
  if (mkdirat(folder.get(), name.c_str(), 0700) != 0) return {};
  return path + "/" + name;
}

}  // namespace

std::string make_private_folder() {
  const Owner self{own_pid_namespace(), getpid(), start_of(getpid())};
  int error = ENOENT;
  const char* places[] = {secure_getenv("XDG_RUNTIME_DIR"), "/dev/shm", secure_getenv("TMPDIR"),
                          "/tmp"};
  for (const char* place : places) {
    if (!place || *place != '/') continue;
    if (std::string path = make_below(place, self); !path.empty()) return path;
    error = errno;
  }
  errno = error;
  return {};
}

void remove_private_folder(const std::string& path) {
  remove_tree(AT_FDCWD, path.c_str());
  // The user's, if this was the last one.
  rmdir(path.substr(0, path.rfind('/')).c_str());
}

}  // namespace adverb::nic
