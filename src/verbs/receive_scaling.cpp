// SPDX-License-Identifier: Apache-2.0
// Receive side scaling of raw packets: indirection tables (ibv_create_rwq_ind_table(3)), and the
// queue pairs that spread frames over the work queues of one (ibv_create_qp_ex(3)).  Such a queue
// pair only takes frames that flow rules give it: it has no queues, no CQ and no states.
#include <algorithm>
#include <cerrno>
#include <memory>

#include "verbs/fault.hpp"
#include "verbs/guard.hpp"
#include "verbs/objects.hpp"

namespace adverb::verbs {
namespace {

// The engine's work queues of an application's list of 2^log_ind_tbl_size; an errno.
int read_list(const Context* context, const ibv_rwq_ind_table_init_attr& a,
              std::vector<engine::ReceiveWorkQueue*>& out) {
  const std::uint32_t most = limit32(Limit::max_rwq_indirection_table_size);
  if (a.comp_mask >= IBV_CREATE_IND_TABLE_RESERVED)
    return refuse(EINVAL, "create_rwq_ind_table: comp_mask {:#x}", a.comp_mask);
  if (a.log_ind_tbl_size > 31 || 1u << a.log_ind_tbl_size > most)
    return refuse(EINVAL, "create_rwq_ind_table: 2^{} entries of at most {}", a.log_ind_tbl_size,
                  most);
  if (!a.ind_tbl) return refuse(EINVAL, "create_rwq_ind_table: no list of WQs");
  for (std::uint32_t i = 0; i < 1u << a.log_ind_tbl_size; ++i) {
    if (const int error = live().check(a.ind_tbl[i], Kind::wq))
      return refuse(error, "create_rwq_ind_table: entry {} is no WQ", i);
    if (of(a.ind_tbl[i])->context != context)
      return refuse(EINVAL, "create_rwq_ind_table: entry {} is another context's WQ", i);
    out.push_back(of(a.ind_tbl[i])->queue);
  }
  return 0;
}

ibv_rwq_ind_table* do_create_table(ibv_context* c, const ibv_rwq_ind_table_init_attr& a) {
  if (const int error = fault(Call::create_rwq_ind_table)) return errno = error, nullptr;
  Context* context = of(c);
  if (!context->works()) return errno = EIO, nullptr;
  std::vector<engine::ReceiveWorkQueue*> list;
  if (const int error = read_list(context, a, list)) return errno = error, nullptr;
  auto table = std::make_unique<RwqIndTable>();
  if (const int error = table->claim.hold(context->use(), Limit::max_rwq_indirection_tables, 1,
                                          "create_rwq_ind_table"))
    return errno = error, nullptr;
  table->context = context;
  table->entries = context->device->with_engine(
      [&](engine::Engine& e, Instant) { return e.create_table(std::move(list)); });
  const auto handle = static_cast<int>(next_handle());
  table->table = {.context = c, .ind_tbl_handle = handle, .ind_tbl_num = handle, .comp_mask = 0};
  ++context->references;
  live().add(table.get(), Kind::rwq_ind_table);
  return &table.release()->table;
}

int do_destroy_table(ibv_rwq_ind_table* t) {
  if (const int error = fault(Call::destroy_rwq_ind_table)) return error;
  if (const int error = live().check(t, Kind::rwq_ind_table)) return error;
  RwqIndTable* table = of(t);
  Context* context = table->context;
  if (!context->alive()) return EIO;
  const bool done = context->device->with_engine(
      [&](engine::Engine& e, Instant) { return e.destroy_table(table->entries); });
  if (!done) return EBUSY;
  live().remove(t, Kind::rwq_ind_table);
  delete table;
  context->release();
  return 0;
}

// --- queue pairs

// What such a queue pair cannot have.
int check_parts(const ibv_qp_init_attr_ex& a) {
  constexpr std::uint32_t both = IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH;
  constexpr std::uint32_t known = both | IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS;
  if (a.comp_mask & ~(known | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS))
    return refuse(EOPNOTSUPP, "create_qp: comp_mask {:#x} of an RSS QP", a.comp_mask);
  if ((a.comp_mask & both) != both)
    return refuse(EINVAL, "create_qp: an RSS QP needs an indirection table and a hash");
  if (a.qp_type != IBV_QPT_RAW_PACKET)
    return refuse(EOPNOTSUPP, "create_qp: RSS is for raw packets, not for QP type {}",
                  static_cast<unsigned>(a.qp_type));
  if (a.recv_cq || a.srq || a.cap.max_recv_wr || a.cap.max_recv_sge)
    return refuse(EINVAL, "create_qp: the WQs of an RSS QP receive, it has no receive queue");
  const bool sends = a.cap.max_send_wr || a.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  if (sends) return refuse(EINVAL, "create_qp: an RSS QP has no send queue");
  if (a.comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS && a.create_flags)
    return refuse(EINVAL, "create_qp: create_flags {:#x} of an RSS QP", a.create_flags);
  return 0;
}

int check_scaling_objects(const Context* context, const ibv_qp_init_attr_ex& a) {
  if (!(a.comp_mask & IBV_QP_INIT_ATTR_PD)) return refuse(EINVAL, "create_qp: no PD");
  int error = live().check(a.pd, Kind::pd);
  if (!error) error = live().check(a.rwq_ind_tbl, Kind::rwq_ind_table);
  if (error) return refuse(error, "create_qp: no such PD or indirection table");
  if (of(a.pd)->context != context || of(a.rwq_ind_tbl)->context != context)
    return refuse(EINVAL, "create_qp: PD and indirection table must be of one context");
  return 0;
}

int read_hash(const ibv_rx_hash_conf& conf, std::size_t entries, engine::RxHash& out) {
  if (conf.rx_hash_function != IBV_RX_HASH_FUNC_TOEPLITZ)
    return refuse(EOPNOTSUPP, "create_qp: rx_hash_function {:#x} is not supported",
                  conf.rx_hash_function);
  if (conf.rx_hash_fields_mask & ~std::uint64_t{engine::rx_hash_fields})
    return refuse(EOPNOTSUPP, "create_qp: rx_hash_fields_mask {:#x}, of which {:#x} is supported",
                  conf.rx_hash_fields_mask, static_cast<unsigned>(engine::rx_hash_fields));
  if (!conf.rx_hash_key || conf.rx_hash_key_len != engine::toeplitz_key_bytes)
    return refuse(EINVAL, "create_qp: rx_hash_key of {} bytes, must be of {}",
                  conf.rx_hash_key ? conf.rx_hash_key_len : 0u,
                  std::size_t{engine::toeplitz_key_bytes});
  const auto fields = static_cast<std::uint32_t>(conf.rx_hash_fields_mask);
  if (!engine::RxHash::can_combine(fields))
    return refuse(EINVAL,
                  "create_qp: rx_hash_fields_mask {:#x} has both IPv4 and IPv6, or TCP and "
                  "UDP",
                  fields);
  if (!fields && entries > 1)
    return refuse(EINVAL, "create_qp: without fields to hash there is one WQ, not {}", entries);
  engine::ToeplitzKey key;
  std::copy_n(conf.rx_hash_key, key.size(), key.begin());
  out = engine::RxHash(key, fields);
  return 0;
}

}  // namespace

ibv_qp* create_scaling_qp(ibv_context* c, const ibv_qp_init_attr_ex& a) {
  if (const int error = fault(Call::create_qp)) return errno = error, nullptr;
  Context* context = of(c);
  if (!context->works()) return errno = EIO, nullptr;
  engine::ReceiveScaling scaling;
  if (const int error = check_parts(a)) return errno = error, nullptr;
  if (const int error = check_scaling_objects(context, a)) return errno = error, nullptr;
  scaling.table = of(a.rwq_ind_tbl)->entries;
  if (const int error = read_hash(a.rx_hash_conf, scaling.table->entries().size(), scaling.hash))
    return errno = error, nullptr;
  if (const int error = need_raw_packets(*context, "create_qp")) return errno = error, nullptr;
  auto qp = std::make_unique<Qp>();
  if (const int error = qp->claim.hold(context->use(), Limit::max_qp, 1, "create_qp"))
    return errno = error, nullptr;
  qp->context = context;
  qp->pd = of(a.pd);
  const engine::QpInit init{
      .type = engine::QpType::raw_packet, .pd = qp->pd->id, .scaling = scaling, .user = qp.get()};
  qp->pair =
      context->device->with_engine([&](engine::Engine& e, Instant) { return e.create_qp(init); });
  if (!qp->pair) return fail(ENOMEM, "create_qp: all QPs of this process are in use");
  ibv_qp_init_attr_ex made{};
  made.qp_context = a.qp_context;
  made.qp_type = a.qp_type;
  made.pd = a.pd;
  return enter(std::move(qp), c, made);
}

ibv_rwq_ind_table* create_rwq_ind_table(ibv_context* c, ibv_rwq_ind_table_init_attr* a) {
  return guarded([&] { return do_create_table(c, *a); });
}

int destroy_rwq_ind_table(ibv_rwq_ind_table* table) {
  return guarded([&] { return do_destroy_table(table); });
}

}  // namespace adverb::verbs
