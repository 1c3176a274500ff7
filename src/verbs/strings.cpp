// SPDX-License-Identifier: Apache-2.0
// Names of enumerators and conversions of rates (ibv_event_type_str(3), ibv_rate_to_mult(3),
// ibv_rate_to_mbps(3)).
#include <array>

#include "verbs/api.hpp"

namespace adverb::verbs {
namespace {

template <std::size_t N>
const char* name_in(const std::array<const char*, N>& names, unsigned i, const char* otherwise) {
  return i < N && names[i] ? names[i] : otherwise;
}

constexpr std::array<const char*, 9> node_types = {nullptr,
                                                   "InfiniBand channel adapter",
                                                   "InfiniBand switch",
                                                   "InfiniBand router",
                                                   "iWARP NIC",
                                                   "usNIC",
                                                   "usNIC UDP",
                                                   "unspecified"};

constexpr std::array<const char*, 6> port_states = {
    "no state change (NOP)", "down", "init", "armed", "active", "active defer"};

constexpr std::array<const char*, 21> events = {"CQ error",
                                                "local work queue catastrophic error",
                                                "invalid request local work queue error",
                                                "local access violation work queue error",
                                                "communication established",
                                                "send queue drained",
                                                "path migrated",
                                                "path migration request error",
                                                "local catastrophic error",
                                                "port active",
                                                "port error",
                                                "LID change",
                                                "P_Key change",
                                                "SM change",
                                                "SRQ catastrophic error",
                                                "SRQ limit reached",
                                                "last WQE reached",
                                                "client reregistration",
                                                "GID table change",
                                                "WQ fatal",
                                                "device speed change"};

constexpr std::array<const char*, 24> statuses = {"success",
                                                  "local length error",
                                                  "local QP operation error",
                                                  "local EE context operation error",
                                                  "local protection error",
                                                  "Work Request Flushed Error",
                                                  "memory management operation error",
                                                  "bad response error",
                                                  "local access error",
                                                  "remote invalid request error",
                                                  "remote access error",
                                                  "remote operation error",
                                                  "transport retry counter exceeded",
                                                  "RNR retry counter exceeded",
                                                  "local RDD violation error",
                                                  "remote invalid RD request",
                                                  "aborted error",
                                                  "invalid EE context number",
                                                  "invalid EE context state",
                                                  "fatal error",
                                                  "response timeout error",
                                                  "general error",
                                                  "TM error",
                                                  "TM software rendezvous"};

// multiple of 2.5 Gb/s (0: none that is whole), Mb/s
struct Rate {
  ibv_rate rate;
  int multiple, mbps;
};
constexpr Rate rates[] = {{IBV_RATE_2_5_GBPS, 1, 2500},      {IBV_RATE_5_GBPS, 2, 5000},
                          {IBV_RATE_10_GBPS, 4, 10000},      {IBV_RATE_14_GBPS, 6, 14062},
                          {IBV_RATE_20_GBPS, 8, 20000},      {IBV_RATE_25_GBPS, 10, 25781},
                          {IBV_RATE_28_GBPS, 11, 28125},     {IBV_RATE_30_GBPS, 12, 30000},
                          {IBV_RATE_40_GBPS, 16, 40000},     {IBV_RATE_50_GBPS, 20, 53125},
                          {IBV_RATE_56_GBPS, 22, 56250},     {IBV_RATE_60_GBPS, 24, 60000},
                          {IBV_RATE_80_GBPS, 32, 80000},     {IBV_RATE_100_GBPS, 40, 103125},
                          {IBV_RATE_112_GBPS, 45, 112500},   {IBV_RATE_120_GBPS, 48, 120000},
                          {IBV_RATE_168_GBPS, 67, 168750},   {IBV_RATE_200_GBPS, 80, 206250},
                          {IBV_RATE_300_GBPS, 120, 309375},  {IBV_RATE_400_GBPS, 160, 425000},
                          {IBV_RATE_600_GBPS, 240, 637500},  {IBV_RATE_800_GBPS, 320, 850000},
                          {IBV_RATE_1200_GBPS, 480, 1275000}};

}  // namespace
}  // namespace adverb::verbs

using namespace adverb::verbs;

ADVERB_API const char* ibv_node_type_str(ibv_node_type t) {
  return name_in(node_types, static_cast<unsigned>(t), "unknown");
}
ADVERB_API const char* ibv_port_state_str(ibv_port_state s) {
  return name_in(port_states, static_cast<unsigned>(s), "unknown");
}
ADVERB_API const char* ibv_event_type_str(ibv_event_type e) {
  return name_in(events, static_cast<unsigned>(e), "unknown");
}
ADVERB_API const char* ibv_wc_status_str(ibv_wc_status s) {
  return name_in(statuses, static_cast<unsigned>(s), "unknown");
}

ADVERB_API int ibv_rate_to_mult(ibv_rate rate) {
  for (const Rate& r : rates)
    if (r.rate == rate) return r.multiple;
  return -1;
}
ADVERB_API ibv_rate mult_to_ibv_rate(int multiple) {
  for (const Rate& r : rates)
    if (r.multiple == multiple) return r.rate;
  return IBV_RATE_MAX;
}
ADVERB_API int ibv_rate_to_mbps(ibv_rate rate) {
  for (const Rate& r : rates)
    if (r.rate == rate) return r.mbps;
  return -1;
}
ADVERB_API ibv_rate mbps_to_ibv_rate(int mbps) {
  for (const Rate& r : rates)
    if (r.mbps == mbps) return r.rate;
  return IBV_RATE_MAX;
}
