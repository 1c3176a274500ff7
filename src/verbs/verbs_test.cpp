// SPDX-License-Identifier: Apache-2.0
// The C shell as an application sees it: return conventions, argument errors, references and
// events.  The test links the library like any program; the device is the first of this network
// namespace, and the peer is the test itself.
#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <cstring>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "verbs/testing.hpp"

namespace {

using namespace std::chrono_literals;
using adverb::verbs::Verbs;

// --- devices, ports, tables

TEST_F(Verbs, DeviceListIsStableAndTerminated) {
  int n = 0;
  ibv_device** again = ibv_get_device_list(&n);
  ASSERT_TRUE(again);
  ASSERT_GE(n, 1);
  EXPECT_EQ(again[0], list[0]);
  EXPECT_EQ(again[n], nullptr);
  ibv_free_device_list(again);
  EXPECT_EQ(ibv_get_device_index(list[0]), -1);
  EXPECT_NE(ibv_get_device_guid(list[0]), 0u);
}

// libmlx5 and libefa look here to learn whether a device is theirs.
TEST_F(Verbs, ProviderOperationsBehindTheDeviceAreNull) {
  void* ops;
  std::memcpy(&ops, reinterpret_cast<char*>(list[0]) + 664, sizeof ops);
  EXPECT_EQ(ops, nullptr);
}

TEST_F(Verbs, QueryDevice) {
  ibv_device_attr a;
  ASSERT_EQ(ibv_query_device(context, &a), 0);
  EXPECT_NE(a.vendor_id, 0u);
  EXPECT_EQ(a.node_guid, ibv_get_device_guid(list[0]));
  EXPECT_GE(a.max_qp_rd_atom, 16);
  EXPECT_EQ(a.phys_port_cnt, 1);
  ibv_device_attr_ex ex;
  ASSERT_EQ(ibv_query_device_ex(context, nullptr, &ex), 0);
  EXPECT_EQ(ex.hca_core_clock, 1'000'000u);
  EXPECT_EQ(ex.phys_port_cnt_ex, 1u);
}

TEST_F(Verbs, QueryPortWritesWhatTheCallerHasRoomFor) {
  for (std::size_t length : {48u, 52u, 56u, 80u}) {
    std::vector<unsigned char> room(96, 0xee);
    auto* attr = reinterpret_cast<ibv_port_attr*>(room.data());
    ASSERT_EQ(verbs_get_ctx(context)->query_port(context, 1, attr, length), 0);
    EXPECT_EQ(attr->link_layer, IBV_LINK_LAYER_ETHERNET);
    EXPECT_EQ(attr->state, IBV_PORT_ACTIVE);
    EXPECT_TRUE(attr->port_cap_flags & IBV_PORT_IP_BASED_GIDS);
    for (std::size_t i = length; i < room.size(); ++i) EXPECT_EQ(room[i], 0xee) << i;
  }
  ibv_port_attr attr;
  EXPECT_EQ(ibv_query_port(context, 0, &attr), EINVAL);
  EXPECT_EQ(ibv_query_port(context, 2, &attr), EINVAL);
}

TEST_F(Verbs, GidTable) {
  ibv_port_attr port;
  ASSERT_EQ(ibv_query_port(context, 1, &port), 0);
  const int last = port.gid_tbl_len - 1;
  ibv_gid gid, zero{};
  ASSERT_EQ(ibv_query_gid(context, 1, 0, &gid), 0);
  EXPECT_NE(std::memcmp(&gid, &zero, 16), 0);
  ASSERT_EQ(ibv_query_gid(context, 1, last, &gid), 0);  // empty, and no error
  EXPECT_EQ(std::memcmp(&gid, &zero, 16), 0);
  errno = 0;
  EXPECT_EQ(ibv_query_gid(context, 1, last + 1, &gid), -1);
  EXPECT_EQ(errno, EINVAL);
  ibv_gid_entry entry;
  EXPECT_EQ(ibv_query_gid_ex(context, 1, 0, &entry, 0), 0);
  EXPECT_EQ(entry.gid_type, IBV_GID_TYPE_ROCE_V2);
  EXPECT_NE(entry.ndev_ifindex, 0u);
  EXPECT_EQ(ibv_query_gid_ex(context, 1, last, &entry, 0), ENODATA);
  EXPECT_EQ(ibv_query_gid_ex(context, 1, last + 1, &entry, 0), EINVAL);
  std::vector<ibv_gid_entry> table(port.gid_tbl_len);
  const ssize_t n = ibv_query_gid_table(context, table.data(), table.size(), 0);
  ASSERT_GE(n, 1);
  EXPECT_EQ(ibv_query_gid_table(context, table.data(), n - 1, 0), -EINVAL);
}

TEST_F(Verbs, PkeyTable) {
  __be16 pkey = 0;
  ASSERT_EQ(ibv_query_pkey(context, 1, 0, &pkey), 0);
  EXPECT_EQ(pkey, 0xffff);
  EXPECT_EQ(ibv_query_pkey(context, 1, 1, &pkey), -1);
  EXPECT_EQ(ibv_get_pkey_index(context, 1, 0xffff), 0);
  EXPECT_EQ(ibv_get_pkey_index(context, 1, 0x1234), -1);
}

// --- references

TEST_F(Verbs, C63_WhatIsInUseIsNotDestroyed) {
  ibv_pd* own = ibv_alloc_pd(context);
  ibv_mr* mr = ibv_reg_mr(own, buffer.data(), 64, 0);
  EXPECT_EQ(ibv_dealloc_pd(own), EBUSY);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  ibv_srq_init_attr srq_attr{.srq_context = nullptr,
                             .attr = {.max_wr = 4, .max_sge = 1, .srq_limit = 0}};
  ibv_srq* srq = ibv_create_srq(own, &srq_attr);
  ASSERT_TRUE(srq);
  EXPECT_EQ(ibv_dealloc_pd(own), EBUSY);
  ibv_qp* qp = make_qp(IBV_QPT_RC, srq);
  ASSERT_TRUE(qp);
  EXPECT_EQ(ibv_destroy_srq(srq), EBUSY);
  EXPECT_EQ(ibv_destroy_cq(cq), EBUSY);
  EXPECT_EQ(ibv_dealloc_pd(pd), EBUSY);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_EQ(ibv_destroy_srq(srq), 0);
  ibv_ah_attr address = own_address();
  ibv_ah* ah = ibv_create_ah(own, &address);
  ASSERT_TRUE(ah);
  EXPECT_EQ(ibv_dealloc_pd(own), EBUSY);
  EXPECT_EQ(ibv_destroy_ah(ah), 0);
  EXPECT_EQ(ibv_dealloc_pd(own), 0);
  ibv_comp_channel* channel = ibv_create_comp_channel(context);
  ibv_cq* with_channel = ibv_create_cq(context, 1, nullptr, channel, 0);
  EXPECT_EQ(ibv_destroy_comp_channel(channel), EBUSY);
  EXPECT_EQ(ibv_destroy_cq(with_channel), 0);
  EXPECT_EQ(ibv_destroy_comp_channel(channel), 0);
}

TEST_F(Verbs, C63_DestroyedTwiceIsAnError) {
  ibv_pd* own = ibv_alloc_pd(context);
  EXPECT_EQ(ibv_dealloc_pd(own), 0);
  EXPECT_EQ(ibv_dealloc_pd(own), EINVAL);
  ibv_qp* qp = make_qp();
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_EQ(ibv_destroy_qp(qp), EINVAL);
}

// As on a kernel, where it is the handle that finds the object, in the structure's context.
TEST_F(Verbs, AnotherHandleOrContextFindsNoObject) {
  auto refused_with = [](std::uint32_t& handle, auto destroy) {
    const std::uint32_t own = handle;
    handle ^= 0xdeadbeef;
    errno = 0;
    EXPECT_EQ(destroy(), ENOENT);
    EXPECT_EQ(errno, ENOENT);
    handle = own;
  };
  ibv_pd* own = ibv_alloc_pd(context);
  ibv_mr* mr = ibv_reg_mr(own, buffer.data(), 64, 0);
  ibv_srq_init_attr wanted{.srq_context = nullptr,
                           .attr = {.max_wr = 4, .max_sge = 1, .srq_limit = 0}};
  ibv_srq* srq = ibv_create_srq(own, &wanted);
  ibv_qp* qp = make_qp();
  ibv_ah_attr address = own_address();
  ibv_ah* ah = ibv_create_ah(own, &address);
  ASSERT_TRUE(mr && srq && qp && ah);
  refused_with(own->handle, [&] { return ibv_dealloc_pd(own); });
  refused_with(own->handle, [&] {
    EXPECT_EQ(ibv_reg_mr(own, buffer.data(), 64, 0), nullptr);
    EXPECT_EQ(ibv_create_ah(own, &address), nullptr);
    EXPECT_EQ(ibv_create_srq(own, &wanted), nullptr);
    return errno;
  });
  refused_with(cq->handle, [&] {
    EXPECT_EQ(make_qp(), nullptr);
    return errno;
  });
  refused_with(mr->handle, [&] { return ibv_dereg_mr(mr); });
  refused_with(srq->handle, [&] { return ibv_destroy_srq(srq); });
  refused_with(cq->handle, [&] { return ibv_destroy_cq(cq); });
  refused_with(ah->handle, [&] { return ibv_destroy_ah(ah); });
  refused_with(qp->handle, [&] { return ibv_destroy_qp(qp); });
  ibv_qp_attr attr{};
  ibv_qp_init_attr init{};
  refused_with(qp->handle, [&] { return ibv_query_qp(qp, &attr, IBV_QP_STATE, &init); });
  refused_with(qp->handle, [&] { return ibv_modify_qp(qp, &attr, IBV_QP_STATE); });

  ibv_context* other = ibv_open_device(context->device);
  ASSERT_TRUE(other);
  mr->context = other;
  EXPECT_EQ(ibv_dereg_mr(mr), ENOENT);
  mr->context = context;
  EXPECT_EQ(ibv_close_device(other), 0);

  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_EQ(ibv_destroy_ah(ah), 0);
  EXPECT_EQ(ibv_destroy_srq(srq), 0);
  errno = 0;
  EXPECT_EQ(ibv_dealloc_pd(own), EBUSY);
  EXPECT_EQ(errno, EBUSY);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  EXPECT_EQ(ibv_dealloc_pd(own), 0);
}

// --- creators

TEST_F(Verbs, C25_CreateCqArguments) {
  for (int cqe : {0, -1, 1 << 30}) {
    errno = 0;
    EXPECT_EQ(ibv_create_cq(context, cqe, nullptr, nullptr, 0), nullptr);
    EXPECT_EQ(errno, EINVAL);
  }
  EXPECT_EQ(ibv_create_cq(context, 1, nullptr, nullptr, -1), nullptr);
  EXPECT_EQ(ibv_create_cq(context, 1, nullptr, nullptr, context->num_comp_vectors), nullptr);
}

TEST_F(Verbs, C25_CreateQpArguments) {
  const auto refused = [&](auto change) {
    ibv_qp_init_attr a = init_attr();
    change(a);
    errno = 0;
    EXPECT_EQ(ibv_create_qp(pd, &a), nullptr);
    return errno;
  };
  EXPECT_EQ(refused([](auto& a) { a.recv_cq = nullptr; }), EINVAL);
  EXPECT_EQ(refused([](auto& a) { a.send_cq = nullptr; }), EINVAL);
  EXPECT_EQ(refused([](auto& a) { a.qp_type = static_cast<ibv_qp_type>(77); }), EINVAL);
  EXPECT_EQ(refused([](auto& a) { a.qp_type = IBV_QPT_DRIVER; }), EOPNOTSUPP);
  EXPECT_EQ(refused([](auto& a) { a.cap.max_send_wr = 1 << 20; }), EINVAL);
  EXPECT_EQ(refused([](auto& a) { a.cap.max_recv_sge = 33; }), EINVAL);
  EXPECT_EQ(refused([](auto& a) { a.cap.max_inline_data = 1 << 20; }), EINVAL);
}

TEST_F(Verbs, QueryQpTellsTheTrueCapacity) {
  ibv_qp_init_attr a = init_attr();
  ibv_qp* qp = ibv_create_qp(pd, &a);
  ASSERT_TRUE(qp);
  ibv_qp_attr attr;
  ibv_qp_init_attr init;
  ASSERT_EQ(ibv_query_qp(qp, &attr, IBV_QP_STATE | IBV_QP_CAP, &init), 0);
  EXPECT_EQ(attr.qp_state, IBV_QPS_RESET);
  EXPECT_EQ(std::memcmp(&init.cap, &a.cap, sizeof a.cap), 0);
  EXPECT_GE(init.cap.max_send_wr, 8u);
  EXPECT_EQ(init.qp_context, this);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
}

TEST_F(Verbs, UnsupportedCallsSaySo) {
  ibv_counters_init_attr counters{};
  errno = 0;
  EXPECT_EQ(ibv_create_counters(context, &counters), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
}

// --- states

TEST_F(Verbs, C17_PostingByState) {
  ibv_qp* qp = make_qp();
  EXPECT_EQ(post_receive(qp, 1), EINVAL);
  EXPECT_EQ(post_send(qp, 1, nullptr), EINVAL);
  ASSERT_EQ(to_init(qp), 0);
  EXPECT_EQ(post_receive(qp, 1), 0);
  EXPECT_EQ(post_send(qp, 1, nullptr), EINVAL);
  ASSERT_EQ(to_rtr(qp, qp->qp_num), 0);
  EXPECT_EQ(post_send(qp, 1, nullptr), EINVAL);
  EXPECT_EQ(qp->state, IBV_QPS_RTR);
  ASSERT_EQ(to_rts(qp), 0);
  ASSERT_EQ(post_send(qp, 2, nullptr), 0);
  std::vector<std::uint64_t> ids;
  for (const ibv_wc& wc : completions(2)) {
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    ids.push_back(wc.wr_id);
  }
  EXPECT_THAT(ids, testing::UnorderedElementsAre(1, 2));  // what was posted in INIT
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
}

TEST_F(Verbs, RefusedTransitions) {
  ibv_qp* qp = make_qp();
  EXPECT_EQ(to_rts(qp), EINVAL);
  ASSERT_EQ(to_init(qp), 0);
  ibv_qp_attr a{};
  a.qp_state = IBV_QPS_RTR;
  EXPECT_EQ(ibv_modify_qp(qp, &a, IBV_QP_STATE), EINVAL);  // attributes are missing
  a.ah_attr.is_global = 0;
  EXPECT_EQ(ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV), EINVAL);
  a = {};
  a.port_num = 2;
  EXPECT_EQ(ibv_modify_qp(qp, &a, IBV_QP_PORT), EINVAL);
  EXPECT_EQ(qp->state, IBV_QPS_INIT);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
}

// --- shared receive queues

TEST_F(Verbs, C34_SharedReceiveQueueIsBounded) {
  ibv_srq_init_attr a{.srq_context = nullptr, .attr = {.max_wr = 4, .max_sge = 1, .srq_limit = 0}};
  ibv_srq* srq = ibv_create_srq(pd, &a);
  ASSERT_TRUE(srq);
  std::vector<ibv_recv_wr> chain(a.attr.max_wr + 1);
  for (std::size_t i = 0; i + 1 < chain.size(); ++i) chain[i].next = &chain[i + 1];
  ibv_recv_wr* bad = nullptr;
  EXPECT_EQ(ibv_post_srq_recv(srq, chain.data(), &bad), ENOMEM);
  EXPECT_EQ(bad, &chain.back());
  ibv_qp* qp = make_qp(IBV_QPT_RC, srq);
  ASSERT_EQ(to_init(qp), 0);
  EXPECT_EQ(post_receive(qp, 1), ENOMEM);
  ibv_srq_attr limit{.max_wr = 0, .max_sge = 0, .srq_limit = a.attr.max_wr + 1};
  EXPECT_EQ(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT), EINVAL);
  limit.srq_limit = 2;
  EXPECT_EQ(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT), 0);
  ASSERT_EQ(ibv_query_srq(srq, &limit), 0);
  EXPECT_EQ(limit.srq_limit, 2u);
  EXPECT_EQ(limit.max_wr, a.attr.max_wr);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_EQ(ibv_destroy_srq(srq), 0);
}

// --- data

TEST_F(Verbs, SendArrives) {
  ibv_mr* mr = ibv_reg_mr(pd, buffer.data(), buffer.size(), IBV_ACCESS_LOCAL_WRITE);
  ibv_qp* qp = make_connected();
  ASSERT_EQ(post_receive(qp, 1, mr, 4096), 0);
  std::strcpy(buffer.data(), "a message");
  ibv_sge sge{reinterpret_cast<std::uintptr_t>(buffer.data()), 10, mr->lkey};
  ASSERT_EQ(post_send(qp, 2, &sge), 0);
  for (const ibv_wc& wc : completions(2)) {
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.qp_num, qp->qp_num);
    if (wc.opcode == IBV_WC_RECV) {
      EXPECT_EQ(wc.wr_id, 1u);
      EXPECT_EQ(wc.byte_len, 10u);
    } else {
      EXPECT_EQ(wc.opcode, IBV_WC_SEND);
      EXPECT_EQ(wc.wr_id, 2u);
    }
  }
  EXPECT_STREQ(buffer.data() + 4096, "a message");
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

TEST_F(Verbs, C05_C06_InlineData) {
  ibv_mr* mr = ibv_reg_mr(pd, buffer.data(), buffer.size(), IBV_ACCESS_LOCAL_WRITE);
  ibv_qp* qp = make_connected();
  ibv_qp_attr attr;
  ibv_qp_init_attr init;
  ASSERT_EQ(ibv_query_qp(qp, &attr, IBV_QP_CAP, &init), 0);
  ASSERT_GE(init.cap.max_inline_data, 64u);
  ibv_sge sge{reinterpret_cast<std::uintptr_t>(buffer.data()), init.cap.max_inline_data + 10,
              0xdeadbeef};
  EXPECT_EQ(post_send(qp, 1, &sge, IBV_SEND_INLINE), ENOMEM);
  ASSERT_EQ(post_receive(qp, 1, mr, 4096), 0);
  std::strcpy(buffer.data(), "original");
  sge.length = 9;
  ASSERT_EQ(post_send(qp, 2, &sge, IBV_SEND_INLINE), 0);
  std::memset(buffer.data(), 'x', 64);
  for (const ibv_wc& wc : completions(2)) EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_STREQ(buffer.data() + 4096, "original");
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

TEST_F(Verbs, AnInlineAtomicWriteHasEightBytes) {
  ibv_qp* qp = make_connected();
  ibv_sge sge{reinterpret_cast<std::uintptr_t>(buffer.data()), 0, 0};
  ibv_send_wr wr{}, *bad = nullptr;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_ATOMIC_WRITE;
  wr.send_flags = IBV_SEND_INLINE;
  for (const std::uint32_t length : {0u, 1u, 7u, 9u, 64u}) {
    sge.length = length;
    EXPECT_EQ(ibv_post_send(qp, &wr, &bad), EINVAL) << length;
    EXPECT_EQ(bad, &wr);
  }
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
}

// C13, C12: what is posted in the error state is flushed, in order.
TEST_F(Verbs, C12_C13_PostingInErrorIsFlushed) {
  ibv_qp* qp = make_connected();
  ASSERT_EQ(to_error(qp), 0);
  for (std::uint64_t i = 1; i <= 3; ++i) ASSERT_EQ(post_receive(qp, i), 0);
  for (std::uint64_t i = 1; i <= 3; ++i) ASSERT_EQ(post_send(qp, 10 + i, nullptr), 0);
  std::vector<std::uint64_t> receives, sends;
  for (const ibv_wc& wc : completions(6)) {
    EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
    (wc.wr_id > 10 ? sends : receives).push_back(wc.wr_id);
  }
  EXPECT_THAT(receives, testing::ElementsAre(1, 2, 3));
  EXPECT_THAT(sends, testing::ElementsAre(11, 12, 13));
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
}

// A slot is free again when its completion was polled.
TEST_F(Verbs, C19_SendQueueIsBounded) {
  ibv_qp* qp = make_connected();
  ibv_send_wr wr[9]{}, *bad = nullptr;
  for (int i = 0; i < 9; ++i) {
    wr[i].opcode = IBV_WR_SEND;
    wr[i].next = i < 8 ? &wr[i + 1] : nullptr;
  }
  EXPECT_EQ(ibv_post_send(qp, wr, &bad), ENOMEM);
  EXPECT_EQ(bad, &wr[8]);
  for (int i = 0; i < 8; ++i) ASSERT_EQ(post_receive(qp, i), 0);
  completions(16);
  EXPECT_EQ(post_send(qp, 1, nullptr), 0);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
}

TEST_F(Verbs, ExtendedPosting) {
  ibv_qp_init_attr_ex a{};
  a.send_cq = a.recv_cq = cq;
  a.cap = init_attr().cap;
  a.qp_type = IBV_QPT_RC;
  a.sq_sig_all = 1;
  a.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  a.pd = pd;
  a.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
  ibv_qp* plain = make_qp();
  EXPECT_EQ(ibv_qp_to_qp_ex(plain), nullptr);
  EXPECT_EQ(ibv_destroy_qp(plain), 0);
  ibv_qp* qp = ibv_create_qp_ex(context, &a);
  ASSERT_TRUE(qp);
  ibv_qp_ex* ex = ibv_qp_to_qp_ex(qp);
  ASSERT_TRUE(ex);
  ASSERT_EQ(to_init(qp), 0);
  ASSERT_EQ(to_rtr(qp, qp->qp_num), 0);
  ASSERT_EQ(to_rts(qp), 0);
  ibv_mr* mr = ibv_reg_mr(pd, buffer.data(), buffer.size(), IBV_ACCESS_LOCAL_WRITE);
  ASSERT_EQ(post_receive(qp, 1, mr, 4096), 0);
  ibv_wr_start(ex);
  ibv_wr_send(ex);
  ibv_wr_abort(ex);
  ibv_wr_start(ex);
  ex->wr_id = 2;
  ex->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_send_imm(ex, htonl(0x01020304));
  ibv_data_buf pieces[] = {{const_cast<char*>("two "), 4}, {const_cast<char*>("pieces"), 7}};
  ibv_wr_set_inline_data_list(ex, 2, pieces);
  ASSERT_EQ(ibv_wr_complete(ex), 0);
  for (const ibv_wc& wc : completions(2)) {
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    if (wc.opcode == IBV_WC_RECV) {
      EXPECT_TRUE(wc.wc_flags & IBV_WC_WITH_IMM);
      EXPECT_EQ(ntohl(wc.imm_data), 0x01020304u);
    }
  }
  EXPECT_STREQ(buffer.data() + 4096, "two pieces");
  ibv_wr_start(ex);
  for (int i = 0; i < 9; ++i) ibv_wr_send(ex);  // one more than the queue holds: none is posted
  EXPECT_EQ(ibv_wr_complete(ex), ENOMEM);
  EXPECT_EQ(post_send(qp, 3, nullptr), 0);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

// --- arguments that no program should have

// libibverbs has no lengths of lists: what num_sge says is looked at before the list is.
TEST_F(Verbs, NumSgeBeyondTheQueuesIsRefusedUnseen) {
  ibv_qp* qp = make_connected();
  for (const unsigned flags : {0u, unsigned{IBV_SEND_INLINE}}) {
    for (const int n : {-1, 33, 1 << 20, INT_MAX}) {
      auto sge = std::make_unique<ibv_sge>();
      ibv_send_wr wr{}, *bad = nullptr;
      wr.opcode = IBV_WR_SEND;
      wr.send_flags = flags;
      wr.sg_list = sge.get();
      wr.num_sge = n;
      EXPECT_EQ(ibv_post_send(qp, &wr, &bad), n < 0 ? EINVAL : ENOMEM) << n;
      EXPECT_EQ(bad, &wr);
    }
  }
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
}

TEST_F(Verbs, PathMtuOutsideTheEnumerationIsRefused) {
  ibv_qp* qp = make_qp();
  ASSERT_EQ(to_init(qp), 0);
  for (const unsigned mtu : {0u, 6u, 200u, 0x101u, ~0u}) {
    ibv_qp_attr a{};
    a.qp_state = IBV_QPS_RTR;
    std::memcpy(&a.path_mtu, &mtu, sizeof mtu);
    a.dest_qp_num = qp->qp_num;
    a.max_dest_rd_atomic = 1;
    a.ah_attr = own_address();
    EXPECT_EQ(ibv_modify_qp(qp, &a,
                            IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
              EINVAL)
        << mtu;
    EXPECT_EQ(qp->state, IBV_QPS_INIT);
  }
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
}

TEST_F(Verbs, ExtendedPostRefusesLengthsThatOverflow) {
  ibv_qp_init_attr init = init_attr(IBV_QPT_UD);
  ibv_qp_init_attr_ex a{.send_cq = cq,
                        .recv_cq = cq,
                        .cap = init.cap,
                        .qp_type = IBV_QPT_UD,
                        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
                        .pd = pd,
                        .send_ops_flags = IBV_QP_EX_WITH_SEND};
  ibv_qp* qp = ibv_create_qp_ex(context, &a);
  ASSERT_TRUE(qp);
  ibv_qp_ex* ex = ibv_qp_to_qp_ex(qp);
  ibv_data_buf halves[] = {{buffer.data(), std::size_t{1} << 63},
                           {buffer.data(), std::size_t{1} << 63}};
  ibv_wr_start(ex);
  ibv_wr_send(ex);
  ibv_wr_set_inline_data_list(ex, 2, halves);
  EXPECT_EQ(ibv_wr_complete(ex), ENOMEM);
  ibv_wr_start(ex);
  ibv_wr_send(ex);
  ibv_wr_set_ud_addr(ex, nullptr, 1, 1);
  EXPECT_EQ(ibv_wr_complete(ex), EINVAL);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
}

TEST_F(Verbs, ExtendedPolling) {
  ibv_cq_init_attr_ex a{};
  a.cqe = 16;
  a.wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP;
  ibv_cq_ex* ex = ibv_create_cq_ex(context, &a);
  ASSERT_TRUE(ex);
  ibv_poll_cq_attr none{};
  EXPECT_EQ(ibv_start_poll(ex, &none), ENOENT);
  ibv_cq* plain = cq;
  cq = ibv_cq_ex_to_cq(ex);
  ibv_qp* qp = make_connected();
  ASSERT_EQ(to_error(qp), 0);
  ASSERT_EQ(post_send(qp, 5, nullptr), 0);
  ASSERT_EQ(post_send(qp, 6, nullptr), 0);
  ASSERT_EQ(ibv_start_poll(ex, &none), 0);
  EXPECT_EQ(ex->wr_id, 5u);
  EXPECT_EQ(ex->status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_NE(ibv_wc_read_completion_ts(ex), 0u);
  ASSERT_EQ(ibv_next_poll(ex), 0);
  EXPECT_EQ(ex->wr_id, 6u);
  EXPECT_EQ(ibv_next_poll(ex), ENOENT);
  ibv_end_poll(ex);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_EQ(ibv_destroy_cq(cq), 0);
  cq = plain;
  a.wc_flags = IBV_WC_EX_WITH_TM_INFO;
  errno = 0;
  EXPECT_EQ(ibv_create_cq_ex(context, &a), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
}

// --- fork: what was inherited is dead (only what the device is may still be asked), and the
// child may open its own.
TEST_F(Verbs, C64_ForkedChild) {
  EXPECT_EQ(ibv_fork_init(), 0);
  EXPECT_EQ(ibv_is_fork_initialized(), IBV_FORK_UNNEEDED);
  const pid_t child = fork();
  if (child == 0) {
    ibv_device_attr a;
    if (ibv_query_device(context, &a) || a.node_guid != ibv_get_device_guid(list[0])) _exit(1);
    ibv_port_attr port;
    if (ibv_alloc_pd(context) || errno != EIO || ibv_query_port(context, 1, &port) != EIO) _exit(2);
    ibv_device** own_list = ibv_get_device_list(nullptr);
    ibv_context* own = own_list && own_list[0] ? ibv_open_device(own_list[0]) : nullptr;
    if (!own) _exit(3);
    ibv_pd* own_pd = ibv_alloc_pd(own);
    if (!own_pd || ibv_dealloc_pd(own_pd)) _exit(4);
    ibv_free_device_list(own_list);
    _exit(ibv_close_device(own) ? 5 : 0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  ibv_device_attr a;
  EXPECT_EQ(ibv_query_device(context, &a), 0);
}

// What the child writes is its own copy; what a peer writes is seen by the parent.
TEST_F(Verbs, C64_ChildScribblesOverARegion) {
  ibv_mr* mr = ibv_reg_mr(pd, buffer.data(), buffer.size(),
                          IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  ASSERT_TRUE(mr);
  std::memset(buffer.data(), 'p', 128);
  int go[2];
  ASSERT_EQ(pipe(go), 0);
  const pid_t child = fork();
  if (child == 0) {
    char c;
    std::memset(buffer.data(), 'c', 128);
    if (read(go[0], &c, 1) != 1) _exit(1);  // until the peer has written
    for (int i = 0; i < 128; ++i)
      if (buffer[static_cast<std::size_t>(i)] != 'c') _exit(2);
    _exit(0);
  }
  const auto at = reinterpret_cast<std::uintptr_t>(buffer.data());
  std::memset(buffer.data() + 64, 'n', 64);
  EXPECT_EQ(rdma_once(IBV_WR_RDMA_WRITE, {at + 64, 64, mr->lkey}, at, mr->rkey), IBV_WC_SUCCESS);
  for (int i = 0; i < 128; ++i) ASSERT_EQ(buffer[static_cast<std::size_t>(i)], 'n') << i;
  ASSERT_EQ(write(go[1], "g", 1), 1);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  for (const int fd : go) close(fd);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

// --- names

TEST(Symbols, WhatNcclLooksUp) {
  void* library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD);
  ASSERT_TRUE(library);
  for (const char* name :
       {"ibv_get_device_list", "ibv_free_device_list", "ibv_get_device_name", "ibv_open_device",
        "ibv_close_device",    "ibv_get_async_event",  "ibv_ack_async_event", "ibv_query_device",
        "ibv_query_port",      "ibv_query_gid",        "ibv_query_qp",        "ibv_alloc_pd",
        "ibv_dealloc_pd",      "ibv_reg_mr",           "ibv_dereg_mr",        "ibv_create_cq",
        "ibv_destroy_cq",      "ibv_create_qp",        "ibv_modify_qp",       "ibv_destroy_qp",
        "ibv_fork_init",       "ibv_event_type_str"})
    EXPECT_TRUE(dlvsym(library, name, "IBVERBS_1.1")) << name;
  EXPECT_TRUE(dlvsym(library, "ibv_reg_mr_iova2", "IBVERBS_1.8"));
  EXPECT_TRUE(dlvsym(library, "ibv_reg_dmabuf_mr", "IBVERBS_1.12"));
  EXPECT_TRUE(dlvsym(library, "ibv_query_port_speed", "IBVERBS_1.16"));
  for (const char* node : {"34", "57", "59", "64", "65"})
    EXPECT_TRUE(
        dlvsym(library, "ibv_query_gid_type", (std::string("IBVERBS_PRIVATE_") + node).c_str()))
        << node;
  dlclose(library);
}

TEST(Rates, ThereAndBack) {
  EXPECT_EQ(ibv_rate_to_mult(IBV_RATE_5_GBPS), 2);
  EXPECT_EQ(mult_to_ibv_rate(2), IBV_RATE_5_GBPS);
  EXPECT_EQ(ibv_rate_to_mbps(IBV_RATE_100_GBPS), 103125);
  EXPECT_EQ(mbps_to_ibv_rate(103125), IBV_RATE_100_GBPS);
  EXPECT_EQ(ibv_rate_to_mult(static_cast<ibv_rate>(99)), -1);
  EXPECT_STREQ(ibv_wc_status_str(IBV_WC_SUCCESS), "success");
  EXPECT_STREQ(ibv_wc_status_str(static_cast<ibv_wc_status>(999)), "unknown");
}

}  // namespace
