// SPDX-License-Identifier: Apache-2.0
// Two programs that share verbs objects: the owner has a PD, regions and device memory; the user
// gets the owner's command descriptor and imports them (ibv_import_device(3), ibv_import_pd(3),
// ibv_import_mr(3), ibv_import_dm(3)).  Neither is the other's child, and the memory that both have
// mapped lies at different addresses.
//
//   import_client own SOCKET [closed]            closed: nobody may look into this process
//   import_client use SOCKET rights              the descriptor comes by SCM_RIGHTS
//   import_client use SOCKET pidfd               it is fetched (pidfd_getfd(2))
//   import_client use SOCKET refused             no memory of the owner is within reach
//   import_client use SOCKET outlive             the owner is killed meanwhile
//
// Each line is a thing that was seen; the exit status is 0 when all were.
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/clients/side_channel.hpp"

namespace adverb::clients {
namespace {

constexpr std::size_t page = 4096;
constexpr int exit_skipped = 77;
constexpr int all_rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                           IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

int failures = 0;
void see(bool right, const char* what) {
  std::printf("%s %s\n", right ? "seen" : "MISSING", what);
  failures += !right;
}

// What the owner tells of its objects.
struct Offer {
  pid_t pid{};
  int cmd_fd{};
  std::uint32_t pd{}, of_private{}, of_shared{}, dm{};  // handles
  std::uint64_t private_at{}, shared_at{};              // addresses in the owner
};

sockaddr_un name_of(const char* path) {
  sockaddr_un a{};
  a.sun_family = AF_UNIX;
  std::snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
  return a;
}

// Two descriptors beside one byte.
struct Parcel {
  int fds[2] = {-1, -1};
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof fds)]{};
  msghdr message{};
  Parcel() {
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
  }
  void send(int socket, int first, int second) {
    fds[0] = first, fds[1] = second;
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof fds);
    std::memcpy(CMSG_DATA(c), fds, sizeof fds);
    if (sendmsg(socket, &message, 0) != 1) die(exit_failed, "sendmsg: %s", std::strerror(errno));
  }
  void receive(int socket) {
    if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1 || !CMSG_FIRSTHDR(&message))
      die(exit_failed, "recvmsg: %s", std::strerror(errno));
    std::memcpy(fds, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fds);
  }
};

char* map_page(int flags, int fd) {
  void* p = mmap(nullptr, page, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (p == MAP_FAILED) die(exit_failed, "mmap: %s", std::strerror(errno));
  return static_cast<char*>(p);
}
std::uint64_t at(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }

// --- the owner

int own(const char* path, bool closed) {
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_un name = name_of(path);
  if (bind(listener, reinterpret_cast<const sockaddr*>(&name), sizeof name) || listen(listener, 1))
    die(exit_failed, "%s: %s", path, std::strerror(errno));
  Nic nic;
  nic.open("", 0);
  const int file = memfd_create("shared page", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, page)) die(exit_failed, "memfd: %s", std::strerror(errno));
  char *own_page = map_page(MAP_PRIVATE | MAP_ANONYMOUS, -1), *shared = map_page(MAP_SHARED, file);
  std::memcpy(own_page, "private ", 8);
  std::memcpy(shared, "shared  ", 8);
  ibv_mr* of_private = need(ibv_reg_mr(nic.pd, own_page, page, all_rights), "ibv_reg_mr");
  ibv_mr* of_shared = need(ibv_reg_mr(nic.pd, shared, page, all_rights), "ibv_reg_mr");
  ibv_alloc_dm_attr attr{page, 0, 0};
  ibv_dm* dm = need(ibv_alloc_dm(nic.context, &attr), "ibv_alloc_dm");
  need_zero(ibv_memcpy_to_dm(dm, 0, "on a NIC", 8), "ibv_memcpy_to_dm");
  if (closed) prctl(PR_SET_DUMPABLE, 0);
  std::puts("the objects are there");
  SideChannel line(accept(listener, nullptr, nullptr));
  line.put(Offer{getpid(), nic.context->cmd_fd, nic.pd->handle, of_private->handle,
                 of_shared->handle, dm->handle, at(own_page), at(shared)});
  Parcel().send(line.fd(), nic.context->cmd_fd, file);
  if (line.get<char>() == 'l') {
    char out[8];
    need_zero(ibv_memcpy_from_dm(out, dm, 64, 8), "ibv_memcpy_from_dm");
    see(std::memcmp(own_page + 64, "written ", 8) == 0, "the user's WRITE to private memory");
    see(std::memcmp(shared + 64, "written ", 8) == 0, "the user's WRITE to shared memory");
    see(shared[128] == 7, "the user's atomic");
    see(std::memcmp(out, "by users", 8) == 0, "the user's copy to device memory");
  }
  line.put('d');
  line.get<char>();  // the user has closed what it imported
  need_zero(ibv_free_dm(dm), "ibv_free_dm");
  need_zero(ibv_dereg_mr(of_private), "ibv_dereg_mr");
  need_zero(ibv_dereg_mr(of_shared), "ibv_dereg_mr");
  nic.close();
  return failures ? exit_wrong_data : exit_good;
}

// --- the user

class User {
 public:
  User(const char* path, bool by_pidfd) {
    const sockaddr_un name = name_of(path);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, reinterpret_cast<const sockaddr*>(&name), sizeof name))
      die(exit_failed, "%s: %s", path, std::strerror(errno));
    line = SideChannel(fd);
    offer = line.get<Offer>();
    Parcel parcel;
    parcel.receive(fd);
    own_ = map_page(MAP_PRIVATE | MAP_ANONYMOUS, -1);  // so that addresses differ
    shared_ = map_page(MAP_SHARED, parcel.fds[1]);
    const int command = by_pidfd ? fetch() : parcel.fds[0];
    nic_.context = need(ibv_import_device(command), "ibv_import_device");
    nic_.pd = need(ibv_import_pd(nic_.context, offer.pd), "ibv_import_pd");
    need_zero(ibv_query_gid(nic_.context, 1, 0, &nic_.gid), "ibv_query_gid");
    mr_ = need(ibv_reg_mr(nic_.pd, own_, page, all_rights), "ibv_reg_mr");
    cq_ = need(ibv_create_cq(nic_.context, 16, nullptr, nullptr, 0), "ibv_create_cq");
  }

  ibv_mr* region(std::uint32_t handle) { return ibv_import_mr(nic_.pd, handle); }

  // One work request of a fresh pair of queue pairs, between this process's page and [remote,
  // remote + 8).
  ibv_wc_status run(ibv_wr_opcode opcode, std::uint64_t remote, std::uint32_t rkey) {
    ibv_qp *qp = make_qp(), *peer = make_qp();
    join(qp, peer);
    join(peer, qp);
    ibv_sge sge{at(own_), 8, mr_->lkey};
    ibv_send_wr wr{}, *bad;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
      wr.wr.atomic = {remote, 7, 0, rkey};
    else
      wr.wr.rdma = {remote, rkey};
    need_zero(ibv_post_send(qp, &wr, &bad), "ibv_post_send");
    ibv_wc wc{};
    while (ibv_poll_cq(cq_, 1, &wc) == 0) usleep(100);
    need_zero(ibv_destroy_qp(qp), "ibv_destroy_qp");
    need_zero(ibv_destroy_qp(peer), "ibv_destroy_qp");
    return wc.status;
  }
  bool reads(std::uint64_t remote, std::uint32_t rkey, const char* text) {
    return run(IBV_WR_RDMA_READ, remote, rkey) == IBV_WC_SUCCESS && std::memcmp(own_, text, 8) == 0;
  }
  bool writes(std::uint64_t remote, std::uint32_t rkey, const char* text) {
    std::memcpy(own_, text, 8);
    return run(IBV_WR_RDMA_WRITE, remote, rkey) == IBV_WC_SUCCESS;
  }
  void device_memory() {
    ibv_dm* dm = need(ibv_import_dm(nic_.context, offer.dm), "ibv_import_dm");
    char out[8];
    see(!ibv_memcpy_from_dm(out, dm, 0, 8) && std::memcmp(out, "on a NIC", 8) == 0,
        "the owner's device memory");
    need_zero(ibv_memcpy_to_dm(dm, 64, "by users", 8), "ibv_memcpy_to_dm");
    ibv_unimport_dm(dm);
  }
  ibv_context* context() const { return nic_.context; }
  bool both_map() const { return std::memcmp(shared_ + 64, "written ", 8) == 0; }
  void close() {
    need_zero(ibv_destroy_cq(cq_), "ibv_destroy_cq");
    need_zero(ibv_dereg_mr(mr_), "ibv_dereg_mr");
    ibv_unimport_pd(nic_.pd);
    need_zero(ibv_close_device(nic_.context), "ibv_close_device");
  }

  SideChannel line;
  Offer offer;

 private:
  int fetch() const {
    const auto pidfd = static_cast<int>(syscall(SYS_pidfd_open, offer.pid, 0));
    const auto fd = static_cast<int>(syscall(SYS_pidfd_getfd, pidfd, offer.cmd_fd, 0));
    if (fd < 0) die(exit_skipped, "pidfd_getfd: %s", std::strerror(errno));
    return fd;
  }
  ibv_qp* make_qp() {
    ibv_qp_init_attr a{};
    a.send_cq = a.recv_cq = cq_;
    a.qp_type = IBV_QPT_RC;
    a.cap = {.max_send_wr = 4,
             .max_recv_wr = 4,
             .max_send_sge = 1,
             .max_recv_sge = 1,
             .max_inline_data = 0};
    ibv_qp* qp = need(ibv_create_qp(nic_.pd, &a), "ibv_create_qp");
    to_init(qp);
    return qp;
  }
  void join(ibv_qp* qp, const ibv_qp* peer) {
    to_rtr(qp, nic_, nic_.gid, peer->qp_num, 0, {});
    to_rts(qp, 0, {});
  }

  Nic nic_;
  char *own_ = nullptr, *shared_ = nullptr;
  ibv_mr* mr_ = nullptr;
  ibv_cq* cq_ = nullptr;
};

void use_all(User& user) {
  const Offer& o = user.offer;
  ibv_mr *of_private = need(user.region(o.of_private), "ibv_import_mr"),
         *of_shared = need(user.region(o.of_shared), "ibv_import_mr");
  see(user.reads(o.private_at, of_private->rkey, "private "), "the owner's private memory");
  see(user.reads(o.shared_at, of_shared->rkey, "shared  "), "the memory that both have");
  see(user.writes(o.private_at + 64, of_private->rkey, "written "), "a WRITE to private memory");
  see(user.writes(o.shared_at + 64, of_shared->rkey, "written "), "a WRITE to shared memory");
  see(user.both_map(), "it is in this process's mapping, too");
  see(user.run(IBV_WR_ATOMIC_FETCH_AND_ADD, o.shared_at + 128, of_shared->rkey) == IBV_WC_SUCCESS,
      "an atomic on shared memory");
  user.device_memory();
  ibv_unimport_mr(of_private);
  ibv_unimport_mr(of_shared);
}

void use_of_the_dead(User& user) {
  const Offer& o = user.offer;
  ibv_mr *of_private = need(user.region(o.of_private), "ibv_import_mr"),
         *of_shared = need(user.region(o.of_shared), "ibv_import_mr");
  kill(o.pid, SIGKILL);
  char byte;
  while (recv(user.line.fd(), &byte, 1, 0) > 0) {
  }  // until it has gone
  see(user.run(IBV_WR_RDMA_READ, o.private_at, of_private->rkey) == IBV_WC_REM_ACCESS_ERR,
      "the memory of the dead: IBV_WC_REM_ACCESS_ERR");
  see(user.writes(o.shared_at + 64, of_shared->rkey, "written "), "shared memory outlives it");
  see(user.both_map(), "it is in this process's mapping");
  ibv_unimport_mr(of_private);
  ibv_unimport_mr(of_shared);
}

void use_of_the_closed(User& user) {
  for (const std::uint32_t handle : {user.offer.of_private, user.offer.of_shared}) {
    errno = 0;
    see(!user.region(handle) && errno == EOPNOTSUPP, "a region of who is closed: EOPNOTSUPP");
  }
  errno = 0;
  see(!ibv_import_dm(user.context(), user.offer.dm) && errno == EOPNOTSUPP,
      "device memory of who is closed: EOPNOTSUPP");
}

// Yama and seccomp may forbid it.
void leave_unless_allowed(const Offer& owner) {
  char byte;
  const iovec here{&byte, 1}, there{reinterpret_cast<void*>(owner.private_at), 1};
  if (process_vm_readv(owner.pid, &here, 1, &there, 1, 0) != 1)
    die(exit_skipped, "this kernel lets no process look into another");
}

int use(const char* path, const std::string& how) {
  User user(path, how == "pidfd");
  if (how != "refused") leave_unless_allowed(user.offer);
  if (how == "refused")
    use_of_the_closed(user);
  else if (how == "outlive")
    use_of_the_dead(user);
  else
    use_all(user);
  if (how != "outlive") user.line.exchange(how == "refused" ? 'n' : 'l');
  user.close();
  if (how != "outlive") user.line.put('c');
  return failures ? exit_wrong_data : exit_good;
}

}  // namespace
}  // namespace adverb::clients

int main(int argc, char** argv) {
  using namespace adverb::clients;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const std::string what = argc > 2 ? argv[1] : "", how = argc > 3 ? argv[3] : "";
  if (what == "own" && (how.empty() || how == "closed")) return own(argv[2], !how.empty());
  if (what == "use" && (how == "rights" || how == "pidfd" || how == "refused" || how == "outlive"))
    return use(argv[2], how);
  die(exit_usage,
      "usage: import_client own SOCKET [closed] | use SOCKET rights|pidfd|refused|outlive");
}
