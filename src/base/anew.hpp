// SPDX-License-Identifier: Apache-2.0
// Objects that a forked child begins with again.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>

namespace adverb {

// Makes the object anew in its place, without destroying it: a thread of the parent may have been
// in the midst of changing it, or hold it.  What it owned is left alone; its bytes are kept, so
// that to a checker of leaks all that stays reachable.
template <class T>
void make_anew(T& object) {
  struct Kept {
    Kept* next;
    alignas(T) std::byte bytes[sizeof(T)];
  };
  static Kept* all = nullptr;
  if (auto* kept = static_cast<Kept*>(std::malloc(sizeof(Kept)))) {
    std::memcpy(kept->bytes, static_cast<const void*>(&object), sizeof(T));
    kept->next = all;
    all = kept;
  }
  new (&object) T;
}

}  // namespace adverb
