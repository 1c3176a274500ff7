// SPDX-License-Identifier: Apache-2.0
// The files of RDMA devices as Documentation/ABI/stable/sysfs-class-infiniband of the kernel has
// them: names, and the form of what stands in them.
#include <fmt/format.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <string_view>

#include "verbs/sysfs.hpp"

namespace adverb::verbs {
namespace {

const std::string infiniband = "sys/class/infiniband/";

// --- counters of what this process has open; all 0 otherwise

struct DeviceCounters {
  engine::Counters engine;
  port::PortCounters port;
};

DeviceCounters counters_of(const nic::Device& d) {
  return {d.engine_counters(), d.port_counters()};
}

// f(path below the port's folder, value).  Data is counted in units of four octets, from the
// transport header to the ICRC.
template <class F>
void for_each_counter(const DeviceCounters& c, F&& f) {
  const port::PortCounters& p = c.port;
  const std::pair<std::string_view, std::uint64_t> standard[] = {
      {"VL15_dropped", 0},
      {"excessive_buffer_overrun_errors", 0},
      {"link_downed", 0},
      {"link_error_recovery", 0},
      {"local_link_integrity_errors", 0},
      {"port_rcv_constraint_errors", 0},
      {"port_rcv_data", p.rx_bytes / 4},
      {"port_rcv_errors", p.drop_decode_short + p.drop_decode_opcode + p.drop_decode_version +
                              p.drop_decode_pad + p.drop_icrc + p.drop_truncated},
      {"port_rcv_packets", p.rx_datagrams},
      {"port_rcv_remote_physical_errors", 0},
      {"port_rcv_switch_relay_errors", 0},
      {"port_xmit_constraint_errors", 0},
      {"port_xmit_data", p.tx_bytes / 4},
      {"port_xmit_discards", p.tx_errors + p.tx_too_big},
      {"port_xmit_packets", p.tx_datagrams},
      {"port_xmit_wait", 0},
      {"symbol_error", 0},
      {"unicast_rcv_packets", p.rx_datagrams},
      {"unicast_xmit_packets", p.tx_datagrams},
      {"multicast_rcv_packets", 0},
      {"multicast_xmit_packets", 0},
  };
  for (const auto& [name, value] : standard) f("counters/" + std::string(name), value);
  engine::for_each_counter(c.engine, [&](std::string_view name, std::uint64_t value) {
    f("hw_counters/" + std::string(name), value);
  });
  f("hw_counters/rx_icrc_encapsulated", p.drop_icrc);
}

std::string line(std::uint64_t number) { return std::to_string(number) + "\n"; }

std::string port_folder(const std::string& device) { return infiniband + device + "/ports/1/"; }

// --- words of the kernel's

std::string state_line(ibv_port_state state) {
  constexpr std::array names{"NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"};
  return fmt::format("{}: {}\n", static_cast<unsigned>(state), names.at(state));
}

std::string phys_state_line(unsigned state) {
  constexpr std::array names{
      "<unknown>",         "Sleep",   "Polling", "Disabled", "PortConfigurationTraining", "LinkUp",
      "LinkErrorRecovery", "Phy Test"};
  return fmt::format("{}: {}\n", state, names.at(state));
}

struct Named {
  unsigned code;
  const char* name;
  unsigned value;  // of a speed: in units of 100 Mb/s a lane; of a width: lanes
};
constexpr Named speeds[] = {{1, "SDR", 25},    {2, "DDR", 50},    {4, "QDR", 100},
                            {8, "FDR10", 100}, {16, "FDR", 140},  {32, "EDR", 250},
                            {64, "HDR", 500},  {128, "NDR", 1000}};
constexpr Named widths[] = {{1, "", 1}, {2, "", 4}, {4, "", 8}, {8, "", 12}, {16, "", 2}};

template <std::size_t N>
const Named& find(const Named (&table)[N], unsigned code) {
  for (const Named& row : table)
    if (row.code == code) return row;
  return table[0];
}

std::string rate_line(const ibv_port_attr& a) {
  const Named& speed = find(speeds, a.active_speed);
  const unsigned lanes = find(widths, a.active_width).value;
  const unsigned rate = speed.value * lanes;
  return fmt::format("{}{} Gb/sec ({}X {})\n", rate / 10, rate % 10 ? ".5" : "", lanes, speed.name);
}

// Of 8 or 16 bytes, as four digits and a colon.
template <class Bytes>
std::string quads(const Bytes& bytes) {
  std::string text;
  for (unsigned i = 0; i < std::size(bytes); i += 2)
    text += fmt::format("{}{:02x}{:02x}", i ? ":" : "", bytes[i], bytes[i + 1]);
  return text + '\n';
}

// --- a device

void add_port(nic::TreeContent& tree, const nic::DeviceInfo& info, bool up) {
  const std::string port = port_folder(info.name);
  const ibv_port_attr a = port_attributes(info, up).v44;
  tree.file(port + "state", state_line(a.state));
  tree.file(port + "phys_state", phys_state_line(a.phys_state));
  tree.file(port + "rate", rate_line(a));
  tree.file(port + "link_layer", "Ethernet\n");
  tree.file(port + "lid", fmt::format("0x{:x}\n", a.lid));
  tree.file(port + "lid_mask_count", line(a.lmc));
  tree.file(port + "sm_lid", fmt::format("0x{:x}\n", a.sm_lid));
  tree.file(port + "sm_sl", line(a.sm_sl));
  tree.file(port + "cap_mask", fmt::format("0x{:08x}\n", a.port_cap_flags));
  for (unsigned i = 0; i < a.pkey_tbl_len; ++i)
    tree.file(port + "pkeys/" + std::to_string(i), "0xffff\n");
  for (int i = 0; i < a.gid_tbl_len; ++i) {
    ibv_gid_entry entry{};
    const bool used = gid_entry(info, static_cast<unsigned>(i), entry);
    const char* type = entry.gid_type == IBV_GID_TYPE_ROCE_V2 ? "RoCE v2\n" : "IB/RoCE v1\n";
    const std::string index = std::to_string(i);
    tree.file(port + "gids/" + index, quads(entry.gid.raw));
    // To read these of an empty entry is an error on a kernel (EINVAL); a file can only be empty.
    tree.file(port + "gid_attrs/types/" + index, used ? type : "");
    tree.file(port + "gid_attrs/ndevs/" + index, used ? info.netdev + "\n" : "");
  }
}

std::string resolved(const std::string& path) {
  char buffer[PATH_MAX];
  return realpath(path.c_str(), buffer) ? buffer : "";
}

bool exists(const std::string& path) {
  struct stat st{};
  return stat(path.c_str(), &st) == 0;
}

// The device of the interface in the host's /sys; empty: it has none, or /sys is of another network
// namespace.
std::string host_device(const nic::DeviceInfo& info) {
  const std::string folder = "/sys/class/net/" + info.netdev;
  unsigned ifindex = 0;
  std::ifstream(folder + "/ifindex") >> ifindex;
  return ifindex == info.ifindex ? resolved(folder + "/device") : "";
}

// The kernel's masks: groups of 32 processors, the highest first.
std::string cpu_mask(long cpus) {
  std::string text;
  for (; cpus > 0; cpus -= 32) {
    const auto bits = cpus >= 32 ? 0xffffffffu : (1u << cpus) - 1;
    text = (text.empty() ? fmt::format("{:08x}", bits) : fmt::format("{:08x},", bits) + text);
  }
  return text + "\n";
}

// A file that a bus above the device has for it, as PCI has for what sits on it.
void add_inherited(nic::TreeContent& tree, const std::string& folder, const char* name,
                   std::string device, std::string otherwise) {
  for (; device.size() > std::string_view("/sys/devices").size(); device.resize(device.rfind('/')))
    if (exists(device + "/" + name)) return tree.link(folder + name, device + "/" + name);
  tree.file(folder + name, std::move(otherwise));
}

// The device that the port is a port of.  An interface whose own has all that belongs to one leads
// there (a PCI function); others (virtio, virtual ones) get a folder.
void add_parent(nic::TreeContent& tree, const nic::DeviceInfo& info, const std::string& host) {
  const std::string device = infiniband + info.name + "/device";
  if (!host.empty() && exists(host + "/numa_node") && exists(host + "/net"))
    return tree.link(device, host);
  const long cpus = sysconf(_SC_NPROCESSORS_CONF);
  add_inherited(tree, device + "/", "numa_node", host, "-1\n");
  add_inherited(tree, device + "/", "local_cpus", host, cpu_mask(cpus));
  add_inherited(tree, device + "/", "local_cpulist", host, fmt::format("0-{}\n", cpus - 1));
  // No net/: programs take an interface there for one that librdmacm works on.
}

// `to`, as it leads from the folder of `from`; both relative to the root.
std::string relative(const std::string& from, const std::string& to) {
  std::string up;
  for (const char c : from)
    if (c == '/') up += "../";
  return up + to;
}

void add_behind(nic::TreeContent& tree, const ListedDevice& d, const std::string& host) {
  std::string folders[] = {"/" + infiniband + d.info.name + "/device",
                           "/sys/class/net/" + d.info.netdev + "/device", host};
  for (const std::string& folder : folders) {
    if (folder.empty() || (host.empty() && &folder != &folders[0])) continue;
    const std::string behind = "behind" + folder;
    const std::string device = behind + "/infiniband/" + d.info.name;
    const std::string uverbs = behind + "/infiniband_verbs/" + d.dev_name;
    tree.link(device, relative(device, infiniband + d.info.name));
    tree.link(uverbs, relative(uverbs, "sys/class/infiniband_verbs/" + d.dev_name));
  }
}

// Programs look whether it is a character device that they may read and write; nothing is written
// to it.
void add_node(nic::TreeContent& tree, const ListedDevice& d) {
  const std::string uverbs = "sys/class/infiniband_verbs/" + d.dev_name + "/";
  struct stat st{};
  const bool good = stat("/dev/null", &st) == 0;
  const dev_t number = good ? st.st_rdev : makedev(1, 3);
  tree.link("dev/infiniband/" + d.dev_name, "/dev/null");
  tree.file(uverbs + "dev", fmt::format("{}:{}\n", major(number), minor(number)));
  tree.file(uverbs + "ibdev", d.info.name + "\n");
  tree.file(uverbs + "abi_version", "1\n");
  tree.link(uverbs + "device", "../../infiniband/" + d.info.name + "/device");
}

void add_device(nic::TreeContent& tree, const ListedDevice& d, bool up) {
  const std::string folder = infiniband + d.info.name + "/";
  tree.file(folder + "node_type", "1: CA\n");
  tree.file(folder + "node_guid", quads(d.info.guid));
  tree.file(folder + "sys_image_guid", quads(d.info.guid));
  tree.file(folder + "node_desc", d.info.name + "\n");
  tree.file(folder + "fw_ver", ADVERB_VERSION "\n");
  tree.file(folder + "hca_type", "Adverb\n");
  tree.file(folder + "hw_rev", "0\n");
  tree.file(folder + "board_id", "ADVERB0000000001\n");
  const std::string host = host_device(d.info);
  add_parent(tree, d.info, host);
  add_port(tree, d.info, up);
  add_node(tree, d);
  add_behind(tree, d, host);
}

}  // namespace

nic::TreeContent sysfs_content() {
  nic::TreeContent tree;
  tree.folder("sys/class/infiniband");
  tree.folder("dev/infiniband");
  tree.file("sys/class/infiniband_verbs/abi_version", "6\n");
  tree.file("sys/class/infiniband_mad/abi_version", "5\n");
  for (const ListedDevice& d : list_devices()) {
    add_device(tree, d, d.opened ? d.opened->link_up() : d.info.up);
    for_each_counter(d.opened ? counters_of(*d.opened) : DeviceCounters{},
                     [&](const std::string& name, std::uint64_t value) {
                       tree.file(port_folder(d.info.name) + name, line(value));
                     });
  }
  return tree;
}

int refresh_counters(nic::FileTree& tree) {
  int error = 0;
  for (const auto& device : nic::Device::opened()) {
    const std::string folder = port_folder(device->info().name);
    for_each_counter(counters_of(*device), [&](const std::string& name, std::uint64_t value) {
      const int e = tree.rewrite(folder + name, line(value));
      if (e && e != ENOENT) error = e;  // one that has just been opened has no files yet
    });
  }
  return error;
}

}  // namespace adverb::verbs
