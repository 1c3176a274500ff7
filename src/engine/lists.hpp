// SPDX-License-Identifier: Apache-2.0
// How an object leaves the lists that it stands on when it is destroyed or reset.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "base/assert.hpp"

namespace adverb::engine {

// Destroys an object of a list that owns its objects; the others change places.
template <class T>
void erase_owned(std::vector<std::unique_ptr<T>>& list, const T* object) {
  // From the end: what was made last often goes first.
  auto it = std::find_if(list.rbegin(), list.rend(), [&](auto& p) { return p.get() == object; });
  ASSERT(it != list.rend());
  std::swap(*it, list.back());
  list.pop_back();
}

// Takes `object` out of a list that is linked through `next`.
template <class T>
void remove_from(T*& head, T* object, T* T::* next) {
  for (T** at = &head; *at; at = &((*at)->*next))
    if (*at == object) {
      *at = object->*next;
      return;
    }
}

}  // namespace adverb::engine
