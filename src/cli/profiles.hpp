// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace adverb::cli {

// `adverb profiles`: in what the profiles of `adverb run --profile` differ, and the limits that
// `adverb run --limits` sets lower.
int profiles();

}  // namespace adverb::cli
