// SPDX-License-Identifier: Apache-2.0
// What kind of program an executable is, as far as LD_PRELOAD cares: the dynamic loader ignores it
// for programs that gain privileges, and a static program has no loader.
#pragma once

#include <optional>
#include <string>

namespace adverb::cli {

// The file execvp(3) would start, or nothing.
std::optional<std::string> find_program(const std::string& name);

// Why preloading a library into this program has no effect; empty where it has.  A script is judged
// by its interpreter; what cannot be read is taken to be fine.
std::string preload_obstacle(const std::string& path);

// What is preloaded: the verbs, and the files that the kernel has for RDMA devices.
inline constexpr const char* libraries[] = {"libibverbs.so.1", "libadverb-sys.so"};
// The folder where they are: lib/adverb beside the bin folder this executable lies in.
std::string library_folder();

}  // namespace adverb::cli
