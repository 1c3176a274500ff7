// SPDX-License-Identifier: Apache-2.0
#include "nic/stats.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

#include "nic/fault_plane.hpp"

namespace adverb::nic {
namespace {

void add(std::string& line, std::string_view name, std::uint64_t value) {
  if (line.back() != '{') line += ',';
  line += fmt::format("\"{}\":{}", name, value);
}

void add_port(std::string& line, const port::PortCounters& c) {
#define ADVERB_PORT_COUNTER(name) add(line, #name, c.name)
  ADVERB_PORT_COUNTER(rx_calls);
  ADVERB_PORT_COUNTER(rx_datagrams);
  ADVERB_PORT_COUNTER(rx_bundles);
  ADVERB_PORT_COUNTER(rx_bytes);
  ADVERB_PORT_COUNTER(tx_calls);
  ADVERB_PORT_COUNTER(tx_datagrams);
  ADVERB_PORT_COUNTER(tx_bundles);
  ADVERB_PORT_COUNTER(tx_bytes);
  ADVERB_PORT_COUNTER(drop_decode_short);
  ADVERB_PORT_COUNTER(drop_decode_opcode);
  ADVERB_PORT_COUNTER(drop_decode_version);
  ADVERB_PORT_COUNTER(drop_decode_pad);
  ADVERB_PORT_COUNTER(drop_icrc);
  ADVERB_PORT_COUNTER(drop_truncated);
  ADVERB_PORT_COUNTER(relayed_out);
  ADVERB_PORT_COUNTER(relayed_in);
  ADVERB_PORT_COUNTER(drop_relay);
  ADVERB_PORT_COUNTER(tx_errors);
  ADVERB_PORT_COUNTER(tx_too_big);
  ADVERB_PORT_COUNTER(gso_refused);
#undef ADVERB_PORT_COUNTER
}

// What a port counts by the names in its folder `counters` (data: words of four bytes).
void add_counters(std::string& line, const engine::Counters& c) {
  add(line, "port_xmit_packets", c.sent_pkts);
  add(line, "port_rcv_packets", c.rcvd_pkts);
  add(line, "port_xmit_data", c.sent_bytes / 4);
  add(line, "port_rcv_data", c.rcvd_bytes / 4);
}

}  // namespace

std::string stats_line(const Device::Impl& impl) {
  std::string line =
      fmt::format(R"({{"device":"{}","netdev":"{}","pid":{},"slot":{},"engine":{{)", impl.info.name,
                  impl.info.netdev, getpid(), impl.engine->config().slot);
  engine::for_each_counter(
      impl.engine->counters(),
      [&](std::string_view name, std::uint64_t value) { add(line, name, value); });
  line += R"(},"counters":{)";
  add_counters(line, impl.engine->counters());
  line += R"(},"port":{)";
  add_port(line, impl.port->counters());
  line += R"(},"threads":{)";
  add(line, "background_wakeups", impl.counts.wakeups.value());
  add(line, "background_ticks", impl.counts.ticks.value());
  add(line, "background_bursts", impl.counts.background_bursts.value());
  add(line, "caller_bursts", impl.counts.caller_bursts.value());
  add(line, "kicks", impl.counts.kicks.load(std::memory_order_relaxed));
  line += '}';
  if (impl.faults) {
    line += R"(,"faults":)" + impl.faults->json();
    line += R"(,"fault_port":{)";
    add(line, "port_down_drops", impl.faults->counters().port_down_drops);
    add(line, "hold_overflows", impl.faults->counters().hold_overflows);
    line += '}';
  }
  line += "}\n";
  return line;
}

void write_stats(const Device::Impl& impl) {
  const char* where = secure_getenv("ADVERB_STATS");
  if (!where || !*where) return;
  const std::string line = stats_line(impl);
  const bool to_stderr = std::string_view(where) == "stderr";
  const int fd = to_stderr
                     ? STDERR_FILENO
                     : ::open(where, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, 0644);
  if (fd < 0) return;
  if (::write(fd, line.data(), line.size()) < 0) {
    // Nobody is left to be told.
  }
  if (!to_stderr) ::close(fd);
}

}  // namespace adverb::nic
