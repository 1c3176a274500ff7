// SPDX-License-Identifier: Apache-2.0
// Device memory as an application sees it (ibv_alloc_dm(3)).
#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

#include "verbs/testing.hpp"

namespace {

struct DeviceMemory : adverb::verbs::Verbs {
  static constexpr unsigned all = IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE |
                                  IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                                  IBV_ACCESS_REMOTE_ATOMIC;
  ibv_dm* make(std::size_t length, std::uint32_t log_align = 0, std::uint32_t comp_mask = 0) {
    ibv_alloc_dm_attr attr{length, log_align, comp_mask};
    return ibv_alloc_dm(context, &attr);
  }
  std::size_t limit() {
    ibv_device_attr_ex a;
    EXPECT_EQ(ibv_query_device_ex(context, nullptr, &a), 0);
    return a.max_dm_size;
  }
  static std::uint64_t word_of(ibv_dm* dm, std::uint64_t offset) {
    std::uint64_t word = 0;
    EXPECT_EQ(ibv_memcpy_from_dm(&word, dm, offset, 8), 0);
    return word;
  }
};

TEST_F(DeviceMemory, Limits) {
  const std::size_t most = limit();
  ASSERT_GE(most, 4096u);
  EXPECT_EQ(error_of(make(0)), EINVAL);
  EXPECT_EQ(error_of(make(most + 1)), EINVAL);
  EXPECT_EQ(error_of(make(SIZE_MAX)), EINVAL);
  EXPECT_EQ(error_of(make(64, 13)), EINVAL);
  EXPECT_EQ(error_of(make(64, 0, 1)), EINVAL);
  ibv_dm* first = make(most - 8, 12);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->context, context);
  EXPECT_EQ(error_of(make(12)), ENOMEM);
  ibv_dm* second = make(8);
  ASSERT_TRUE(second);
  EXPECT_NE(first->handle, second->handle);
  EXPECT_EQ(ibv_free_dm(first), 0);
  // The inline function would look into what was freed.
  EXPECT_EQ(verbs_get_ctx(context)->free_dm(first), EINVAL);
  first = make(12);
  EXPECT_TRUE(first);
  EXPECT_EQ(ibv_free_dm(first), 0);
  EXPECT_EQ(ibv_free_dm(second), 0);
}

TEST_F(DeviceMemory, Copies) {
  ibv_dm* dm = make(100);
  ASSERT_TRUE(dm);
  EXPECT_EQ(word_of(dm, 92), 0u);  // it begins as zeros
  EXPECT_EQ(ibv_memcpy_to_dm(dm, 96, "last", 4), 0);
  char out[5] = {};
  EXPECT_EQ(ibv_memcpy_from_dm(out, dm, 96, 4), 0);
  EXPECT_STREQ(out, "last");
  EXPECT_EQ(ibv_memcpy_to_dm(dm, 100, out, 0), 0);
  EXPECT_EQ(ibv_memcpy_to_dm(dm, 2, out, 4), EINVAL);
  EXPECT_EQ(ibv_memcpy_from_dm(out, dm, 0, 3), EINVAL);
  EXPECT_EQ(ibv_memcpy_to_dm(dm, 100, out, 4), EFAULT);
  EXPECT_EQ(ibv_memcpy_from_dm(out, dm, 0, 104), EFAULT);
  EXPECT_EQ(ibv_memcpy_from_dm(out, dm, ~3ull, 8), EFAULT);
  EXPECT_EQ(ibv_memcpy_to_dm(dm, 0, reinterpret_cast<void*>(64), 4), EFAULT);
  EXPECT_EQ(ibv_free_dm(dm), 0);
}

TEST_F(DeviceMemory, Registration) {
  ibv_dm* dm = make(100);
  ASSERT_TRUE(dm);
  EXPECT_EQ(error_of(ibv_reg_dm_mr(pd, dm, 0, 100, IBV_ACCESS_LOCAL_WRITE)), EINVAL);
  EXPECT_EQ(error_of(ibv_reg_dm_mr(pd, dm, 0, 104, all)), EINVAL);
  EXPECT_EQ(error_of(ibv_reg_dm_mr(pd, dm, 104, 0, all)), EINVAL);
  EXPECT_EQ(error_of(ibv_reg_dm_mr(pd, dm, ~0ull, 4, all)), EINVAL);
  EXPECT_EQ(error_of(ibv_reg_dm_mr(pd, dm, 0, 4, all | IBV_ACCESS_ON_DEMAND)), EINVAL);
  ibv_context* other = ibv_open_device(list[0]);
  ibv_pd* foreign = ibv_alloc_pd(other);
  EXPECT_EQ(error_of(ibv_reg_dm_mr(foreign, dm, 0, 4, all)), EINVAL);
  EXPECT_EQ(ibv_dealloc_pd(foreign), 0);
  EXPECT_EQ(ibv_close_device(other), 0);
  ibv_mr* mr = ibv_reg_dm_mr(pd, dm, 4, 96, all);
  ASSERT_TRUE(mr);
  EXPECT_EQ(mr->addr, nullptr);
  EXPECT_EQ(mr->length, 96u);
  EXPECT_EQ(ibv_free_dm(dm), EBUSY);
  EXPECT_EQ(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, buffer.data(), 64, 0),
            IBV_REREG_MR_ERR_CMD);
  EXPECT_EQ(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, all),
            IBV_REREG_MR_ERR_CMD);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  EXPECT_EQ(ibv_free_dm(dm), 0);
}

// Both ends of WRITE, READ and atomics; addresses are offsets into the region, not into the memory.
TEST_F(DeviceMemory, WorkRequests) {
  ibv_dm* dm = make(256, 3);
  ASSERT_TRUE(dm);
  ibv_mr* mr = ibv_reg_dm_mr(pd, dm, 64, 128, all);
  ibv_mr* host = ibv_reg_mr(pd, buffer.data(), 64, IBV_ACCESS_LOCAL_WRITE);
  ASSERT_TRUE(mr && host);
  ibv_qp* qp = make_connected();
  std::memcpy(buffer.data(), "12345678", 8);
  EXPECT_EQ(rdma(qp, IBV_WR_RDMA_WRITE, sge_of(buffer.data(), 8, host), 8, mr->rkey),
            IBV_WC_SUCCESS);
  char out[8];
  EXPECT_EQ(ibv_memcpy_from_dm(out, dm, 72, 8), 0);
  EXPECT_EQ(std::memcmp(out, "12345678", 8), 0);
  EXPECT_EQ(rdma(qp, IBV_WR_RDMA_READ, sge_of(buffer.data() + 8, 4, host), 12, mr->rkey),
            IBV_WC_SUCCESS);
  EXPECT_EQ(std::memcmp(buffer.data() + 8, "5678", 4), 0);
  const std::uint64_t five = 5;
  EXPECT_EQ(ibv_memcpy_to_dm(dm, 64, &five, 8), 0);
  ibv_send_wr wr{};
  wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
  wr.wr.atomic = {0, 3, 0, mr->rkey};
  EXPECT_EQ(run(qp, wr, {16, 8, mr->lkey}), IBV_WC_SUCCESS);  // the old value goes to the device
  EXPECT_EQ(word_of(dm, 64), 8u);
  EXPECT_EQ(word_of(dm, 64 + 16), 5u);
  EXPECT_EQ(rdma_once(IBV_WR_RDMA_WRITE, {124, 4, mr->lkey}, 125, mr->rkey), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  EXPECT_EQ(ibv_dereg_mr(host), 0);
  EXPECT_EQ(ibv_free_dm(dm), 0);
}

// A forked child has no running device, but memory it may have.
TEST_F(DeviceMemory, InAForkedChild) {
  ibv_dm* dm = make(limit() / 2);
  ASSERT_TRUE(dm);
  const pid_t child = fork();
  if (child == 0) {
    ibv_dm* own = make(64);
    if (!own || ibv_memcpy_to_dm(own, 0, "ours", 4)) _exit(1);
    if (ibv_reg_dm_mr(pd, own, 0, 64, all) || errno != EIO) _exit(2);
    _exit(ibv_free_dm(own) ? 3 : 0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(ibv_free_dm(dm), 0);
}

}  // namespace
