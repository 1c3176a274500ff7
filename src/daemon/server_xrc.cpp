// SPDX-License-Identifier: Apache-2.0
// XRC domains that processes share: adverbd makes the memory of each, hands it to whoever opens the
// domain by the same inode, and takes the dead out of it.
#include <errno.h>
#include <sys/stat.h>

#include <cstring>

#include "daemon/server.hpp"

namespace adverb::daemon {

namespace {

XrcKey key_of(const Request& r) {
  XrcKey key;
  std::memcpy(&key.device, &r.gid.bytes[0], 8);
  std::memcpy(&key.inode, &r.gid.bytes[8], 8);
  key.ifindex = r.ifindex;
  return key;
}

}  // namespace

void Server::open_xrcd(std::uint32_t id, const Request& request) {
  Connection& c = connections_.at(id);
  if (!c.slot) return refuse(id, request, EINVAL, "take a slot first");
  const XrcKey key = key_of(request);
  auto found = domains_.find(key);
  if (found != domains_.end() && request.flags & flag_exclusive)
    return refuse(id, request, EINVAL, "the inode has an XRC domain, and O_EXCL is given");
  if (found == domains_.end() && predecessors_ && now_ms() < handover_deadline_) {
    c.pending = request;  // a client of the last adverbd may bring it
    return;
  }
  if (found == domains_.end()) {
    if (!(request.flags & flag_create))
      return refuse(id, request, EAGAIN, "the inode has no XRC domain, and O_CREAT is not given");
    auto memory = XrcMemory::create();
    if (!memory) return refuse(id, request, errno, "adverbd cannot make the domain's memory");
    found = domains_.emplace(key, Domain{std::move(*memory), {}, {}}).first;
  }
  Domain& domain = found->second;
  domain.slots.insert(c.slot);
  Reply r;
  r.slot = c.slot;
  reply(id, request, r, {domain.memory.descriptor()});
}

void Server::close_xrcd(std::uint32_t id, const Request& request) {
  const auto found = domains_.find(key_of(request));
  if (found != domains_.end()) {
    found->second.slots.erase(connections_.at(id).slot);
    if (found->second.slots.empty()) domains_.erase(found);
  }
  reply(id, request, {});
}

void Server::hand_xrcd(std::uint32_t id, const Request& request, Descriptors& descriptors) {
  Connection& c = connections_.at(id);
  auto memory = descriptors.size() == 1 ? XrcMemory::map(std::move(descriptors[0])) : std::nullopt;
  if (!c.slot || !memory) return;
  const XrcKey key = key_of(request);
  auto found = domains_.find(key);
  if (found == domains_.end()) {
    found = domains_.emplace(key, Domain{std::move(*memory), {}, {}}).first;
    // Who died while there was no adverbd.
    for (unsigned s = 1; s < slots_.size(); ++s)
      if (slots_[s].state == Slot::free) found->second.dead.insert(s);
  } else {
    struct stat ours, theirs;
    if (::fstat(found->second.memory.descriptor(), &ours) < 0 ||
        ::fstat(memory->descriptor(), &theirs) < 0 || ours.st_ino != theirs.st_ino)
      return;  // made anew meanwhile: two domains of one inode, until the old one's users go
  }
  found->second.slots.insert(c.slot);
  bury();
}

// The slot's process is gone.
void Server::leave_domains(unsigned slot) {
  for (auto at = domains_.begin(); at != domains_.end();) {
    Domain& domain = at->second;
    if (domain.slots.erase(slot)) domain.dead.insert(slot);
    at = domain.slots.empty() ? domains_.erase(at) : std::next(at);
  }
  bury();
}

void Server::bury() {
  for (auto& [key, domain] : domains_)
    std::erase_if(domain.dead, [&](unsigned slot) { return domain.memory.forget_slot(slot); });
}

bool Server::names_a_target(unsigned slot) const {
  for (const auto& [key, domain] : domains_)
    if (domain.dead.contains(slot) || domain.memory.has_number_of(slot)) return true;
  return false;
}

}  // namespace adverb::daemon
