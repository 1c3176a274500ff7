// SPDX-License-Identifier: Apache-2.0
// Headers as field lists: a Layout names the members of a plain struct and the bits they take,
// numbered as the specification's tables number them (bit 0 is the top bit of byte 0).  load() and
// store() are derived from the list, in constant expressions and at run time, and compile to the
// loads and masks one would write by hand. Bits that no field names are stored as zero and ignored
// by load().  Needs whole 32-bit words.
#pragma once

#include <array>
#include <bit>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "base/types.hpp"

namespace adverb::wire {

// Bytewise code is not merged into one load by g++ 12, hence the two ways.
constexpr std::uint32_t load_be32(const std::uint8_t* p) {
  if (!std::is_constant_evaluated()) {
    std::uint32_t w;
    std::memcpy(&w, p, 4);
    if constexpr (std::endian::native == std::endian::little) w = __builtin_bswap32(w);
    return w;
  }
  return std::uint32_t{p[0]} << 24 | std::uint32_t{p[1]} << 16 | std::uint32_t{p[2]} << 8 | p[3];
}
constexpr void store_be32(std::uint8_t* p, std::uint32_t v) {
  if (!std::is_constant_evaluated()) {
    if constexpr (std::endian::native == std::endian::little) v = __builtin_bswap32(v);
    std::memcpy(p, &v, 4);
    return;
  }
  for (int i = 0; i < 4; ++i) p[i] = static_cast<std::uint8_t>(v >> (24 - 8 * i));
}
constexpr std::uint64_t load_be64(const std::uint8_t* p) {
  return std::uint64_t{load_be32(p)} << 32 | load_be32(p + 4);
}
constexpr void store_be16(std::uint8_t* p, std::uint16_t v) {
  p[0] = static_cast<std::uint8_t>(v >> 8);
  p[1] = static_cast<std::uint8_t>(v);
}

template <auto M>
struct MemberOf;
template <class C, class T, T C::* M>
struct MemberOf<M> {
  using type = T;
};

// `Member` takes Width bits from bit First on.
template <auto Member, unsigned First, unsigned Width>
struct Field {
  using type = typename MemberOf<Member>::type;
  static constexpr auto member = Member;
  static constexpr unsigned first = First, width = Width, end = First + Width;
  static constexpr bool is_gid = std::same_as<type, Gid>;
};

template <unsigned Bytes, class... Fields>
struct Layout {
  static constexpr unsigned size = Bytes;
};

// Specialised once for each header, in header_layouts.hpp.
template <class Header>
inline constexpr auto layout = nullptr;

namespace detail {

constexpr std::uint64_t ones(unsigned n) { return n >= 64 ? ~0ull : (1ull << n) - 1; }

template <class T>
constexpr std::uint64_t to_bits(T v) {
  if constexpr (requires { v.raw(); })
    return v.raw();
  else
    return static_cast<std::uint64_t>(v);
}
template <class T>
constexpr T from_bits(std::uint64_t v) {
  if constexpr (std::is_enum_v<T>)
    return T(static_cast<std::underlying_type_t<T>>(v));
  else if constexpr (std::integral<T>)
    return static_cast<T>(v);
  else
    return T(static_cast<decltype(T{}.raw())>(v));
}

// The part of field F that lies in 32-bit word W.
template <class F, unsigned W>
struct Slice {
  static constexpr unsigned low = W * 32, high = low + 32;
  static constexpr unsigned a = F::first > low ? F::first : low, b = F::end < high ? F::end : high;
  static constexpr bool empty = a >= b;
  static constexpr unsigned width = empty ? 0 : b - a;
  static constexpr unsigned in_word = empty ? 0 : high - b, in_field = empty ? 0 : F::end - b;
};

template <class F, unsigned W>
constexpr std::uint64_t get_part(const std::uint8_t* p) {
  using S = Slice<F, W>;
  return (std::uint64_t{load_be32(p + 4 * W)} >> S::in_word & ones(S::width)) << S::in_field;
}
template <class F, class H>
constexpr void get(const std::uint8_t* p, H& h) {
  if constexpr (F::is_gid) {
    auto& bytes = (h.*F::member).bytes;
    for (unsigned i = 0; i < 16; ++i) bytes[i] = p[F::first / 8 + i];
  } else {
    constexpr unsigned w0 = F::first / 32, w1 = (F::end - 1) / 32;
    std::uint64_t v = get_part<F, w0>(p);
    if constexpr (w1 != w0) v |= get_part<F, w1>(p);
    h.*F::member = from_bits<typename F::type>(v);
  }
}
template <class F, unsigned W, class H>
constexpr std::uint32_t put_part(const H& h) {
  using S = Slice<F, W>;
  if constexpr (S::empty)
    return 0;
  else if constexpr (F::is_gid)
    return load_be32(&(h.*F::member).bytes[4 * (W - F::first / 32)]);
  else
    return static_cast<std::uint32_t>((to_bits(h.*F::member) >> S::in_field & ones(S::width))
                                      << S::in_word);
}
template <unsigned W, class... F, class H>
constexpr void put_word(const H& h, std::uint8_t* p) {
  store_be32(p + 4 * W, (put_part<F, W>(h) | ... | 0u));
}
template <class H, unsigned N, class... F>
constexpr void load_fields(const std::uint8_t* p, H& h, Layout<N, F...>) {
  (get<F>(p, h), ...);
}
template <class H, unsigned N, class... F, unsigned... W>
constexpr void store_words(const H& h, std::uint8_t* p, Layout<N, F...>,
                           std::integer_sequence<unsigned, W...>) {
  (put_word<W, F...>(h, p), ...);
}

}  // namespace detail

template <class H>
inline constexpr unsigned size_of = std::remove_cvref_t<decltype(layout<H>)>::size;

template <class H>
constexpr void load(const std::uint8_t* p, H& h) {
  detail::load_fields(p, h, layout<H>);
}
template <class H>
constexpr H load(const std::uint8_t* p) {
  H h{};
  load(p, h);
  return h;
}
template <class H>
constexpr void store(const H& h, std::uint8_t* p) {
  detail::store_words(h, p, layout<H>, std::make_integer_sequence<unsigned, size_of<H> / 4>{});
}

// No two fields share a bit, none leaves the header or is wider than its member, and none spans
// more than two words (a GID: starts on a word).
template <unsigned N, class... F>
consteval bool well_formed(Layout<N, F...>) {
  std::array<bool, N * 8> used{};
  bool ok = N % 4 == 0;
  auto claim = [&](unsigned first, unsigned width) {
    for (unsigned b = first; b < first + width; ++b) {
      if (b >= N * 8 || used[b]) {
        ok = false;
        return;
      }
      used[b] = true;
    }
  };
  (claim(F::first, F::width), ...);
  auto fits = []<class T>(unsigned first, unsigned width, T*) {
    if constexpr (std::same_as<T, Gid>)
      return first % 32 == 0 && width == 128;
    else if constexpr (std::same_as<T, bool>)
      return width == 1;
    else
      return width <= 8 * sizeof(T) && (first + width - 1) / 32 - first / 32 <= 1;
  };
  return ok && (fits(F::first, F::width, static_cast<typename F::type*>(nullptr)) && ...);
}

}  // namespace adverb::wire
