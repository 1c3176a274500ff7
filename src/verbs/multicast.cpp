// SPDX-License-Identifier: Apache-2.0
// ibv_attach_mcast(3), ibv_detach_mcast(3).  On RoCE there is no subnet administrator to ask: to
// attach a queue pair joins the IP multicast group (annex A17), so that switches hear of it by IGMP
// or MLD.  The LID is of no concern.
#include <arpa/inet.h>

#include <cerrno>

#include "verbs/fault.hpp"
#include "verbs/guard.hpp"
#include "verbs/objects.hpp"

namespace adverb::verbs {
namespace {

std::string text_of(const Gid& gid) {
  char text[INET6_ADDRSTRLEN];
  return inet_ntop(AF_INET6, gid.bytes.data(), text, sizeof text);
}

int check(const char* call, const ibv_qp* qp, const Gid& group) {
  if (qp->qp_type != IBV_QPT_UD)
    return refuse(EINVAL, "{} qp {:#x}: only UD queue pairs can be in a group", call, qp->qp_num);
  if (!group.is_multicast())
    return refuse(EINVAL, "{} qp {:#x}: {} is no multicast GID", call, qp->qp_num, text_of(group));
  return 0;
}

// RFC 4291, 2.7.1: nothing that is sent to such a group leaves the host or is taken from the wire.
void warn_of_scope(const Qp& qp, const Gid& group) {
  constexpr unsigned interface_local = 1;
  const bool stays = group.bytes[0] == 0xff && (group.bytes[1] & 15) == interface_local;
  const nic::DeviceInfo info = qp.context->info();
  if (stays && info.netdev != "lo")
    nic::log(nic::LogLevel::warn,
             "attach_mcast: {} has the scope of one interface: IPv6 carries it to no other host; "
             "one that begins with ff02 or ff0e is carried",
             text_of(group));
}

int attach(ibv_qp* q, const Gid& group) {
  if (const int error = fault(Call::attach_mcast)) return error;
  Qp& qp = *of(q);
  if (!qp.context->works()) return EIO;
  if (const int error = check("attach_mcast", q, group)) return error;
  const int error = qp.context->device->attach_mcast(*qp.pair, group);
  if (error)
    return refuse(error, "attach_mcast qp {:#x}: {} on {}: {}", q->qp_num, text_of(group),
                  qp.context->info().netdev, std::strerror(error));
  warn_of_scope(qp, group);
  return 0;
}

int detach(ibv_qp* q, const Gid& group) {
  if (const int error = fault(Call::detach_mcast)) return error;
  Qp& qp = *of(q);
  if (!qp.context->works()) return EIO;
  if (const int error = check("detach_mcast", q, group)) return error;
  const int error = qp.context->device->detach_mcast(*qp.pair, group);
  if (error)
    return refuse(error, "detach_mcast qp {:#x}: it is not in {}", q->qp_num, text_of(group));
  return 0;
}

Gid gid_of(const ibv_gid& g) {
  Gid gid;
  std::memcpy(gid.bytes.data(), g.raw, 16);
  return gid;
}

}  // namespace
}  // namespace adverb::verbs

using namespace adverb::verbs;

ADVERB_API int ibv_attach_mcast(ibv_qp* qp, const ibv_gid* gid, std::uint16_t) {
  return guarded([&] { return attach(qp, gid_of(*gid)); });
}

ADVERB_API int ibv_detach_mcast(ibv_qp* qp, const ibv_gid* gid, std::uint16_t) {
  return guarded([&] { return detach(qp, gid_of(*gid)); });
}
