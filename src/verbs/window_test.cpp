// SPDX-License-Identifier: Apache-2.0
// Memory windows as an application sees them (ibv_alloc_mw(3), ibv_bind_mw(3)).
#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "verbs/testing.hpp"

namespace {

constexpr int bindable = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND;
constexpr unsigned remote_write = IBV_ACCESS_REMOTE_WRITE;

// A region of 4 KiB that takes windows, another that is read from and written to, and a pair of
// connected queue pairs.
struct Windows : adverb::verbs::Verbs {
  ibv_mr *mr = nullptr, *source = nullptr;
  std::array<ibv_qp*, 2> qps{};
  void SetUp() override {
    Verbs::SetUp();
    mr = ibv_reg_mr(pd, buffer.data(), 4096, bindable);
    source = ibv_reg_mr(pd, buffer.data() + 8192, 4096, IBV_ACCESS_LOCAL_WRITE);
    ASSERT_TRUE(mr && source);
    std::memcpy(buffer.data() + 8192, "12345678", 8);
    qps = make_pair();
  }
  void TearDown() override {
    for (ibv_qp* qp : qps) EXPECT_EQ(ibv_destroy_qp(qp), 0);
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
    EXPECT_EQ(ibv_dereg_mr(source), 0);
    Verbs::TearDown();
  }
  std::uint64_t at(std::uint64_t offset) const {
    return reinterpret_cast<std::uintptr_t>(buffer.data()) + offset;
  }
  ibv_mw_bind type_1(std::uint64_t length, unsigned access = remote_write) {
    return {7, IBV_SEND_SIGNALED, {length ? mr : nullptr, length ? at(0) : 0, length, access}};
  }
  // The completion of a binding of type 2.
  ibv_wc bind(ibv_qp* qp, ibv_mw* mw, std::uint32_t rkey, std::uint64_t length = 64,
              unsigned access = remote_write) {
    ibv_send_wr wr{}, *bad;
    wr.opcode = IBV_WR_BIND_MW;
    wr.bind_mw = {mw, rkey, {mr, at(0), length, access}};
    return complete(ibv_post_send(qp, &wr, &bad));
  }
  ibv_wc invalidate(ibv_qp* qp, std::uint32_t rkey) {
    ibv_send_wr wr{}, *bad;
    wr.opcode = IBV_WR_LOCAL_INV;
    wr.invalidate_rkey = rkey;
    return complete(ibv_post_send(qp, &wr, &bad));
  }
  ibv_wc complete(int posted) {
    EXPECT_EQ(posted, 0);
    const auto done = posted ? std::vector<ibv_wc>{} : completions(1);
    return done.empty() ? ibv_wc{} : done[0];
  }
  ibv_wc_status write(std::uint64_t to, std::uint32_t rkey) {
    return rdma(qps[0], IBV_WR_RDMA_WRITE, sge_of(buffer.data() + 8192, 8, source), to, rkey);
  }
  void reconnect() {
    for (ibv_qp* qp : qps) EXPECT_EQ(ibv_destroy_qp(qp), 0);
    qps = make_pair();
  }
};

TEST_F(Windows, AreAnnounced) {
  ibv_device_attr a;
  ASSERT_EQ(ibv_query_device(context, &a), 0);
  constexpr unsigned flags =
      IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B | IBV_DEVICE_MEM_MGT_EXTENSIONS;
  EXPECT_EQ(a.device_cap_flags & flags, flags);
  EXPECT_FALSE(a.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2A);
  ASSERT_GT(a.max_mw, 0);
  std::vector<ibv_mw*> all;
  while (ibv_mw* mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1)) all.push_back(mw);
  EXPECT_EQ(errno, ENOMEM);
  EXPECT_EQ(all.size(), static_cast<std::size_t>(a.max_mw));
  ibv_mr* more = ibv_reg_mr(pd, buffer.data(), 64, 0);
  EXPECT_TRUE(more) << "windows take no place of regions";
  EXPECT_EQ(ibv_dereg_mr(more), 0);
  for (ibv_mw* mw : all) EXPECT_EQ(ibv_dealloc_mw(mw), 0);
}

TEST_F(Windows, ObjectsAndReferences) {
  EXPECT_EQ(error_of(ibv_alloc_mw(pd, static_cast<ibv_mw_type>(3))), EINVAL);
  ibv_pd* own = ibv_alloc_pd(context);
  ibv_mw* mw = ibv_alloc_mw(own, IBV_MW_TYPE_2);
  ASSERT_TRUE(mw);
  EXPECT_EQ(mw->context, context);
  EXPECT_EQ(mw->pd, own);
  EXPECT_EQ(mw->type, IBV_MW_TYPE_2);
  EXPECT_NE(mw->rkey, 0u);
  EXPECT_EQ(ibv_dealloc_pd(own), EBUSY);
  EXPECT_EQ(ibv_dealloc_mw(mw), 0);
  EXPECT_EQ(context->ops.dealloc_mw(mw), EINVAL);
  EXPECT_EQ(ibv_dealloc_pd(own), 0);
}

TEST_F(Windows, Type1) {
  ibv_mw* mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
  const std::uint32_t first = mw->rkey;
  ibv_mw_bind bind = type_1(64);
  ASSERT_EQ(ibv_bind_mw(qps[1], mw, &bind), 0);
  const ibv_wc done = complete(0);
  EXPECT_EQ(done.status, IBV_WC_SUCCESS);
  EXPECT_EQ(done.opcode, IBV_WC_BIND_MW);
  EXPECT_EQ(done.wr_id, 7u);
  EXPECT_EQ(mw->rkey, ibv_inc_rkey(first));
  EXPECT_EQ(write(at(56), mw->rkey), IBV_WC_SUCCESS);
  EXPECT_EQ(std::memcmp(buffer.data() + 56, "12345678", 8), 0);
  EXPECT_EQ(ibv_dereg_mr(mr), EBUSY);
  EXPECT_EQ(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, bindable),
            IBV_REREG_MR_ERR_CMD);
  EXPECT_EQ(errno, EBUSY);
  const std::uint32_t bound = mw->rkey;
  bind = type_1(0, 0);
  ASSERT_EQ(ibv_bind_mw(qps[1], mw, &bind), 0);
  EXPECT_EQ(complete(0).status, IBV_WC_SUCCESS);
  EXPECT_EQ(write(at(0), bound), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(ibv_dealloc_mw(mw), 0);
}

TEST_F(Windows, DeallocationUnbinds) {
  for (const ibv_mw_type type : {IBV_MW_TYPE_1, IBV_MW_TYPE_2}) {
    ibv_mw* mw = ibv_alloc_mw(pd, type);
    ibv_mw_bind of_type_1 = type_1(64);
    if (type == IBV_MW_TYPE_1)
      EXPECT_EQ(complete(ibv_bind_mw(qps[1], mw, &of_type_1)).status, IBV_WC_SUCCESS);
    else
      EXPECT_EQ(bind(qps[1], mw, mw->rkey).status, IBV_WC_SUCCESS);
    const std::uint32_t rkey = mw->rkey;
    EXPECT_EQ(write(at(0), rkey), IBV_WC_SUCCESS);
    EXPECT_EQ(ibv_dereg_mr(mr), EBUSY);
    EXPECT_EQ(ibv_dealloc_mw(mw), 0);
    EXPECT_EQ(write(at(0), rkey), IBV_WC_REM_ACCESS_ERR);
    reconnect();
  }
}

TEST_F(Windows, Type2AndLocalInvalidate) {
  ibv_mw* mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
  const std::uint32_t rkey = ibv_inc_rkey(mw->rkey);
  EXPECT_EQ(bind(qps[1], mw, rkey).opcode, IBV_WC_BIND_MW);
  EXPECT_EQ(write(at(8), rkey), IBV_WC_SUCCESS);
  const ibv_wc done = invalidate(qps[1], rkey);
  EXPECT_EQ(done.status, IBV_WC_SUCCESS);
  EXPECT_EQ(done.opcode, IBV_WC_LOCAL_INV);
  EXPECT_EQ(bind(qps[1], mw, ibv_inc_rkey(rkey)).status, IBV_WC_SUCCESS);
  EXPECT_EQ(write(at(8), ibv_inc_rkey(rkey)), IBV_WC_SUCCESS);
  EXPECT_EQ(write(at(8), rkey), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(ibv_dealloc_mw(mw), 0);
}

// The whole range with the low bits of any number as the new key, on zero-based windows and on
// device memory.
TEST_F(Windows, ZeroBased) {
  ibv_mw* mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
  const std::uint32_t rkey = (mw->rkey & ~0xffu) | 0x42;
  ibv_mr* target = mr;
  EXPECT_EQ(bind(qps[1], mw, 0xabcdef42, 64, remote_write | IBV_ACCESS_ZERO_BASED).status,
            IBV_WC_SUCCESS);
  EXPECT_EQ(write(56, rkey), IBV_WC_SUCCESS);
  EXPECT_EQ(std::memcmp(buffer.data() + 56, "12345678", 8), 0);
  EXPECT_EQ(invalidate(qps[1], rkey).status, IBV_WC_SUCCESS);
  ibv_alloc_dm_attr attr{64, 0, 0};
  ibv_dm* dm = ibv_alloc_dm(context, &attr);
  mr = ibv_reg_dm_mr(pd, dm, 0, 64, bindable | IBV_ACCESS_ZERO_BASED);
  ibv_send_wr wr{}, *bad;
  wr.opcode = IBV_WR_BIND_MW;
  wr.bind_mw = {mw, rkey, {mr, 0, 64, remote_write | IBV_ACCESS_ZERO_BASED}};
  EXPECT_EQ(complete(ibv_post_send(qps[1], &wr, &bad)).status, IBV_WC_SUCCESS);
  EXPECT_EQ(write(8, rkey), IBV_WC_SUCCESS);
  char out[8];
  EXPECT_EQ(ibv_memcpy_from_dm(out, dm, 8, 8), 0);
  EXPECT_EQ(std::memcmp(out, "12345678", 8), 0);
  EXPECT_EQ(ibv_dealloc_mw(mw), 0);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  EXPECT_EQ(ibv_free_dm(dm), 0);
  mr = target;
}

// C50
TEST_F(Windows, C50_Type2IsItsQueuePairs) {
  ibv_mw* mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
  EXPECT_EQ(bind(qps[0], mw, mw->rkey).status, IBV_WC_SUCCESS);
  EXPECT_EQ(write(at(0), mw->rkey), IBV_WC_REM_ACCESS_ERR) << "qps[1] receives, qps[0] bound it";
  EXPECT_EQ(ibv_dealloc_mw(mw), 0);
}

// C50
TEST_F(Windows, C50_Type2IsNotBoundTwice) {
  ibv_mw* mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
  EXPECT_EQ(bind(qps[1], mw, mw->rkey).status, IBV_WC_SUCCESS);
  EXPECT_EQ(bind(qps[1], mw, ibv_inc_rkey(mw->rkey)).status, IBV_WC_MW_BIND_ERR);
  EXPECT_EQ(ibv_dealloc_mw(mw), 0);
}

// C50
TEST_F(Windows, C50_CallsOfTheOtherType) {
  ibv_mw* first = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
  ibv_mw* second = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
  ibv_mw_bind bind = type_1(64);
  EXPECT_EQ(ibv_bind_mw(qps[1], second, &bind), EINVAL);
  EXPECT_EQ(context->ops.bind_mw(qps[1], second, &bind), EINVAL);
  ibv_send_wr wr{}, *bad = nullptr;
  wr.opcode = IBV_WR_BIND_MW;
  wr.bind_mw = {first, first->rkey, {mr, at(0), 64, remote_write}};
  EXPECT_EQ(ibv_post_send(qps[1], &wr, &bad), EINVAL);
  EXPECT_EQ(bad, &wr);
  EXPECT_EQ(ibv_dealloc_mw(first), 0);
  EXPECT_EQ(ibv_dealloc_mw(second), 0);
}

// A post looks at no handle, and tells the new key at once.
TEST_F(Windows, AnEmptyBindingOfType2IsAnErrorOfItsCompletion) {
  ibv_mw* mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
  const std::uint32_t index = mw->rkey >> 8;
  mr->handle ^= 1;
  mw->handle ^= 1;
  EXPECT_EQ(bind(qps[1], mw, 0x1205).status, IBV_WC_SUCCESS);
  EXPECT_EQ(mw->rkey, index << 8 | 5);
  mr->handle ^= 1;
  mw->handle ^= 1;
  EXPECT_EQ(ibv_dealloc_mw(mw), 0);
  ibv_mw* other = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
  EXPECT_EQ(bind(qps[1], other, 6, 0).status, IBV_WC_MW_BIND_ERR);
  EXPECT_EQ(ibv_dealloc_mw(other), 0);
}

TEST_F(Windows, BindingsThatAreRefusedAtOnce) {
  ibv_mw* first = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
  ibv_mw* second = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
  const std::uint32_t rkey = first->rkey;
  ibv_mw_bind zero_based = type_1(64, remote_write | IBV_ACCESS_ZERO_BASED);
  EXPECT_EQ(ibv_bind_mw(qps[1], first, &zero_based), EINVAL);
  ibv_mw_bind huge = type_1((1ull << 31) + 1);
  EXPECT_EQ(ibv_bind_mw(qps[1], first, &huge), EOPNOTSUPP);
  ibv_mw_bind flags = type_1(64);
  flags.send_flags = 0x100;
  EXPECT_EQ(ibv_bind_mw(qps[1], first, &flags), EINVAL);
  ibv_qp* ud = make_qp(IBV_QPT_UD);
  ibv_mw_bind fine = type_1(64);
  EXPECT_EQ(ibv_bind_mw(ud, first, &fine), EINVAL);
  EXPECT_EQ(ibv_destroy_qp(ud), 0);
  ibv_send_wr wr{}, *bad;
  wr.opcode = IBV_WR_BIND_MW;
  wr.bind_mw = {nullptr, 1, {mr, at(0), 64, 0}};
  EXPECT_EQ(ibv_post_send(qps[1], &wr, &bad), EINVAL);
  EXPECT_EQ(first->rkey, rkey) << "a refused call changes no key";
  EXPECT_EQ(ibv_dealloc_mw(first), 0);
  EXPECT_EQ(ibv_dealloc_mw(second), 0);
}

TEST_F(Windows, RegionWithoutTheRight) {
  ibv_mr* plain = ibv_reg_mr(pd, buffer.data(), 64, IBV_ACCESS_LOCAL_WRITE);
  ibv_mw* mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
  ibv_mw_bind bind = type_1(64);
  bind.bind_info.mr = plain;
  EXPECT_EQ(complete(ibv_bind_mw(qps[1], mw, &bind)).status, IBV_WC_MW_BIND_ERR);
  EXPECT_EQ(ibv_dealloc_mw(mw), 0);
  EXPECT_EQ(ibv_dereg_mr(plain), 0);
}

// C53: the key is told with the completion and works no more; a bad one is the receiver's error.
TEST_F(Windows, C53_SendWithInvalidate) {
  ibv_mw* mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
  EXPECT_EQ(bind(qps[1], mw, mw->rkey).status, IBV_WC_SUCCESS);
  const auto send = [&](std::uint32_t rkey, std::size_t done) {
    EXPECT_EQ(post_receive(qps[1], 2), 0);
    ibv_send_wr wr{}, *bad;
    wr.wr_id = 1;
    wr.opcode = IBV_WR_SEND_WITH_INV;
    wr.invalidate_rkey = rkey;
    EXPECT_EQ(ibv_post_send(qps[0], &wr, &bad), 0);
    return completions(done);
  };
  for (const ibv_wc& wc : send(mw->rkey, 2)) {
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    if (wc.wr_id != 2) continue;
    EXPECT_TRUE(wc.wc_flags & IBV_WC_WITH_INV);
    EXPECT_EQ(wc.invalidated_rkey, mw->rkey);
  }
  EXPECT_EQ(write(at(0), mw->rkey), IBV_WC_REM_ACCESS_ERR);
  std::uint32_t of_another = 0;
  for (const bool bound_elsewhere : {false, true}) {
    reconnect();
    if (bound_elsewhere) {
      of_another = mw->rkey;
      EXPECT_EQ(bind(qps[0], mw, of_another).status, IBV_WC_SUCCESS);
    }
    // The receiver learns of it; the sender's retries find nobody.
    const auto failed = send(of_another, 1);
    ASSERT_EQ(failed.size(), 1u);
    EXPECT_EQ(failed[0].wr_id, 2u);
    EXPECT_EQ(failed[0].status, IBV_WC_LOC_ACCESS_ERR);
  }
  EXPECT_EQ(ibv_dealloc_mw(mw), 0);
}

// The extended interface: bind, tell and invalidate in one batch.
TEST_F(Windows, InABatch) {
  ibv_qp_init_attr init = init_attr();
  ibv_qp_init_attr_ex a{.send_cq = cq,
                        .recv_cq = cq,
                        .cap = init.cap,
                        .qp_type = IBV_QPT_RC,
                        .sq_sig_all = 1,
                        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
                        .pd = pd,
                        .send_ops_flags = IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV |
                                          IBV_QP_EX_WITH_RDMA_WRITE};
  ibv_qp* qp = ibv_create_qp_ex(context, &a);
  ASSERT_TRUE(qp);
  ASSERT_EQ(to_init(qp) || to_rtr(qp, qp->qp_num) || to_rts(qp), 0);
  ibv_mw* mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
  ibv_qp_ex* x = ibv_qp_to_qp_ex(qp);
  const ibv_mw_bind_info info{mr, at(0), 64, remote_write};
  ibv_wr_start(x);
  ibv_wr_bind_mw(x, mw, mw->rkey, &info);
  ibv_wr_rdma_write(x, mw->rkey, at(0));
  ibv_wr_set_sge(x, source->lkey, at(8192), 8);
  ASSERT_EQ(ibv_wr_complete(x), 0);
  for (const ibv_wc& wc : completions(2)) EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(std::memcmp(buffer.data(), "12345678", 8), 0);
  ibv_wr_start(x);
  ibv_wr_local_inv(x, mw->rkey);
  ASSERT_EQ(ibv_wr_complete(x), 0);
  EXPECT_EQ(complete(0).opcode, IBV_WC_LOCAL_INV);
  ibv_mw* first = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
  ibv_wr_start(x);
  ibv_wr_bind_mw(x, first, first->rkey, &info);
  EXPECT_EQ(ibv_wr_complete(x), EINVAL);
  EXPECT_EQ(ibv_dealloc_mw(first), 0);
  EXPECT_EQ(ibv_dealloc_mw(mw), 0);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
}

}  // namespace
