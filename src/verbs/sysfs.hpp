// SPDX-License-Identifier: Apache-2.0
// What the kernel shows of RDMA devices in /sys/class/infiniband* and /dev/infiniband, for programs
// that read it themselves.  Every value comes from the function that the verbs have it from.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "nic/device.hpp"
#include "nic/enumerate.hpp"
#include "nic/file_tree.hpp"
#include "verbs/api.hpp"

namespace adverb::verbs {

// --- device.cpp
struct ListedDevice {
  std::string dev_name;  // "uverbs0"
  nic::DeviceInfo info;
  std::shared_ptr<nic::Device> opened;  // by this process; or null
};
// What ibv_get_device_list(3) would return now, and what is open although its interface has gone
// down since.
std::vector<ListedDevice> list_devices();

// --- query.cpp
PortAttributes port_attributes(const nic::DeviceInfo&, bool up);
// False: that entry of the table is empty.
bool gid_entry(const nic::DeviceInfo&, unsigned index, ibv_gid_entry&);

// --- sysfs_content.cpp
// Below `sys` and `dev` what stands there; below `behind`, under their whole names, the folders of
// other devices in which the kernel lists the RDMA devices that belong to them.
nic::TreeContent sysfs_content();
// Only the counters, into a tree that has the rest; an errno.
int refresh_counters(nic::FileTree&);

}  // namespace adverb::verbs

// --- sysfs.cpp
// For libadverb-sys.so: brings the tree up to date for a look at `path`, and returns the folder in
// which it stands; null: there is none.
ADVERB_API const char* adverb_sysfs(const char* path);
