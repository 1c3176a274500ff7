// SPDX-License-Identifier: Apache-2.0
// Two server processes share an XRC domain by its inode: the one makes the target queue pair, the
// other only opens it.  A client sends to SRQs of both over one queue pair; then the maker of the
// target is killed, and the client goes on with the other.
//
//   xrc_client FILE kill|exit|keep      (what becomes of the maker; kill: SIGKILL)
//   xrc_client FILE hold                (opens the domain and waits to be killed)
//   xrc_client FILE exclusive           (O_EXCL must be refused: somebody holds the domain)
//
// Each line that it prints is a thing that was seen; the exit status is 0 when all were.
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

#include "tests/clients/kit.hpp"

namespace adverb::clients {
namespace {

constexpr std::size_t slot_bytes = 4096, slots = 8, memory_bytes = slot_bytes * (slots + 2);
constexpr std::uint32_t first_psn = 0xfffff0;
constexpr unsigned patience_ms = 20000;

// --- what client and servers say to each other

struct Word {
  enum Kind : std::uint32_t { ready, connect, receive, look, state, event, leave, quit } kind{};
  std::uint32_t qpn{}, srqn{}, rkey{}, status{}, length{};
  std::uint64_t address{}, number{};
  ibv_gid gid{};
};

struct Line {
  int fd = -1;
  void say(const Word& w) const {
    if (write(fd, &w, sizeof w) != sizeof w) die(exit_failed, "a peer has gone");
  }
  Word hear() const {
    Word w;
    pollfd p{fd, POLLIN, 0};
    if (poll(&p, 1, patience_ms) != 1 || read(fd, &w, sizeof w) != sizeof w)
      die(exit_stuck, "a peer does not answer");
    return w;
  }
  Word ask(Word::Kind kind) const {
    Word w;
    w.kind = kind;
    say(w);
    return hear();
  }
};

ibv_wc next_completion(ibv_cq* cq) {
  ibv_wc wc{};
  for (unsigned waited = 0; waited < patience_ms * 10; ++waited) {
    if (ibv_poll_cq(cq, 1, &wc) == 1) return wc;
    usleep(100);
  }
  die(exit_stuck, "no completion");
}

// --- a server: an SRQ with receives, memory, and a handle of the target

class Server {
 public:
  Server(const char* file, Line line) : line_(line) {
    nic_.open("", 0);
    const int fd = ::open(file, O_RDONLY);
    ibv_xrcd_init_attr d{.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
                         .fd = fd,
                         .oflags = O_CREAT};
    xrcd_ = need(ibv_open_xrcd(nic_.context, &d), "ibv_open_xrcd");
    cq_ = need(ibv_create_cq(nic_.context, 64, nullptr, nullptr, 0), "ibv_create_cq");
    mr_ = need(ibv_reg_mr(nic_.pd, memory_, sizeof memory_,
                          IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                              IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC),
               "ibv_reg_mr");
    make_srq();
  }

  void make_target() {
    ibv_qp_init_attr_ex a{};
    a.qp_type = IBV_QPT_XRC_RECV;
    a.comp_mask = IBV_QP_INIT_ATTR_XRCD;
    a.xrcd = xrcd_;
    qp_ = need(ibv_create_qp_ex(nic_.context, &a), "ibv_create_qp_ex");
  }
  void open_target(std::uint32_t number) {
    ibv_qp_open_attr a{};
    a.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
    a.qp_num = number;
    a.xrcd = xrcd_;
    a.qp_type = IBV_QPT_XRC_RECV;
    qp_ = need(ibv_open_qp(nic_.context, &a), "ibv_open_qp");
  }

  // Until the client lets it go.
  void serve() {
    line_.say(introduction());
    for (;;) {
      const Word w = line_.hear();
      if (w.kind == Word::quit || w.kind == Word::leave) return leave(w.kind == Word::leave);
      Word answer = w;
      if (w.kind == Word::connect && w.srqn) connect(w);
      if (w.kind == Word::connect && !w.srqn) open_target(w.qpn);
      if (w.kind == Word::receive) answer = received();
      if (w.kind == Word::look) std::memcpy(&answer.number, &memory_[slot_bytes * slots], 8);
      if (w.kind == Word::state) answer.status = state();
      if (w.kind == Word::event) answer.status = event();
      line_.say(answer);
    }
  }

 private:
  void make_srq() {
    ibv_srq_init_attr_ex a{};
    a.attr = {.max_wr = slots, .max_sge = 1, .srq_limit = 0};
    a.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD |
                  IBV_SRQ_INIT_ATTR_CQ;
    a.srq_type = IBV_SRQT_XRC;
    a.pd = nic_.pd;
    a.xrcd = xrcd_;
    a.cq = cq_;
    srq_ = need(ibv_create_srq_ex(nic_.context, &a), "ibv_create_srq_ex");
    for (std::size_t i = 0; i < slots; ++i) post(i);
  }
  void post(std::uint64_t slot) {
    ibv_sge sge{reinterpret_cast<std::uintptr_t>(&memory_[slot * slot_bytes]), slot_bytes,
                mr_->lkey};
    ibv_recv_wr wr{.wr_id = slot, .next = nullptr, .sg_list = &sge, .num_sge = 1}, *bad;
    need_zero(ibv_post_srq_recv(srq_, &wr, &bad), "ibv_post_srq_recv");
  }
  Word introduction() const {
    Word w;
    w.qpn = qp_ ? qp_->qp_num : 0;
    need_zero(ibv_get_srq_num(srq_, &w.srqn), "ibv_get_srq_num");
    w.rkey = mr_->rkey;
    w.address = reinterpret_cast<std::uintptr_t>(&memory_[slot_bytes * slots]);
    w.gid = nic_.gid;
    return w;
  }
  void connect(const Word& w) const {
    ibv_qp_attr a{};
    a.qp_state = IBV_QPS_INIT;
    a.port_num = 1;
    a.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    need_zero(ibv_modify_qp(qp_, &a,
                            IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
              "ibv_modify_qp to INIT");
    a.qp_state = IBV_QPS_RTR;
    a.ah_attr = nic_.address(w.gid);
    a.path_mtu = IBV_MTU_1024;
    a.dest_qp_num = w.qpn;
    a.rq_psn = first_psn;
    a.max_dest_rd_atomic = 8;
    a.min_rnr_timer = 12;
    need_zero(ibv_modify_qp(qp_, &a,
                            IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
              "ibv_modify_qp to RTR");
  }
  Word received() {
    const ibv_wc wc = next_completion(cq_);
    Word w;
    w.kind = Word::receive;
    w.status = wc.status;
    w.qpn = wc.qp_num;
    w.length = wc.byte_len;
    const std::size_t right =
        first_difference(&memory_[wc.wr_id * slot_bytes], wc.byte_len, ntohl(wc.imm_data));
    if (wc.status == IBV_WC_SUCCESS && right != wc.byte_len) w.status = ~0u;
    w.number = ntohl(wc.imm_data);
    post(wc.wr_id);
    return w;
  }
  std::uint32_t state() const {
    ibv_qp_attr a;
    ibv_qp_init_attr init;
    need_zero(ibv_query_qp(qp_, &a, IBV_QP_STATE, &init), "ibv_query_qp");
    return a.qp_state;
  }
  // The next asynchronous event of the target.
  std::uint32_t event() const {
    pollfd p{nic_.context->async_fd, POLLIN, 0};
    ibv_async_event e;
    if (poll(&p, 1, patience_ms) != 1 || ibv_get_async_event(nic_.context, &e)) return ~0u;
    const bool ours = e.element.qp == qp_;
    ibv_ack_async_event(&e);
    return ours ? static_cast<std::uint32_t>(e.event_type) : ~0u;
  }
  void leave(bool orderly) {
    if (!orderly) return;
    if (qp_) need_zero(ibv_destroy_qp(qp_), "ibv_destroy_qp");
    need_zero(ibv_destroy_srq(srq_), "ibv_destroy_srq");
    need_zero(ibv_dereg_mr(mr_), "ibv_dereg_mr");
    need_zero(ibv_destroy_cq(cq_), "ibv_destroy_cq");
    need_zero(ibv_close_xrcd(xrcd_), "ibv_close_xrcd");
    nic_.close();
  }

  Line line_;
  Nic nic_;
  ibv_xrcd* xrcd_ = nullptr;
  ibv_cq* cq_ = nullptr;
  ibv_mr* mr_ = nullptr;
  ibv_srq* srq_ = nullptr;
  ibv_qp* qp_ = nullptr;
  alignas(64) std::uint8_t memory_[memory_bytes]{};
};

// --- the client

struct Peer {
  pid_t pid = 0;
  Line line;
  Word self;  // its introduction
};

Peer start_server(const char* file, bool makes_target) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends)) die(exit_failed, "socketpair");
  Peer peer;
  peer.pid = fork();
  if (peer.pid == 0) {
    close(ends[0]);
    auto* server = new Server(file, {ends[1]});
    if (makes_target) server->make_target();
    server->serve();
    std::_Exit(exit_good);
  }
  close(ends[1]);
  peer.line = {ends[0]};
  peer.self = peer.line.hear();
  return peer;
}

class Client {
 public:
  explicit Client(const ibv_gid& servers, std::uint32_t target) {
    nic_.open("", 0);
    cq_ = need(ibv_create_cq(nic_.context, 64, nullptr, nullptr, 0), "ibv_create_cq");
    mr_ = need(ibv_reg_mr(nic_.pd, memory_, sizeof memory_, IBV_ACCESS_LOCAL_WRITE), "ibv_reg_mr");
    ibv_qp_init_attr a{};
    a.qp_type = IBV_QPT_XRC_SEND;
    a.send_cq = cq_;
    a.cap = {.max_send_wr = 64,
             .max_recv_wr = 0,
             .max_send_sge = 1,
             .max_recv_sge = 0,
             .max_inline_data = 0};
    a.sq_sig_all = 1;
    qp_ = need(ibv_create_qp(nic_.pd, &a), "ibv_create_qp");
    connect(servers, target);
  }
  Word introduction() const {
    Word w;
    w.kind = Word::connect;
    w.qpn = qp_->qp_num;
    w.srqn = 1;
    w.gid = nic_.gid;
    return w;
  }
  // The statuses of all, in order.
  void post(const Peer& to, ibv_wr_opcode opcode, std::size_t length, std::uint64_t operand) {
    std::uint8_t* local = &memory_[posted_++ % slots * slot_bytes];
    if (opcode == IBV_WR_SEND_WITH_IMM) fill(local, length, operand);
    if (opcode == IBV_WR_RDMA_WRITE) std::memcpy(local, &operand, 8);
    ibv_sge sge{reinterpret_cast<std::uintptr_t>(local), static_cast<std::uint32_t>(length),
                mr_->lkey};
    ibv_send_wr wr{}, *bad;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = opcode;
    wr.qp_type.xrc.remote_srqn = to.self.srqn;
    if (opcode == IBV_WR_SEND_WITH_IMM) {
      wr.imm_data = htonl(static_cast<std::uint32_t>(operand));
    } else if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
      wr.wr.atomic = {to.self.address, operand, 0, to.self.rkey};
    } else {
      wr.wr.rdma = {to.self.address, to.self.rkey};
    }
    need_zero(ibv_post_send(qp_, &wr, &bad), "ibv_post_send");
    last_ = local;
  }
  ibv_wc_status done() { return next_completion(cq_).status; }
  ibv_wc_status run(const Peer& to, ibv_wr_opcode o, std::size_t length, std::uint64_t operand) {
    post(to, o, length, operand);
    return done();
  }
  std::uint64_t word() const {  // that the last READ or atomic brought
    std::uint64_t v;
    std::memcpy(&v, last_, 8);
    return v;
  }

 private:
  void connect(const ibv_gid& to, std::uint32_t target) {
    ibv_qp_attr a{};
    a.qp_state = IBV_QPS_INIT;
    a.port_num = 1;
    need_zero(ibv_modify_qp(qp_, &a,
                            IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
              "ibv_modify_qp to INIT");
    a.qp_state = IBV_QPS_RTR;
    a.ah_attr = nic_.address(to);
    a.path_mtu = IBV_MTU_1024;
    a.dest_qp_num = target;
    need_zero(
        ibv_modify_qp(qp_, &a,
                      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN),
        "ibv_modify_qp to RTR");
    a.qp_state = IBV_QPS_RTS;
    a.sq_psn = first_psn;
    a.timeout = 12;
    a.retry_cnt = 3;
    a.rnr_retry = 7;
    a.max_rd_atomic = 8;
    need_zero(ibv_modify_qp(qp_, &a,
                            IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC),
              "ibv_modify_qp to RTS");
  }

  Nic nic_;
  ibv_cq* cq_ = nullptr;
  ibv_mr* mr_ = nullptr;
  ibv_qp* qp_ = nullptr;
  std::uint64_t posted_ = 0;
  std::uint8_t* last_ = nullptr;
  alignas(64) std::uint8_t memory_[memory_bytes]{};
};

// --- the conversation

int failures = 0;
void see(bool right, const char* what) {
  std::printf("%s %s\n", right ? "seen" : "MISSING", what);
  failures += !right;
}

bool receives(const Peer& peer, std::uint32_t target, std::size_t length, std::uint64_t seed) {
  const Word w = peer.line.ask(Word::receive);
  return w.status == IBV_WC_SUCCESS && w.qpn == target && w.length == length && w.number == seed;
}

bool messages(Client& client, const Peer& peer, std::uint32_t target, unsigned rounds) {
  bool right = true;
  for (unsigned i = 0; i < rounds; ++i) {
    const std::size_t length = 1 + i * 701 % slot_bytes;
    right &= client.run(peer, IBV_WR_SEND_WITH_IMM, length, i) == IBV_WC_SUCCESS;
    right &= receives(peer, target, length, i);
  }
  return right;
}

bool remote_memory(Client& client, const Peer& peer, std::uint64_t value) {
  bool right = client.run(peer, IBV_WR_RDMA_WRITE, 8, value) == IBV_WC_SUCCESS;
  right &= client.run(peer, IBV_WR_ATOMIC_FETCH_AND_ADD, 8, 5) == IBV_WC_SUCCESS;
  right &= client.word() == value;
  right &= client.run(peer, IBV_WR_RDMA_READ, 8, 0) == IBV_WC_SUCCESS;
  right &= client.word() == value + 5;
  return right && peer.line.ask(Word::look).number == value + 5;
}

// All of it posted at once, to both in turn.
bool interleaved(Client& client, const Peer& a, const Peer& b, std::uint32_t target) {
  bool right = true;
  for (unsigned i = 0; i < slots; ++i) client.post(i & 1 ? b : a, IBV_WR_SEND_WITH_IMM, 3000, i);
  for (unsigned i = 0; i < slots; ++i) right &= client.done() == IBV_WC_SUCCESS;
  for (unsigned i = 0; i < slots; ++i) right &= receives(i & 1 ? b : a, target, 3000, i);
  return right;
}

void end_of_maker(Peer& maker, const std::string& how) {
  int status = 0;
  if (how == "kill") kill(maker.pid, SIGKILL);
  if (how == "exit") maker.line.say({.kind = Word::leave});
  if (how == "keep") return;
  waitpid(maker.pid, &status, 0);
  see(how == "kill" ? WIFSIGNALED(status) : WIFEXITED(status) && WEXITSTATUS(status) == 0,
      "the maker of the target has gone");
}

int run(const char* file, const std::string& how) {
  Peer maker = start_server(file, true), other = start_server(file, false);
  const std::uint32_t target = maker.self.qpn;
  other.line.say({.kind = Word::connect, .qpn = target, .srqn = 0});
  other.line.hear();
  Client client(maker.self.gid, target);
  maker.line.say(client.introduction());
  maker.line.hear();
  see(other.line.ask(Word::state).status == IBV_QPS_RTR, "the other handle sees the state");
  see(messages(client, maker, target, 20), "messages to the process that made the target");
  see(messages(client, other, target, 20), "messages to the process that opened it");
  see(remote_memory(client, maker, 100), "remote memory of the one");
  see(remote_memory(client, other, 200), "remote memory of the other");
  see(interleaved(client, maker, other, target), "messages to both in turn");
  end_of_maker(maker, how);
  see(messages(client, other, target, 20), "messages go on");
  see(remote_memory(client, other, 300), "remote memory goes on");
  // What nobody may: both handles hear of it, and so does the client.
  Peer wrong = other;
  wrong.self.rkey ^= 0x100;
  see(client.run(wrong, IBV_WR_RDMA_WRITE, 8, 1) == IBV_WC_REM_ACCESS_ERR, "a wrong key");
  see(other.line.ask(Word::state).status == IBV_QPS_ERR, "the target is in error");
  for (const Peer* peer : {&other, &maker}) {
    if (peer == &maker && how != "keep") break;
    std::uint32_t event = peer->line.ask(Word::event).status;
    if (event == IBV_EVENT_COMM_EST) event = peer->line.ask(Word::event).status;
    see(event == IBV_EVENT_QP_ACCESS_ERR, "the event of the wrong key");
  }
  for (Peer* peer : {&other, &maker}) {
    if (peer == &maker && how != "keep") break;
    peer->line.say({.kind = Word::quit});
    waitpid(peer->pid, nullptr, 0);
  }
  return failures ? exit_wrong_data : exit_good;
}

int hold(const char* file, bool exclusive) {
  Nic nic;
  nic.open("", 0);
  ibv_xrcd_init_attr d{.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
                       .fd = ::open(file, O_RDONLY),
                       .oflags = O_CREAT | (exclusive ? O_EXCL : 0)};
  ibv_xrcd* xrcd = ibv_open_xrcd(nic.context, &d);
  if (exclusive) {
    see(!xrcd && errno == EINVAL, "somebody else has the domain");
    return failures ? exit_wrong_data : exit_good;
  }
  need(xrcd, "ibv_open_xrcd");
  std::puts("the domain is held");
  for (;;) pause();
}

}  // namespace
}  // namespace adverb::clients

int main(int argc, char** argv) {
  using namespace adverb::clients;
  const std::string how = argc > 2 ? argv[2] : "";
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (how == "hold" || how == "exclusive") return hold(argv[1], how == "exclusive");
  if (how == "kill" || how == "exit" || how == "keep") return run(argv[1], how);
  die(exit_usage, "usage: xrc_client FILE kill|exit|keep|hold|exclusive");
}
