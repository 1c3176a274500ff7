// SPDX-License-Identifier: Apache-2.0
// `adverb devices`: what a program under `adverb run` sees here.
#pragma once

namespace adverb::cli {

int devices(bool json);

}  // namespace adverb::cli
