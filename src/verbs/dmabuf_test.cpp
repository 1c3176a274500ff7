// SPDX-License-Identifier: Apache-2.0
// Regions of dma-bufs as an application sees them (ibv_reg_dmabuf_mr(3)); a memfd is the exporter,
// and udmabuf where the machine has it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <linux/udmabuf.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "verbs/testing.hpp"

namespace {

constexpr int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                    IBV_ACCESS_REMOTE_ATOMIC;

struct DmaBuf : adverb::verbs::Verbs {
  static constexpr std::size_t page = 4096, size = 4 * page;
  int fd = -1;
  ibv_mr* source = nullptr;
  void SetUp() override {
    Verbs::SetUp();
    fd = memfd_create("dmabuf", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ASSERT_EQ(ftruncate(fd, size), 0);
    source = ibv_reg_mr(pd, buffer.data(), 64, IBV_ACCESS_LOCAL_WRITE);
    std::memcpy(buffer.data(), "12345678", 8);
  }
  void TearDown() override {
    EXPECT_EQ(ibv_dereg_mr(source), 0);
    EXPECT_EQ(close(fd), 0);
    Verbs::TearDown();
  }
  int refused(std::uint64_t offset, std::size_t length, std::uint64_t iova, int of, int access) {
    errno = 0;
    return error_of(ibv_reg_dmabuf_mr(pd, offset, length, iova, of, access));
  }
  // Writes through a region of `of`, and looks at the file behind.
  void use(int of) {
    constexpr std::uint64_t offset = page + 16, iova = 0x7000000000010;
    ibv_mr* mr = ibv_reg_dmabuf_mr(pd, offset, 2 * page, iova, of, all);
    ASSERT_TRUE(mr) << std::strerror(errno);
    EXPECT_EQ(mr->length, 2 * page);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(mr->addr), offset);
    EXPECT_EQ(rdma_once(IBV_WR_RDMA_WRITE, sge_of(source->addr, 8, source), iova + 2 * page - 8,
                        mr->rkey),
              IBV_WC_SUCCESS);
    char out[8];
    ASSERT_EQ(pread(fd, out, 8, offset + 2 * page - 8), 8);
    EXPECT_EQ(std::memcmp(out, "12345678", 8), 0);
    EXPECT_EQ(rdma_once(IBV_WR_RDMA_WRITE, sge_of(source->addr, 8, source), iova + 2 * page - 7,
                        mr->rkey),
              IBV_WC_REM_ACCESS_ERR);
    EXPECT_EQ(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, buffer.data(), 64, 0),
              IBV_REREG_MR_ERR_INPUT);
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
  }
};

TEST_F(DmaBuf, OfAMemfd) { use(fd); }

TEST_F(DmaBuf, OfUdmabuf) {
  const int device = open("/dev/udmabuf", O_RDWR | O_CLOEXEC);
  if (device < 0) GTEST_SKIP() << "no /dev/udmabuf";
  ASSERT_EQ(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
  udmabuf_create create{static_cast<std::uint32_t>(fd), UDMABUF_FLAGS_CLOEXEC, 0, size};
  const int exported = ioctl(device, UDMABUF_CREATE, &create);
  ASSERT_GE(exported, 0) << std::strerror(errno);
  use(exported);
  EXPECT_EQ(close(exported), 0);
  EXPECT_EQ(close(device), 0);
}

//= ibv_reg_dmabuf_mr(3): its own access flags, and an iova with the page offset of `offset`
TEST_F(DmaBuf, ArgumentsThatAreRefused) {
  EXPECT_EQ(refused(0, page, 0, -1, all), EBADF);
  EXPECT_EQ(refused(0, page, 0, context->async_fd, all), EINVAL) << "no dma-buf";
  EXPECT_EQ(refused(0, page, 8, fd, all), EINVAL);
  EXPECT_EQ(refused(8, page, page, fd, all), EINVAL);
  EXPECT_EQ(refused(0, size + 1, 0, fd, all), EINVAL);
  EXPECT_EQ(refused(size + page, page, 0, fd, all), EINVAL);
  EXPECT_EQ(refused(page, SIZE_MAX, 0, fd, all), EINVAL);
  EXPECT_EQ(refused(0, 0, 0, fd, all), EINVAL);
  EXPECT_EQ(refused(0, 2 * page, ~std::uint64_t{0} - page + 1, fd, all), EINVAL);
  EXPECT_EQ(refused(0, page, 0, fd, IBV_ACCESS_REMOTE_WRITE), EINVAL);
  for (const int access : {+IBV_ACCESS_MW_BIND, +IBV_ACCESS_ZERO_BASED, +IBV_ACCESS_ON_DEMAND,
                           +IBV_ACCESS_HUGETLB, 1 << 15})
    EXPECT_EQ(refused(0, page, 0, fd, access), EINVAL);
}

TEST_F(DmaBuf, SealedAgainstWriting) {
  ASSERT_EQ(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), 0);
  EXPECT_EQ(refused(0, page, 0, fd, all), EACCES);
}

// Whoever shrinks the file takes the memory away: an access error, and no signal.
TEST_F(DmaBuf, ThatShrinks) {
  ibv_mr* mr = ibv_reg_dmabuf_mr(pd, 0, size, 0, fd, all);
  ASSERT_TRUE(mr);
  ASSERT_EQ(ftruncate(fd, page), 0);
  EXPECT_EQ(rdma_once(IBV_WR_RDMA_WRITE, sge_of(source->addr, 8, source), 2 * page, mr->rkey),
            IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

}  // namespace
