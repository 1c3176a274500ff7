// SPDX-License-Identifier: Apache-2.0
// Memory regions as an application sees them (ibv_reg_mr(3), ibv_rereg_mr(3),
// ibv_alloc_null_mr(3)).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "verbs/testing.hpp"

namespace {

using adverb::verbs::Verbs;
constexpr int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

// --- registration

struct MemoryRegions : Verbs {
  static constexpr std::size_t page = 4096;
  static void* map(int protection, std::size_t length = page) {
    return mmap(nullptr, length, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
};

TEST_F(MemoryRegions, C54_AccessRules) {
  char* p = buffer.data();
  EXPECT_EQ(error_of(ibv_reg_mr(pd, p, 64, IBV_ACCESS_REMOTE_WRITE)), EINVAL);
  EXPECT_EQ(error_of(ibv_reg_mr(pd, p, 64, IBV_ACCESS_REMOTE_ATOMIC)), EINVAL);
  EXPECT_EQ(error_of(ibv_reg_mr(pd, p, 64, 1 << 15)), EINVAL);
  ibv_mr* mr = ibv_reg_mr(pd, p, 64, IBV_ACCESS_REMOTE_READ | IBV_ACCESS_RELAXED_ORDERING);
  ASSERT_TRUE(mr);
  EXPECT_EQ(mr->addr, p);
  EXPECT_EQ(mr->length, 64u);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

TEST_F(MemoryRegions, C54_ReadOnlyMapping) {
  void* p = map(PROT_READ);
  EXPECT_EQ(error_of(ibv_reg_mr(pd, p, page, IBV_ACCESS_LOCAL_WRITE)), EFAULT);
  ibv_mr* mr = ibv_reg_mr(pd, p, page, IBV_ACCESS_REMOTE_READ);
  EXPECT_TRUE(mr);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  munmap(p, page);
}

TEST_F(MemoryRegions, C54_UnmappedRange) {
  char* p = adverb::verbs::map_apart(3 * page);
  munmap(p + page, page);  // a hole in the middle
  EXPECT_EQ(error_of(ibv_reg_mr(pd, p, 3 * page, IBV_ACCESS_LOCAL_WRITE)), EFAULT);
  EXPECT_EQ(error_of(ibv_reg_mr(pd, p + page, page, 0)), EFAULT);
  EXPECT_EQ(error_of(ibv_reg_mr(pd, p, SIZE_MAX, 0)), EINVAL);
  munmap(p, page);
  munmap(p + 2 * page, page);
}

TEST_F(MemoryRegions, RegistrationTouchesNothing) {
  const std::size_t length = std::size_t{1} << 30;
  void* p = map(PROT_READ | PROT_WRITE, length);
  ibv_mr* mr = ibv_reg_mr(pd, p, length, IBV_ACCESS_LOCAL_WRITE);
  ASSERT_TRUE(mr);
  std::vector<unsigned char> resident(length / page);
  ASSERT_EQ(mincore(p, length, resident.data()), 0);
  EXPECT_EQ(std::count_if(resident.begin(), resident.end(), [](unsigned char c) { return c & 1; }),
            0);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  munmap(p, length);
}

TEST_F(MemoryRegions, ZeroLengthAndTwice) {
  // Where a page begins it would have none.
  ibv_mr* empty = ibv_reg_mr(pd, buffer.data() + 1, 0, 0);
  ASSERT_TRUE(empty);
  EXPECT_EQ(ibv_dereg_mr(empty), 0);
  ibv_mr* mr = ibv_reg_mr(pd, buffer.data(), 1, 0);
  ASSERT_TRUE(mr);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  EXPECT_EQ(ibv_dereg_mr(mr), EINVAL);
}

// As the kernel has it for every NIC: pages are mapped as wholes.
TEST_F(MemoryRegions, AreOfWholePages) {
  auto* p = static_cast<char*>(map(PROT_READ | PROT_WRITE, 8192));
  const auto at = reinterpret_cast<std::uintptr_t>(p);
  EXPECT_EQ(error_of(ibv_reg_mr_iova2(pd, p + 16, 64, 0, all)), EINVAL);
  EXPECT_EQ(error_of(ibv_reg_mr_iova2(pd, p, 64, at + 1, all)), EINVAL);
  EXPECT_EQ(error_of(ibv_reg_mr_iova(pd, p, 64, 0x7000'0000'0008, all)), EINVAL);
  EXPECT_EQ(error_of(ibv_reg_mr(pd, p, 0, all)), EINVAL);
  EXPECT_EQ(error_of(ibv_reg_mr(pd, p, 0, all | IBV_ACCESS_ON_DEMAND)), EINVAL);
  ibv_mr* mr = ibv_reg_mr_iova2(pd, p + 16, 64, 0x7000'0000'0010, all);
  ASSERT_TRUE(mr);
  std::memcpy(p + 16, "12345678", 8);
  EXPECT_EQ(
      rdma_once(IBV_WR_RDMA_WRITE, {0x7000'0000'0010, 8, mr->lkey}, 0x7000'0000'0018, mr->rkey),
      IBV_WC_SUCCESS);
  EXPECT_EQ(std::memcmp(p + 24, "12345678", 8), 0);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  munmap(p, 8192);
}

//= ibv_reg_mr_iova(3): work requests address the region by hca_va, or by offsets with ZERO_BASED
TEST_F(MemoryRegions, AddressSpaces) {
  auto* p = static_cast<char*>(map(PROT_READ | PROT_WRITE));
  struct Case {
    const char* what;
    std::uint64_t iova;
    int access;
    std::uint64_t first;  // as work requests have it
  };
  const auto own = reinterpret_cast<std::uintptr_t>(p);
  const std::uint64_t far = 0xfffffffffff00000;
  for (const Case& c :
       {Case{"own address", own, all, own}, Case{"far away", far, all, far},
        Case{"at zero", 0, all, 0}, Case{"zero-based", far, all | IBV_ACCESS_ZERO_BASED, 0}}) {
    SCOPED_TRACE(c.what);
    ibv_mr* mr = ibv_reg_mr_iova2(pd, p, 4096, c.iova, static_cast<unsigned>(c.access));
    ASSERT_TRUE(mr);
    EXPECT_EQ(mr->addr, p);
    std::memcpy(p, "12345678........", 16);
    ibv_qp* qp = make_connected();
    EXPECT_EQ(rdma(qp, IBV_WR_RDMA_WRITE, {c.first, 8, mr->lkey}, c.first + 8, mr->rkey),
              IBV_WC_SUCCESS);
    EXPECT_EQ(std::memcmp(p + 8, "12345678", 8), 0);
    EXPECT_EQ(rdma_once(IBV_WR_RDMA_WRITE, {c.first, 8, mr->lkey}, c.first + 4089, mr->rkey),
              IBV_WC_REM_ACCESS_ERR);
    EXPECT_EQ(ibv_destroy_qp(qp), 0);
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
  }
  EXPECT_EQ(error_of(ibv_reg_mr_iova2(pd, p, 4096, ~0ull - 4095, all)), EINVAL);
  ibv_mr* mr = ibv_reg_mr(pd, p, 64, all | IBV_ACCESS_ZERO_BASED);
  ASSERT_TRUE(mr);
  EXPECT_EQ(rdma_once(IBV_WR_RDMA_WRITE, {56, 8, mr->lkey}, 0, mr->rkey), IBV_WC_SUCCESS);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  munmap(p, 4096);
}

// --- re-registration

struct Reregistration : Verbs {
  ibv_pd* other = nullptr;
  ibv_mr* mr = nullptr;
  void SetUp() override {
    Verbs::SetUp();
    other = ibv_alloc_pd(context);
    mr = ibv_reg_mr(pd, buffer.data(), 64, all);
    ASSERT_TRUE(other && mr);
  }
  void TearDown() override {
    EXPECT_TRUE(!mr || ibv_dereg_mr(mr) == 0);
    EXPECT_TRUE(!other || ibv_dealloc_pd(other) == 0);
    Verbs::TearDown();
  }
  // Of a WRITE by a queue pair of `pd` into the region.
  ibv_wc_status write(const char* to) {
    ibv_mr* from = ibv_reg_mr(pd, buffer.data() + 8192, 8, 0);
    const ibv_wc_status status = rdma_once(IBV_WR_RDMA_WRITE, sge_of(from->addr, 8, from),
                                           reinterpret_cast<std::uintptr_t>(to), mr->rkey);
    EXPECT_EQ(ibv_dereg_mr(from), 0);
    return status;
  }
  int rereg(int flags, ibv_pd* new_pd, void* address, std::size_t length, int access) {
    errno = 0;
    return ibv_rereg_mr(mr, flags, new_pd, address, length, access);
  }
};

TEST_F(Reregistration, EveryCombinationChangesWhatItNames) {
  char* const second = buffer.data() + 4096;
  const std::uint32_t key = mr->rkey;
  for (int flags = 1; flags < 8; ++flags) {
    SCOPED_TRACE(flags);
    const bool translation = flags & IBV_REREG_MR_CHANGE_TRANSLATION;
    const bool domain = flags & IBV_REREG_MR_CHANGE_PD;
    const bool rights = flags & IBV_REREG_MR_CHANGE_ACCESS;
    EXPECT_EQ(rereg(flags, domain ? other : nullptr, translation ? second : nullptr,
                    translation ? 32 : 0, rights ? IBV_ACCESS_LOCAL_WRITE : 0),
              0);
    EXPECT_EQ(mr->rkey, key);
    EXPECT_EQ(mr->pd, domain ? other : pd);
    EXPECT_EQ(mr->addr, translation ? second : buffer.data());
    EXPECT_EQ(mr->length, translation ? 32u : 64u);
    EXPECT_EQ(ibv_dealloc_pd(other), domain ? EBUSY : 0);
    if (!domain) other = ibv_alloc_pd(context);
    const bool refused = domain || rights;
    EXPECT_EQ(write(buffer.data()),
              refused || translation ? IBV_WC_REM_ACCESS_ERR : IBV_WC_SUCCESS);
    EXPECT_EQ(write(second), refused || !translation ? IBV_WC_REM_ACCESS_ERR : IBV_WC_SUCCESS);
    EXPECT_EQ(rereg(7, pd, buffer.data(), 64, all), 0);
    EXPECT_EQ(write(buffer.data()), IBV_WC_SUCCESS);
  }
}

TEST_F(Reregistration, RefusedInputLeavesTheRegionAsItIs) {
  struct Case {
    const char* what;
    int flags;
    void* address;
    std::size_t length;
    int access;
  };
  for (const Case& c : {Case{"unknown flags", 8, nullptr, 0, 0},
                        Case{"access without its flag", IBV_REREG_MR_CHANGE_PD, nullptr, 0, all},
                        Case{"no PD", IBV_REREG_MR_CHANGE_PD, nullptr, 0, 0},
                        Case{"no address", IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, 64, 0},
                        Case{"no length", IBV_REREG_MR_CHANGE_TRANSLATION, buffer.data(), 0, 0}}) {
    SCOPED_TRACE(c.what);
    EXPECT_EQ(rereg(c.flags, nullptr, c.address, c.length, c.access), IBV_REREG_MR_ERR_INPUT);
    EXPECT_EQ(errno, EINVAL);
    EXPECT_EQ(write(buffer.data()), IBV_WC_SUCCESS);
  }
}

//= ibv_rereg_mr(3): INPUT is what the library finds; these the kernel refuses
TEST_F(Reregistration, RefusedCommandLeavesTheRegionAsItIs) {
  EXPECT_EQ(rereg(0, nullptr, nullptr, 0, 0), IBV_REREG_MR_ERR_CMD);
  EXPECT_EQ(errno, EINVAL);
  for (const int access : {1 << 15, int{IBV_ACCESS_REMOTE_WRITE}}) {
    EXPECT_EQ(rereg(IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, access), IBV_REREG_MR_ERR_CMD);
    EXPECT_EQ(errno, EINVAL);
  }
  EXPECT_EQ(write(buffer.data()), IBV_WC_SUCCESS);
}

TEST_F(Reregistration, ToUnmappedMemoryIsACommandError) {
  void* hole = adverb::verbs::map_apart(4096, PROT_READ);
  EXPECT_EQ(rereg(IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, hole, 4096, 0), IBV_REREG_MR_ERR_CMD);
  EXPECT_EQ(errno, EFAULT) << "mapped for reading only, and the region has LOCAL_WRITE";
  munmap(hole, 4096);
  EXPECT_EQ(rereg(IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, hole, 4096, 0), IBV_REREG_MR_ERR_CMD);
  EXPECT_EQ(errno, EFAULT);
}

TEST_F(Reregistration, BetweenAddressesAndOffsets) {
  EXPECT_EQ(rereg(IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, all | IBV_ACCESS_ZERO_BASED), 0);
  EXPECT_EQ(write(nullptr), IBV_WC_SUCCESS);
  EXPECT_EQ(write(buffer.data()), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(rereg(IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, all), 0);
  EXPECT_EQ(write(nullptr), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(write(buffer.data()), IBV_WC_SUCCESS);
}

// The PD of another context would leave both contexts' references wrong.
TEST_F(Reregistration, ToThePdOfAnotherContextIsRefused) {
  ibv_context* other = ibv_open_device(list[0]);
  ibv_pd* theirs = ibv_alloc_pd(other);
  ibv_mr* mr = ibv_reg_mr(pd, buffer.data(), 64, IBV_ACCESS_LOCAL_WRITE);
  ASSERT_TRUE(theirs && mr);
  errno = 0;
  EXPECT_EQ(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, theirs, nullptr, 0, 0),
            IBV_REREG_MR_ERR_INPUT);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(mr->pd, pd);
  EXPECT_EQ(ibv_dealloc_pd(theirs), 0);
  EXPECT_EQ(ibv_close_device(other), 0);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

// --- the null region

struct NullRegion : Verbs {
  ibv_mr *null = nullptr, *mr = nullptr;
  void SetUp() override {
    Verbs::SetUp();
    null = ibv_alloc_null_mr(pd);
    mr = ibv_reg_mr(pd, buffer.data(), 4096, all | IBV_ACCESS_REMOTE_ATOMIC);
    ASSERT_TRUE(null && mr);
  }
  void TearDown() override {
    EXPECT_EQ(ibv_dereg_mr(null), 0);
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
    Verbs::TearDown();
  }
};

TEST_F(NullRegion, HasTheMaximumLengthAndNoRkey) {
  EXPECT_EQ(null->addr, nullptr);
  EXPECT_EQ(null->length, SIZE_MAX);
  EXPECT_EQ(null->rkey, 0u);
  EXPECT_EQ(null->pd, pd);
  EXPECT_EQ(ibv_dealloc_pd(pd), EBUSY);
  // Whoever knows the lkey has no rkey either.
  EXPECT_EQ(rdma_once(IBV_WR_RDMA_WRITE, sge_of(mr->addr, 8, mr), 0, null->lkey),
            IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(rdma_once(IBV_WR_RDMA_READ, sge_of(mr->addr, 8, mr), 0, null->lkey),
            IBV_WC_REM_ACCESS_ERR);
}

//= ibv_alloc_null_mr(3): what is written is discarded, what is read is zero
TEST_F(NullRegion, PadsAndDropsParts) {
  ibv_qp* qp = make_connected();
  std::memcpy(buffer.data(), "headtail", 8);
  std::memset(buffer.data() + 64, 'x', 64);
  // Out: head, zeros, tail.  In: the first six bytes are dropped.
  ibv_sge out[3] = {
      sge_of(buffer.data(), 4, mr), {0, 8, null->lkey}, sge_of(buffer.data() + 4, 4, mr)};
  ibv_sge in[2] = {{~0ull - 64, 6, null->lkey}, sge_of(buffer.data() + 64, 32, mr)};
  ibv_recv_wr receive{.wr_id = 1, .next = nullptr, .sg_list = in, .num_sge = 2}, *bad_receive;
  ASSERT_EQ(ibv_post_recv(qp, &receive, &bad_receive), 0);
  ibv_send_wr send{}, *bad;
  send.sg_list = out;
  send.num_sge = 3;
  send.opcode = IBV_WR_SEND;
  ASSERT_EQ(ibv_post_send(qp, &send, &bad), 0);
  for (const ibv_wc& wc : completions(2)) EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(std::memcmp(buffer.data() + 64, "\0\0\0\0\0\0tailx", 11), 0);
  // An atomic's old value may be dropped as well.
  const std::uint64_t five = 5;
  std::memcpy(buffer.data(), &five, 8);
  send.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
  send.wr.atomic = {reinterpret_cast<std::uintptr_t>(buffer.data()), 1, 0, mr->rkey};
  EXPECT_EQ(run(qp, send, {64, 8, null->lkey}), IBV_WC_SUCCESS);
  EXPECT_EQ(buffer[0], 6);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
}

//= ibv_alloc_null_mr(3): it is not re-registered, and takes no windows
TEST_F(NullRegion, IsOnlyWhatItIs) {
  EXPECT_EQ(ibv_rereg_mr(null, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, all),
            IBV_REREG_MR_ERR_INPUT);
  ibv_mw* mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
  ibv_qp* qp = make_connected();
  ibv_mw_bind bind{1, 0, {null, 0, 64, IBV_ACCESS_REMOTE_READ}};
  EXPECT_EQ(ibv_bind_mw(qp, mw, &bind), EOPNOTSUPP);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_EQ(ibv_dealloc_mw(mw), 0);
}

}  // namespace
