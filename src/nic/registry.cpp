// SPDX-License-Identifier: Apache-2.0
#include "nic/registry.hpp"

#include <pthread.h>
#include <sched.h>
#include <sys/random.h>
#include <unistd.h>
#include <algorithm>

#include <cerrno>
#include <cstdlib>
#include <new>
#include <system_error>

#include "base/anew.hpp"
#include "base/assert.hpp"
#include "base/spin_lock.hpp"
#include "nic/fault_handler.hpp"
#include "nic/fault_plane.hpp"
#include "nic/log.hpp"
#include "nic/netlink.hpp"
#include "nic/settings.hpp"
#include "nic/stats.hpp"
#include "port/ethernet_port.hpp"
#include "port/udp_port.hpp"
#include "port/uncancelled.hpp"

namespace adverb::nic {

using namespace std::chrono_literals;

namespace {

void print_assertion(const char* expression, const char* file, int line) {
  log(LogLevel::error, "broken invariant, please report: {} at {}:{}", expression, file, line);
}

std::uint64_t random_seed() {
  std::uint64_t seed;
  if (getrandom(&seed, sizeof seed, 0) == sizeof seed) return seed;
  return static_cast<std::uint64_t>(clock_now().time_since_epoch().count()) ^
         static_cast<std::uint64_t>(getpid()) << 32;
}

bool switched_off(const char* variable) {
  const char* text = std::getenv(variable);
  return text && std::string_view(text) == "0";
}

// The sockets of the device's addresses.  An address that cannot be served leaves the table; the
// last reason is returned when none can.
std::expected<port::UdpPortConfig, OpenError> make_port_config(DeviceInfo& info,
                                                               daemon::Client& client) {
  port::UdpPortConfig config;
  config.slot = client.slot();
  config.ifindex = info.ifindex;
  config.gso = !switched_off("ADVERB_GSO");
  config.gro = !switched_off("ADVERB_GRO");
  OpenError last{ENODEV, "no address on " + info.netdev};
  for (unsigned i = 0; i < info.gids.size(); ++i) {
    if (info.gids[i].is_zero() || is_roce_v1(i)) continue;
    auto socket = client.receive_socket(info.gids[i], info.ifindex);
    if (socket) {
      config.addresses.push_back({.gid_index = i,
                                  .gid = info.gids[i],
                                  .ifindex = info.ifindex,
                                  .receive_socket = *socket});
      continue;
    }
    last = {socket.error().error, socket.error().message};
    log(LogLevel::warn, "{}: GID {} is not served: {}", info.name, i, last.message);
    info.gids[i] = Gid{};
  }
  if (config.addresses.empty()) return std::unexpected(last);
  config.relay_socket = client.take_relay_socket();
  config.relay_name_prefix = client.relay_name_prefix();
  return config;
}

// Raw packets, and the RoCE v1 entries of the GID table.
void add_ethernet(Device::Impl& impl, unsigned slot) {
  DeviceInfo& info = impl.info;
  impl.port = std::make_unique<port::EthernetPort>(
      std::move(impl.port),
      port::EthernetPortConfig{
          .slot = slot, .ifindex = info.ifindex, .mac = info.mac, .loopback = info.loopback});
  info.roce_v1 = true;
  for (unsigned i = 0; i < info.gids.size(); ++i)
    if (!info.gids[i].is_zero() && is_roce_v1(i))
      impl.port->add_address({.gid_index = i,
                              .gid = info.gids[i],
                              .ifindex = info.ifindex,
                              .protocol = engine::Protocol::roce_v1});
}

// More on its way at once brings no bandwidth and costs go-back-N dearly.  The sockets hold more
// where they may: what is over absorbs bursts that nothing holds back, UC and UD from other hosts.
constexpr std::uint64_t most_in_flight = 4 << 20;

// Bytes per second.  A tap says 10 Mb/s and means nothing by it; who says nothing is taken for a
// port of 10 Gb/s, as ibv_query_port has it.
std::uint64_t pace_of(std::uint32_t mbps) {
  constexpr std::uint64_t bytes_per_mbit = 125'000;
  return (mbps < 100 ? 10'000 : mbps) * bytes_per_mbit;
}

// Windows and credits stay under what the sockets really hold (design D7: in flight).
engine::EngineConfig make_engine_config(const DeviceInfo& info, unsigned slot,
                                        std::uint64_t buffer) {
  engine::EngineConfig config;
  config.slot = slot;
  config.seed = random_seed();
  config.max_mw = 65536;
  config.active_mtu = info.active_mtu;
  config.max_ethernet_frame = longest_frame(info.netdev_mtu);
  config.link_rate = pace_of(info.speed_mbps);
  config.initial_window = std::min(buffer / 2, most_in_flight);
  config.max_window = std::min(buffer * 7 / 10, most_in_flight);
  config.read_budget = std::min<std::uint64_t>(buffer * 4 / 10, config.read_budget);
  const std::uint64_t half_of_it = config.read_budget / 2 / engine::frame_cost(4096);
  config.read_chunk_packets = static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(half_of_it, 1, config.read_chunk_packets));
  const Behaviour& behaviour = settings().behaviour;
  config.max_msg_size = behaviour[Point::max_msg_sz];
  config.sl_tells_header = behaviour[Point::datagram_sl];
  config.long_datagram_fails = behaviour[Point::long_datagram];
  // A peer whose application has just stopped polling answers within a millisecond.
  config.min_ack_timeout = 2ms;
  return config;
}

// For a thread that waits for a SpinLock.  Schedulers before Linux 6.18 let one that yields go on
// before a holder that has used up its share; a thread that sleeps is not in the way.
void yield_cpu(unsigned n) {
  constexpr unsigned yields = 8;
  constexpr timespec nap{.tv_sec = 0, .tv_nsec = 50'000};
  if (n <= yields)
    sched_yield();
  else
    port::uncancelled::nanosleep(nap);
}

}  // namespace

Registry::Registry() {
  spin_yield.store(yield_cpu);
  assert_hook = print_assertion;
  pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  std::atexit(at_exit);
}

Registry& Registry::instance() {
  static Registry& registry = *new Registry;
  return registry;
}

std::expected<std::shared_ptr<Device>, OpenError> Device::open(const DeviceInfo& info) {
  return Registry::instance().open(info);
}

std::expected<std::shared_ptr<Device>, OpenError> Registry::open(const DeviceInfo& info) {
  std::unique_lock hold(mutex_);
  for (;;) {
    const auto found = devices_.find(info.name);
    if (found == devices_.end()) break;
    if (auto device = found->second.shared.lock()) return device;
    closed_.wait(hold);  // its last user is closing it
  }
  install_fault_handler();
  auto impl = make(info);
  if (!impl) return std::unexpected(impl.error());
  Device::Impl* inside = impl->get();
  std::shared_ptr<Device> device(new Device(std::move(*impl)),
                                 [](Device* d) { Registry::instance().close(d); });
  devices_.emplace(info.name, Entry{device, inside});
  return device;
}

std::vector<std::shared_ptr<Device>> Device::opened() { return Registry::instance().opened(); }

std::vector<std::shared_ptr<Device>> Registry::opened() {
  std::lock_guard hold(mutex_);
  std::vector<std::shared_ptr<Device>> devices;
  for (const auto& [name, entry] : devices_)
    if (auto device = entry.shared.lock()) devices.push_back(std::move(device));
  return devices;
}

Registry::Made Registry::make(const DeviceInfo& info) {
  auto client = connect();
  if (!client) return std::unexpected(client.error());
  auto impl = std::make_unique<Device::Impl>(info);
  impl->client = *client;
  auto sockets = make_port_config(impl->info, **client);
  if (!sockets) return std::unexpected(sockets.error());
  std::uint64_t buffer = 0;
  try {
    auto port = std::make_unique<port::UdpPort>(*sockets);
    buffer = port->receive_buffer();
    impl->port = std::move(port);
    if (port::packet_sockets_permitted()) add_ethernet(*impl, sockets->slot);
  } catch (const std::system_error& e) {
    return std::unexpected(OpenError{e.code().value(), info.name + ": " + e.what()});
  }
  const auto rules = FaultRules::get();
  if (!rules) return std::unexpected(OpenError{EINVAL, "fault rules: " + rules.error()});
  if (*rules) {
    impl->faults = std::make_unique<FaultPlane>(*impl, **rules);
    impl->port = impl->faults->wrap(std::move(impl->port));
  }
  impl->engine = std::make_unique<engine::Engine>(make_engine_config(info, sockets->slot, buffer));
  for (unsigned i = 0; i < impl->info.gids.size(); ++i)
    impl->engine->set_gid(i, impl->info.gids[i], protocol_of(i));
  std::vector<Gid> host;
  for (const Address& a : dump_addresses()) host.push_back(a.gid);
  const auto lines = (*client)->credit_lines();
  // A frame that travels alone takes up to 1.75 times frame_cost (the kernel allocates by powers of
  // two), and up to a quarter of the buffer is given back late.
  impl->engine->set_local(host, lines, std::min(buffer * 4 / 10, most_in_flight));
  if (const int error = impl->start())
    return std::unexpected(OpenError{error, info.name + ": no background thread"});
  return impl;
}

std::expected<std::shared_ptr<daemon::Client>, OpenError> Registry::connect() {
  if (auto client = client_.lock()) return client;
  auto made = daemon::Client::connect();
  if (!made) return std::unexpected(OpenError{made.error().error, made.error().message});
  std::shared_ptr<daemon::Client> client(std::move(*made));
  client_ = client;
  return client;
}

// The last user lets go.  Until the entry is gone, open() of the same name waits.
void Registry::close(Device* device) {
  std::lock_guard hold(mutex_);
  if (!device->dead()) {
    std::erase_if(devices_, [](const auto& entry) { return entry.second.shared.expired(); });
  }
  delete device;
  closed_.notify_all();
}

Device::~Device() {
  if (dead()) return;
  impl_->stop();
  write_stats(*impl_);
}

// --- fork

// Holds every engine over the fork, so that the child closes descriptors of ports that nobody is
// using.
void Registry::before_fork() {
  Registry& r = instance();
  r.mutex_.lock();
  for (auto& [name, entry] : r.devices_) {
    entry.impl->lock.lock();
    entry.impl->delivery.lock();
    entry.impl->info_mutex.lock();
  }
}

void Registry::after_fork_in_parent() {
  Registry& r = instance();
  for (auto& [name, entry] : r.devices_) {
    entry.impl->info_mutex.unlock();
    entry.impl->delivery.unlock();
    entry.impl->lock.unlock();
    // Doorbells that rang in the meantime found the engine taken.
    if (entry.impl->engine->doorbells_pending()) entry.impl->kick();
  }
  r.mutex_.unlock();
}

// The child's copies are dead: their engine lock stays held, so posts and polls do nothing; the
// descriptors go.
void Registry::after_fork_in_child() {
  Registry& r = instance();
  for (auto& [name, entry] : r.devices_) {
    Device::Impl& impl = *entry.impl;
    impl.dead.store(true);
    impl.info_mutex.unlock();
    impl.running = false;
    impl.delivery.unlock();
    impl.abandon();
    impl.client.reset();  // which only closes descriptors; the slot is the parent's
  }
  if (const auto rules = FaultRules::get(); rules && *rules) (*rules)->forked();
  r.devices_.clear();
  r.client_.reset();
  // A recursive mutex knows its owner by thread id, which the fork has changed.
  make_anew(r.mutex_);
  make_anew(r.closed_);
}

void Registry::at_exit() {
  Registry& r = instance();
  if (!r.mutex_.try_lock()) return;
  for (const auto& [name, entry] : r.devices_)
    if (!entry.shared.expired()) write_stats(*entry.impl);
  r.mutex_.unlock();
}

}  // namespace adverb::nic
