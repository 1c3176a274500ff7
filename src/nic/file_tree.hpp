// SPDX-License-Identifier: Apache-2.0
// A tree of small files below a folder, kept at a wanted content.  A file changes by being replaced
// as a whole, and only when its content does.  Files of equal content are hard links of one: a
// page of memory for each content, not for each file.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace adverb::nic {

struct TreeEntry {
  enum class Kind : std::uint8_t { folder, file, link };
  Kind kind = Kind::folder;
  std::string text;  // of a file: its content; of a link: where it leads
  bool operator==(const TreeEntry&) const = default;
};

// By path, relative to the root.
class TreeContent {
 public:
  void file(const std::string& path, std::string text);
  void link(const std::string& path, std::string target);
  void folder(const std::string& path);  // and those above it
  const std::map<std::string, TreeEntry>& entries() const { return entries_; }

 private:
  friend class FileTree;
  std::map<std::string, TreeEntry> entries_;
};

class FileTree {
 public:
  // `root` exists, is empty, and is nobody else's.
  explicit FileTree(std::string root) : root_(std::move(root)) {}
  const std::string& root() const { return root_; }

  // Makes the tree that content, all of it.  Both return an errno, after which the tree is of no
  // use any more.
  int become(TreeContent);
  // One file that is there.
  int rewrite(const std::string& path, std::string_view text);

 private:
  struct Pooled {
    unsigned number, files;  // its name in the pool, and how many have it
  };
  std::string at(std::string_view path) const { return root_ + "/" + std::string(path); }
  std::string pooled(unsigned number) const { return at("pool/" + std::to_string(number)); }
  int remove(const std::string& path, const TreeEntry&);
  int create(const std::string& path, const TreeEntry&);
  int put(const std::string& path, const std::string& text);
  int write(const std::string& path, std::string_view text);
  void let_go(const std::string& text);

  std::string root_;
  TreeContent now_;
  std::map<std::string, Pooled> pool_;
  unsigned numbers_ = 0;
};

}  // namespace adverb::nic
