// SPDX-License-Identifier: Apache-2.0
#include "sys/path.h"

#include <gtest/gtest.h>

#include <string>

namespace {

struct Classified {
  sys_place place;
  std::string path;
  bool operator==(const Classified&) const = default;
};
void PrintTo(const Classified& c, std::ostream* out) { *out << c.place << " " << c.path; }

Classified classify(const std::string& path) {
  char out[PATH_MAX] = "";
  const sys_place place = sys_classify(path.c_str(), out);
  if (place != SYS_ELSEWHERE && !sys_candidate(path.c_str())) return {place, "no candidate"};
  return {place, place == SYS_ELSEWHERE ? "" : out};
}
Classified tree(const std::string& path) { return {SYS_TREE, path}; }
Classified behind(const std::string& path) { return {SYS_BEHIND, path}; }
Classified left(const std::string& path) { return {SYS_LEFT, path}; }
const Classified elsewhere{SYS_ELSEWHERE, ""};

TEST(SysPath, TheFourFoldersAndWhatIsBelowThem) {
  for (const char* path :
       {"/sys/class/infiniband", "/sys/class/infiniband/adverb0/ports/1/state",
        "/sys/class/infiniband_verbs", "/sys/class/infiniband_verbs/uverbs0/ibdev",
        "/sys/class/infiniband_mad/abi_version", "/dev/infiniband", "/dev/infiniband/uverbs0"})
    EXPECT_EQ(classify(path), tree(path));
}

TEST(SysPath, AComponentIsAWholeOne) {
  for (const char* path :
       {"/sys/class/infiniband2", "/sys/class/infiniband_verbs2/x", "/sys/class/infiniban",
        "/dev/infiniband0", "/dev/infinibandx/uverbs0", "/sys/class/net", "/sys", "/sys/class",
        "/dev", "/", "", "/system/class/infiniband", "/sys/fs/cgroup/infiniband", "/devinfiniband",
        "/tmp/sys/class/infiniband", "/sys/class/infiniband_qib"})
    EXPECT_EQ(classify(path), elsewhere) << path;
}

TEST(SysPath, HoweverItIsSpelled) {
  EXPECT_EQ(classify("//sys///class//infiniband"), tree("/sys/class/infiniband"));
  EXPECT_EQ(classify("/./sys/./class/infiniband/./x/."), tree("/sys/class/infiniband/x"));
  EXPECT_EQ(classify("/sys/class/net/../infiniband/x"), tree("/sys/class/infiniband/x"));
  EXPECT_EQ(classify("/dev/../sys/class/infiniband"), tree("/sys/class/infiniband"));
  EXPECT_EQ(classify("/sys/class/infiniband/x/../y"), tree("/sys/class/infiniband/y"));
  EXPECT_EQ(classify("/../sys/class/infiniband"), tree("/sys/class/infiniband"));
  EXPECT_EQ(classify("/sys/class/infiniband/"), tree("/sys/class/infiniband/"));
  EXPECT_EQ(classify("/dev//infiniband//"), tree("/dev/infiniband//"));
}

TEST(SysPath, OutByDotDot) {
  EXPECT_EQ(classify("/sys/class/infiniband/../net/eth0"), left("/sys/class/net/eth0"));
  EXPECT_EQ(classify("/dev/infiniband/../null"), left("/dev/null"));
  EXPECT_EQ(classify("/sys/class/net/../block"), elsewhere);
}

// What stands behind a symbolic link only the kernel knows.
TEST(SysPath, DotDotBehindALinkStays) {
  EXPECT_EQ(classify("/sys/class/infiniband/x/device/../y"),
            tree("/sys/class/infiniband/x/device/../y"));
  EXPECT_EQ(classify("/sys/class/net/eth0/../../infiniband"), elsewhere);
}

// A host with hardware lists it in the folders of its bus, too (C72).
TEST(SysPath, FoldersOfOtherDevices) {
  for (const char* path :
       {"/sys/class/net/eth0/device/infiniband", "/sys/class/net/eth0/device/infiniband/mana_0",
        "/sys/devices/pci0000:00/0000:00:03.0/infiniband/mana_0/ports/1/state",
        "/sys/bus/pci/devices/0000:00:03.0/infiniband_verbs/uverbs0",
        "/sys/class/infiniband/adverb0/device/infiniband/mana_0",
        "/sys/devices/virtual/infiniband"})
    EXPECT_EQ(classify(path), behind(path));
  EXPECT_EQ(classify("/sys/class/infiniband/infiniband/ports"),
            tree("/sys/class/infiniband/infiniband/ports"))
      << "a device may be called so";
  EXPECT_EQ(classify("/sys/class/infiniband/adverb0/device/numa_node"),
            tree("/sys/class/infiniband/adverb0/device/numa_node"));
}

TEST(SysPath, LongPathsAreLeftAlone) {
  const std::string path = "/sys/class/infiniband/" + std::string(PATH_MAX, 'x');
  EXPECT_EQ(classify(path), elsewhere);
  const std::string fits = "/sys/class/infiniband/" + std::string(PATH_MAX - 23, 'x');
  EXPECT_EQ(classify(fits), tree(fits));
}

std::string restored(std::string path) {
  path.resize(path.size() + 1);
  const int changed = sys_restore(path.data());
  return (changed ? "" : "= ") + std::string(path.c_str());
}

TEST(SysPath, FromATreeToWhatItStandsFor) {
  EXPECT_EQ(restored("/dev/shm/adverb-0/sysfs-4026-12-77/sys/class/infiniband/adverb0"),
            "/sys/class/infiniband/adverb0");
  EXPECT_EQ(restored("/run/user/1000/adverb-1000/sysfs-1-2-3/dev/infiniband"), "/dev/infiniband");
  EXPECT_EQ(restored("/tmp/adverb-0/sysfs-1-2-3/behind/sys/class/net/eth0/device/infiniband"),
            "/sys/class/net/eth0/device/infiniband");
  EXPECT_EQ(restored("/tmp/adverb-x/adverb-7/sysfs-1-2-3/sys/class"), "/sys/class");
  for (const char* path : {"/sys/class/infiniband", "/tmp/adverb-0/other", "/adverb-0/sysfs-1-2-3"})
    EXPECT_EQ(restored(path), std::string("= ") + path);
}

}  // namespace
