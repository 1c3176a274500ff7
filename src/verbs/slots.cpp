// SPDX-License-Identifier: Apache-2.0
// The function pointers of a context, which inline functions call without asking whether they are
// there, and the exported calls that are not supported.  "Not supported" is EOPNOTSUPP as the
// return value, or null and errno.
#include <cerrno>
#include <new>

#include "verbs/guard.hpp"
#include "verbs/objects.hpp"

namespace adverb::verbs {
namespace {

template <class R, class... A>
R unsupported(A...) {
  errno = EOPNOTSUPP;
  if constexpr (std::is_pointer_v<R>) {
    return nullptr;
  } else if constexpr (!std::is_void_v<R>) {
    return EOPNOTSUPP;
  }
}

template <class R, class... A>
void fill(R (*&slot)(A...)) {
  if (!slot) slot = unsupported<R, A...>;
}

void fill_operations(ibv_context_ops& ops) {
  ops._compat_query_device = compat_query_device;
  ops._compat_query_port = compat_query_port;
  ops.poll_cq = poll_cq;
  ops.req_notify_cq = req_notify_cq;
  ops.post_send = post_send;
  ops.post_recv = post_recv;
  ops.post_srq_recv = post_srq_recv;
  ops.alloc_mw = alloc_mw;
  ops.bind_mw = bind_mw;
  ops.dealloc_mw = dealloc_mw;
}

void fill_unsupported(verbs_context& v) {
  fill(v.read_counters);
  fill(v.attach_counters_point_flow);
  fill(v.create_counters);
  fill(v.destroy_counters);
  fill(v.modify_flow_action_esp);
  fill(v.destroy_flow_action);
  fill(v.create_flow_action_esp);
  fill(v.modify_qp_rate_limit);
  fill(v.post_srq_ops);
}

}  // namespace

void fill_slots(Context& context) {
  VerbsContext& newest = context.block.abi;
  fill(newest.free_buf);
  fill(newest.alloc_buf);
  fill(newest.dm_export_dmabuf_fd);
  fill(newest.reg_mr_ex);
  fill(newest.dealloc_dmah);
  fill(newest.alloc_dmah);
  verbs_context& v = newest.v44;
  v.sz = sizeof newest;
  v.query_port = query_port;
  v.query_device_ex = query_device_ex;
  v.query_rt_values = query_rt_values;
  v.create_cq_ex = create_cq_ex;
  v.modify_cq = modify_cq;
  v.create_qp_ex = create_qp_ex;
  v.create_srq_ex = create_srq_ex;
  v.get_srq_num = get_srq_num;
  v.open_qp = open_qp;
  v.open_xrcd = open_xrcd;
  v.close_xrcd = close_xrcd;
  v.ibv_create_flow = create_flow;
  v.ibv_destroy_flow = destroy_flow;
  v.create_wq = create_wq;
  v.modify_wq = modify_wq;
  v.destroy_wq = destroy_wq;
  v.create_rwq_ind_table = create_rwq_ind_table;
  v.destroy_rwq_ind_table = destroy_rwq_ind_table;
  v.alloc_td = alloc_td;
  v.dealloc_td = dealloc_td;
  v.alloc_parent_domain = alloc_parent_domain;
  v.advise_mr = advise_mr;
  v.alloc_dm = alloc_dm;
  v.free_dm = free_dm;
  v.reg_dm_mr = reg_dm_mr;
  v.alloc_null_mr = alloc_null_mr;
  fill_unsupported(v);
  // Where programs built against releases before 1.1.8 look for these two.
  v.ABI_placeholder1 = reinterpret_cast<void (*)()>(v.ibv_create_flow);
  v.ABI_placeholder2 = reinterpret_cast<void (*)()>(v.ibv_destroy_flow);
  fill_operations(context.context()->ops);
}

}  // namespace adverb::verbs

#define NO_POINTER(name)    \
  ADVERB_API void* name() { \
    errno = EOPNOTSUPP;     \
    return nullptr;         \
  }
#define NO_ERRNO(name)    \
  ADVERB_API int name() { \
    errno = EOPNOTSUPP;   \
    return EOPNOTSUPP;    \
  }
#define NO_MINUS(name)    \
  ADVERB_API int name() { \
    errno = EOPNOTSUPP;   \
    return -1;            \
  }

// IBVERBS_1.15 to 1.18, which the installed header does not declare.
NO_POINTER(ibv_alloc_dmah)
NO_ERRNO(ibv_dealloc_dmah)
NO_POINTER(ibv_reg_mr_ex)
NO_MINUS(ibv_dm_export_dmabuf_fd)
NO_POINTER(ibv_alloc_buf)
ADVERB_API void ibv_free_buf() {}
NO_POINTER(ibv_reg_buf_mr)
NO_ERRNO(_ibv_query_comp_cntr_caps)
NO_POINTER(ibv_create_comp_cntr)
NO_ERRNO(ibv_destroy_comp_cntr)
NO_MINUS(ibv_export_buf_dmabuf_fd)
NO_ERRNO(ibv_inc_comp_cntr)
NO_ERRNO(ibv_inc_err_comp_cntr)
NO_ERRNO(ibv_qp_attach_comp_cntr)
NO_ERRNO(ibv_read_comp_cntr)
NO_ERRNO(ibv_read_err_comp_cntr)
NO_ERRNO(ibv_set_comp_cntr)
NO_ERRNO(ibv_set_err_comp_cntr)
