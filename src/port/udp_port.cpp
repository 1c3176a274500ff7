// SPDX-License-Identifier: Apache-2.0
#include "port/udp_port.hpp"

#include "port/udp_receiver.hpp"
#include "port/udp_sender.hpp"

namespace adverb::port {

struct UdpPort::State {
  explicit State(const UdpPortConfig& config)
      : receiver(config, counters), sender(config, counters) {}
  PortCounters counters;
  UdpReceiver receiver;
  UdpSender sender;
};

UdpPort::UdpPort(UdpPortConfig config) : state_(std::make_unique<State>(config)) {}
UdpPort::~UdpPort() = default;

std::span<const engine::RxFrame> UdpPort::receive(bool& all_empty, Look look) {
  return state_->receiver.receive(all_empty, look);
}
void UdpPort::send(engine::TxBurst& burst) { state_->sender.send(burst); }
std::vector<int> UdpPort::wait_descriptors() const { return {state_->receiver.wait_descriptor()}; }
void UdpPort::add_address(const LocalAddress& address) {
  state_->receiver.add(address);
  state_->sender.add(address);
}
void UdpPort::remove_address(unsigned gid_index) {
  state_->receiver.remove(gid_index);
  state_->sender.remove(gid_index);
}
int UdpPort::join(const Gid& group) { return state_->receiver.join(group); }
void UdpPort::leave(const Gid& group) { state_->receiver.leave(group); }
const PortCounters& UdpPort::counters() const { return state_->counters; }
std::uint64_t UdpPort::receive_buffer() const { return state_->receiver.receive_buffer(); }

}  // namespace adverb::port
