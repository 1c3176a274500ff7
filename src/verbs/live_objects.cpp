// SPDX-License-Identifier: Apache-2.0
#include "verbs/live_objects.hpp"

#include <infiniband/verbs.h>

#include <atomic>
#include <cerrno>

namespace adverb::verbs {

namespace {

template <class T>
const T& as(const void* object) {
  return *static_cast<const T*>(object);
}

}  // namespace

LiveObjects& live() {
  static auto* objects = new LiveObjects;
  return *objects;
}

std::uint32_t next_handle() {
  static std::atomic<std::uint32_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

LiveObjects::Entry LiveObjects::entry_of(const void* o, Kind kind) {
  switch (kind) {
    case Kind::pd:
      return {kind, as<ibv_pd>(o).context, as<ibv_pd>(o).handle};
    case Kind::mr:
      return {kind, as<ibv_mr>(o).context, as<ibv_mr>(o).handle};
    case Kind::mw:
      return {kind, as<ibv_mw>(o).context, as<ibv_mw>(o).handle};
    case Kind::dm:
      return {kind, as<ibv_dm>(o).context, as<ibv_dm>(o).handle};
    case Kind::cq:
      return {kind, as<ibv_cq>(o).context, as<ibv_cq>(o).handle};
    case Kind::qp:
      return {kind, as<ibv_qp>(o).context, as<ibv_qp>(o).handle};
    case Kind::srq:
      return {kind, as<ibv_srq>(o).context, as<ibv_srq>(o).handle};
    case Kind::ah:
      return {kind, as<ibv_ah>(o).context, as<ibv_ah>(o).handle};
    case Kind::flow:
      return {kind, as<ibv_flow>(o).context, as<ibv_flow>(o).handle};
    case Kind::wq:
      return {kind, as<ibv_wq>(o).context, as<ibv_wq>(o).handle};
    case Kind::rwq_ind_table:
      return {kind, as<ibv_rwq_ind_table>(o).context,
              static_cast<std::uint32_t>(as<ibv_rwq_ind_table>(o).ind_tbl_handle)};
    case Kind::td:
      return {kind, as<ibv_td>(o).context, 0};
    case Kind::xrcd:
      return {kind, as<ibv_xrcd>(o).context, 0};
    case Kind::channel:
      return {kind, as<ibv_comp_channel>(o).context, 0};
    case Kind::context:
      break;
  }
  return {kind, nullptr, 0};
}

void LiveObjects::add(const void* object, Kind kind) {
  std::lock_guard lock(mutex_);
  objects_[object] = entry_of(object, kind);
}

bool LiveObjects::remove(const void* object, Kind kind) {
  std::lock_guard lock(mutex_);
  auto it = objects_.find(object);
  if (it == objects_.end() || it->second.kind != kind) return false;
  objects_.erase(it);
  return true;
}

int LiveObjects::check(const void* object, Kind kind) {
  std::lock_guard lock(mutex_);
  auto it = objects_.find(object);
  if (it == objects_.end() || it->second.kind != kind) return EINVAL;
  const Entry now = entry_of(object, kind);
  const Entry& then = it->second;
  return now.context == then.context && now.handle == then.handle ? 0 : ENOENT;
}

}  // namespace adverb::verbs
