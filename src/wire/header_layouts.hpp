// SPDX-License-Identifier: Apache-2.0
// Where each member of headers.hpp stands on the wire: one row per field, first bit and width, as
// in the tables of IBTA vol. 1, chapters 5, 7, 8 and 9, annex A14 (XRC) and annex A19 (FLUSH).
// Nothing else in the project knows.
#pragma once

#include "wire/headers.hpp"
#include "wire/layout.hpp"

namespace adverb::wire {

// clang-format off
template <>
inline constexpr auto layout<Bth> = Layout<12,
    Field<&Bth::opcode, 0, 8>,
    Field<&Bth::solicited, 8, 1>,
    Field<&Bth::mig_req, 9, 1>,
    Field<&Bth::pad_count, 10, 2>,
    Field<&Bth::tver, 12, 4>,
    Field<&Bth::pkey, 16, 16>,
    Field<&Bth::fecn, 32, 1>,
    Field<&Bth::becn, 33, 1>,
    Field<&Bth::dest_qp, 40, 24>,
    Field<&Bth::ack_request, 64, 1>,
    Field<&Bth::psn, 72, 24>>{};

template <>
inline constexpr auto layout<Reth> = Layout<16,
    Field<&Reth::va, 0, 64>,
    Field<&Reth::rkey, 64, 32>,
    Field<&Reth::dma_length, 96, 32>>{};

template <>
inline constexpr auto layout<Aeth> = Layout<4,
    Field<&Aeth::syndrome, 0, 8>,
    Field<&Aeth::msn, 8, 24>>{};

template <>
inline constexpr auto layout<AtomicEth> = Layout<28,
    Field<&AtomicEth::va, 0, 64>,
    Field<&AtomicEth::rkey, 64, 32>,
    Field<&AtomicEth::swap_add, 96, 64>,
    Field<&AtomicEth::compare, 160, 64>>{};

template <>
inline constexpr auto layout<AtomicAckEth> = Layout<8,
    Field<&AtomicAckEth::original, 0, 64>>{};

template <>
inline constexpr auto layout<Deth> = Layout<8,
    Field<&Deth::qkey, 0, 32>,
    Field<&Deth::src_qp, 40, 24>>{};

template <>
inline constexpr auto layout<ImmDt> = Layout<4,
    Field<&ImmDt::data, 0, 32>>{};

template <>
inline constexpr auto layout<Ieth> = Layout<4,
    Field<&Ieth::rkey, 0, 32>>{};

template <>
inline constexpr auto layout<XrcEth> = Layout<4,
    Field<&XrcEth::srqn, 8, 24>>{};

template <>
inline constexpr auto layout<Feth> = Layout<4,
    Field<&Feth::selectivity, 26, 2>,
    Field<&Feth::placement_type, 28, 4>>{};

template <>
inline constexpr auto layout<Lrh> = Layout<8,
    Field<&Lrh::vl, 0, 4>,
    Field<&Lrh::lver, 4, 4>,
    Field<&Lrh::sl, 8, 4>,
    Field<&Lrh::lnh, 14, 2>,
    Field<&Lrh::dlid, 16, 16>,
    Field<&Lrh::length, 37, 11>,
    Field<&Lrh::slid, 48, 16>>{};

template <>
inline constexpr auto layout<Grh> = Layout<40,
    Field<&Grh::ip_version, 0, 4>,
    Field<&Grh::traffic_class, 4, 8>,
    Field<&Grh::flow_label, 12, 20>,
    Field<&Grh::payload_length, 32, 16>,
    Field<&Grh::next_header, 48, 8>,
    Field<&Grh::hop_limit, 56, 8>,
    Field<&Grh::sgid, 64, 128>,
    Field<&Grh::dgid, 192, 128>>{};
// clang-format on

static_assert(well_formed(layout<Bth>) && well_formed(layout<Reth>) && well_formed(layout<Aeth>));
static_assert(well_formed(layout<AtomicEth>) && well_formed(layout<AtomicAckEth>));
static_assert(well_formed(layout<Deth>) && well_formed(layout<ImmDt>) && well_formed(layout<Ieth>));
static_assert(well_formed(layout<XrcEth>) && well_formed(layout<Feth>));
static_assert(well_formed(layout<Lrh>) && well_formed(layout<Grh>));

// The opcode table's sizes are these layouts' sizes.
static_assert(size_of<XrcEth> == ext_size[1] && size_of<Deth> == ext_size[2]);
static_assert(size_of<Feth> == ext_size[3] && size_of<Reth> == ext_size[4]);
static_assert(size_of<AtomicEth> == ext_size[5] && size_of<Aeth> == ext_size[6]);
static_assert(size_of<AtomicAckEth> == ext_size[7] && size_of<ImmDt> == ext_size[8]);
static_assert(size_of<Ieth> == ext_size[9]);

namespace detail {
template <class H>
consteval bool round_trips(const H& h) {
  std::array<std::uint8_t, size_of<H>> bytes{};
  store(h, bytes.data());
  return load<H>(bytes.data()) == h;
}
}  // namespace detail
static_assert(detail::round_trips(Bth{.opcode = Opcode{0x64},
                                      .solicited = true,
                                      .mig_req = false,
                                      .pad_count = 3,
                                      .tver = 9,
                                      .pkey = 0x1234,
                                      .fecn = true,
                                      .becn = false,
                                      .dest_qp = Qpn(0xabcdef),
                                      .ack_request = true,
                                      .psn = Psn(0x987654)}));
static_assert(detail::round_trips(Reth{0x0123456789abcdef, 0xfedcba98, 0x80000001}));
static_assert(detail::round_trips(Aeth{0x7f, 0xfedcba}));
static_assert(detail::round_trips(AtomicEth{0x8123456789abcdef, 0xfedcba98, ~1ull, 1ull << 63}));
static_assert(detail::round_trips(AtomicAckEth{0x8123456789abcdef}));
static_assert(detail::round_trips(Deth{0x80010000, Qpn(0xffffff)}));
static_assert(detail::round_trips(ImmDt{0x80000001}) && detail::round_trips(Ieth{0x80000001}));
static_assert(detail::round_trips(XrcEth{0xfedcba}) && detail::round_trips(Feth{1, 3}));
static_assert(detail::round_trips(Lrh{15, 1, 7, 3, 0xbeef, 0x7ff, 0xcafe}));
static_assert(detail::round_trips(Grh{6, 0xa5, 0xabcde, 0x1234, 0x1b, 64, Gid{{1, 2, 3}},
                                      Gid{{9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 1, 2, 3, 4, 5, 6}}}));

}  // namespace adverb::wire
