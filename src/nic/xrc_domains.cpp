// SPDX-License-Identifier: Apache-2.0
#include "nic/xrc_domains.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "nic/log.hpp"
#include "port/relay.hpp"

namespace adverb::nic {

// The memory that the processes share, as this one's engine uses it.
class SharedDomain final : public engine::TargetStore {
 public:
  SharedDomain(daemon::XrcMemory memory, daemon::Client& client)
      : memory_(std::move(memory)), slot_(client.slot()), bell_(client.relay_name_prefix()) {}

  engine::SharedTarget* find(Qpn qpn) override { return memory_.find(qpn); }
  engine::SharedTarget* create(Qpn qpn) override { return memory_.create(qpn, slot_); }
  bool hold(engine::SharedTarget& t) override { return memory_.hold(t, slot_); }
  bool release(engine::SharedTarget& t) override { return memory_.release(t, slot_); }
  bool lock(engine::SharedTarget& t) override { return memory_.lock(t); }
  void unlock(engine::SharedTarget& t) override { memory_.unlock(t); }
  std::uint32_t news() const override { return memory_.news(); }
  void tell_others(const engine::SharedTarget& t) override {
    memory_.add_news();
    const auto holders = memory_.holders(t);
    for (unsigned slot = 0; slot < holders.size(); ++slot)
      if (holders[slot] && slot != slot_) bell_.ring(slot);
  }

 private:
  daemon::XrcMemory memory_;
  unsigned slot_;
  port::RelayBell bell_;
};

XrcDomain::XrcDomain(engine::XrcdId id, const daemon::XrcKey& key,
                     std::unique_ptr<SharedDomain> shared)
    : id(id), key(key), shared(std::move(shared)) {}
XrcDomain::~XrcDomain() = default;

engine::TargetStore* XrcDomain::store() const { return shared.get(); }

namespace {

std::unexpected<OpenError> refuse(int error, std::string why) {
  return std::unexpected(OpenError{error, std::move(why)});
}

}  // namespace

std::expected<XrcDomain*, OpenError> XrcDomains::open(int fd, int flags, daemon::Client& client,
                                                      std::uint32_t ifindex,
                                                      const WithEngine& with_engine) {
  std::lock_guard hold(mutex_);
  if (fd == -1) {
    return enter(std::make_unique<XrcDomain>(++last_id_, daemon::XrcKey{}, nullptr));
  }
  struct stat s;
  if (::fstat(fd, &s) < 0) return refuse(errno, std::strerror(errno));
  const daemon::XrcKey key{s.st_dev, s.st_ino, ifindex};
  for (auto& [pointer, domain] : domains_) {
    if (domain->key != key) continue;
    if (flags & O_EXCL) return refuse(EINVAL, "the inode has an XRC domain, and O_EXCL is given");
    ++domain->opened;
    return pointer;
  }
  return share(key, flags, client, with_engine);
}

std::expected<XrcDomain*, OpenError> XrcDomains::share(const daemon::XrcKey& key, int flags,
                                                       daemon::Client& client,
                                                       const WithEngine& with_engine) {
  auto fd = client.open_xrcd(key, flags & O_CREAT, flags & O_EXCL);
  if (!fd && fd.error().error == EOPNOTSUPP && flags & O_CREAT) {
    log(LogLevel::warn, "open_xrcd: an older adverbd runs, so this process has the domain alone");
    return enter(std::make_unique<XrcDomain>(++last_id_, key, nullptr));
  }
  if (!fd) return refuse(fd.error().error, fd.error().message);
  auto memory = daemon::XrcMemory::map(daemon::Descriptor(*fd));
  if (!memory) {
    const int error = errno;
    client.close_xrcd(key);
    return refuse(error, "the domain's memory is another version's: use one Adverb for all");
  }
  auto made = std::make_unique<XrcDomain>(
      ++last_id_, key, std::make_unique<SharedDomain>(std::move(*memory), client));
  with_engine([&](engine::Engine& e) { e.add_store(made->store()); });
  return enter(std::move(made));
}

XrcDomain* XrcDomains::enter(std::unique_ptr<XrcDomain> made) {
  XrcDomain* domain = made.get();
  domains_.emplace(domain, std::move(made));
  return domain;
}

void XrcDomains::close(XrcDomain* domain, daemon::Client& client, const WithEngine& with_engine) {
  std::lock_guard hold(mutex_);
  if (--domain->opened) return;
  if (domain->shared) {
    with_engine([&](engine::Engine& e) { e.forget_store(domain->store()); });
    client.close_xrcd(domain->key);
  }
  domains_.erase(domain);
}

}  // namespace adverb::nic
