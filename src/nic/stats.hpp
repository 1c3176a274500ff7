// SPDX-License-Identifier: Apache-2.0
// ADVERB_STATS=stderr or a file's name: one line of JSON per device when it is closed, or when the
// process exits with it open.
#pragma once

#include <string>

#include "nic/device_impl.hpp"

namespace adverb::nic {

// Takes no lock: at exit nobody may be waited for.
std::string stats_line(const Device::Impl&);
void write_stats(const Device::Impl&);

}  // namespace adverb::nic
