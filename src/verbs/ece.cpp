// SPDX-License-Identifier: Apache-2.0
// Enhanced connection establishment (ibv_query_ece(3), ibv_set_ece(3)): two NICs of one vendor
// agree on options of that vendor.  Adverb knows none, and who asks a device under its own name
// hears EOPNOTSUPP: a peer of another vendor that is told any options refuses them, and with them
// the connection.  A device that is told to look like one of NVIDIA's (--part-id, --vendor-id)
// speaks of that vendor's options as its NICs do, and accepts none of them.
#include <cerrno>

#include "nic/settings.hpp"
#include "verbs/guard.hpp"
#include "verbs/objects.hpp"

namespace adverb::verbs {
namespace {

// The NIC driver names itself by its PCI number here, and by its OUI in ibv_query_device(3).
constexpr std::uint32_t pci_vendor = 0x15b3;

int check(const ibv_qp* qp) {
  if (const int error = live().check(qp, Kind::qp)) return error;
  const std::uint32_t vendor = nic::settings().vendor_id;
  return vendor == nic::mellanox_vendor_id || vendor == pci_vendor ? 0 : EOPNOTSUPP;
}

}  // namespace
}  // namespace adverb::verbs

extern "C" {

using namespace adverb::verbs;

ADVERB_API int ibv_query_ece(ibv_qp* qp, ibv_ece* ece) {
  return guarded([&] {
    if (const int error = check(qp)) return error;
    *ece = {.vendor_id = pci_vendor, .options = 0, .comp_mask = 0};
    return 0;
  });
}

ADVERB_API int ibv_set_ece(ibv_qp* qp, ibv_ece* ece) {
  return guarded([&] {
    if (const int error = check(qp)) return error;
    if (ece->comp_mask) return refuse(EINVAL, "set_ece: comp_mask {:#x}", ece->comp_mask);
    if (ece->vendor_id != pci_vendor)
      return refuse(EINVAL, "set_ece: vendor {:#x}, the device's is {:#x}", ece->vendor_id,
                    pci_vendor);
    ece->options = 0;  // that were accepted
    return 0;
  });
}

}  // extern "C"
