// SPDX-License-Identifier: Apache-2.0
#include "daemon/xrc_memory.hpp"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

#include <algorithm>
#include <cstddef>
#include <new>
#include <utility>

namespace adverb::daemon {

namespace {

constexpr int required_seals = F_SEAL_SHRINK | F_SEAL_GROW;
// Locks are held for less than a microsecond, unless their owner is kept from running.  Whoever
// executes packets waits briefly and then loses one; who creates and destroys waits longer.
constexpr long long state_patience_ns = 200'000, segment_patience_ns = 20'000'000;

long long now_ns() {
  timespec t;
  ::clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1'000'000'000LL + t.tv_nsec;
}

bool make_robust(pthread_mutex_t& mutex) {
  pthread_mutexattr_t attributes;
  if (pthread_mutexattr_init(&attributes)) return false;
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  const int error = pthread_mutex_init(&mutex, &attributes);
  pthread_mutexattr_destroy(&attributes);
  return error == 0;
}

bool try_lock(pthread_mutex_t& mutex, int& error) {
  error = pthread_mutex_trylock(&mutex);
  // What its owner left is whole: states come into force by one store, holders are single bits.
  if (error == EOWNERDEAD) error = pthread_mutex_consistent(&mutex);
  return error == 0;
}

bool lock_within(pthread_mutex_t& mutex, long long ns) {
  int error = 0;
  if (try_lock(mutex, error)) return true;
  for (const long long end = now_ns() + ns; error == EBUSY && now_ns() < end;) {
    sched_yield();
    if (try_lock(mutex, error)) return true;
  }
  return false;
}

class SegmentLock {
 public:
  explicit SegmentLock(XrcSegment& s) : s_(s), held_(lock_within(s.lock, segment_patience_ns)) {}
  ~SegmentLock() {
    if (held_) pthread_mutex_unlock(&s_.lock);
  }
  SegmentLock(const SegmentLock&) = delete;
  explicit operator bool() const { return held_; }

 private:
  XrcSegment& s_;
  bool held_;
};

XrcSegment* map_memory(int fd) {
  void* p = ::mmap(nullptr, sizeof(XrcSegment), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                   fd, 0);
  return p == MAP_FAILED ? nullptr : static_cast<XrcSegment*>(p);
}

std::uint64_t bit_of(unsigned slot) { return std::uint64_t{1} << slot % 64; }

bool held_by(const XrcRecord& r, unsigned slot) {
  return r.holders[slot / 64].load(std::memory_order_relaxed) & bit_of(slot);
}

}  // namespace

XrcMemory::XrcMemory(XrcMemory&& o) noexcept
    : fd_(std::move(o.fd_)), segment_(std::exchange(o.segment_, nullptr)) {}

XrcMemory::~XrcMemory() {
  if (segment_) ::munmap(segment_, sizeof *segment_);
}

std::optional<XrcMemory> XrcMemory::create() {
  Descriptor fd(::memfd_create("adverb-xrc", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd || ::ftruncate(fd.get(), sizeof(XrcSegment)) < 0) return std::nullopt;
  ::fcntl(fd.get(), F_ADD_SEALS, required_seals | F_SEAL_SEAL);
  XrcSegment* s = map_memory(fd.get());
  if (!s) return std::nullopt;
  XrcMemory memory(std::move(fd), s);
  // Zero as it is, but for the header: a record is made when it is first used.
  s->version = 1;
  s->record_bytes = sizeof(XrcRecord);
  s->magic = protocol_magic;
  if (!make_robust(s->lock)) return std::nullopt;
  return memory;
}

std::optional<XrcMemory> XrcMemory::map(Descriptor fd) {
  struct stat st;
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  errno = EPROTO;
  if (seals < 0 || (seals & required_seals) != required_seals || ::fstat(fd.get(), &st) < 0 ||
      st.st_size != sizeof(XrcSegment))
    return std::nullopt;
  XrcSegment* s = map_memory(fd.get());
  if (!s) return std::nullopt;
  XrcMemory memory(std::move(fd), s);
  errno = EPROTO;
  if (s->magic != protocol_magic || s->version != 1 || s->record_bytes != sizeof(XrcRecord))
    return std::nullopt;
  return memory;
}

XrcRecord& XrcMemory::record_of(engine::SharedTarget& t) {
  auto* bytes = reinterpret_cast<std::byte*>(&t) - offsetof(XrcRecord, target);
  return *reinterpret_cast<XrcRecord*>(bytes);
}

const XrcRecord& XrcMemory::record_of(const engine::SharedTarget& t) {
  return record_of(const_cast<engine::SharedTarget&>(t));
}

template <class F>
void XrcMemory::each_in_use(F&& f) const {
  const auto used =
      std::min(segment_->used.load(std::memory_order_acquire), XrcSegment::max_targets);
  for (std::uint32_t i = 0; i < used; ++i)
    if (segment_->records[i].target.qpn.load(std::memory_order_acquire)) f(segment_->records[i]);
}

engine::SharedTarget* XrcMemory::find(Qpn qpn) {
  engine::SharedTarget* found = nullptr;
  each_in_use([&](XrcRecord& r) {
    if (r.target.qpn.load(std::memory_order_relaxed) == qpn.raw()) found = &r.target;
  });
  return found;
}

engine::SharedTarget* XrcMemory::create(Qpn qpn, unsigned slot) {
  SegmentLock hold(*segment_);
  if (!hold || find(qpn)) return nullptr;
  const auto used =
      std::min(segment_->used.load(std::memory_order_relaxed), XrcSegment::max_targets);
  std::uint32_t i = 0;
  while (i < used && segment_->records[i].target.qpn.load(std::memory_order_relaxed)) ++i;
  if (i == XrcSegment::max_targets) return nullptr;
  XrcRecord& r = segment_->records[i];
  if (!r.ready.load(std::memory_order_relaxed)) {
    if (!make_robust(r.lock)) return nullptr;
    r.ready.store(1, std::memory_order_relaxed);
  }
  for (auto& word : r.holders) word.store(0, std::memory_order_relaxed);
  for (auto& copy : r.target.copies) copy = engine::TargetState{};
  r.holders[slot / 64].store(bit_of(slot), std::memory_order_relaxed);
  if (i == used) segment_->used.store(i + 1, std::memory_order_release);
  r.target.qpn.store(qpn.raw(), std::memory_order_release);
  return &r.target;
}

bool XrcMemory::hold(engine::SharedTarget& t, unsigned slot) {
  SegmentLock hold(*segment_);
  if (!hold || !t.qpn.load(std::memory_order_relaxed)) return false;
  record_of(t).holders[slot / 64].fetch_or(bit_of(slot), std::memory_order_relaxed);
  return true;
}

// The caller has the segment's lock.  True: that was the last, and the target is gone.
bool XrcMemory::drop_holder(XrcRecord& r, unsigned slot) {
  r.holders[slot / 64].fetch_and(~bit_of(slot), std::memory_order_relaxed);
  if (std::ranges::any_of(r.holders, [](const auto& w) { return w.load() != 0; })) return false;
  // Nobody is in the middle of it; who is kept from running there finds out when he goes on.
  const bool alone = lock_within(r.lock, segment_patience_ns);
  r.target.qpn.store(0, std::memory_order_release);
  if (alone) pthread_mutex_unlock(&r.lock);
  add_news();
  return true;
}

bool XrcMemory::release(engine::SharedTarget& t, unsigned slot) {
  SegmentLock hold(*segment_);
  if (!hold) return false;
  return !t.qpn.load(std::memory_order_relaxed) || drop_holder(record_of(t), slot);
}

bool XrcMemory::lock(engine::SharedTarget& t) {
  return lock_within(record_of(t).lock, state_patience_ns);
}

void XrcMemory::unlock(engine::SharedTarget& t) { pthread_mutex_unlock(&record_of(t).lock); }

std::bitset<slot_limit> XrcMemory::holders(const engine::SharedTarget& t) const {
  std::bitset<slot_limit> all;
  const XrcRecord& r = record_of(t);
  for (unsigned slot = 0; slot < slot_limit; ++slot) all[slot] = held_by(r, slot);
  return all;
}

bool XrcMemory::forget_slot(unsigned slot) {
  SegmentLock hold(*segment_);
  if (!hold) return false;
  each_in_use([&](XrcRecord& r) {
    if (held_by(r, slot)) drop_holder(r, slot);
  });
  return true;
}

bool XrcMemory::has_number_of(unsigned slot) const {
  bool has = false;
  each_in_use([&](const XrcRecord& r) {
    has |= Qpn(r.target.qpn.load(std::memory_order_relaxed)).slot() == slot;
  });
  return has;
}

}  // namespace adverb::daemon
