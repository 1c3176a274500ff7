// SPDX-License-Identifier: Apache-2.0
#include "nic/file_tree.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "nic/private_folder.hpp"

namespace adverb::nic {
namespace {

namespace fs = std::filesystem;

class FileTreeTest : public testing::Test {
 protected:
  FileTreeTest() {
    char name[] = "/tmp/file_tree_test_XXXXXX";
    root = mkdtemp(name);
  }
  ~FileTreeTest() override { fs::remove_all(root); }

  std::string read(const std::string& path) const {
    std::ifstream file(root + "/" + path);
    return file ? std::string{std::istreambuf_iterator<char>(file), {}} : "none";
  }
  ino_t inode(const std::string& path) const {
    struct stat st{};
    return ::stat((root + "/" + path).c_str(), &st) == 0 ? st.st_ino : 0;
  }
  unsigned pooled() const {
    return static_cast<unsigned>(std::distance(fs::directory_iterator(root + "/pool"), {}));
  }
  static TreeContent content(const std::string& state) {
    TreeContent c;
    c.file("sys/a/state", state);
    c.file("sys/a/zero", "0\n");
    c.file("sys/a/b/zero", "0\n");
    c.file("sys/a/none", "");
    c.link("sys/a/device", "../b");
    return c;
  }
  std::string root;
};

TEST_F(FileTreeTest, BecomesWhatIsWanted) {
  FileTree tree(root);
  ASSERT_EQ(tree.become(content("up\n")), 0);
  EXPECT_EQ(read("sys/a/state"), "up\n");
  EXPECT_EQ(read("sys/a/none"), "");
  EXPECT_EQ(fs::read_symlink(root + "/sys/a/device"), "../b");
  EXPECT_EQ(fs::status(root + "/sys/a/state").permissions(), fs::perms(0444));
  const ino_t state = inode("sys/a/state"), zero = inode("sys/a/zero");
  ASSERT_EQ(tree.become(content("down\n")), 0);
  EXPECT_EQ(read("sys/a/state"), "down\n");
  EXPECT_NE(inode("sys/a/state"), state) << "replaced as a whole";
  EXPECT_EQ(inode("sys/a/zero"), zero) << "not touched";
}

TEST_F(FileTreeTest, EqualContentsAreOneFile) {
  FileTree tree(root);
  ASSERT_EQ(tree.become(content("0\n")), 0);
  EXPECT_EQ(inode("sys/a/zero"), inode("sys/a/b/zero"));
  EXPECT_EQ(inode("sys/a/zero"), inode("sys/a/state"));
  EXPECT_EQ(pooled(), 2u) << "one for 0, one for the empty one";
  ASSERT_EQ(tree.rewrite("sys/a/state", "7\n"), 0);
  EXPECT_EQ(read("sys/a/state") + read("sys/a/zero"), "7\n0\n");
  ASSERT_EQ(tree.rewrite("sys/a/state", "8\n"), 0);
  ASSERT_EQ(tree.rewrite("sys/a/state", "0\n"), 0);
  EXPECT_EQ(inode("sys/a/state"), inode("sys/a/zero"));
  EXPECT_EQ(pooled(), 2u) << "what nobody has any more is gone";
  EXPECT_EQ(tree.rewrite("sys/a/other", "1\n"), ENOENT);
}

TEST_F(FileTreeTest, WhatIsNotWantedGoes) {
  FileTree tree(root);
  ASSERT_EQ(tree.become(content("up\n")), 0);
  TreeContent next;
  next.file("sys/a/device/numa_node", "-1\n");  // was a link
  next.link("sys/a/b", "elsewhere");            // was a folder
  ASSERT_EQ(tree.become(next), 0);
  EXPECT_EQ(read("sys/a/device/numa_node"), "-1\n");
  EXPECT_TRUE(fs::is_symlink(root + "/sys/a/b"));
  EXPECT_EQ(std::distance(fs::directory_iterator(root + "/sys/a"), {}), 2);
  EXPECT_EQ(pooled(), 1u);
  ASSERT_EQ(tree.become({}), 0);
  EXPECT_FALSE(fs::exists(root + "/sys"));
}

TEST_F(FileTreeTest, AFolderThatIsGoneIsAnError) {
  FileTree tree(root);
  ASSERT_EQ(tree.become(content("up\n")), 0);
  fs::remove_all(root);
  EXPECT_NE(tree.become(content("down\n")), 0);
}

// --- private_folder.hpp

TEST_F(FileTreeTest, APrivateFolderIsOursAloneAndReplacesOneOfBefore) {
  setenv("XDG_RUNTIME_DIR", root.c_str(), 1);
  const std::string first = make_private_folder();
  ASSERT_TRUE(first.starts_with(root + "/adverb-" + std::to_string(geteuid()) + "/sysfs-"))
      << first;
  EXPECT_EQ(fs::status(first).permissions(), fs::perms::owner_all);
  std::ofstream(first + "/file") << "x";
  const std::string again = make_private_folder();
  EXPECT_EQ(again, first) << "the name is the process's";
  EXPECT_TRUE(fs::is_empty(again));
  remove_private_folder(again);
  EXPECT_TRUE(fs::is_empty(root));
  unsetenv("XDG_RUNTIME_DIR");
}

TEST_F(FileTreeTest, FoldersOfTheDeadAreSweptAndOthersStay) {
  setenv("XDG_RUNTIME_DIR", root.c_str(), 1);
  const std::string own = make_private_folder();
  const std::string users = own.substr(0, own.rfind('/'));
  const std::string space =
      own.substr(users.size() + 7, own.find('-', users.size() + 7) - users.size() - 7);
  const auto make = [&](const std::string& name) {
    fs::create_directories(users + "/" + name + "/sys/class");
    std::ofstream(users + "/" + name + "/sys/class/file") << "x";
  };
  const std::string parent = std::to_string(getppid());
  make("sysfs-" + space + "-2147483646-5");                 // no such process
  make("sysfs-" + space + "-" + parent + "-999999999999");  // its number has been given again
  make("sysfs-" + space + "-" + parent + "-0");             // lives
  make("sysfs-7-2147483646-5");                             // of another PID namespace
  make("something");
  remove_private_folder(make_private_folder());
  std::vector<std::string> left;
  for (const auto& e : fs::directory_iterator(users)) left.push_back(e.path().filename());
  EXPECT_THAT(left, testing::UnorderedElementsAre("sysfs-" + space + "-" + parent + "-0",
                                                  "sysfs-7-2147483646-5", "something"));
  unsetenv("XDG_RUNTIME_DIR");
}

}  // namespace
}  // namespace adverb::nic
