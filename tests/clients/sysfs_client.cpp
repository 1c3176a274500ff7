// SPDX-License-Identifier: Apache-2.0
// A program that reads /sys/class/infiniband* and /dev/infiniband itself, by each function of the C
// and C++ libraries that takes a path.
//
//   sysfs_client expect        what the verbs say of every device, as `path value` lines
//   sysfs_client check         reads those files by every function: the same values?
//   sysfs_client list FOLDER   its entries, by every function that lists: the same ones?
//   sysfs_client real PATH     realpath(3) of it, and where readlink(2) leads
//   sysfs_client traffic N     N RDMA WRITEs of 4096 bytes: do the counters show them at once?
//   sysfs_client manners       errno, null pointers, a file that is not there, what is not ours
//   sysfs_client fork          a child has files of its own, and its end leaves the parent's
//   sysfs_client threads       eight read, while devices are opened and processes forked
//   sysfs_client race PATH     the first looks of four threads, while processes are forked
//   sysfs_client place         where the files of this process really are
//   sysfs_client hold PATH     reads it again at each line of standard input
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <net/if.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include "tests/clients/kit.hpp"

namespace adverb::clients {
namespace {

const std::string infiniband = "/sys/class/infiniband/";
int failures = 0;

void expect(bool good, const std::string& what) {
  if (good) return;
  ++failures;
  std::printf("wrong: %s (%s)\n", what.c_str(), std::strerror(errno));
}

// --- each way to read a file; "?" when it cannot be opened

std::string from_descriptor(int fd) {
  if (fd < 0) return "?";
  char buffer[4096];
  const ssize_t n = read(fd, buffer, sizeof buffer);
  close(fd);
  return n < 0 ? "?" : std::string(buffer, static_cast<std::size_t>(n));
}
std::string from_stream(std::FILE* file) {
  if (!file) return "?";
  char buffer[4096];
  const std::size_t n = std::fread(buffer, 1, sizeof buffer, file);
  std::fclose(file);
  return {buffer, n};
}

struct Reader {
  const char* name;
  std::function<std::string(const char*)> read;
};
const Reader readers[] = {
    {"open", [](const char* p) { return from_descriptor(open(p, O_RDONLY)); }},
    {"open64", [](const char* p) { return from_descriptor(open64(p, O_RDONLY)); }},
    {"openat", [](const char* p) { return from_descriptor(openat(AT_FDCWD, p, O_RDONLY)); }},
    {"openat of the root",
     [](const char* p) {
       const int root = open("/", O_PATH);
       const int fd = openat(root, p + 1, O_RDONLY);
       close(root);
       return from_descriptor(fd);
     }},
    {"fopen", [](const char* p) { return from_stream(std::fopen(p, "r")); }},
    {"fopen64", [](const char* p) { return from_stream(fopen64(p, "r")); }},
    {"freopen",
     [](const char* p) {
       std::FILE* file = std::fopen("/dev/null", "r");
       return from_stream(std::freopen(p, "r", file));
     }},
    {"std::ifstream",
     [](const char* p) -> std::string {
       std::ifstream file(p);
       if (!file) return "?";
       return {std::istreambuf_iterator<char>(file), {}};
     }},
};

std::string contents(const std::string& path) { return readers[0].read(path.c_str()); }
std::uint64_t number(const std::string& path) {
  return std::strtoull(contents(path).c_str(), nullptr, 0);
}

// --- what the verbs say

struct Expected {
  std::string path, value;
};

template <class... A>
std::string text(const char* format, A... arguments) {
  char buffer[256];
  std::snprintf(buffer, sizeof buffer, format, arguments...);
  return buffer;
}

std::string quads(const std::uint8_t* bytes, unsigned n) {
  std::string out;
  for (unsigned i = 0; i < n; i += 2)
    out += text("%s%02x%02x", i ? ":" : "", bytes[i], bytes[i + 1]);
  return out;
}

std::string rate(const ibv_port_attr& a) {
  const std::map<int, std::pair<const char*, double>> speeds{
      {1, {"SDR", 2.5}}, {2, {"DDR", 5}},   {4, {"QDR", 10}},  {8, {"FDR10", 10}},
      {16, {"FDR", 14}}, {32, {"EDR", 25}}, {64, {"HDR", 50}}, {128, {"NDR", 100}}};
  const std::map<int, int> widths{{1, 1}, {2, 4}, {4, 8}, {8, 12}, {16, 2}};
  const auto& [name, lane] = speeds.at(a.active_speed);
  const int lanes = widths.at(a.active_width);
  return text("%g Gb/sec (%dX %s)", lane * lanes, lanes, name);
}

void expect_gids(std::vector<Expected>& all, ibv_context* c, const std::string& port, int n) {
  for (int i = 0; i < n; ++i) {
    const std::string index = std::to_string(i);
    ibv_gid gid{};
    need_zero(ibv_query_gid(c, 1, i, &gid), "ibv_query_gid");
    all.push_back({port + "gids/" + index, quads(gid.raw, 16)});
    ibv_gid_entry entry{};
    const bool used = ibv_query_gid_ex(c, 1, static_cast<std::uint32_t>(i), &entry, 0) == 0;
    char netdev[IF_NAMESIZE] = "";
    if (used) need(if_indextoname(entry.ndev_ifindex, netdev), "if_indextoname");
    const char* type = entry.gid_type == IBV_GID_TYPE_ROCE_V2 ? "RoCE v2" : "IB/RoCE v1";
    all.push_back({port + "gid_attrs/types/" + index, used ? type : ""});
    all.push_back({port + "gid_attrs/ndevs/" + index, netdev});
  }
}

void expect_device(std::vector<Expected>& all, ibv_device* device) {
  ibv_context* c = need(ibv_open_device(device), "ibv_open_device");
  const std::string folder = infiniband + device->name + "/", port = folder + "ports/1/";
  ibv_device_attr attr{};
  need_zero(ibv_query_device(c, &attr), "ibv_query_device");
  ibv_port_attr a{};
  need_zero(ibv_query_port(c, 1, &a), "ibv_query_port");
  const std::uint64_t guid = ibv_get_device_guid(device);
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(&guid);
  constexpr std::array states{"NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"};
  const char* phys_state = a.phys_state == 5 ? "LinkUp" : "Disabled";
  all.insert(
      all.end(),
      {{folder + "node_type", "1: CA"},
       {folder + "node_guid", quads(bytes, 8)},
       {folder + "sys_image_guid", quads(bytes, 8)},
       {folder + "fw_ver", attr.fw_ver},
       {port + "state", text("%d: %s", a.state, states.at(a.state))},
       {port + "phys_state", text("%d: %s", a.phys_state, phys_state)},
       {port + "rate", rate(a)},
       {port + "link_layer", a.link_layer == IBV_LINK_LAYER_ETHERNET ? "Ethernet" : "InfiniBand"},
       {port + "lid", text("0x%x", a.lid)},
       {port + "sm_lid", text("0x%x", a.sm_lid)},
       {port + "sm_sl", text("%d", a.sm_sl)},
       {port + "lid_mask_count", text("%d", a.lmc)},
       {port + "cap_mask", text("0x%08x", a.port_cap_flags)},
       {"/sys/class/infiniband_verbs/" + std::string(device->dev_name) + "/ibdev", device->name}});
  for (int i = 0; i < a.pkey_tbl_len; ++i) {
    __be16 pkey = 0;
    need_zero(ibv_query_pkey(c, 1, i, &pkey), "ibv_query_pkey");
    all.push_back({port + "pkeys/" + std::to_string(i), text("0x%04x", ntohs(pkey))});
  }
  expect_gids(all, c, port, a.gid_tbl_len);
  need_zero(ibv_close_device(c), "ibv_close_device");
}

std::vector<Expected> expectations(std::set<std::string>& names) {
  std::vector<Expected> all{{"/sys/class/infiniband_verbs/abi_version", "6"}};
  int n = 0;
  ibv_device** list = need(ibv_get_device_list(&n), "ibv_get_device_list");
  for (int i = 0; i < n; ++i) {
    names.insert(list[i]->name);
    expect_device(all, list[i]);
  }
  ibv_free_device_list(list);
  return all;
}

void print_expectations() {
  std::set<std::string> names;
  for (const Expected& e : expectations(names))
    std::printf("%s %s\n", e.path.c_str(), e.value.c_str());
}

// --- each way to list a folder

using Names = std::set<std::string>;
std::string last(const std::string& path) { return path.substr(path.rfind('/') + 1); }

Names by_opendir(const std::string& path) {
  Names names;
  DIR* folder = opendir(path.c_str());
  while (const dirent* e = folder ? readdir(folder) : nullptr)
    if (e->d_name[0] != '.') names.insert(e->d_name);
  if (folder) closedir(folder);
  return names;
}
Names by_scandir(const std::string& path) {
  Names names;
  dirent** list = nullptr;
  const int n = scandir(path.c_str(), &list, nullptr, alphasort);
  for (int i = 0; i < n; ++i) {
    if (list[i]->d_name[0] != '.') names.insert(list[i]->d_name);
    std::free(list[i]);
  }
  std::free(list);
  return names;
}
Names by_glob(const std::string& path) {
  Names names;
  glob_t found{};
  if (glob((path + "/*").c_str(), 0, nullptr, &found) == 0)
    for (std::size_t i = 0; i < found.gl_pathc; ++i) {
      const std::string name = found.gl_pathv[i];
      expect(name.starts_with(path + "/"), "glob gives " + name);
      names.insert(last(name));
    }
  globfree(&found);
  return names;
}
Names walked;
std::string walk_root;
Names by_nftw(const std::string& path) {
  walked.clear();
  walk_root = path;
  nftw(
      path.c_str(),
      [](const char* name, const struct stat*, int, FTW* at) {
        expect(std::string(name).starts_with(walk_root), std::string("nftw gives ") + name);
        expect(name + at->base == last(name), std::string("base of ") + name);
        if (at->level == 1) walked.insert(last(name));
        return 0;
      },
      8, FTW_PHYS);
  return walked;
}
Names by_filesystem(const std::string& path) {
  Names names;
  std::error_code error;
  for (const auto& e : std::filesystem::directory_iterator(path, error))
    names.insert(e.path().filename().string());
  return names;
}

void check_list(const std::string& path) {
  const Names names = by_opendir(path);
  expect(by_scandir(path) == names, "scandir of " + path);
  expect(by_glob(path) == names, "glob of " + path);
  expect(by_nftw(path) == names, "nftw of " + path);
  expect(by_filesystem(path) == names, "std::filesystem of " + path);
  for (const std::string& name : names) std::printf("%s\n", name.c_str());
}

void check_status(const std::string& path, mode_t type) {
  const char* p = path.c_str();
  struct stat st{};
  struct statx stx{};
  struct stat64 st64{};
  expect(stat(p, &st) == 0 && (st.st_mode & S_IFMT) == type, "stat of " + path);
  expect(stat64(p, &st64) == 0 && (st64.st_mode & S_IFMT) == type, "stat64 of " + path);
  expect(lstat(p, &st) == 0, "lstat of " + path);
  expect(fstatat(AT_FDCWD, p, &st, 0) == 0 && (st.st_mode & S_IFMT) == type, "fstatat of " + path);
  expect(statx(AT_FDCWD, p, 0, STATX_TYPE, &stx) == 0 && (stx.stx_mode & S_IFMT) == type,
         "statx of " + path);
  expect(access(p, R_OK) == 0 && eaccess(p, R_OK) == 0 && euidaccess(p, R_OK) == 0 &&
             faccessat(AT_FDCWD, p, R_OK, 0) == 0,
         "access to " + path);
}

void check_device_files(const std::string& name) {
  const std::string folder = infiniband + name + "/";
  check_status(folder + "device/numa_node", S_IFREG);
  check_status(folder + "device/local_cpus", S_IFREG);
  for (const char* counter : {"port_xmit_data", "port_rcv_data", "port_xmit_packets",
                              "port_rcv_packets", "symbol_error", "link_downed"})
    expect(number(folder + "ports/1/counters/" + counter) == 0, counter);
  for (const char* counter : {"out_of_sequence", "local_ack_timeout_err", "packet_seq_err",
                              "rnr_nak_retry_err", "np_cnp_sent", "rx_icrc_encapsulated"}) {
    check_status(folder + "ports/1/hw_counters/" + counter, S_IFREG);
    expect(contents(folder + "ports/1/hw_counters/" + counter) == "0\n", counter);
  }
  for (const char* file : {"hca_type", "hw_rev", "board_id", "node_desc"})
    check_status(folder + file, S_IFREG);
}

void check_all() {
  Names names;
  const auto all = expectations(names);
  expect(!names.empty(), "a device");
  expect(by_opendir("/sys/class/infiniband") == names, "the devices of the verbs, and no other");
  for (const Expected& e : all) {
    for (const Reader& r : readers) {
      const std::string value = e.value.empty() ? "" : e.value + "\n",
                        read = r.read(e.path.c_str());
      expect(read == value, e.path + " by " + r.name + ": " + read + " and not " + value);
    }
    check_status(e.path, S_IFREG);
  }
  for (const std::string& name : names) check_device_files(name);
  for (const std::string& node : by_opendir("/dev/infiniband")) {
    const std::string path = "/dev/infiniband/" + node;
    check_status(path, S_IFCHR);
    expect(access(path.c_str(), R_OK | W_OK) == 0, path);
  }
  check_status("/sys/class/infiniband", S_IFDIR);
  std::printf("%zu files by %zu functions\n", all.size(), std::size(readers));
}

void print_real(const char* path) {
  char* real = realpath(path, nullptr);
  std::printf("%s\n", real ? real : std::strerror(errno));
  char other[4096], link[4096];
  expect(!real || (realpath(path, other) && std::string(other) == real), "realpath with a buffer");
  char* canonical = canonicalize_file_name(path);
  expect(!real || (canonical && std::string(canonical) == real), "canonicalize_file_name");
  std::free(real);
  std::free(canonical);
  const ssize_t n = readlink(path, link, sizeof link);
  if (n > 0) std::printf("-> %.*s\n", static_cast<int>(n), link);
}

// --- counters

void check_traffic(unsigned count) {
  Nic nic;
  nic.open("", 0);
  const std::string port = infiniband + nic.context->device->name + "/ports/1/";
  const auto counter = [&](const char* name) { return number(port + "counters/" + name); };
  expect(counter("port_xmit_packets") == 0, "nothing sent before");
  ibv_cq* cq = need(ibv_create_cq(nic.context, 64, nullptr, nullptr, 0), "ibv_create_cq");
  static std::uint8_t buffer[8192];
  ibv_mr* mr = need(
      ibv_reg_mr(nic.pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE),
      "ibv_reg_mr");
  ibv_qp_init_attr init{};
  init.send_cq = init.recv_cq = cq;
  init.cap = {16, 16, 1, 1, 0};
  init.qp_type = IBV_QPT_RC;
  ibv_qp* qp = need(ibv_create_qp(nic.pd, &init), "ibv_create_qp");
  to_init(qp);
  to_rtr(qp, nic, nic.gid, qp->qp_num, 1, {});
  to_rts(qp, 1, {});
  for (unsigned i = 1; i <= count; ++i) {
    ibv_sge sge{reinterpret_cast<std::uintptr_t>(buffer), 4096, mr->lkey};
    ibv_send_wr wr{}, *bad = nullptr;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma = {reinterpret_cast<std::uintptr_t>(buffer + 4096), mr->rkey};
    need_zero(ibv_post_send(qp, &wr, &bad), "ibv_post_send");
    ibv_wc wc{};
    while (ibv_poll_cq(cq, 1, &wc) == 0) continue;
    if (wc.status != IBV_WC_SUCCESS) die(exit_failed, "%s", ibv_wc_status_str(wc.status));
    // Right after the completion, not at the next renewal.
    expect(number(port + "hw_counters/writes") == i, "write " + std::to_string(i) + " counts");
  }
  // To itself: what is sent is received, in units of four octets.
  const std::uint64_t data = counter("port_xmit_data");
  expect(data * 4 > count * 4096ull && data * 4 < count * 6000ull,
         "port_xmit_data is " + std::to_string(data));
  expect(counter("port_xmit_packets") >= 2ull * count, "port_xmit_packets: WRITEs and ACKs");
  expect(counter("port_rcv_data") == data, "port_rcv_data");
  expect(counter("port_rcv_packets") == counter("port_xmit_packets"), "port_rcv_packets");
  expect(counter("port_rcv_errors") == 0, "port_rcv_errors");
  need_zero(ibv_destroy_qp(qp), "ibv_destroy_qp");
  need_zero(ibv_dereg_mr(mr), "ibv_dereg_mr");
  need_zero(ibv_destroy_cq(cq), "ibv_destroy_cq");
  nic.close();
}

// --- manners

void check_manners() {
  const std::string nowhere = infiniband + "no_such_device/node_guid";
  errno = 0;
  expect(open(nowhere.c_str(), O_RDONLY) == -1 && errno == ENOENT, "open of what is not there");
  expect(!opendir((infiniband + "no_such_device").c_str()) && errno == ENOENT, "opendir of that");
  errno = EDOM;
  struct stat st{};
  expect(stat("/dev/null", &st) == 0 && errno == EDOM, "errno after what is not ours");
  Names names;
  const auto all = expectations(names);
  errno = EDOM;
  expect(stat(all.back().path.c_str(), &st) == 0 && errno == EDOM, "errno after what is ours");
  const char* volatile null = nullptr;  // as a careless program has it
  errno = 0;
  expect(open(null, O_RDONLY) == -1 && errno == EFAULT, "open of a null pointer");
  expect(access(null, R_OK) == -1 && errno == EFAULT, "access of a null pointer");
  expect(open("/sys/class/infiniband_x", O_RDONLY) == -1 && errno == ENOENT, "another name");
  expect(contents("/sys/class/infiniband/../net/lo/ifindex") == "1\n", "out by ..");
  expect(open("/sys/class/infiniband", O_WRONLY) == -1 && errno == EISDIR, "writing a folder");
  if (geteuid() != 0)
    expect(open(all.back().path.c_str(), O_WRONLY) == -1 && errno == EACCES, "writing a file");
  char folder[4096];
  expect(chdir("/sys/class/infiniband") == 0, "chdir");
  expect(getcwd(folder, sizeof folder) && std::string(folder) == "/sys/class/infiniband", "getcwd");
  expect(by_opendir(".") == names, "the working folder");
  expect(contents(*names.begin() + "/node_type") == "1: CA\n", "a relative path");
}

// Where this process's files really are.
std::string place() {
  const int fd = open("/sys/class/infiniband", O_PATH | O_DIRECTORY);
  char path[4096] = "";
  const ssize_t n =
      readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), path, sizeof path - 1);
  close(fd);
  return {path, static_cast<std::size_t>(std::max<ssize_t>(n, 0))};
}

void check_fork() {
  const Names names = by_opendir("/sys/class/infiniband");
  const std::string file = infiniband + *names.begin() + "/node_guid", before = contents(file);
  const std::string parents = place();
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    expect(contents(file) == before, "the child's view");
    expect(place() != parents && access(place().c_str(), F_OK) == 0, "a place of its own");
    std::exit(failures ? exit_wrong_data : exit_good);  // with its exit handlers
  }
  int status = 0;
  waitpid(child, &status, 0);
  expect(status == 0, "the child's verdict");
  expect(access(parents.c_str(), F_OK) == 0 && contents(file) == before, "the parent's files");
  // exec: the same process, another program.
  std::fflush(stdout);
  const pid_t other = fork();
  if (other == 0) {
    contents(file);
    execl("/proc/self/exe", "sysfs_client", "check", nullptr);
    std::_Exit(127);
  }
  waitpid(other, &status, 0);
  expect(status == 0, "a program that another one became");
}

void check_threads() {
  Names names;
  const auto all = expectations(names);
  std::atomic<unsigned> wrong{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 8; ++t)
    threads.emplace_back([&, t] {
      for (unsigned i = 0; i < 3000; ++i) {
        const Expected& e = all[(i * 7 + t * 13) % all.size()];
        const std::string read = readers[i % std::size(readers)].read(e.path.c_str());
        if (read != (e.value.empty() ? "" : e.value + "\n")) ++wrong;
      }
    });
  // Devices are opened meanwhile, which may start adverbd, and processes are forked.
  threads.emplace_back([&] {
    for (unsigned i = 0; i < 10; ++i) {
      Nic nic;
      nic.open("", 0);
      nic.close();
    }
  });
  for (unsigned i = 0; i < 20; ++i) {
    const pid_t child = fork();
    if (child == 0) std::_Exit(readers[0].read(all[0].path.c_str()) == all[0].value + "\n" ? 0 : 1);
    int status = 0;
    waitpid(child, &status, 0);
    if (status != 0) ++wrong;
  }
  for (std::thread& t : threads) t.join();
  expect(wrong == 0, std::to_string(wrong) + " reads");
}

// A child is forked in the midst of whatever the first look sets up, and must not wait for it.
void check_race(const char* path) {
  const auto look = [path] { return contents(path).size() > 1; };
  std::atomic<unsigned> wrong{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (unsigned i = 0; i < 20; ++i) wrong += !look();
    });
  for (unsigned i = 0; i < 5; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);
      std::_Exit(look() ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    expect(status == 0, "child " + std::to_string(i) + ": " + std::to_string(status));
  }
  for (std::thread& t : threads) t.join();
  expect(wrong == 0, std::to_string(wrong) + " looks");
}

void hold(const char* path) {
  std::string line;
  do {
    std::printf("%s%s", contents(path).c_str(), contents(path).ends_with("\n") ? "" : "\n");
    std::fflush(stdout);
  } while (std::getline(std::cin, line));
}

int run(const std::string& what, const char* argument) {
  if (what == "expect") {
    print_expectations();
  } else if (what == "check") {
    check_all();
  } else if (what == "manners") {
    check_manners();
  } else if (what == "fork") {
    check_fork();
  } else if (what == "threads") {
    check_threads();
  } else if (what == "place") {
    std::printf("%s\n", place().c_str());
  } else if (!argument) {
    die(exit_usage, "usage: see the source");
  } else if (what == "list") {
    check_list(argument);
  } else if (what == "real") {
    print_real(argument);
  } else if (what == "traffic") {
    check_traffic(static_cast<unsigned>(std::strtoul(argument, nullptr, 10)));
  } else if (what == "race") {
    check_race(argument);
  } else if (what == "hold") {
    hold(argument);
  } else {
    die(exit_usage, "usage: see the source");
  }
  return failures ? exit_wrong_data : exit_good;
}

}  // namespace
}  // namespace adverb::clients

int main(int argc, char** argv) {
  return adverb::clients::run(argc > 1 ? argv[1] : "", argc > 2 ? argv[2] : nullptr);
}
