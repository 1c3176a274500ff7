// SPDX-License-Identifier: Apache-2.0
// Memory regions, device memory, and advice about them.
#include <sys/mman.h>
#include <unistd.h>

#include "verbs_calls/steps.hpp"

namespace adverb::fuzz {
namespace {

// Without ON_DEMAND: such a region may cover memory that is not mapped, or not the fuzzer's.
int any_access(Record& in) { return static_cast<int>(in.word() & ~IBV_ACCESS_ON_DEMAND); }

void copy(DmPlace& p, Record& in) {
  std::uint8_t bytes[512] = {};
  const std::uint64_t offset = in.chance(230) ? in.byte() : ~std::uint64_t{in.byte()};
  const std::size_t length = in.byte() + 4u;
  const bool aligned = offset % 4 == 0 && length % 4 == 0;
  const bool inside = offset <= p.length && length <= p.length - offset;
  const int expected = !aligned ? EINVAL : !inside ? EFAULT : 0;
  REQUIRE(ibv_memcpy_to_dm(p.dm, offset, bytes, length) == expected);
  REQUIRE(ibv_memcpy_from_dm(bytes, p.dm, offset, length) == expected);
}

}  // namespace

namespace step {

void mr(Session& s, Record& in) {
  MrPlace& p = s.mrs[in.below(4)];
  if (p.mr && in.chance(128)) return s.destroy(p);
  PdPlace* pd = a_pd(s, in);
  if (p.mr || !pd) return;
  constexpr int rights[] = {0xf, 0x1f, 0x1f, 1, 4, 0x30f, 0x3f};
  const bool sane = in.chance(160);
  int access = sane ? in.one_of(rights) : any_access(in);
  auto* at = inside(in);
  std::size_t length = in.byte() * 16u;
  if (!sane && in.chance(64)) at = reinterpret_cast<std::uint8_t*>(std::uintptr_t{in.word()} << 32);
  if (!sane && in.chance(64)) length = std::size_t{in.word()} << 32 | in.word();
  if (sane && !length) length = 16;  // no bytes may be no page, which is refused
  const bool on_demand = sane && in.chance(32);
  if (on_demand) access |= IBV_ACCESS_ON_DEMAND;
  p.mr = made([&] {
    if (in.chance(200)) return ibv_reg_mr(pd->pd, at, length, access);
    std::uint64_t iova = in.word();
    constexpr std::uint64_t in_page = 4095;  // an address keeps its place in its page
    if (sane) iova = (iova & ~in_page) | (reinterpret_cast<std::uintptr_t>(at) & in_page);
    return ibv_reg_mr_iova2(pd->pd, at, length, iova, static_cast<unsigned>(access));
  });
  REQUIRE(p.mr || !sane);
  if (p.mr) p.pd = pd, ++pd->users, p.on_demand = on_demand;
}

// A region of a memfd, whose addresses are those of the buffer.
void dmabuf(Session& s, Record& in) {
  MrPlace& p = s.mrs[in.below(4)];
  PdPlace* pd = a_pd(s, in);
  if (p.mr || !pd) return;
  static const int file = [] {
    const int fd = memfd_create("dmabuf", MFD_CLOEXEC);
    REQUIRE(fd >= 0 && ftruncate(fd, Session::buffer_bytes) == 0);
    return fd;
  }();
  const bool sane = in.chance(200);
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  const auto iova = reinterpret_cast<std::uintptr_t>(inside(in));
  std::uint64_t offset = iova % page + page * in.below(2);
  std::size_t length = 1 + in.byte() * 8u;
  constexpr int rights[] = {0xf, 0x7, 1, 4, 0};
  int access = in.one_of(rights), fd = file;
  if (!sane && in.chance(96)) offset = in.word();
  if (!sane && in.chance(96)) length = std::size_t{in.word()} << (in.byte() % 33);
  if (!sane && in.chance(96)) access = static_cast<int>(in.word());
  if (!sane && in.chance(96))
    fd = in.chance(128) ? STDERR_FILENO : static_cast<int>(in.word() | 1u << 20);
  p.mr = made([&] { return ibv_reg_dmabuf_mr(pd->pd, offset, length, iova, fd, access); });
  REQUIRE(p.mr || !sane);
  const bool fits = offset <= Session::buffer_bytes && length <= Session::buffer_bytes - offset;
  if (!p.mr) return;
  REQUIRE(fd == file && fits && length && p.mr->length == length);
  p.pd = pd, p.dmabuf = true, ++pd->users;
}

void rereg(Session& s, Record& in) {
  MrPlace* p = pick(s.mrs, &MrPlace::mr, in);
  PdPlace* pd = a_pd(s, in);
  if (!p) return;
  const int flags = in.chance(200) ? static_cast<int>(in.below(8)) : static_cast<int>(in.word());
  auto* at = inside(in);
  const bool small = in.chance(200) || p->on_demand;
  const std::size_t length = small ? in.byte() : std::size_t{in.word()} << 32;
  const bool with_pd = pd && in.chance(200);
  const ibv_mr before = *p->mr;
  const int error = ibv_rereg_mr(p->mr, flags, with_pd ? pd->pd : nullptr, at, length,
                                 in.chance(200) ? 0xf : any_access(in));
  REQUIRE(error >= IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW && error <= 0);
  if (p->null || p->imported) REQUIRE(error == IBV_REREG_MR_ERR_INPUT);
  REQUIRE(p->mr->lkey == before.lkey && p->mr->rkey == before.rkey);
  if (error)
    REQUIRE(p->mr->addr == before.addr && p->mr->length == before.length && p->mr->pd == before.pd);
  if (error == 0 && flags & IBV_REREG_MR_CHANGE_PD) {
    REQUIRE(with_pd && pd->pd->context == p->mr->context && p->mr->pd == pd->pd);
    --p->pd->users, ++pd->users, p->pd = pd;
  }
}

void null_region(Session& s, Record& in) {
  PdPlace* pd = a_pd(s, in);
  MrPlace& p = s.mrs[in.below(4)];
  if (p.mr || !pd) return;
  p.mr = made([&] { return ibv_alloc_null_mr(pd->pd); });
  REQUIRE(p.mr && p.mr->rkey == 0 && p.mr->length == SIZE_MAX);
  p.pd = pd, p.null = true, ++pd->users;
}

void device_memory(Session& s, Record& in) {
  DmPlace& p = s.dms[in.below(2)];
  if (p.dm && in.chance(64)) return s.destroy(p);
  if (p.dm) return copy(p, in);
  if (p.users) return;
  const bool sane = in.chance(200);
  ibv_alloc_dm_attr a{sane ? 1u + in.byte() : size(in), sane ? 0 : in.byte() % 16u,
                      sane ? 0 : in.byte() & 1u};
  p.dm = made([&] { return ibv_alloc_dm(context(s, in), &a); });
  REQUIRE(p.dm || !sane);
  p.length = a.length;
}

void dm_region(Session& s, Record& in) {
  DmPlace* dm = pick(s.dms, &DmPlace::dm, in);
  PdPlace* pd = a_pd(s, in);
  MrPlace& p = s.mrs[in.below(4)];
  if (p.mr && in.chance(64)) return s.destroy(p);
  if (p.mr || !dm || !pd) return;
  const std::uint64_t offset = in.chance(200) ? 0 : in.byte();
  const std::size_t length = in.chance(200) ? dm->length : in.word();
  const unsigned access = in.chance(200) ? 0x2f : in.byte();
  p.mr = made([&] { return ibv_reg_dm_mr(pd->pd, dm->dm, offset, length, access); });
  const bool fits = offset <= dm->length && length <= dm->length - offset;
  REQUIRE(!p.mr || (fits && access & IBV_ACCESS_ZERO_BASED && pd->pd->context == dm->dm->context));
  if (p.mr) p.pd = pd, p.dm = dm, ++pd->users, ++dm->users;
}

void advise(Session& s, Record& in) {
  PdPlace* pd = a_pd(s, in);
  if (!pd) return;
  Elements list = elements(s, in);
  to_offsets(list);
  const auto advice = any<ibv_advise_mr_advice>(in.chance(240) ? in.below(3) : in.word());
  const std::uint32_t flags = in.chance(240) ? in.below(2) : in.word();
  checked(ibv_advise_mr(pd->pd, advice, flags, list.all, in.below(5)));
}

}  // namespace step
}  // namespace adverb::fuzz
