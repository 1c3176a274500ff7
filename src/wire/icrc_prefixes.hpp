// SPDX-License-Identifier: Apache-2.0
// The ICRC states after the pseudo headers of the latest paths and packet sizes.  A pseudo header
// costs as much to sum as a small packet, and traffic has few of them: an answer and its ACK, both
// ways.
#pragma once

#include <array>
#include <cstddef>
#include <optional>

#include "wire/icrc.hpp"

namespace adverb::wire {

class IcrcPrefixes {
 public:
  const IcrcPrefix& of(const IcrcPath& path, std::size_t transport_bytes) {
    Entry& e = entries_[(transport_bytes / 4 ^ path.source_port) % entries_.size()];
    if (!e.prefix || e.bytes != transport_bytes || e.path.source_port != path.source_port ||
        e.path.destination_port != path.destination_port || e.path.source != path.source ||
        e.path.destination != path.destination || e.path.grh != path.grh) {
      e.path = path;
      e.bytes = transport_bytes;
      e.prefix.emplace(path, transport_bytes);
    }
    return *e.prefix;
  }

 private:
  struct Entry {
    IcrcPath path{};
    std::size_t bytes = 0;
    std::optional<IcrcPrefix> prefix;
  };
  std::array<Entry, 8> entries_{};
};

}  // namespace adverb::wire
