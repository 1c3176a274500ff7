// SPDX-License-Identifier: Apache-2.0
#include "nic/file_tree.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

namespace adverb::nic {

using Kind = TreeEntry::Kind;

void TreeContent::folder(const std::string& path) {
  if (!entries_.try_emplace(path).second) return;
  if (const auto slash = path.rfind('/'); slash != path.npos) folder(path.substr(0, slash));
}

void TreeContent::file(const std::string& path, std::string text) {
  folder(path.substr(0, path.rfind('/')));
  entries_[path] = {Kind::file, std::move(text)};
}

void TreeContent::link(const std::string& path, std::string target) {
  folder(path.substr(0, path.rfind('/')));
  entries_[path] = {Kind::link, std::move(target)};
}

int FileTree::become(TreeContent wanted) {
  if (numbers_ == 0 && mkdir(at("pool").c_str(), 0700) != 0 && errno != EEXIST) return errno;
  // What is in a folder stands behind it.
  for (auto old = now_.entries_.rbegin(); old != now_.entries_.rend(); ++old) {
    const auto found = wanted.entries_.find(old->first);
    if (found != wanted.entries_.end() && found->second.kind == old->second.kind) continue;
    if (const int error = remove(old->first, old->second)) return error;
  }
  for (const auto& [path, entry] : wanted.entries_) {
    const auto found = now_.entries_.find(path);
    const bool there = found != now_.entries_.end() && found->second.kind == entry.kind;
    if (there && found->second == entry) continue;
    if (const int error = create(path, entry)) return error;
    if (there && entry.kind == Kind::file) let_go(found->second.text);
  }
  now_ = std::move(wanted);
  return 0;
}

int FileTree::rewrite(const std::string& path, std::string_view text) {
  const auto found = now_.entries_.find(path);
  if (found == now_.entries_.end() || found->second.kind != Kind::file) return ENOENT;
  std::string& old = found->second.text;
  if (old == text) return 0;
  std::string fresh(text);
  if (const int error = put(path, fresh)) return error;
  std::swap(old, fresh);
  let_go(fresh);
  return 0;
}

int FileTree::remove(const std::string& path, const TreeEntry& entry) {
  const std::string name = at(path);
  if ((entry.kind == Kind::folder ? rmdir(name.c_str()) : unlink(name.c_str())) != 0) return errno;
  if (entry.kind == Kind::file) let_go(entry.text);
  return 0;
}

int FileTree::create(const std::string& path, const TreeEntry& entry) {
  const std::string name = at(path);
  switch (entry.kind) {
    case Kind::folder:
      return mkdir(name.c_str(), 0755) == 0 ? 0 : errno;
    case Kind::link:
      unlink(name.c_str());
      return symlink(entry.text.c_str(), name.c_str()) == 0 ? 0 : errno;
    case Kind::file:
      return put(path, entry.text);
  }
  return 0;
}

// Gives the path that content; who had another one there lets go of it.
int FileTree::put(const std::string& path, const std::string& text) {
  const auto [content, fresh] = pool_.try_emplace(text, Pooled{numbers_, 0});
  Pooled& p = content->second;
  if (fresh) {
    ++numbers_;
    if (const int error = write(pooled(p.number), text)) return error;
  }
  ++p.files;
  const std::string from = pooled(p.number), to = at(path);
  if (link(from.c_str(), to.c_str()) == 0) return 0;
  const std::string beside = at("pool/new");
  unlink(beside.c_str());
  // There is a file already, or this file system has no hard links.
  if (link(from.c_str(), beside.c_str()) != 0)
    if (const int error = write(beside, text)) return error;
  return std::rename(beside.c_str(), to.c_str()) == 0 ? 0 : errno;
}

int FileTree::write(const std::string& path, std::string_view text) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0444);
  if (fd < 0) return errno;
  int error = 0;
  if (fchmod(fd, 0444) != 0) error = errno;
  const ssize_t n = ::write(fd, text.data(), text.size());
  if (!error && n != static_cast<ssize_t>(text.size())) error = n < 0 ? errno : ENOSPC;
  close(fd);
  return error;
}

void FileTree::let_go(const std::string& text) {
  const auto content = pool_.find(text);
  if (content == pool_.end() || --content->second.files != 0) return;
  unlink(pooled(content->second.number).c_str());
  pool_.erase(content);
}

}  // namespace adverb::nic
