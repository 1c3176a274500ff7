// SPDX-License-Identifier: Apache-2.0
// A whole Ethernet frame on its way into a receive of raw packets.  Where its VLAN tag (802.1Q) is
// taken out, it is two pieces, and the tag goes into the completion.
#pragma once

#include <cstdint>
#include <span>

#include "engine/memory.hpp"
#include "engine/work_queue.hpp"
#include "wire/flow_key.hpp"

namespace adverb::engine {

struct RawFrame : wire::UntaggedFrame {
  RawFrame(std::span<const std::uint8_t> bytes, bool strip_vlan)
      : UntaggedFrame(strip_vlan ? wire::without_vlan_tag(bytes) : UntaggedFrame{.rest = bytes}) {}
  std::size_t size() const { return front.size() + rest.size(); }

  // Into that list; too_short: it has not as many bytes.
  SgStatus scatter_to(const KeyTable& keys, PdId pd, const RecvWqe& receive) const {
    if (size() > receive.length) return SgStatus::too_short;
    const SgStatus s = scatter(keys, pd, receive.list(), 0, front.data(), front.size());
    return s == SgStatus::ok
               ? scatter(keys, pd, receive.list(), front.size(), rest.data(), rest.size())
               : s;
  }
};

}  // namespace adverb::engine
