// SPDX-License-Identifier: Apache-2.0
// What a program sees of faults: two queue pairs of one process that talk to each other over the
// device, and every result told in words.
//
//   fault_client atomics N     FETCH_ADD +1, N times, four at once: the counter, and what came back
//   fault_client write|send N  N messages of 3000 bytes, one after the other: data and statuses
//   fault_client time          one WRITE with timeout 10 and retry_cnt 3: its status and how long
//   fault_client calls         every verb once; those that fail are told and called again (needs
//                              CAP_NET_RAW)
//   fault_client events MS     asynchronous events of that time
//   fault_client fork          what `send 1` does, in two forked children at once
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>
#include <vector>

#include "tests/clients/kit.hpp"

namespace adverb::clients {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t message_bytes = 3000, buffer_bytes = 8192;

struct Side {
  ibv_qp* qp = nullptr;
  ibv_mr* mr = nullptr;
  alignas(8) std::uint8_t buffer[buffer_bytes]{};
};

// Both ends on one completion queue.
struct Pair {
  Nic nic;
  ibv_cq* cq = nullptr;
  Side a, b;

  explicit Pair(const ConnectOptions& options = {}) {
    nic.open("", 0);
    cq = need(ibv_create_cq(nic.context, 64, nullptr, nullptr, 0), "ibv_create_cq");
    for (Side* s : {&a, &b}) {
      constexpr int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                             IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
      s->mr = need(ibv_reg_mr(nic.pd, s->buffer, sizeof s->buffer, access), "ibv_reg_mr");
      ibv_qp_init_attr init{};
      init.send_cq = init.recv_cq = cq;
      init.cap = {16, 16, 1, 1, 0};
      init.qp_type = IBV_QPT_RC;
      s->qp = need(ibv_create_qp(nic.pd, &init), "ibv_create_qp");
      to_init(s->qp);
    }
    to_rtr(a.qp, nic, nic.gid, b.qp->qp_num, 200, options);
    to_rtr(b.qp, nic, nic.gid, a.qp->qp_num, 100, options);
    to_rts(a.qp, 100, options);
    to_rts(b.qp, 200, options);
  }

  ibv_wc next() {
    ibv_wc wc{};
    const auto end = Clock::now() + std::chrono::seconds(20);
    for (;;) {
      const int n = ibv_poll_cq(cq, 1, &wc);
      if (n < 0) die(exit_failed, "ibv_poll_cq: %d", n);
      if (n) return wc;
      if (Clock::now() > end) die(exit_stuck, "no completion for 20 s");
    }
  }
  void post_send(ibv_send_wr& wr) {
    ibv_send_wr* bad = nullptr;
    wr.send_flags = IBV_SEND_SIGNALED;
    need_zero(ibv_post_send(a.qp, &wr, &bad), "ibv_post_send");
  }
};

ibv_sge sge_of(const Side& s, std::size_t offset, std::size_t length) {
  return {reinterpret_cast<std::uintptr_t>(s.buffer + offset), static_cast<std::uint32_t>(length),
          s.mr->lkey};
}

void name_status(const char* what, ibv_wc_status status) {
  std::printf("%s: %s\n", what, ibv_wc_status_str(status));
}

int atomics(unsigned n) {
  Pair p;
  constexpr unsigned depth = 4;
  unsigned posted = 0, done = 0;
  while (done < n) {
    for (; posted < n && posted - done < depth; ++posted) {
      ibv_sge sge = sge_of(p.a, posted % depth * 8, 8);
      ibv_send_wr wr{};
      wr.wr_id = posted;
      wr.sg_list = &sge, wr.num_sge = 1;
      wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
      wr.wr.atomic.remote_addr = reinterpret_cast<std::uintptr_t>(p.b.buffer);
      wr.wr.atomic.rkey = p.b.mr->rkey;
      wr.wr.atomic.compare_add = 1;
      p.post_send(wr);
    }
    const ibv_wc wc = p.next();
    if (wc.status != IBV_WC_SUCCESS)
      die(exit_wrong_data, "atomic %u: %s", done, ibv_wc_status_str(wc.status));
    std::uint64_t returned;
    std::memcpy(&returned, p.a.buffer + done % depth * 8, 8);
    if (wc.wr_id != done || returned != done)
      die(exit_wrong_data, "atomic %u returned %llu", done,
          static_cast<unsigned long long>(returned));
    ++done;
  }
  std::uint64_t counter;
  std::memcpy(&counter, p.b.buffer, 8);
  std::printf("%u atomics, counter %llu, returned 0 to %u in order\n", n,
              static_cast<unsigned long long>(counter), n - 1);
  return counter == n ? exit_good : exit_wrong_data;
}

// One message; returns the sender's status, and the receiver's by `received`.
ibv_wc_status transfer(Pair& p, bool send, std::uint64_t seed, ibv_wc_status& received) {
  std::memset(p.b.buffer, 0, message_bytes);
  fill(p.a.buffer, message_bytes, seed);
  ibv_sge from = sge_of(p.a, 0, message_bytes), to = sge_of(p.b, 0, message_bytes);
  if (send) {
    ibv_recv_wr recv{}, *bad = nullptr;
    recv.sg_list = &to, recv.num_sge = 1;
    need_zero(ibv_post_recv(p.b.qp, &recv, &bad), "ibv_post_recv");
  }
  ibv_send_wr wr{};
  wr.wr_id = 1;
  wr.sg_list = &from, wr.num_sge = 1;
  wr.opcode = send ? IBV_WR_SEND : IBV_WR_RDMA_WRITE;
  wr.wr.rdma.remote_addr = to.addr;
  wr.wr.rdma.rkey = p.b.mr->rkey;
  p.post_send(wr);
  // Where the sender fails, the receiver need not learn of it.
  ibv_wc_status sent = IBV_WC_SUCCESS;
  for (int left = send ? 2 : 1; left && sent == IBV_WC_SUCCESS; --left) {
    const ibv_wc wc = p.next();
    (wc.qp_num == p.a.qp->qp_num ? sent : received) = wc.status;
  }
  ibv_wc wc{};
  if (sent != IBV_WC_SUCCESS && ibv_poll_cq(p.cq, 1, &wc) == 1) received = wc.status;
  return sent;
}

int messages(bool send, unsigned n) {
  Pair p;
  for (unsigned i = 0; i < n; ++i) {
    ibv_wc_status received = IBV_WC_SUCCESS;
    const ibv_wc_status sent = transfer(p, send, i + 1, received);
    if (sent != IBV_WC_SUCCESS) {
      name_status("sender", sent);
      if (send) name_status("receiver", received);
      return exit_good;
    }
    const std::size_t wrong = first_difference(p.b.buffer, message_bytes, i + 1);
    if (wrong != message_bytes) die(exit_wrong_data, "message %u differs at byte %zu", i, wrong);
  }
  std::printf("%u messages, every byte right\n", n);
  return exit_good;
}

int one_in_time() {
  ConnectOptions options;
  options.timeout = 10, options.retry_cnt = 3;
  Pair p(options);
  const auto start = Clock::now();
  ibv_wc_status received{};
  const ibv_wc_status status = transfer(p, false, 1, received);
  const std::chrono::duration<double, std::milli> took = Clock::now() - start;
  ibv_qp_attr attr{};
  ibv_qp_init_attr init{};
  need_zero(ibv_query_qp(p.a.qp, &attr, IBV_QP_STATE, &init), "ibv_query_qp");
  std::printf("%s after %.1f ms, QP in %s\n", ibv_wc_status_str(status), took.count(),
              attr.qp_state == IBV_QPS_ERR ? "ERR" : "another state");
  return exit_good;
}

// Null without CAP_NET_RAW.
ibv_wq* make_wq(const Pair& p) {
  ibv_wq_init_attr init{};
  init.wq_type = IBV_WQT_RQ;
  init.max_wr = 4, init.max_sge = 1;
  init.pd = p.nic.pd, init.cq = p.cq;
  return ibv_create_wq(p.nic.context, &init);
}
int to_ready(ibv_wq* wq) {
  ibv_wq_attr ready{};
  ready.attr_mask = IBV_WQ_ATTR_STATE;
  ready.wq_state = IBV_WQS_RDY;
  return ibv_modify_wq(wq, &ready);
}

// --- every verb once

// Tells a failure, and that a second call succeeds.
template <class F>
auto pointer(const char* name, F&& call) {
  errno = 0;
  auto* first = call();
  if (first) return first;
  std::printf("%s: NULL, errno %d\n", name, errno);
  return need(call(), name);
}
template <class F>
void number(const char* name, F&& call) {
  errno = 0;
  const int result = call();
  if (result == 0) return;
  std::printf("%s: %d, errno %d\n", name, result, errno);
  need_zero(call(), name);
}

void data_calls(Pair& p, ibv_srq* srq) {
  ibv_sge from = sge_of(p.a, 0, 8), to = sge_of(p.b, 0, 8);
  ibv_recv_wr recv{}, *bad_recv = nullptr;
  recv.sg_list = &to, recv.num_sge = 1;
  number("post_recv", [&] {
    const int e = ibv_post_recv(p.b.qp, &recv, &bad_recv);
    if (e && bad_recv != &recv) std::printf("post_recv: bad_wr is wrong\n");
    return e;
  });
  number("post_srq_recv", [&] { return ibv_post_srq_recv(srq, &recv, &bad_recv); });
  ibv_send_wr wr{}, *bad = nullptr;
  wr.sg_list = &from, wr.num_sge = 1, wr.opcode = IBV_WR_SEND;
  number("post_send", [&] {
    const int e = ibv_post_send(p.a.qp, &wr, &bad);
    if (e && bad != &wr) std::printf("post_send: bad_wr is wrong\n");
    return e;
  });
  ibv_wc wc{};
  for (int n = 0, told = 0; n <= 0;) {
    n = ibv_poll_cq(p.cq, 1, &wc);
    if (n < 0 && !told++) std::printf("poll_cq: %d\n", n);
  }
  number("req_notify_cq", [&] { return ibv_req_notify_cq(p.cq, 0); });
}

void extended_calls(Pair& p) {
  ibv_cq_init_attr_ex init{};
  init.cqe = 4;
  ibv_cq_ex* cq = need(ibv_create_cq_ex(p.nic.context, &init), "ibv_create_cq_ex");
  ibv_poll_cq_attr attr{};
  const int poll = ibv_start_poll(cq, &attr);
  if (poll != ENOENT) std::printf("start_poll: %d\n", poll);
  ibv_qp_init_attr_ex qi{};
  qi.send_cq = qi.recv_cq = p.cq;
  qi.cap = {4, 4, 1, 1, 0};
  qi.qp_type = IBV_QPT_RC;
  qi.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  qi.pd = p.nic.pd;
  qi.send_ops_flags = IBV_QP_EX_WITH_SEND;
  ibv_qp* qp = need(ibv_create_qp_ex(p.nic.context, &qi), "ibv_create_qp_ex");
  ibv_qp_ex* ex = ibv_qp_to_qp_ex(qp);
  ibv_wr_start(ex);
  const int done = ibv_wr_complete(ex);  // in RESET nothing may be posted: EINVAL
  if (done != EINVAL) std::printf("wr_complete: %d\n", done);
  number("destroy_qp", [&] { return ibv_destroy_qp(qp); });
  number("destroy_cq", [&] { return ibv_destroy_cq(ibv_cq_ex_to_cq(cq)); });
}

void device_queries(ibv_context* c) {
  ibv_device_attr device;
  number("query_device", [&] { return ibv_query_device(c, &device); });
  ibv_port_attr port;
  number("query_port", [&] { return ibv_query_port(c, 1, &port); });
  ibv_gid gid;
  number("query_gid", [&] { return ibv_query_gid(c, 1, 0, &gid); });
  __be16 pkey;
  number("query_pkey", [&] { return ibv_query_pkey(c, 1, 0, &pkey); });
}

void object_queries(Pair& p, ibv_srq* srq) {
  ibv_srq_attr limits{};
  number("query_srq", [&] { return ibv_query_srq(srq, &limits); });
  limits.srq_limit = 0;
  number("modify_srq", [&] { return ibv_modify_srq(srq, &limits, IBV_SRQ_LIMIT); });
  ibv_qp_attr attr{};
  ibv_qp_init_attr init{};
  number("query_qp", [&] { return ibv_query_qp(p.a.qp, &attr, IBV_QP_STATE, &init); });
}

// Domains, advice and device memory.
void domain_calls(ibv_context* c, ibv_pd* pd) {
  ibv_td_init_attr td_init{};
  ibv_td* td = pointer("alloc_td", [&] { return ibv_alloc_td(c, &td_init); });
  ibv_parent_domain_init_attr init{};
  init.pd = pd, init.td = td;
  ibv_pd* parent =
      pointer("alloc_parent_domain", [&] { return ibv_alloc_parent_domain(c, &init); });
  number("dealloc_pd", [&] { return ibv_dealloc_pd(parent); });
  number("dealloc_td", [&] { return ibv_dealloc_td(td); });
}

void memory_calls(ibv_context* c, ibv_pd* pd) {
  static std::uint8_t memory[64];
  ibv_mr* mr = need(ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_ON_DEMAND), "ibv_reg_mr");
  ibv_sge sge{reinterpret_cast<std::uintptr_t>(memory), sizeof memory, mr->lkey};
  number("advise_mr", [&] { return ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1); });
  number("dereg_mr", [&] { return ibv_dereg_mr(mr); });
  ibv_alloc_dm_attr attr{64, 0, 0};
  ibv_dm* dm = pointer("alloc_dm", [&] { return ibv_alloc_dm(c, &attr); });
  mr = pointer("reg_dm_mr", [&] { return ibv_reg_dm_mr(pd, dm, 0, 64, IBV_ACCESS_ZERO_BASED); });
  number("memcpy_to_dm", [&] { return ibv_memcpy_to_dm(dm, 0, memory, 64); });
  number("memcpy_from_dm", [&] { return ibv_memcpy_from_dm(memory, dm, 0, 64); });
  number("dereg_mr", [&] { return ibv_dereg_mr(mr); });
  number("free_dm", [&] { return ibv_free_dm(dm); });
}

void import_calls(ibv_context* c, ibv_pd* pd) {
  static std::uint8_t memory[64];
  ibv_mr* mr = need(ibv_reg_mr(pd, memory, sizeof memory, 0), "ibv_reg_mr");
  ibv_alloc_dm_attr attr{64, 0, 0};
  ibv_dm* dm = need(ibv_alloc_dm(c, &attr), "ibv_alloc_dm");
  const int fd = dup(c->cmd_fd);
  ibv_context* other = pointer("import_device", [&] { return ibv_import_device(fd); });
  ibv_pd* domain = pointer("import_pd", [&] { return ibv_import_pd(other, pd->handle); });
  ibv_mr* twin = pointer("import_mr", [&] { return ibv_import_mr(domain, mr->handle); });
  ibv_unimport_mr(twin);
  ibv_dm* same = pointer("import_dm", [&] { return ibv_import_dm(other, dm->handle); });
  ibv_unimport_dm(same);
  const int file = memfd_create("dmabuf", MFD_CLOEXEC);
  if (ftruncate(file, 4096)) std::abort();
  twin = pointer("reg_dmabuf_mr", [&] { return ibv_reg_dmabuf_mr(domain, 0, 4096, 0, file, 0); });
  number("dereg_mr", [&] { return ibv_dereg_mr(twin); });
  close(file);
  ibv_unimport_pd(domain);
  number("close_device", [&] { return ibv_close_device(other); });
  number("free_dm", [&] { return ibv_free_dm(dm); });
  number("dereg_mr", [&] { return ibv_dereg_mr(mr); });
}

void window_calls(ibv_pd* pd, ibv_qp* qp) {
  ibv_mr* null = pointer("alloc_null_mr", [&] { return ibv_alloc_null_mr(pd); });
  number("dereg_mr", [&] { return ibv_dereg_mr(null); });
  ibv_mw* mw = pointer("alloc_mw", [&] { return ibv_alloc_mw(pd, IBV_MW_TYPE_1); });
  ibv_mw_bind unbind{};
  number("bind_mw", [&] { return ibv_bind_mw(qp, mw, &unbind); });
  number("dealloc_mw", [&] { return ibv_dealloc_mw(mw); });
}

void event_calls(const Nic& nic) {
  ibv_comp_channel* channel = need(ibv_create_comp_channel(nic.context), "ibv_create_comp_channel");
  ibv_cq* cq = need(ibv_create_cq(nic.context, 4, nullptr, channel, 0), "ibv_create_cq");
  need_zero(ibv_req_notify_cq(cq, 0), "ibv_req_notify_cq");
  ibv_qp_init_attr init{};
  init.send_cq = init.recv_cq = cq;
  init.cap = {1, 1, 1, 1, 0};
  init.qp_type = IBV_QPT_RC;
  ibv_qp* qp = need(ibv_create_qp(nic.pd, &init), "ibv_create_qp");
  to_init(qp);
  ibv_recv_wr recv{}, *bad = nullptr;
  need_zero(ibv_post_recv(qp, &recv, &bad), "ibv_post_recv");
  ibv_qp_attr error{};
  error.qp_state = IBV_QPS_ERR;  // flushes the receive
  need_zero(ibv_modify_qp(qp, &error, IBV_QP_STATE), "ibv_modify_qp");
  ibv_cq* of = nullptr;
  void* user = nullptr;
  number("get_cq_event", [&] { return ibv_get_cq_event(channel, &of, &user); });
  ibv_ack_cq_events(of, 1);
  number("destroy_qp", [&] { return ibv_destroy_qp(qp); });
  number("destroy_cq", [&] { return ibv_destroy_cq(cq); });
  number("destroy_comp_channel", [&] { return ibv_destroy_comp_channel(channel); });
}

void group_calls(const Pair& p) {
  ibv_qp_init_attr init{};
  init.send_cq = init.recv_cq = p.cq;
  init.cap = {1, 1, 1, 1, 0};
  init.qp_type = IBV_QPT_UD;
  ibv_qp* qp = need(ibv_create_qp(p.nic.pd, &init), "ibv_create_qp");
  ibv_gid group{};
  group.raw[10] = group.raw[11] = 0xff;
  group.raw[12] = 239, group.raw[15] = 1;  // 239.0.0.1
  number("attach_mcast", [&] { return ibv_attach_mcast(qp, &group, 0); });
  number("detach_mcast", [&] { return ibv_detach_mcast(qp, &group, 0); });
  number("destroy_qp", [&] { return ibv_destroy_qp(qp); });
}

void xrc_calls(const Nic& nic) {
  ibv_xrcd_init_attr attr{};
  attr.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
  attr.fd = -1, attr.oflags = O_CREAT;
  ibv_xrcd* xrcd = pointer("open_xrcd", [&] { return ibv_open_xrcd(nic.context, &attr); });
  ibv_qp_init_attr_ex init{};
  init.qp_type = IBV_QPT_XRC_RECV;
  init.comp_mask = IBV_QP_INIT_ATTR_XRCD;
  init.xrcd = xrcd;
  ibv_qp* target = need(ibv_create_qp_ex(nic.context, &init), "ibv_create_qp_ex");
  ibv_qp_open_attr open{};
  open.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
  open.qp_num = target->qp_num;
  open.xrcd = xrcd;
  open.qp_type = IBV_QPT_XRC_RECV;
  ibv_qp* same = pointer("open_qp", [&] { return ibv_open_qp(nic.context, &open); });
  for (ibv_qp* qp : {same, target}) number("destroy_qp", [&] { return ibv_destroy_qp(qp); });
  number("close_xrcd", [&] { return ibv_close_xrcd(xrcd); });
}

// A rule for one Ethernet address.
void flow_calls(ibv_qp* qp) {
  struct {
    ibv_flow_attr attr;
    ibv_flow_spec_eth eth;
  } rule{};
  rule.attr.type = IBV_FLOW_ATTR_NORMAL;
  rule.attr.size = sizeof rule;
  rule.attr.num_of_specs = 1;
  rule.attr.port = 1;
  rule.eth.type = IBV_FLOW_SPEC_ETH;
  rule.eth.size = sizeof rule.eth;
  rule.eth.val.dst_mac[0] = 2;
  std::memset(rule.eth.mask.dst_mac, 0xff, sizeof rule.eth.mask.dst_mac);
  ibv_flow* flow = pointer("create_flow", [&] { return ibv_create_flow(qp, &rule.attr); });
  number("destroy_flow", [&] { return ibv_destroy_flow(flow); });
}

// Raw packets; needs CAP_NET_RAW.
void raw_calls(const Pair& p) {
  ibv_wq* wq = pointer("create_wq", [&] { return make_wq(p); });
  number("modify_wq", [&] { return to_ready(wq); });
  ibv_sge to = sge_of(p.b, 0, 2048);
  ibv_recv_wr recv{}, *bad = nullptr;
  recv.sg_list = &to, recv.num_sge = 1;
  number("post_wq_recv", [&] {
    const int e = ibv_post_wq_recv(wq, &recv, &bad);
    if (e && bad != &recv) std::printf("post_wq_recv: bad_wr is wrong\n");
    return e;
  });
  ibv_rwq_ind_table_init_attr entries{};
  entries.ind_tbl = &wq;
  ibv_rwq_ind_table* table = pointer(
      "create_rwq_ind_table", [&] { return ibv_create_rwq_ind_table(p.nic.context, &entries); });
  std::uint8_t key[40]{};
  ibv_qp_init_attr_ex init{};
  init.qp_type = IBV_QPT_RAW_PACKET;
  init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH;
  init.pd = p.nic.pd;
  init.rwq_ind_tbl = table;
  init.rx_hash_conf = {IBV_RX_HASH_FUNC_TOEPLITZ, sizeof key, key, 0};
  ibv_qp* qp = need(ibv_create_qp_ex(p.nic.context, &init), "ibv_create_qp_ex");
  flow_calls(qp);
  number("destroy_qp", [&] { return ibv_destroy_qp(qp); });
  number("destroy_rwq_ind_table", [&] { return ibv_destroy_rwq_ind_table(table); });
  number("destroy_wq", [&] { return ibv_destroy_wq(wq); });
}

int calls() {
  int n = 0;
  ibv_device** list = pointer("get_device_list", [&] { return ibv_get_device_list(&n); });
  ibv_context* c = pointer("open_device", [&] { return ibv_open_device(list[0]); });
  device_queries(c);
  ibv_pd* pd = pointer("alloc_pd", [&] { return ibv_alloc_pd(c); });
  static std::uint8_t memory[64];
  constexpr int access = IBV_ACCESS_LOCAL_WRITE;
  ibv_mr* mr = pointer("reg_mr", [&] { return ibv_reg_mr(pd, memory, sizeof memory, access); });
  number("rereg_mr",
         [&] { return ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, access); });
  ibv_comp_channel* channel =
      pointer("create_comp_channel", [&] { return ibv_create_comp_channel(c); });
  ibv_cq* cq = pointer("create_cq", [&] { return ibv_create_cq(c, 4, nullptr, channel, 0); });
  ibv_srq_init_attr srq_init{};
  srq_init.attr.max_wr = 4, srq_init.attr.max_sge = 1;
  ibv_srq* srq = pointer("create_srq", [&] { return ibv_create_srq(pd, &srq_init); });
  ibv_qp_init_attr init{};
  init.send_cq = init.recv_cq = cq;
  init.cap = {4, 4, 1, 1, 0};
  init.qp_type = IBV_QPT_RC;
  ibv_qp* qp = pointer("create_qp", [&] { return ibv_create_qp(pd, &init); });
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RESET;
  number("modify_qp", [&] { return ibv_modify_qp(qp, &attr, IBV_QP_STATE); });
  Pair p;
  ibv_ah_attr to = p.nic.address(p.nic.gid);
  ibv_ah* ah = pointer("create_ah", [&] { return ibv_create_ah(pd, &to); });
  object_queries(p, srq);
  data_calls(p, srq);
  extended_calls(p);
  domain_calls(p.nic.context, p.nic.pd);
  memory_calls(p.nic.context, p.nic.pd);
  window_calls(p.nic.pd, p.a.qp);
  event_calls(p.nic);
  group_calls(p);
  xrc_calls(p.nic);
  raw_calls(p);
  number("resize_cq", [&] { return ibv_resize_cq(cq, 8); });
  ibv_modify_cq_attr moderation{.attr_mask = IBV_CQ_ATTR_MODERATE, .moderate = {1, 1}};
  number("modify_cq", [&] { return ibv_modify_cq(cq, &moderation); });
  import_calls(p.nic.context, p.nic.pd);
  number("destroy_ah", [&] { return ibv_destroy_ah(ah); });
  number("destroy_qp", [&] { return ibv_destroy_qp(qp); });
  number("destroy_srq", [&] { return ibv_destroy_srq(srq); });
  number("destroy_cq", [&] { return ibv_destroy_cq(cq); });
  number("destroy_comp_channel", [&] { return ibv_destroy_comp_channel(channel); });
  number("dereg_mr", [&] { return ibv_dereg_mr(mr); });
  number("dealloc_pd", [&] { return ibv_dealloc_pd(pd); });
  number("close_device", [&] { return ibv_close_device(c); });
  std::printf("all calls done\n");
  return exit_good;
}

// --- events

int events(int ms) {
  Pair p;
  ibv_wq* wq = make_wq(p);
  if (wq) need_zero(to_ready(wq), "ibv_modify_wq");
  const auto end = Clock::now() + std::chrono::milliseconds(ms);
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
    pollfd fd{p.nic.context->async_fd, POLLIN, 0};
    if (left <= 0 || poll(&fd, 1, static_cast<int>(left)) != 1) break;
    ibv_async_event event{};
    if (ibv_get_async_event(p.nic.context, &event)) {
      std::printf("get_async_event: -1, errno %d\n", errno);
      continue;
    }
    ibv_port_attr port{};
    // A device that has failed tells no more.
    const int unknown = ibv_query_port(p.nic.context, 1, &port);
    const auto whose = [&]() -> const char* {
      if (event.element.qp == p.a.qp) return "QP a";
      if (event.element.qp == p.b.qp) return "QP b";
      if (event.element.cq == p.cq) return "the CQ";
      if (wq && event.element.wq == wq) return "the WQ";
      return event.element.port_num == 1 ? "port 1" : "?";
    };
    std::printf("%s of %s, port %s\n", ibv_event_type_str(event.event_type), whose(),
                unknown ? std::strerror(unknown) : ibv_port_state_str(port.state));
    ibv_ack_async_event(&event);
  }
  return exit_good;
}

int in_children() {
  pid_t children[2];
  for (pid_t& child : children) {
    child = fork();
    if (child == 0) {
      const int status = messages(true, 1);
      std::fflush(stdout);
      std::_Exit(status);
    }
  }
  int worst = 0;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    worst = std::max(worst, WEXITSTATUS(status));
  }
  return worst;
}

int start(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  const int n = argc > 2 ? std::atoi(argv[2]) : 1;
  if (what == "atomics") return atomics(static_cast<unsigned>(n));
  if (what == "write" || what == "send") return messages(what == "send", static_cast<unsigned>(n));
  if (what == "time") return one_in_time();
  if (what == "calls") return calls();
  if (what == "events") return events(n);
  if (what == "fork") return in_children();
  die(exit_usage, "fault_client atomics N | write N | send N | time | calls | events MS | fork");
}

}  // namespace
}  // namespace adverb::clients

int main(int argc, char** argv) { return adverb::clients::start(argc, argv); }
