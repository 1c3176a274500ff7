// SPDX-License-Identifier: Apache-2.0
// The interface of libibverbs 1.0 (before 2007) had other structures.  Its names resolve, so that a
// program that needs the node loads, and say that it is not supported: such a program gets no
// device list, and calls nothing else.
#include <cerrno>

#include "verbs/api.hpp"

ADVERB_API void* adverb_compat_pointer() {
  errno = EOPNOTSUPP;
  return nullptr;
}
ADVERB_API int adverb_compat_error() { return EOPNOTSUPP; }
ADVERB_API int adverb_compat_minus() {
  errno = EOPNOTSUPP;
  return -1;
}
ADVERB_API void adverb_compat_nothing() {}

#define OLD(kind, name) __asm__(".symver adverb_compat_" #kind ", " #name "@IBVERBS_1.0");
OLD(pointer, ibv_get_device_list)
OLD(nothing, ibv_free_device_list)
OLD(pointer, ibv_get_device_name)
OLD(pointer, ibv_get_device_guid)
OLD(pointer, ibv_open_device)
OLD(error, ibv_close_device)
OLD(minus, ibv_get_async_event)
OLD(nothing, ibv_ack_async_event)
OLD(error, ibv_query_device)
OLD(error, ibv_query_port)
OLD(minus, ibv_query_gid)
OLD(minus, ibv_query_pkey)
OLD(pointer, ibv_alloc_pd)
OLD(error, ibv_dealloc_pd)
OLD(pointer, ibv_reg_mr)
OLD(error, ibv_dereg_mr)
OLD(pointer, ibv_create_cq)
OLD(error, ibv_resize_cq)
OLD(error, ibv_destroy_cq)
OLD(minus, ibv_get_cq_event)
OLD(nothing, ibv_ack_cq_events)
OLD(pointer, ibv_create_srq)
OLD(error, ibv_modify_srq)
OLD(error, ibv_query_srq)
OLD(error, ibv_destroy_srq)
OLD(pointer, ibv_create_qp)
OLD(error, ibv_query_qp)
OLD(error, ibv_modify_qp)
OLD(error, ibv_destroy_qp)
OLD(pointer, ibv_create_ah)
OLD(error, ibv_destroy_ah)
OLD(error, ibv_attach_mcast)
OLD(error, ibv_detach_mcast)
#undef OLD

__asm__(".symver adverb_compat_nothing, ibv_register_driver@IBVERBS_1.1");
