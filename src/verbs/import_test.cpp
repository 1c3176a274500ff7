// SPDX-License-Identifier: Apache-2.0
// Imports as an application sees them (ibv_import_device(3), ibv_import_pd(3), ibv_import_mr(3),
// ibv_import_dm(3)): within the process, and in a child that has the command descriptor.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "verbs/testing.hpp"

namespace {

constexpr int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                    IBV_ACCESS_REMOTE_ATOMIC;

struct Import : adverb::verbs::Verbs {
  // A context that is imported from this one; the caller closes it.
  ibv_context* imported() {
    ibv_context* c = ibv_import_device(dup(context->cmd_fd));
    EXPECT_TRUE(c) << std::strerror(errno);
    return c;
  }
};

TEST_F(Import, Device) {
  const int fd = dup(context->cmd_fd);
  ibv_context* c = ibv_import_device(fd);
  ASSERT_TRUE(c);
  EXPECT_EQ(c->device, context->device);
  EXPECT_EQ(c->cmd_fd, fd);
  ibv_port_attr port;
  EXPECT_EQ(ibv_query_port(c, 1, &port), 0);
  EXPECT_EQ(ibv_close_device(c), 0);
  EXPECT_EQ(fcntl(fd, F_GETFD), -1) << "closed with the context";
}

//= ibv_import_device(3): a descriptor that is no context's is left alone
TEST_F(Import, DeviceOfAnotherDescriptor) {
  EXPECT_EQ(error_of(ibv_import_device(-1)), EINVAL);
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  EXPECT_EQ(error_of(ibv_import_device(null)), EINVAL);
  EXPECT_EQ(close(null), 0);
  const off_t size = lseek(context->cmd_fd, 0, SEEK_END);
  const int other = memfd_create("other", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(other, size), 0);
  ASSERT_EQ(fcntl(other, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
  EXPECT_EQ(error_of(ibv_import_device(other)), EINVAL);
  EXPECT_EQ(close(other), 0);
}

TEST_F(Import, RegionAndDomain) {
  ibv_mr* mr = ibv_reg_mr(pd, buffer.data(), 4096, all);
  ibv_context* c = imported();
  ibv_pd* other = ibv_import_pd(c, pd->handle);
  ASSERT_TRUE(other);
  EXPECT_EQ(other->context, c);
  EXPECT_EQ(other->handle, pd->handle);
  ibv_mr* twin = ibv_import_mr(other, mr->handle);
  ASSERT_TRUE(twin);
  EXPECT_EQ(twin->addr, nullptr);
  EXPECT_EQ(twin->length, 4096u);
  EXPECT_EQ(twin->handle, mr->handle);
  EXPECT_EQ(ibv_dealloc_pd(other), EBUSY);
  // A queue pair of the original PD reads through the twin, and writes through it.
  std::memcpy(buffer.data(), "12345678", 8);
  const auto at = reinterpret_cast<std::uintptr_t>(buffer.data());
  EXPECT_EQ(rdma_once(IBV_WR_RDMA_WRITE, {at, 8, twin->lkey}, at + 64, twin->rkey), IBV_WC_SUCCESS);
  EXPECT_EQ(std::memcmp(buffer.data() + 64, "12345678", 8), 0);
  ibv_unimport_mr(twin);
  EXPECT_EQ(rdma_once(IBV_WR_RDMA_WRITE, {at, 8, mr->lkey}, at + 64, mr->rkey), IBV_WC_SUCCESS)
      << "the original stays";
  EXPECT_EQ(ibv_dealloc_pd(other), 0);
  EXPECT_EQ(ibv_close_device(c), 0);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

// What is made on the imported context can be imported by the first.
TEST_F(Import, TheOtherWayRound) {
  ibv_context* c = imported();
  ibv_pd* theirs = ibv_alloc_pd(c);
  ibv_mr* mr = ibv_reg_mr(theirs, buffer.data(), 64, all);
  ibv_pd* own = ibv_import_pd(context, theirs->handle);
  ASSERT_TRUE(own);
  ibv_mr* twin = ibv_import_mr(own, mr->handle);
  EXPECT_TRUE(twin);
  EXPECT_EQ(ibv_dereg_mr(twin), 0);
  EXPECT_EQ(ibv_dealloc_pd(own), 0);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  EXPECT_EQ(ibv_dealloc_pd(theirs), 0);
  EXPECT_EQ(ibv_close_device(c), 0);
}

TEST_F(Import, HandlesThatNameNothing) {
  ibv_mr* mr = ibv_reg_mr(pd, buffer.data(), 64, all);
  ibv_pd* second = ibv_alloc_pd(context);
  for (const std::uint32_t handle : {0u, mr->handle, ~0u})
    EXPECT_EQ(error_of(ibv_import_pd(context, handle)), ENOENT);
  for (const std::uint32_t handle : {0u, pd->handle, ~0u}) {
    EXPECT_EQ(error_of(ibv_import_mr(pd, handle)), ENOENT);
    EXPECT_EQ(error_of(ibv_import_dm(context, handle)), ENOENT);
  }
  EXPECT_EQ(error_of(ibv_import_mr(second, mr->handle)), EINVAL) << "it is another PD's";
  EXPECT_EQ(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, second, nullptr, 0, 0), 0);
  EXPECT_EQ(error_of(ibv_import_mr(pd, mr->handle)), EINVAL);
  ibv_mr* twin = ibv_import_mr(second, mr->handle);
  EXPECT_TRUE(twin);
  ibv_unimport_mr(twin);
  const std::uint32_t handle = mr->handle;
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  EXPECT_EQ(error_of(ibv_import_mr(second, handle)), ENOENT);
  EXPECT_EQ(ibv_dealloc_pd(second), 0);
  ibv_context* unrelated = ibv_open_device(list[0]);
  EXPECT_EQ(error_of(ibv_import_pd(unrelated, 1000)), ENOENT);
  EXPECT_EQ(ibv_close_device(unrelated), 0);
}

// Programs unimport a PD and close their queue pairs after.
TEST_F(Import, UnimportBeforeWhatUsesIt) {
  ibv_context* c = imported();
  ibv_pd* other = ibv_import_pd(c, pd->handle);
  ibv_mr* mr = ibv_reg_mr(other, buffer.data(), 64, all);
  ibv_mw* mw = ibv_alloc_mw(other, IBV_MW_TYPE_1);
  ASSERT_TRUE(mr && mw);
  ibv_unimport_pd(other);
  EXPECT_EQ(ibv_dealloc_mw(mw), 0);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  EXPECT_EQ(ibv_close_device(c), 0);
  ibv_unimport_pd(pd);  // not an imported one: nothing happens
  EXPECT_EQ(ibv_dealloc_pd(pd), 0);
  pd = nullptr;
}

TEST_F(Import, DeviceMemory) {
  ibv_alloc_dm_attr attr{4096, 0, 0};
  ibv_dm* dm = ibv_alloc_dm(context, &attr);
  ibv_context* c = imported();
  ibv_dm* twin = ibv_import_dm(c, dm->handle);
  ASSERT_TRUE(twin);
  EXPECT_EQ(ibv_memcpy_to_dm(dm, 64, "text", 4), 0);
  char out[4];
  EXPECT_EQ(ibv_memcpy_from_dm(out, twin, 64, 4), 0);
  EXPECT_EQ(std::memcmp(out, "text", 4), 0);
  EXPECT_EQ(ibv_memcpy_from_dm(out, twin, 4096, 4), EFAULT);
  ibv_pd* other = ibv_alloc_pd(c);
  ibv_mr* mr = ibv_reg_dm_mr(other, twin, 0, 4096, IBV_ACCESS_ZERO_BASED | all);
  EXPECT_TRUE(mr);
  EXPECT_EQ(ibv_free_dm(twin), EBUSY);
  ibv_unimport_dm(twin);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  EXPECT_EQ(ibv_dealloc_pd(other), 0);
  EXPECT_EQ(ibv_close_device(c), 0);
  EXPECT_EQ(ibv_memcpy_from_dm(out, dm, 64, 4), 0);
  EXPECT_EQ(ibv_free_dm(dm), 0);
}

// --- another process

struct ImportInAChild : Import {
  static constexpr std::size_t page = 4096;
  char* private_page = nullptr;
  char* shared_page = nullptr;
  ibv_mr *of_private = nullptr, *of_shared = nullptr;
  void SetUp() override {
    Import::SetUp();
    private_page = map(MAP_PRIVATE);
    shared_page = map(MAP_SHARED);
    of_private = ibv_reg_mr(pd, private_page, page, all);
    of_shared = ibv_reg_mr(pd, shared_page, page, all);
    ASSERT_TRUE(of_private && of_shared);
    std::memcpy(private_page, "private ", 8);
    std::memcpy(shared_page, "shared  ", 8);
  }
  void TearDown() override {
    EXPECT_EQ(ibv_dereg_mr(of_private), 0);
    EXPECT_EQ(ibv_dereg_mr(of_shared), 0);
    munmap(private_page, page);
    munmap(shared_page, page);
    Import::TearDown();
  }
  static char* map(int flags) {
    return static_cast<char*>(
        mmap(nullptr, page, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0));
  }
  static std::uint64_t at(const char* p) { return reinterpret_cast<std::uintptr_t>(p); }
  // Runs f in a child whose fixture stands on the imported context and PD; f returns the line where
  // it failed, or 0.
  template <class F>
  int in_child(F f) {
    const int fd = dup(context->cmd_fd);
    const std::uint32_t handle = pd->handle;
    const pid_t child = fork();
    if (child == 0) {
      context = ibv_import_device(fd);
      pd = context ? ibv_import_pd(context, handle) : nullptr;
      cq = pd ? ibv_create_cq(context, 64, nullptr, nullptr, 0) : nullptr;
      _exit(cq ? f() : 255);
    }
    close(fd);
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  // May a child read this process's memory at all?
  bool children_may_look() {
    const pid_t parent = getpid(), child = fork();
    if (child == 0) {
      char byte;
      const iovec ours{&byte, 1}, theirs{private_page, 1};
      _exit(process_vm_readv(parent, &ours, 1, &theirs, 1, 0) == 1 ? 0 : 1);
    }
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
};

// Both have it mapped: loads and stores, atomics too.
TEST_F(ImportInAChild, SharedMemory) {
  if (!children_may_look()) GTEST_SKIP() << "this kernel lets no child look at its parent";
  EXPECT_EQ(in_child([&] {
              ibv_mr* mr = ibv_import_mr(pd, of_shared->handle);
              if (!mr) return 1;
              const std::uint64_t here = at(shared_page);
              if (rdma_once(IBV_WR_RDMA_WRITE, {here, 8, mr->lkey}, here + 64, mr->rkey)) return 2;
              ibv_qp* qp = make_connected();
              ibv_send_wr wr{};
              wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
              wr.wr.atomic = {here + 128, 7, 0, mr->rkey};
              if (run(qp, wr, {here + 136, 8, mr->lkey})) return 3;
              return 0;
            }),
            0);
  EXPECT_EQ(std::memcmp(shared_page + 64, "shared  ", 8), 0);
  EXPECT_EQ(shared_page[128], 7);
}

// The parent's alone: the child's queue pairs copy between the two processes, and atomics are none.
TEST_F(ImportInAChild, PrivateMemory) {
  if (!children_may_look()) GTEST_SKIP() << "this kernel lets no child look at its parent";
  EXPECT_EQ(in_child([&] {
              std::memcpy(private_page, "childs  ", 8);  // the child's own copy of the page
              ibv_mr* mr = ibv_import_mr(pd, of_private->handle);
              ibv_mr* own = ibv_reg_mr(pd, buffer.data(), 4096, all);
              if (!mr || !own) return 1;
              const std::uint64_t here = at(private_page), mine = at(buffer.data());
              if (rdma_once(IBV_WR_RDMA_READ, {mine, 8, own->lkey}, here, mr->rkey)) return 2;
              if (std::memcmp(buffer.data(), "private ", 8) != 0) return 3;
              std::memcpy(buffer.data(), "written ", 8);
              if (rdma_once(IBV_WR_RDMA_WRITE, {mine, 8, own->lkey}, here + 64, mr->rkey)) return 4;
              if (rdma_once(IBV_WR_RDMA_WRITE, {here + 64, 8, mr->lkey}, mine + 64, own->rkey))
                return 5;
              if (std::memcmp(buffer.data() + 64, "written ", 8) != 0) return 6;
              if (rdma_once(IBV_WR_RDMA_WRITE, {mine, 8, own->lkey}, here + page - 4, mr->rkey) !=
                  IBV_WC_REM_ACCESS_ERR)
                return 7;
              ibv_qp* qp = make_connected();
              ibv_send_wr wr{};
              wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
              wr.wr.atomic = {here + 128, 7, 0, mr->rkey};
              const ibv_wc_status status = run(qp, wr, {mine, 8, own->lkey});
              return status == IBV_WC_REM_ACCESS_ERR || status == IBV_WC_WR_FLUSH_ERR ? 0 : 8;
            }),
            0);
  EXPECT_EQ(std::memcmp(private_page, "private ", 8), 0);
  EXPECT_EQ(std::memcmp(private_page + 64, "written ", 8), 0);
  EXPECT_EQ(private_page[128], 0);
}

TEST_F(ImportInAChild, DeviceMemory) {
  if (!children_may_look()) GTEST_SKIP() << "this kernel lets no child look at its parent";
  ibv_alloc_dm_attr attr{4096, 0, 0};
  ibv_dm* dm = ibv_alloc_dm(context, &attr);
  EXPECT_EQ(ibv_memcpy_to_dm(dm, 0, "hello", 4), 0);
  EXPECT_EQ(in_child([&] {
              ibv_dm* twin = ibv_import_dm(context, dm->handle);
              char out[4];
              if (!twin || ibv_memcpy_from_dm(out, twin, 0, 4) || std::memcmp(out, "hell", 4) != 0)
                return 1;
              return ibv_memcpy_to_dm(twin, 4, "fire", 4);
            }),
            0);
  char out[4];
  EXPECT_EQ(ibv_memcpy_from_dm(out, dm, 4, 4), 0);
  EXPECT_EQ(std::memcmp(out, "fire", 4), 0);
  EXPECT_EQ(ibv_free_dm(dm), 0);
}

}  // namespace
