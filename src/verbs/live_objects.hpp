// SPDX-License-Identifier: Apache-2.0
// Which objects exist, and what they are known by.
#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_map>

namespace adverb::verbs {

enum class Kind : std::uint8_t {
  context,
  pd,
  td,
  mr,
  mw,
  dm,
  channel,
  cq,
  qp,
  srq,
  ah,
  xrcd,
  flow,
  wq,
  rwq_ind_table,
};

// A kernel finds an object by the handle in the application's structure, in the context that the
// structure names: a call with another handle or context finds none.  Here the structure itself
// leads to the object, and the two are compared with what they were.
class LiveObjects {
 public:
  // The structure's context and handle are set.
  void add(const void* object, Kind);
  bool remove(const void* object, Kind);  // false: no such object
  // 0, or an errno: EINVAL no such object (as after its destroy call), ENOENT another handle or
  // context than it was given.
  int check(const void* object, Kind);
  bool contains(const void* object, Kind kind) { return check(object, kind) == 0; }

 private:
  struct Entry {
    Kind kind;
    const void* context;
    std::uint32_t handle;
  };
  static Entry entry_of(const void*, Kind);
  std::mutex mutex_;
  std::unordered_map<const void*, Entry> objects_;
};
LiveObjects& live();

// A handle for an object whose number is nothing else.
std::uint32_t next_handle();

}  // namespace adverb::verbs
