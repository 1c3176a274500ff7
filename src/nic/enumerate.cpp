// SPDX-License-Identifier: Apache-2.0
#include "nic/enumerate.hpp"

#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "base/prng.hpp"
#include "nic/log.hpp"
#include "nic/netlink.hpp"
#include "nic/settings.hpp"

namespace adverb::nic {
namespace {

using Guid = std::array<std::uint8_t, 8>;

// What the kernel subtracts, whatever the address family (iboe_get_mtu): GRH or IP, UDP, BTH,
// XRCETH, AtomicETH, ICRC.
constexpr std::uint32_t mtu_overhead = 40 + 8 + 12 + 4 + 28 + 4;

std::uint32_t mtu_cap() {
  const char* text = std::getenv("ADVERB_MTU");
  if (!text || !*text) return bytes_of(engine::Mtu::mtu_4096);
  const unsigned long value = std::strtoul(text, nullptr, 10);
  for (const unsigned long allowed : {256ul, 512ul, 1024ul, 2048ul, 4096ul})
    if (value == allowed) return static_cast<std::uint32_t>(value);
  log(LogLevel::warn, "ADVERB_MTU={} is none of 256, 512, 1024, 2048, 4096; ignored", text);
  return bytes_of(engine::Mtu::mtu_4096);
}

bool fit_mtu(std::uint32_t netdev_mtu, std::uint32_t cap, engine::Mtu& out) {
  using enum engine::Mtu;
  for (const auto m : {mtu_4096, mtu_2048, mtu_1024, mtu_512, mtu_256})
    if (bytes_of(m) <= cap && bytes_of(m) + mtu_overhead <= netdev_mtu) {
      out = m;
      return true;
    }
  return false;
}

// EUI-64 from a MAC address as the kernel makes it (RFC 4291, appendix A: the universal bit is
// inverted).
Guid guid_of_mac(const std::array<std::uint8_t, 6>& mac) {
  return {
      static_cast<std::uint8_t>(mac[0] ^ 2), mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]};
}

std::uint64_t hash_text(std::uint64_t h, std::string_view text) {
  for (const char c : text) h = SplitMix::mix(h ^ static_cast<std::uint8_t>(c));
  return h;
}

// The same at every call on this machine, in this network namespace; different in any other.
std::uint64_t namespace_hash() {
  std::uint64_t h = 0x616476657262;
  char text[128] = "";
  if (std::FILE* f = std::fopen("/etc/machine-id", "re")) {
    if (!std::fgets(text, sizeof text, f)) text[0] = 0;
    std::fclose(f);
  }
  if (!text[0]) gethostname(text, sizeof text - 1);
  h = hash_text(h, text);
  struct stat st{};
  if (::stat("/proc/thread-self/ns/net", &st) == 0) h = SplitMix::mix(h ^ st.st_ino);
  return h;
}

Guid hashed_guid(unsigned ifindex) {
  const std::uint64_t h = SplitMix::mix(namespace_hash() ^ (std::uint64_t{ifindex} << 32));
  Guid guid;
  std::memcpy(guid.data(), &h, 8);
  guid[0] &= 0xfc;                 // locally administered, in the inverted spelling of RFC 4291
  guid[3] = 0xad, guid[4] = 0x5e;  // no EUI-64 of a MAC address has these
  return guid;
}

std::uint32_t speed_of(const std::string& netdev) {
  const int s = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (s < 0) return 0;
  ethtool_cmd command{};
  command.cmd = ETHTOOL_GSET;
  ifreq request{};
  std::strncpy(request.ifr_name, netdev.c_str(), IFNAMSIZ - 1);
  request.ifr_data = reinterpret_cast<char*>(&command);
  const bool ok = ::ioctl(s, SIOCETHTOOL, &request) == 0;
  ::close(s);
  const std::uint32_t speed = ok ? ethtool_cmd_speed(&command) : 0;
  return speed == static_cast<std::uint32_t>(SPEED_UNKNOWN) ? 0 : speed;
}

// Each costs adverbd a pool of sockets.
constexpr unsigned most_addresses = 7;
static_assert(2 * most_addresses < gid_table_length);  // the last entry stays empty

// Entries that belong together: a pair for RoCE v1 and v2, or one.
unsigned entries_an_address() { return settings().gid_layout == GidLayout::mlx5 ? 2 : 1; }

// IPv4, then IPv6, then link-local.
std::vector<Gid> usable_gids(const std::vector<Address>& all, unsigned ifindex) {
  std::vector<Gid> out;
  auto add = [&](auto&& wanted) {
    for (const Address& a : all) {
      if (a.ifindex != ifindex || !a.usable || a.gid.is_zero() || !wanted(a)) continue;
      if (std::find(out.begin(), out.end(), a.gid) == out.end()) out.push_back(a.gid);
    }
  };
  add([](const Address& a) { return a.gid.is_v4() && a.gid.v4() != 0; });
  add([](const Address& a) { return !a.gid.is_v4() && !a.link_local; });
  add([](const Address& a) { return a.link_local; });
  return out;
}

// The kernel's tables begin with the port's own GID, which is link-local, and IPv4 comes behind it:
// what is last here goes in front, or an empty entry when there is nothing but IPv4.
void put_link_local_first(std::vector<Gid>& gids) {
  if (gids.empty() || gids.back().is_v4())
    gids.insert(gids.begin(), Gid{});
  else
    std::rotate(gids.begin(), gids.end() - 1, gids.end());
}

// False: there is no address.
bool fill_gids(const std::vector<Address>& all, unsigned ifindex, GidTable& out) {
  std::vector<Gid> gids = usable_gids(all, ifindex);
  if (gids.empty()) return false;
  if (settings().gid_layout != GidLayout::standard) put_link_local_first(gids);
  const unsigned each = entries_an_address();
  for (std::size_t i = 0; i < std::min<std::size_t>(gids.size(), most_addresses); ++i)
    std::fill_n(out.begin() + static_cast<std::ptrdiff_t>(i * each), each, gids[i]);
  return true;
}

bool selected(const DeviceInfo& info) {
  const char* list = std::getenv("ADVERB_DEVICE");
  if (!list || !*list) return true;
  for (std::string_view rest = list; !rest.empty();) {
    const std::size_t comma = rest.find(',');
    const std::string_view name = rest.substr(0, comma);
    if (name == info.name || name == info.netdev) return true;
    rest = comma == rest.npos ? std::string_view{} : rest.substr(comma + 1);
  }
  return false;
}

void make_guids_unique(std::vector<DeviceInfo>& devices) {
  for (std::size_t i = 1; i < devices.size(); ++i)
    for (std::size_t k = 0; k < i; ++k)
      if (devices[i].guid == devices[k].guid) devices[i].guid = hashed_guid(devices[i].ifindex);
}

}  // namespace

bool fit_mtu(std::uint32_t netdev_mtu, engine::Mtu& out) {
  return fit_mtu(netdev_mtu, mtu_cap(), out);
}

GidTable gids_of(const std::vector<Address>& addresses, unsigned ifindex) {
  GidTable out{};
  fill_gids(addresses, ifindex, out);
  return out;
}

GidTable follow(const GidTable& old, const GidTable& wanted) {
  const auto in = [](const GidTable& table, const Gid& gid) {
    return std::find(table.begin(), table.end(), gid) != table.end();
  };
  GidTable table = old;
  for (Gid& gid : table)
    if (!in(wanted, gid)) gid = Gid{};
  const unsigned each = entries_an_address();
  for (const Gid& gid : wanted) {
    if (gid.is_zero() || in(table, gid)) continue;
    for (unsigned i = 0; i < most_addresses * each; i += each) {
      if (!table[i].is_zero()) continue;
      std::fill_n(table.begin() + i, each, gid);
      break;
    }
  }
  return table;
}

bool is_roce_v1(unsigned gid_index) {
  return settings().gid_layout == GidLayout::mlx5 && gid_index % 2 == 0;
}

std::vector<DeviceInfo> enumerate() {
  std::vector<Link> links = dump_links();
  const std::vector<Address> addresses = dump_addresses();
  std::sort(links.begin(), links.end(), [](const Link& a, const Link& b) {
    return a.loopback != b.loopback ? b.loopback : a.ifindex < b.ifindex;
  });
  const std::string name = read_settings().value_or(settings()).device_name;
  const std::uint32_t cap = mtu_cap();
  std::vector<DeviceInfo> devices;
  for (const Link& link : links) {
    DeviceInfo info;
    if (!link.up || !fit_mtu(link.mtu, cap, info.active_mtu)) continue;
    if (!fill_gids(addresses, link.ifindex, info.gids)) continue;
    info.name = name + std::to_string(devices.size());
    info.netdev = link.name;
    info.ifindex = link.ifindex;
    info.guid = link.has_mac && !link.loopback ? guid_of_mac(link.mac) : hashed_guid(link.ifindex);
    if (link.has_mac) info.mac = link.mac;
    info.loopback = link.loopback;
    info.netdev_mtu = link.mtu;
    info.max_mtu = engine::Mtu::mtu_4096;
    info.up = link.running || link.loopback;
    info.speed_mbps = speed_of(link.name);
    devices.push_back(std::move(info));
  }
  make_guids_unique(devices);
  std::erase_if(devices, [](const DeviceInfo& d) { return !selected(d); });
  return devices;
}

}  // namespace adverb::nic
