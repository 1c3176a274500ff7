// SPDX-License-Identifier: Apache-2.0
#include "nic/xrc_domains.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

namespace adverb::nic {
namespace {

std::unexpected<OpenError> refuse(int error, std::string why) {
  return std::unexpected(OpenError{error, std::move(why)});
}

}  // namespace

std::expected<std::shared_ptr<XrcDomain>, OpenError> XrcDomains::open(int fd, int flags) {
  std::lock_guard hold(mutex_);
  std::weak_ptr<XrcDomain>* place = nullptr;
  if (fd != -1) {
    struct stat s;
    if (::fstat(fd, &s) < 0) return refuse(errno, std::strerror(errno));
    std::erase_if(by_inode_, [](const auto& entry) { return entry.second.expired(); });
    const Inode inode{s.st_dev, s.st_ino};
    if (const auto found = by_inode_.find(inode); found != by_inode_.end()) {
      if (flags & O_EXCL) return refuse(EINVAL, "O_EXCL, and the inode has an XRC domain");
      return found->second.lock();
    }
    if (!(flags & O_CREAT))
      return refuse(EAGAIN, "the inode has no XRC domain, and O_CREAT is not given");
    place = &by_inode_[inode];
  }
  auto domain = std::make_shared<XrcDomain>(++last_id_);
  if (place) *place = domain;
  return domain;
}

}  // namespace adverb::nic
