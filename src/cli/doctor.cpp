// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor.hpp"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "cli/program.hpp"
#include "nic/enumerate.hpp"
#include "nic/private_folder.hpp"
#include "port/netdev_probe.hpp"

namespace adverb::cli {
namespace {

enum class Status { ok, note, cost, stops };
constexpr const char* status_names[] = {"ok", "note", "cost", "stops"};

struct Finding {
  std::string check;
  Status status = Status::ok;
  std::string found;         // what is the case
  std::string cost, remedy;  // what that means, and what to do; empty when ok
};

class Socket {
 public:
  Socket() : fd_(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {}
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  bool bind_loopback() const {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  int fd() const { return fd_; }

 private:
  int fd_;
};

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

Finding check_devices(const std::vector<nic::DeviceInfo>& devices) {
  Finding f{"interfaces"};
  for (const auto& device : devices)
    f.found += (f.found.empty() ? "" : ", ") + device.name + " on " + device.netdev;
  if (devices.empty()) {
    f.status = Status::stops;
    f.found = "no network interface is up";
    f.cost = "there is no device, not even on the loopback interface";
    f.remedy = "ip link set lo up";
  } else if (devices.size() == 1 && devices[0].netdev == "lo") {
    f.status = Status::note;
    f.cost = "only programs of this host (of this network namespace) can talk to each other";
    f.remedy = "bring another interface up to reach other hosts";
  }
  return f;
}

struct PortUser {
  bool found = false, other = false;  // other: of another user than this
  std::string text;
};

// Who holds UDP port 4791 in this network namespace, from the kernel's own table.
PortUser port_user() {
  PortUser user;
  for (const char* table : {"/proc/net/udp", "/proc/net/udp6"}) {
    std::ifstream file(table);
    std::string line;
    std::getline(file, line);
    while (std::getline(file, line)) {
      std::istringstream words(line);
      std::string index, local, skip;
      unsigned uid = 0;
      words >> index >> local;
      for (int i = 0; i < 5; ++i) words >> skip;  // remote, state, queues, timer, retransmits
      words >> uid;
      if (local.size() < 5 || local.substr(local.size() - 5) != ":12B7") continue;  // 4791
      user.found = true;
      user.other = user.other || uid != geteuid();
      user.text = fmt::format("a socket of uid {} at {}", uid, local);
    }
  }
  return user;
}

bool adverbd_running() {
  std::ifstream file("/proc/net/unix");
  for (std::string line; std::getline(file, line);)
    if (line.find("@adverb") != std::string::npos) return true;
  return false;
}

Finding check_port() {
  Finding f{"udp port 4791"};
  const PortUser user = port_user();
  if (!user.found) {
    f.found = "free";
  } else if (std::filesystem::exists("/sys/module/rdma_rxe") && !adverbd_running()) {
    f = {f.check, Status::stops, "held by the kernel's rdma_rxe",
         "Adverb cannot receive RoCE packets here",
         "remove its devices (rdma link delete NAME), or run in a network namespace of your own"};
  } else if (adverbd_running() && !user.other) {
    f.found = "held by this user's adverbd";
  } else {
    f = {f.check, Status::stops, user.text,
         "Adverb cannot receive RoCE packets on an address that another holds",
         "end that program, or run in a network namespace of your own: unshare -rn"};
  }
  return f;
}

Finding check_receive_buffer() {
  Finding f{"receive buffer"};
  Socket s;
  const int wanted = 4 << 20;
  if (setsockopt(s.fd(), SOL_SOCKET, SO_RCVBUFFORCE, &wanted, sizeof wanted) != 0)
    setsockopt(s.fd(), SOL_SOCKET, SO_RCVBUF, &wanted, sizeof wanted);
  int got = 0;
  socklen_t length = sizeof got;
  getsockopt(s.fd(), SOL_SOCKET, SO_RCVBUF, &got, &length);
  f.found = fmt::format("{} KiB as the kernel accounts it", got / 1024);
  if (got < 2 * wanted) {
    f.status = Status::cost;
    f.cost =
        "senders may have less in flight: lower bandwidth with many queue pairs, more loss in "
        "bursts";
    f.remedy = "sysctl -w net.core.rmem_max=4194304";
  }
  return f;
}

Finding check_steering() {
  Finding f{"socket steering"};
  Socket s;
  const int on = 1;
  sock_filter code[] = {{BPF_RET | BPF_K, 0, 0, 0}};
  const sock_fprog program{1, code};
  const bool good =
      setsockopt(s.fd(), SOL_SOCKET, SO_REUSEPORT, &on, sizeof on) == 0 && s.bind_loopback() &&
      setsockopt(s.fd(), SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &program, sizeof program) == 0;
  f.found = good ? "SO_ATTACH_REUSEPORT_CBPF works" : fmt::format("refused: {}", strerror(errno));
  if (!good) {
    f.status = Status::cost;
    f.cost = "adverbd relays every packet: one more copy and wake-up each";
    f.remedy = "none on such a kernel (gVisor refuses it)";
  }
  return f;
}

Finding check_gso() {
  Finding f{"segmentation offload"};
  Socket s;
  const int size = 1024;
  const bool good = setsockopt(s.fd(), SOL_UDP, UDP_SEGMENT, &size, sizeof size) == 0;
  f.found = good ? "UDP_SEGMENT works" : fmt::format("refused: {}", strerror(errno));
  if (!good) {
    f.status = Status::cost;
    f.cost = "one datagram at a time through the kernel: several times less bandwidth";
    f.remedy = "a kernel of 4.18 or later";
  }
  return f;
}

// Whether a device cuts bundles as the ICRC over IPv4 assumes; looked at on the wire itself.
Finding check_segments(const nic::DeviceInfo& device) {
  Finding f{"bundles on " + device.netdev};
  const auto found = std::ranges::find_if(device.gids, [](const Gid& g) { return g.is_v4(); });
  const Gid address = found == device.gids.end() ? Gid{} : *found;
  if (!address.is_v4()) {
    f.found = "no IPv4 address, so nothing depends on them";
    return f;
  }
  const port::GsoReport report = port::prove_gso(address, device.ifindex);
  f.found = report.detail;
  if (report.proof == port::GsoProof::wrong || report.proof == port::GsoProof::refused) {
    f.status = Status::cost;
    f.cost = "one datagram at a time on this device: less bandwidth";
    f.remedy = report.proof == port::GsoProof::wrong ? "set ADVERB_GSO=off for programs that use it"
                                                     : "nothing: Adverb does so by itself";
  } else if (report.proof == port::GsoProof::unproved) {
    f.status = Status::note;
    f.cost = "not seen whether the device numbers segments as the ICRC assumes";
    f.remedy = "run adverb doctor as root";
  }
  return f;
}

Finding check_ipv6() {
  Finding f{"IPv6"};
  const std::string disabled = first_line("/proc/sys/net/ipv6/conf/all/disable_ipv6");
  f.found = disabled == "0" ? "on" : "off";
  if (disabled != "0") {
    f.status = Status::note;
    f.cost = "no IPv6 GIDs; IPv4 GIDs are not affected";
    f.remedy = "sysctl -w net.ipv6.conf.all.disable_ipv6=0";
  }
  return f;
}

// A pool of sockets per address, made and kept by adverbd: see port/steering.hpp.
Finding check_descriptors(const std::vector<nic::DeviceInfo>& devices) {
  Finding f{"open files"};
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  std::size_t addresses = 0;
  for (const auto& device : devices)
    for (unsigned i = 0; i < device.gids.size(); ++i)
      addresses += !device.gids[i].is_zero() && !nic::is_roce_v1(i);
  const std::size_t need = 64 + addresses * (1u << Qpn::slot_bits);
  f.found = fmt::format("hard limit {}", limit.rlim_max);
  if (limit.rlim_max < need) {
    f.status = Status::cost;
    f.cost =
        fmt::format("adverbd may need up to {} for the sockets of {} addresses", need, addresses);
    f.remedy = fmt::format("raise the hard limit: ulimit -Hn {}", need);
  }
  return f;
}

Finding check_yama() {
  const std::string scope = first_line("/proc/sys/kernel/yama/ptrace_scope");
  return {"yama", Status::ok, scope.empty() ? "not in this kernel" : "ptrace_scope " + scope, "",
          ""};
}

// What programs that read /sys/class/infiniband themselves will see instead of the host's.
Finding check_sysfs() {
  Finding f{"sysfs"};
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/class/infiniband", error))
    f.found += (f.found.empty() ? "" : ", ") + entry.path().filename().string();
  f.found = f.found.empty() ? "no RDMA hardware" : "hidden from programs of adverb run: " + f.found;
  const std::string folder = nic::make_private_folder();
  if (!folder.empty()) {
    f.found += "; Adverb's own files go to " + folder.substr(0, folder.rfind('/'));
    nic::remove_private_folder(folder);
  } else {
    f.status = Status::cost;
    f.found += fmt::format("; no folder for Adverb's own files: {}", strerror(errno));
    f.cost = "programs that read /sys/class/infiniband themselves (UCX, NCCL) see no device";
    f.remedy = "set XDG_RUNTIME_DIR to a folder that this user can write to";
  }
  return f;
}

Finding check_files() {
  Finding f{"Adverb's files"};
  const std::string folder = library_folder();
  const auto bin = std::filesystem::path(folder).parent_path().parent_path() / "bin";
  std::string missing;
  const auto miss = [&](const std::string& file) {
    missing += (missing.empty() ? "" : ", ") + file;
  };
  for (const char* library : libraries)
    if (access((folder + "/" + library).c_str(), R_OK) != 0) miss(folder + "/" + library);
  if (access((bin / "adverbd").c_str(), X_OK) != 0 &&
      access((folder + "/adverbd").c_str(), X_OK) != 0)
    miss((bin / "adverbd").string());
  f.found = missing.empty() ? folder : "missing: " + missing;
  if (!missing.empty()) {
    f.status = Status::stops;
    f.cost = "programs cannot be run over Adverb";
    f.remedy = "build or install Adverb again (./x build)";
  }
  return f;
}

Finding check_program(const char* program, const char* package) {
  const auto path = find_program(program);
  if (path) return {program, Status::ok, *path, "", ""};
  return {program, Status::note, "not installed", "nothing: a program to try Adverb with",
          fmt::format("apt-get install {}", package)};
}

}  // namespace

static nlohmann::ordered_json to_json(const std::vector<Finding>& findings) {
  auto list = nlohmann::ordered_json::array();
  for (const Finding& f : findings)
    list.push_back({{"check", f.check},
                    {"status", status_names[static_cast<int>(f.status)]},
                    {"found", f.found},
                    {"cost", f.cost},
                    {"remedy", f.remedy}});
  return list;
}

int doctor(bool json) {
  const auto devices = nic::enumerate();
  std::vector<Finding> findings = {
      check_files(), check_devices(devices), check_port(), check_steering(),
      check_gso(),   check_receive_buffer(), check_ipv6(), check_descriptors(devices),
      check_yama(),  check_sysfs()};
  for (const auto& device : devices) findings.push_back(check_segments(device));
  findings.push_back(check_program("ibv_rc_pingpong", "ibverbs-utils"));
  findings.push_back(check_program("ib_write_bw", "perftest"));
  findings.push_back(check_program("rping", "rdmacm-utils"));
  const auto stops = std::count_if(findings.begin(), findings.end(),
                                   [](const Finding& f) { return f.status == Status::stops; });
  if (json) {
    fmt::print("{}\n", to_json(findings).dump(2));
    return stops ? 1 : 0;
  }
  for (const Finding& f : findings) {
    fmt::print("{:<5} {}: {}\n", status_names[static_cast<int>(f.status)], f.check, f.found);
    if (f.status == Status::ok) continue;
    fmt::print("        so: {}\n        do: {}\n", f.cost, f.remedy);
  }
  fmt::print("{}\n", stops ? "Adverb cannot work here until what is marked \"stops\" is mended."
                           : "Nothing stops Adverb here.");
  return stops ? 1 : 0;
}

}  // namespace adverb::cli
