// SPDX-License-Identifier: Apache-2.0
// What a device does when its netdev changes: the link goes down or up, the MTU or the addresses
// change.  All of it runs in the background thread, and waits for the engine where it must.
#include <fmt/format.h>

#include <array>
#include <system_error>

#include "nic/device_impl.hpp"
#include "nic/log.hpp"
#include "nic/netlink.hpp"
#include "port/address.hpp"

namespace adverb::nic {

void Device::Impl::follow_network() {
  const bool addresses = read_monitor(link_fd, info.ifindex, [&](const Link& link) {
    report_link(link);
    follow_mtu(link);
  });
  if (addresses) follow_addresses();
}

void Device::Impl::report(engine::AsyncEvent event) {
  std::lock_guard hold(delivery);
  for (EventSink* sink : sinks) sink->on_port_event(event);
}

void Device::Impl::report_link(const Link& link) {
  const bool up = link.up && link.running;
  if (link_up.exchange(up) == up) return;
  log(LogLevel::info, "{} ({}) is {}", info.name, info.netdev, up ? "up" : "down");
  if (fault_down.load(std::memory_order_relaxed)) return;  // down it is, and stays
  report(up ? engine::AsyncEvent::port_active : engine::AsyncEvent::port_err);
}

// Queue pairs keep the path MTU that they have; packets that no longer fit are lost, and counted.
void Device::Impl::follow_mtu(const Link& link) {
  if (link.mtu == info.netdev_mtu || link.mtu == 0) return;
  engine::Mtu active = info.active_mtu;
  if (!fit_mtu(link.mtu, active))
    log(LogLevel::warn, "{}: no IB MTU fits into the MTU {} of {}", info.name, link.mtu,
        info.netdev);
  lock.lock();
  engine->set_active_mtu(active);
  engine->set_max_ethernet_frame(longest_frame(link.mtu));
  finish(Who::background);
  std::lock_guard hold(info_mutex);
  info.netdev_mtu = link.mtu;
  info.active_mtu = active;
}

void Device::Impl::follow_addresses() {
  const std::vector<Address> addresses = dump_addresses();
  std::vector<Gid> host;
  for (const Address& a : addresses) host.push_back(a.gid);
  lock.lock();
  engine->set_host_gids(host);
  finish(Who::background);
  const GidTable old = info.gids;
  GidTable table = follow(old, gids_of(addresses, info.ifindex));
  if (table == old) return;
  for (unsigned i = 0; i < table.size(); ++i)
    if (table[i] != old[i]) table[i] = change_gid(i, old[i], table[i]);
  if (table == old) return;  // what came could not be served
  {
    std::lock_guard hold(info_mutex);
    info.gids = table;
  }
  report(engine::AsyncEvent::gid_change);
}

// Returns what the entry holds now: `to`, or nothing when that address cannot be served.
Gid Device::Impl::change_gid(unsigned index, const Gid& from, const Gid& to) {
  port::LocalAddress address{.gid_index = index, .gid = to, .ifindex = info.ifindex};
  const bool v1 = is_roce_v1(index);
  if (v1 && !info.roce_v1) return to;
  address.protocol = protocol_of(index);
  if (!v1 && !to.is_zero()) {
    auto socket = client->receive_socket(to, info.ifindex);
    if (socket)
      address.receive_socket = *socket;
    else
      log(LogLevel::warn, "{}: GID {} is not served: {}", info.name, index, socket.error().message);
  }
  Gid now{};
  lock.lock();
  if (!from.is_zero()) port->remove_address(index);
  if (address.receive_socket >= 0 || (v1 && !to.is_zero())) {
    try {
      port->add_address(address);
      now = to;
    } catch (const std::system_error& e) {
      log(LogLevel::warn, "{}: GID {} is not served: {}", info.name, index, e.what());
    }
  }
  engine->set_gid(index, now, protocol_of(index));
  finish(Who::background);
  return now;
}

}  // namespace adverb::nic
