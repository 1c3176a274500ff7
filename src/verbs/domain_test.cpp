// SPDX-License-Identifier: Apache-2.0
// Thread domains and parent domains as an application sees them (ibv_alloc_td(3),
// ibv_alloc_parent_domain(3)).
#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <cstdlib>
#include <vector>

#include "verbs/testing.hpp"

namespace {

struct Domains : adverb::verbs::Verbs {
  ibv_td* make_td() {
    ibv_td_init_attr attr{};
    return ibv_alloc_td(context, &attr);
  }
  ibv_pd* make_parent(ibv_parent_domain_init_attr attr) {
    return ibv_alloc_parent_domain(context, &attr);
  }
  ibv_pd* make_parent() { return make_parent({.pd = pd}); }
  ibv_qp* make_extended_qp(ibv_pd* domain) {
    ibv_qp_init_attr_ex a{};
    a.send_cq = a.recv_cq = cq;
    a.cap = {8, 8, 2, 2, 64};
    a.qp_type = IBV_QPT_RC;
    a.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    a.pd = domain;
    a.send_ops_flags = IBV_QP_EX_WITH_SEND;
    return ibv_create_qp_ex(context, &a);
  }
};

TEST_F(Domains, ThreadDomain) {
  ibv_td_init_attr unknown{.comp_mask = 1};
  EXPECT_EQ(error_of(ibv_alloc_td(context, &unknown)), EINVAL);
  ibv_td* td = make_td();
  ASSERT_TRUE(td);
  EXPECT_EQ(td->context, context);
  EXPECT_EQ(ibv_dealloc_td(td), 0);
  // The inline function would look into what was freed.
  EXPECT_EQ(verbs_get_ctx(context)->dealloc_td(td), EINVAL);
}

TEST_F(Domains, ParentDomainArguments) {
  ibv_context* other = ibv_open_device(list[0]);
  ASSERT_TRUE(other);
  ibv_pd* foreign_pd = ibv_alloc_pd(other);
  ibv_td_init_attr attr{};
  ibv_td* foreign_td = ibv_alloc_td(other, &attr);
  ASSERT_TRUE(foreign_pd && foreign_td);
  EXPECT_EQ(error_of(make_parent({.pd = nullptr})), EINVAL);
  EXPECT_EQ(error_of(make_parent({.pd = foreign_pd})), EINVAL);
  EXPECT_EQ(error_of(make_parent({.pd = pd, .td = foreign_td})), EINVAL);
  EXPECT_EQ(error_of(make_parent({.pd = pd, .comp_mask = 4})), EINVAL);
  EXPECT_EQ(error_of(make_parent({.pd = pd, .comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS})),
            EINVAL);
  EXPECT_EQ(ibv_dealloc_td(foreign_td), 0);
  EXPECT_EQ(ibv_dealloc_pd(foreign_pd), 0);
  EXPECT_EQ(ibv_close_device(other), 0);
}

TEST_F(Domains, WhatIsInUseIsNotFreed) {
  ibv_td* td = make_td();
  ibv_pd* parent = make_parent({.pd = pd, .td = td});
  ASSERT_TRUE(parent);
  EXPECT_EQ(ibv_dealloc_pd(pd), EBUSY);
  EXPECT_EQ(ibv_dealloc_td(td), EBUSY);
  ibv_mr* mr = ibv_reg_mr(parent, buffer.data(), 64, 0);
  ASSERT_TRUE(mr);
  EXPECT_EQ(mr->pd, parent);
  EXPECT_EQ(ibv_dealloc_pd(parent), EBUSY);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  EXPECT_EQ(ibv_dealloc_pd(parent), 0);
  EXPECT_EQ(ibv_dealloc_pd(parent), EINVAL);
  EXPECT_EQ(ibv_dealloc_td(td), 0);
}

// Keys of the protection domain serve queue pairs of its parent domain, and the other way round;
// those of another protection domain do not.
TEST_F(Domains, ParentDomainStandsForItsProtectionDomain) {
  ibv_pd* const plain = pd;
  ibv_pd* parent = make_parent();
  ASSERT_TRUE(parent);
  constexpr int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
  char* const p = buffer.data();
  ibv_mr* of_plain = ibv_reg_mr(plain, p, 4096, access);
  ibv_mr* of_parent = ibv_reg_mr(parent, p + 4096, 4096, access);
  ibv_pd* stranger = ibv_alloc_pd(context);
  ibv_mr* of_stranger = ibv_reg_mr(stranger, p, 4096, access);
  ASSERT_TRUE(of_plain && of_parent && of_stranger);
  pd = parent;
  ibv_qp* qp = make_connected();
  pd = plain;
  EXPECT_EQ(qp->pd, parent);
  std::memcpy(p, "parent", 7);
  const auto to = reinterpret_cast<std::uintptr_t>(p + 4096);
  EXPECT_EQ(rdma(qp, IBV_WR_RDMA_WRITE, sge_of(p, 7, of_plain), to, of_parent->rkey),
            IBV_WC_SUCCESS);
  EXPECT_STREQ(p + 4096, "parent");
  EXPECT_EQ(rdma(qp, IBV_WR_RDMA_WRITE, sge_of(p, 7, of_stranger), to, of_parent->rkey),
            IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  for (ibv_mr* mr : {of_plain, of_parent, of_stranger}) EXPECT_EQ(ibv_dereg_mr(mr), 0);
  EXPECT_EQ(ibv_dealloc_pd(stranger), 0);
  EXPECT_EQ(ibv_dealloc_pd(parent), 0);
}

struct Allocator {
  enum { give, refuse, use_default } answer = give;
  ibv_pd* pd = nullptr;
  std::size_t size = 0, alignment = 0;
  std::uint64_t type = 0;
  std::vector<void*> given, freed;

  static void* alloc(ibv_pd* pd, void* context, std::size_t size, std::size_t alignment,
                     std::uint64_t type) {
    auto& self = *static_cast<Allocator*>(context);
    self.pd = pd;
    self.size = size, self.alignment = alignment, self.type = type;
    if (self.answer == refuse) return nullptr;
    if (self.answer == use_default) return IBV_ALLOCATOR_USE_DEFAULT;
    void* p = std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
    self.given.push_back(p);
    return p;
  }
  static void free(ibv_pd* pd, void* context, void* p, std::uint64_t type) {
    auto& self = *static_cast<Allocator*>(context);
    EXPECT_EQ(pd, self.pd);
    EXPECT_EQ(type, self.type);
    self.freed.push_back(p);
    std::free(p);
  }
  ibv_parent_domain_init_attr attr(ibv_pd* of) {
    return {.pd = of,
            .comp_mask =
                IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT,
            .alloc = alloc,
            .free = free,
            .pd_context = this};
  }
};

// Work requests of the extended interface wait in memory of the domain's allocator.
TEST_F(Domains, AllocatorGivesAndGetsBack) {
  Allocator allocator;
  ibv_pd* parent = make_parent(allocator.attr(pd));
  ASSERT_TRUE(parent);
  ibv_qp* qp = make_extended_qp(parent);
  ASSERT_TRUE(qp);
  EXPECT_EQ(allocator.pd, parent);
  EXPECT_EQ(allocator.type >> 32, 0u);  // RDMA_DRIVER_UNKNOWN
  ASSERT_EQ(allocator.given.size(), 1u);
  ASSERT_EQ(to_init(qp), 0);
  ASSERT_EQ(to_rtr(qp, qp->qp_num), 0);
  ASSERT_EQ(to_rts(qp), 0);
  ASSERT_EQ(post_receive(qp, 7), 0);
  ibv_qp_ex* ex = ibv_qp_to_qp_ex(qp);
  ibv_wr_start(ex);
  ex->wr_id = 8;
  ex->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_send(ex);
  EXPECT_EQ(ibv_wr_complete(ex), 0);
  for (const ibv_wc& wc : completions(2)) EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_TRUE(allocator.freed.empty());
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_EQ(allocator.freed, allocator.given);
  EXPECT_EQ(ibv_dealloc_pd(parent), 0);
}

TEST_F(Domains, AllocatorDeclinesOrFails) {
  Allocator allocator;
  ibv_pd* parent = make_parent(allocator.attr(pd));
  ASSERT_TRUE(parent);
  allocator.answer = Allocator::use_default;
  ibv_qp* qp = make_extended_qp(parent);
  ASSERT_TRUE(qp);
  EXPECT_GE(allocator.size, 8u * 64);  // the inline data of eight requests, at least
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_TRUE(allocator.freed.empty());  // it was not the allocator's
  allocator.answer = Allocator::refuse;
  EXPECT_EQ(error_of(make_extended_qp(parent)), ENOMEM);
  EXPECT_EQ(ibv_dealloc_pd(parent), 0);  // the failed QP left no reference
}

TEST_F(Domains, ExtendedCqOfAParentDomain) {
  ibv_cq_init_attr_ex attr{};
  attr.cqe = 4;
  attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD;
  EXPECT_EQ(error_of(ibv_create_cq_ex(context, &attr)), EINVAL);
  attr.parent_domain = pd;  // a protection domain is none
  EXPECT_EQ(error_of(ibv_create_cq_ex(context, &attr)), EINVAL);
  ibv_td* td = make_td();
  attr.parent_domain = make_parent({.pd = pd, .td = td});
  ASSERT_TRUE(attr.parent_domain);
  ibv_cq_ex* made = ibv_create_cq_ex(context, &attr);
  ASSERT_TRUE(made);
  ibv_poll_cq_attr poll{};
  EXPECT_EQ(ibv_start_poll(made, &poll), ENOENT);
  EXPECT_EQ(ibv_dealloc_pd(attr.parent_domain), EBUSY);
  EXPECT_EQ(ibv_destroy_cq(ibv_cq_ex_to_cq(made)), 0);
  EXPECT_EQ(ibv_dealloc_pd(attr.parent_domain), 0);
  EXPECT_EQ(ibv_dealloc_td(td), 0);
}

}  // namespace
