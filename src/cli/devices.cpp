// SPDX-License-Identifier: Apache-2.0
#include "cli/devices.hpp"

#include <arpa/inet.h>
#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "nic/enumerate.hpp"
#include "nic/settings.hpp"

namespace adverb::cli {

static std::string text(const Gid& gid) {
  char buffer[INET6_ADDRSTRLEN];
  return inet_ntop(AF_INET6, &gid, buffer, sizeof buffer);
}

static nlohmann::ordered_json describe(const nic::DeviceInfo& device) {
  auto gids = nlohmann::ordered_json::array();
  for (unsigned i = 0; i < device.gids.size(); ++i)
    if (device.gids[i] != Gid{})
      gids.push_back({{"index", i},
                      {"gid", text(device.gids[i])},
                      {"type", nic::is_roce_v1(i) ? "RoCE v1" : "RoCE v2"}});
  std::string guid;
  for (const unsigned byte : device.guid) guid += fmt::format("{:02x}", byte);
  return {{"name", device.name},
          {"netdev", device.netdev},
          {"state", device.up ? "active" : "down"},
          {"active_mtu", engine::bytes_of(device.active_mtu)},
          {"max_mtu", engine::bytes_of(device.max_mtu)},
          {"netdev_mtu", device.netdev_mtu},
          {"speed_mbps", device.speed_mbps},
          {"node_guid", guid},
          {"gids", gids}};
}

int devices(bool json) {
  if (const auto settings = nic::read_settings(); !settings) {
    fmt::print(stderr, "adverb: {}\n", settings.error());
    return 2;
  }
  auto list = nlohmann::ordered_json::array();
  for (const nic::DeviceInfo& device : nic::enumerate()) list.push_back(describe(device));
  if (json) {
    fmt::print("{}\n", list.dump(2));
    return 0;
  }
  if (list.empty()) fmt::print("no device: no network interface is up (adverb doctor says more)\n");
  for (const auto& device : list) {
    fmt::print("{}  {}  {}  active_mtu {}  (netdev mtu {})\n", device["name"].get<std::string>(),
               device["netdev"].get<std::string>(), device["state"].get<std::string>(),
               device["active_mtu"].get<unsigned>(), device["netdev_mtu"].get<unsigned>());
    for (const auto& gid : device["gids"])
      fmt::print("  GID {}  {}  {}\n", gid["index"].get<unsigned>(), gid["gid"].get<std::string>(),
                 gid["type"].get<std::string>());
  }
  return 0;
}

}  // namespace adverb::cli
