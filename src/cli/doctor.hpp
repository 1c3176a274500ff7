// SPDX-License-Identifier: Apache-2.0
// `adverb doctor`: what on this machine would stop Adverb or make it slower, and what to do about
// it.
#pragma once

namespace adverb::cli {

// 0 when nothing stops Adverb, 1 otherwise.
int doctor(bool json);

}  // namespace adverb::cli
