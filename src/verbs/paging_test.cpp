// SPDX-License-Identifier: Apache-2.0
// On-demand paging as an application sees it (ibv_reg_mr(3), ibv_advise_mr(3)).
#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "verbs/testing.hpp"

namespace {

using adverb::verbs::map_apart;

struct Paging : adverb::verbs::Verbs {
  static constexpr std::size_t page = 4096;
  static constexpr int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                             IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
  static char* map(std::size_t pages, int protection = PROT_READ | PROT_WRITE) {
    void* p = mmap(nullptr, pages * page, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(p, MAP_FAILED);
    return static_cast<char*>(p);
  }
  static long resident(char* p, std::size_t pages) {
    std::vector<unsigned char> in(pages);
    EXPECT_EQ(mincore(p, pages * page, in.data()), 0);
    return std::count_if(in.begin(), in.end(), [](unsigned char c) { return c & 1; });
  }
  static std::uint64_t address(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }
  ibv_mr* implicit(int access) {
    return ibv_reg_mr(pd, nullptr, SIZE_MAX, access | IBV_ACCESS_ON_DEMAND);
  }
  int advise(ibv_advise_mr_advice advice, ibv_sge sge, std::uint32_t flags = 0) {
    return ibv_advise_mr(pd, advice, flags, &sge, 1);
  }
};

TEST_F(Paging, Capabilities) {
  ibv_device_attr_ex a;
  ASSERT_EQ(ibv_query_device_ex(context, nullptr, &a), 0);
  EXPECT_EQ(a.odp_caps.general_caps, unsigned{IBV_ODP_SUPPORT} | IBV_ODP_SUPPORT_IMPLICIT);
  const auto& caps = a.odp_caps.per_transport_caps;
  EXPECT_EQ(caps.rc_odp_caps, 0x3fu);
  EXPECT_EQ(caps.uc_odp_caps, unsigned{IBV_ODP_SUPPORT_SEND} | IBV_ODP_SUPPORT_RECV |
                                  IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_SRQ_RECV);
  EXPECT_EQ(caps.ud_odp_caps,
            unsigned{IBV_ODP_SUPPORT_SEND} | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV);
  EXPECT_EQ(a.xrc_odp_caps, a.odp_caps.per_transport_caps.rc_odp_caps);
}

// What is mapped counts when the access comes, not when the region is made.
TEST_F(Paging, RegionOfWhatIsMappedLater) {
  char* p = map_apart(page);
  ASSERT_EQ(munmap(p, page), 0);
  ibv_mr* mr = ibv_reg_mr(pd, p, page, all | IBV_ACCESS_ON_DEMAND);
  ASSERT_TRUE(mr);
  EXPECT_EQ(
      ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, all | IBV_ACCESS_ON_DEMAND),
      0);
  ASSERT_EQ(mmap(p, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
            p);
  std::memcpy(p, "here now", 9);
  ibv_qp* qp = make_connected();
  EXPECT_EQ(rdma(qp, IBV_WR_RDMA_WRITE, sge_of(p, 9, mr), address(p) + 64, mr->rkey),
            IBV_WC_SUCCESS);
  EXPECT_STREQ(p + 64, "here now");
  ASSERT_EQ(munmap(p, page), 0);
  EXPECT_EQ(rdma(qp, IBV_WR_RDMA_WRITE, sge_of(p, 9, mr), address(p) + 64, mr->rkey),
            IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

TEST_F(Paging, ImplicitRegionCoversWhateverIsMapped) {
  ibv_mr* mr = implicit(all);
  ASSERT_TRUE(mr);
  EXPECT_EQ(mr->addr, nullptr);
  EXPECT_EQ(mr->length, SIZE_MAX);
  ibv_qp* qp = make_connected();
  std::uint64_t word = 40, old = 0;  // on the stack
  char* p = map(2);                  // mapped after the registration
  std::memcpy(buffer.data(), "anywhere", 9);
  EXPECT_EQ(
      rdma(qp, IBV_WR_RDMA_WRITE, sge_of(buffer.data(), 9, mr), address(p) + page - 4, mr->rkey),
      IBV_WC_SUCCESS);
  EXPECT_STREQ(p + page - 4, "anywhere");
  ibv_send_wr wr{};
  wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
  wr.wr.atomic = {address(&word), 2, 0, mr->rkey};
  EXPECT_EQ(run(qp, wr, sge_of(&old, 8, mr)), IBV_WC_SUCCESS);
  EXPECT_EQ(word, 42u);
  EXPECT_EQ(old, 40u);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  munmap(p, 2 * page);
}

// Addresses where nothing is, and such as no program can have, are errors and no crashes.
TEST_F(Paging, ImplicitRegionOverHoles) {
  ibv_mr* mr = implicit(all);
  ASSERT_TRUE(mr);
  char* hole = map_apart(page);
  munmap(hole, page);
  const std::uint64_t nowhere[] = {0, 8, 4096, address(hole), 1ull << 60, ~0ull - 4095};
  for (const std::uint64_t at : nowhere) {
    const ibv_sge good = sge_of(buffer.data(), 8, mr);
    const ibv_wc_status remote = rdma_once(IBV_WR_RDMA_WRITE, good, at, mr->rkey);
    EXPECT_TRUE(remote == IBV_WC_REM_ACCESS_ERR || remote == IBV_WC_REM_OP_ERR)
        << at << ": " << ibv_wc_status_str(remote);
    const ibv_sge bad{at, 8, mr->lkey};
    EXPECT_EQ(rdma_once(IBV_WR_RDMA_WRITE, bad, address(buffer.data()), mr->rkey),
              IBV_WC_LOC_PROT_ERR)
        << at;
  }
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

TEST_F(Paging, ImplicitRegionHasRightsAndLimits) {
  EXPECT_EQ(error_of(implicit(IBV_ACCESS_REMOTE_WRITE)), EINVAL);
  EXPECT_EQ(error_of(implicit(IBV_ACCESS_ZERO_BASED)), EINVAL);
  EXPECT_EQ(error_of(implicit(IBV_ACCESS_HUGETLB)), EINVAL);
  EXPECT_EQ(error_of(ibv_reg_mr_iova(pd, nullptr, SIZE_MAX, page, IBV_ACCESS_ON_DEMAND)), EINVAL);
  EXPECT_EQ(error_of(ibv_reg_mr(pd, nullptr, SIZE_MAX, 0)), EFAULT);  // not on demand
  ibv_mr* mr = implicit(IBV_ACCESS_REMOTE_READ);
  ASSERT_TRUE(mr);
  EXPECT_EQ(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0,
                         IBV_ACCESS_ON_DEMAND | IBV_ACCESS_ZERO_BASED),
            IBV_REREG_MR_ERR_INPUT);
  EXPECT_EQ(rdma_once(IBV_WR_RDMA_WRITE, sge_of(buffer.data(), 8, mr), address(buffer.data()) + 64,
                      mr->rkey),
            IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

// Regions touch no page when they are made, so that huge pages need not be there, only their
// mapping.
TEST_F(Paging, HugePagesAreAskedOfHugeMappings) {
  constexpr int huge = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND | IBV_ACCESS_HUGETLB;
  constexpr std::size_t bytes = 2 << 20;
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) GTEST_SKIP() << "no huge mappings here: " << std::strerror(errno);
  char* p = static_cast<char*>(mapped);
  ibv_mr* inside = ibv_reg_mr(pd, p + 3 * page, page, huge);
  EXPECT_TRUE(inside) << std::strerror(errno);
  ibv_mr* mr = ibv_reg_mr(pd, p, bytes, huge);
  ASSERT_TRUE(mr) << std::strerror(errno);
  char* ordinary = map_apart(page);
  EXPECT_EQ(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, ordinary, page, 0),
            IBV_REREG_MR_ERR_CMD);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(mr->addr, p);
  for (ibv_mr* each : {inside, mr}) EXPECT_EQ(ibv_dereg_mr(each), 0);
  munmap(ordinary, page);
  munmap(mapped, bytes);
}

TEST_F(Paging, HugePagesAreNotTakenForGrantedOnOrdinaryOnes) {
  constexpr int huge = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND | IBV_ACCESS_HUGETLB;
  char* p = map_apart(2 * page);
  EXPECT_EQ(error_of(ibv_reg_mr(pd, p, page, huge)), EINVAL);
  EXPECT_EQ(error_of(ibv_reg_mr(pd, p + page + 5, 8, huge)), EINVAL);
  ibv_mr* without = ibv_reg_mr(pd, p, page, huge & ~IBV_ACCESS_HUGETLB);
  ibv_mr* pinned = ibv_reg_mr(pd, p, page, huge & ~IBV_ACCESS_ON_DEMAND);
  ASSERT_TRUE(without && pinned);
  EXPECT_EQ(ibv_rereg_mr(without, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, huge),
            IBV_REREG_MR_ERR_CMD);
  EXPECT_EQ(errno, EINVAL);
  ASSERT_EQ(munmap(p, 2 * page), 0);
  ibv_mr* later = ibv_reg_mr(pd, p, page, huge);  // what is mapped later may be huge
  ASSERT_TRUE(later) << std::strerror(errno);
  for (ibv_mr* each : {without, pinned, later}) EXPECT_EQ(ibv_dereg_mr(each), 0);
}

TEST_F(Paging, PrefetchFaultsThePagesIn) {
  char* p = map(8);
  ibv_mr* mr = ibv_reg_mr(pd, p, 8 * page, all | IBV_ACCESS_ON_DEMAND);
  ASSERT_TRUE(mr);
  EXPECT_EQ(advise(IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT, sge_of(p, 8 * page, mr)), 0);
  EXPECT_EQ(resident(p, 8), 0);
  EXPECT_EQ(advise(IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, sge_of(p + page + 5, 2 * page, mr),
                   IBV_ADVISE_MR_FLAG_FLUSH),
            0);
  EXPECT_EQ(resident(p, 8), 3);  // the range touches three pages
  EXPECT_EQ(advise(IBV_ADVISE_MR_ADVICE_PREFETCH, sge_of(p, 8 * page, mr)), 0);
  EXPECT_EQ(resident(p, 8), 8);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  munmap(p, 8 * page);
}

TEST_F(Paging, AdviceIsChecked) {
  char* p = map_apart(2 * page);
  ibv_mr* mr = ibv_reg_mr(pd, p, page, IBV_ACCESS_REMOTE_READ | IBV_ACCESS_ON_DEMAND);
  ibv_mr* pinned = ibv_reg_mr(pd, p, page, 0);
  ibv_pd* other = ibv_alloc_pd(context);
  ibv_mr* foreign = ibv_reg_mr(other, p, page, IBV_ACCESS_ON_DEMAND);
  ASSERT_TRUE(mr && pinned && foreign);
  constexpr auto read = IBV_ADVISE_MR_ADVICE_PREFETCH;
  const ibv_sge good = sge_of(p, page, mr);
  EXPECT_EQ(advise(static_cast<ibv_advise_mr_advice>(3), good), EOPNOTSUPP);
  EXPECT_EQ(advise(read, good, 2), EINVAL);
  EXPECT_EQ(ibv_advise_mr(pd, read, 0, nullptr, 0), EINVAL);
  EXPECT_EQ(advise(read, sge_of(p, page, pinned)), EINVAL);
  EXPECT_EQ(advise(read, sge_of(p, page + 1, mr)), EFAULT);
  EXPECT_EQ(advise(read, {address(p), 8, mr->lkey ^ 0xff}), EFAULT);
  EXPECT_EQ(advise(read, sge_of(p, page, foreign)), EPERM);
  EXPECT_EQ(advise(IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, good), EPERM);
  EXPECT_EQ(advise(read, good), 0);
  ibv_sge two[] = {good, {address(p) - 1, 8, mr->lkey}};
  EXPECT_EQ(ibv_advise_mr(pd, read, 0, two, 2), EFAULT);
  ASSERT_EQ(munmap(p, page), 0);
  EXPECT_EQ(advise(read, good), EFAULT);
  for (ibv_mr* each : {mr, pinned, foreign}) EXPECT_EQ(ibv_dereg_mr(each), 0);
  EXPECT_EQ(ibv_dealloc_pd(other), 0);
  munmap(p + page, page);
}

}  // namespace
