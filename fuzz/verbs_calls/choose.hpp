// SPDX-License-Identifier: Apache-2.0
// Choices out of a record: an object that there is, a size, an address, any number as an
// enumerator.
#pragma once

#include <cstring>

#include "verbs_calls/session.hpp"

namespace adverb::fuzz {

// Any number as an enumerator of the C API.
template <class E>
E any(std::uint32_t v) {
  E e;
  static_assert(sizeof e == sizeof v);
  std::memcpy(&e, &v, sizeof e);
  return e;
}

inline ibv_context* context(Session& s, Record& in) {
  ibv_context* c = s.contexts[in.below(2)];
  return c ? c : s.contexts[0];
}

// An object of that kind, if there is one: the chosen place, or the first that is taken.
template <class Places, class Member>
auto* pick(Places& places, Member member, Record& in) {
  auto* p = &places[in.below(static_cast<unsigned>(places.size()))];
  if (p->*member) return p;
  for (auto& each : places)
    if (each.*member) return &each;
  return static_cast<decltype(p)>(nullptr);
}
inline PdPlace* a_pd(Session& s, Record& in) { return pick(s.pds, &PdPlace::pd, in); }
inline CqPlace* a_cq(Session& s, Record& in) { return pick(s.cqs, &CqPlace::cq, in); }
inline QpPlace* a_qp(Session& s, Record& in) { return pick(s.qps, &QpPlace::qp, in); }

inline std::uint32_t size(Record& in) {
  constexpr std::uint32_t all[] = {0, 1, 2, 4, 8, 33, 1025, 0x7fffffff, 0xffffffff};
  const std::uint8_t how = in.byte();
  return how < 200 ? 1 + how % 8 : all[how % std::size(all)];
}

inline std::uint8_t* inside(Record& in) {
  return Session::buffer().data() + Session::guard + in.byte() * 8;
}

}  // namespace adverb::fuzz
