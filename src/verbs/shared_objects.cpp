// SPDX-License-Identifier: Apache-2.0
#include "verbs/shared_objects.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/anew.hpp"
#include "verbs/mappings.hpp"

namespace adverb::verbs {

namespace {

constexpr std::uint64_t magic = 0x6665762d62646561;
constexpr std::uint32_t version = 1, row_count = 1 << 18;
constexpr std::size_t header_bytes = 4096, row_bytes = 64;
constexpr std::size_t table_bytes = header_bytes + row_count * row_bytes;
constexpr std::size_t rows_at_rest = 64;  // before the oldest of them is used again

struct Tables {
  std::mutex mutex;
  std::unordered_map<std::uint64_t, std::weak_ptr<SharedObjects>> by_inode;
};
Tables& tables() {
  static auto* all = new Tables;
  return *all;
}

std::atomic<std::uint32_t> next_private_handle{row_count};

}  // namespace

struct SharedObjects::Header {
  std::uint64_t magic;
  std::uint32_t version, rows;
  std::atomic<std::uint32_t> used;  // rows that were ever handed out
  std::uint8_t guid[8];
  char device[64];
};

// `kind` is written last and taken away first.
struct SharedObjects::Row {
  std::atomic<SharedKind> kind;
  std::uint32_t pd, access;
  std::int32_t owner;
  std::uint64_t base, length, iova;
};

std::shared_ptr<SharedObjects> SharedObjects::create(const std::string& device,
                                                     const std::array<std::uint8_t, 8>& guid,
                                                     int& fd) {
  fd = memfd_create("adverb", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) {
    fd = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    return nullptr;
  }
  // A file beyond the limit would cost the process a SIGXFSZ.
  rlimit limit{};
  const bool fits = getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur >= table_bytes;
  if (!fits || ftruncate(fd, static_cast<off_t>(table_bytes))) return nullptr;
  if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) return nullptr;
  static_assert(sizeof(Header) <= header_bytes && sizeof(Row) <= row_bytes);
  Header header{.magic = magic, .version = version, .rows = row_count, .used = 0};
  std::copy(guid.begin(), guid.end(), header.guid);
  device.copy(header.device, sizeof header.device - 1);
  if (pwrite(fd, &header, sizeof header, 0) != sizeof header) return nullptr;
  return open(fd);
}

std::shared_ptr<SharedObjects> SharedObjects::open(int fd) {
  struct stat st{};
  constexpr int needed = F_SEAL_SHRINK | F_SEAL_GROW;
  if (fstat(fd, &st) || st.st_size != static_cast<off_t>(table_bytes)) return nullptr;
  if ((fcntl(fd, F_GET_SEALS) & needed) != needed) return nullptr;
  Tables& all = tables();
  std::lock_guard lock(all.mutex);
  std::weak_ptr<SharedObjects>& known = all.by_inode[st.st_ino];
  std::shared_ptr<SharedObjects> table = known.lock();
  if (!table) known = table = map(fd, st.st_ino);
  return table;
}

std::shared_ptr<SharedObjects> SharedObjects::map(int fd, std::uint64_t inode) {
  void* p = mmap(nullptr, table_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (p == MAP_FAILED) return nullptr;
  std::shared_ptr<SharedObjects> table(new SharedObjects);
  table->memory_ = static_cast<std::byte*>(p);
  table->inode_ = inode;
  const Header& header = *reinterpret_cast<const Header*>(p);
  if (header.magic != magic || header.version != version || header.rows != row_count)
    return nullptr;
  table->device_.assign(header.device, strnlen(header.device, sizeof header.device));
  std::copy_n(header.guid, 8, table->guid_.begin());
  return table;
}

void SharedObjects::forget_all() { make_anew(tables()); }

SharedObjects::~SharedObjects() {
  if (memory_) munmap(memory_, table_bytes);
}

SharedObjects::Row& SharedObjects::row(std::uint32_t handle) const {
  return *reinterpret_cast<Row*>(memory_ + header_bytes + std::size_t{handle} * row_bytes);
}

std::uint32_t SharedObjects::private_handle() { return next_private_handle++; }

std::uint32_t SharedObjects::add(SharedObject object) {
  std::uint32_t handle = 0;
  {
    std::lock_guard lock(mutex_);
    auto& used = reinterpret_cast<Header*>(memory_)->used;
    const bool fresh = free_.size() < rows_at_rest && used.load() < row_count - 1;
    if (fresh) {
      handle = used.fetch_add(1) + 1;
    } else if (!free_.empty()) {
      handle = free_.front();
      free_.pop_front();
    }
    if (handle == 0 || handle >= row_count) return private_handle();
    own_.insert(handle);
  }
  change(handle, object);
  return handle;
}

void SharedObjects::change(std::uint32_t handle, SharedObject o) {
  if (handle >= row_count) return;
  Row& r = row(handle);
  r.kind.store(SharedKind::none, std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  r.pd = o.pd;
  r.access = o.access;
  r.owner = getpid();
  r.base = o.base;
  r.length = o.length;
  r.iova = o.iova;
  r.kind.store(o.kind, std::memory_order_release);
}

void SharedObjects::remove(std::uint32_t handle) {
  std::lock_guard lock(mutex_);
  domains_.erase(handle);
  if (!own_.erase(handle)) return;
  row(handle).kind.store(SharedKind::none, std::memory_order_release);
  free_.push_back(handle);
}

std::optional<SharedObject> SharedObjects::find(std::uint32_t handle, SharedKind kind) const {
  if (handle == 0 || handle >= row_count) return {};
  const Row& r = row(handle);
  if (r.kind.load(std::memory_order_acquire) != kind) return {};
  SharedObject o{kind, r.pd, r.access, r.owner, r.base, r.length, r.iova};
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const bool steady = r.kind.load(std::memory_order_acquire) == kind;
  if (!steady || o.owner <= 0 || o.base + o.length < o.base) return {};
  // Of this process number, but of a program that ran here before it executed this one.
  std::lock_guard lock(mutex_);
  if (o.owner == getpid() && !own_.contains(handle)) return {};
  return o;
}

engine::PdId SharedObjects::name_domain(std::uint32_t handle, engine::PdId id) {
  std::lock_guard lock(mutex_);
  return domains_.try_emplace(handle, id).first->second;
}

std::optional<engine::PdId> SharedObjects::domain(std::uint32_t handle) const {
  std::lock_guard lock(mutex_);
  const auto it = domains_.find(handle);
  return it == domains_.end() ? std::nullopt : std::optional(it->second);
}

bool SharedObjects::held_by(pid_t process) const {
  const auto own = shared_file_at(getpid(), reinterpret_cast<std::uintptr_t>(memory_), table_bytes);
  return own && maps_file(process, own->device, own->inode);
}

}  // namespace adverb::verbs
