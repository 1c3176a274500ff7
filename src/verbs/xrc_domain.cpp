// SPDX-License-Identifier: Apache-2.0
// XRC domains (ibv_open_xrcd(3)): what XRC targets and XRC SRQs must have in common.
#include <cerrno>
#include <memory>

#include "verbs/fault.hpp"
#include "verbs/guard.hpp"
#include "verbs/objects.hpp"

namespace adverb::verbs {
namespace {

ibv_xrcd* do_open_xrcd(ibv_context* c, const ibv_xrcd_init_attr& a) {
  constexpr std::uint32_t all = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
  if (const int error = fault(Call::open_xrcd)) return errno = error, nullptr;
  Context* context = of(c);
  if (!context->works()) return errno = EIO, nullptr;
  if (a.comp_mask & ~all) return errno = EOPNOTSUPP, nullptr;
  if (a.comp_mask != all)
    return fail(EINVAL, "open_xrcd: comp_mask {:#x} lacks FD or OFLAGS", a.comp_mask);
  auto domain = context->device->open_xrc_domain(a.fd, static_cast<int>(a.oflags));
  if (!domain) return fail(domain.error().error, "open_xrcd: {}", domain.error().message);
  auto xrcd = std::make_unique<Xrcd>();
  xrcd->xrcd.context = c;
  xrcd->context = context;
  xrcd->domain = *domain;
  ++context->references;
  live().add(&xrcd->xrcd, Kind::xrcd);
  return &xrcd.release()->xrcd;
}

int do_close_xrcd(ibv_xrcd* x) {
  if (const int error = fault(Call::close_xrcd)) return error;
  if (const int error = live().check(x, Kind::xrcd)) return error;
  Xrcd* xrcd = of(x);
  if (xrcd->references) return EBUSY;
  live().remove(x, Kind::xrcd);
  Context* context = xrcd->context;
  context->device->close_xrc_domain(xrcd->domain);
  delete xrcd;
  context->release();
  return 0;
}

}  // namespace

ibv_xrcd* open_xrcd(ibv_context* c, ibv_xrcd_init_attr* a) {
  return guarded([&] { return do_open_xrcd(c, *a); });
}

int close_xrcd(ibv_xrcd* x) {
  return guarded([&] { return do_close_xrcd(x); });
}

}  // namespace adverb::verbs
