// SPDX-License-Identifier: Apache-2.0
// Queue pairs: creation, the state machine's front end, query and destruction (ibv_create_qp(3),
// ibv_modify_qp(3), ibv_query_qp(3), ibv_destroy_qp(3)).  The transitions themselves are the
// engine's; here stands what concerns the device (port, P_Key, addresses) and the line in the log
// that says why a call was refused.
#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "verbs/batch.hpp"
#include "verbs/fault.hpp"
#include "verbs/guard.hpp"
#include "verbs/objects.hpp"

namespace adverb::verbs {

Qp::Qp() = default;
Qp::~Qp() = default;

namespace {

const char* name_of(unsigned type) {
  switch (type) {
    case IBV_QPT_RC:
      return "RC";
    case IBV_QPT_UC:
      return "UC";
    case IBV_QPT_UD:
      return "UD";
    case IBV_QPT_XRC_SEND:
      return "XRC_SEND";
    case IBV_QPT_XRC_RECV:
      return "XRC_RECV";
    case IBV_QPT_RAW_PACKET:
      return "RAW_PACKET";
    default:
      return "?";
  }
}

// 0, or the errno after a line in the log.
int check_type(unsigned type) {
  switch (type) {
    case IBV_QPT_RC:
    case IBV_QPT_UC:
    case IBV_QPT_UD:
    case IBV_QPT_RAW_PACKET:
    case IBV_QPT_XRC_SEND:
    case IBV_QPT_XRC_RECV:
      return 0;
    case IBV_QPT_DRIVER:
      return refuse(EOPNOTSUPP, "create_qp: QP type {} is not supported", type);
    default:
      return refuse(EINVAL, "create_qp: unknown QP type {}", type);
  }
}

// Has receives of its own.
bool has_receive_queue(const ibv_qp_init_attr_ex& a) {
  return !a.srq && a.qp_type != IBV_QPT_XRC_SEND && a.qp_type != IBV_QPT_XRC_RECV;
}

int check_cap(const ibv_qp_init_attr_ex& a) {
  const ibv_qp_cap& cap = a.cap;
  if (a.qp_type == IBV_QPT_XRC_RECV) return 0;  // it has no queues
  const auto check = [](const char* what, std::uint32_t value, std::uint32_t limit) {
    return value <= limit ? 0
                          : refuse(EINVAL, "create_qp: {} {} of at most {}", what, value, limit);
  };
  const std::uint32_t most_wr = limit32(Limit::max_qp_wr), most_sge = limit32(Limit::max_sge),
                      most_inline = limit32(Limit::max_inline_data);
  if (const int e = check("max_send_wr", cap.max_send_wr, most_wr)) return e;
  if (const int e = check("max_send_sge", cap.max_send_sge, most_sge)) return e;
  // Programs look for this limit by trying, so it is no news.
  if (cap.max_inline_data > most_inline) {
    nic::log(nic::LogLevel::info, "create_qp: max_inline_data {} of at most {}",
             cap.max_inline_data, most_inline);
    return EINVAL;
  }
  if (!has_receive_queue(a)) return 0;
  if (const int e = check("max_recv_wr", cap.max_recv_wr, most_wr)) return e;
  return check("max_recv_sge", cap.max_recv_sge, most_sge);
}

int check_objects(const Context* context, const ibv_qp_init_attr_ex& a) {
  if (a.qp_type == IBV_QPT_XRC_RECV)
    return live().contains(a.xrcd, Kind::xrcd) && of(a.xrcd)->context == context
               ? 0
               : refuse(EINVAL, "create_qp: an XRC_RECV QP needs an XRC domain of its context");
  const bool receives = a.qp_type != IBV_QPT_XRC_SEND;
  if (!a.send_cq || (receives && !a.recv_cq))
    return refuse(EINVAL, "create_qp: a QP needs a send and a receive CQ");
  int error = live().check(a.pd, Kind::pd);
  if (!error) error = live().check(a.send_cq, Kind::cq);
  if (!error && receives) error = live().check(a.recv_cq, Kind::cq);
  if (!error && receives && a.srq) error = live().check(a.srq, Kind::srq);
  if (error) return refuse(error, "create_qp: no such PD, CQ or SRQ");
  if (of(a.pd)->context != context || of(a.send_cq)->context != context ||
      (receives && of(a.recv_cq)->context != context) ||
      (receives && a.srq && of(a.srq)->context != context))
    return refuse(EINVAL, "create_qp: PD, CQs and SRQ must be of one context");
  if (receives && a.srq && of(a.srq)->xrcd)
    return refuse(EINVAL, "create_qp: an XRC SRQ belongs to no QP, messages name it");
  return 0;
}

// A WQE of mlx5 is as many 64-byte blocks as its control segments and its list or inline data take
// (with a length of 4 bytes in front, in whole 16 bytes), whichever is more; the rest is given
// away.
std::uint32_t inline_of_blocks(unsigned type, std::uint32_t sges, std::uint32_t wanted) {
  const auto align = [](std::uint32_t n, std::uint32_t to) { return (n + to - 1) / to * to; };
  const std::uint32_t control = type == IBV_QPT_UD ? 64 : 192;
  const std::uint32_t data = wanted ? align(4 + wanted, 16) : 0;
  return align(control + std::max(sges * 16, data), 64) - control - 4;
}

std::uint32_t inline_given(unsigned type, const ibv_qp_cap& cap) {
  const std::uint32_t wanted = cap.max_inline_data;
  std::uint32_t given = wanted;
  switch (behaviour().get<nic::InlineRoom>(Point::inline_room)) {
    case nic::InlineRoom::exact:
      break;
    case nic::InlineRoom::rest_of_wqe:
      given = inline_of_blocks(type, cap.max_send_sge, wanted);
      break;
    case nic::InlineRoom::at_least_the_sges:
      given = std::max(wanted, cap.max_send_sge * 16);
      break;
  }
  return std::max(wanted, std::min(given, limit32(Limit::max_inline_data)));
}

// What the device gives.  A queue of no entries is always full.
ibv_qp_cap granted(const ibv_qp_init_attr_ex& a) {
  if (a.qp_type == IBV_QPT_XRC_RECV) return {};
  const bool has_srq = !has_receive_queue(a);
  const std::uint32_t most = limit32(Limit::max_qp_wr);
  const auto entries = [&](Point queue, std::uint32_t n) {
    return nic::round_up(behaviour().get<nic::Rounding>(queue), n, most);
  };
  ibv_qp_cap cap = a.cap;
  cap.max_send_wr = entries(Point::send_queue_size, cap.max_send_wr);
  cap.max_send_sge = std::max(cap.max_send_sge, 1u);
  cap.max_inline_data = inline_given(a.qp_type, cap);
  cap.max_recv_wr = has_srq ? 0 : entries(Point::recv_queue_size, cap.max_recv_wr);
  cap.max_recv_sge = has_srq ? 0 : std::max(cap.max_recv_sge, 1u);
  return cap;
}

void fill_public(Qp& qp, ibv_context* c, const ibv_qp_init_attr_ex& a) {
  ibv_qp& pub = qp.qp;
  pub.context = c;
  pub.qp_context = a.qp_context;
  if (a.qp_type != IBV_QPT_XRC_RECV) {
    pub.pd = a.pd;
    pub.send_cq = a.send_cq;
  }
  if (a.qp_type != IBV_QPT_XRC_RECV && a.qp_type != IBV_QPT_XRC_SEND) {
    pub.recv_cq = a.recv_cq;
    pub.srq = a.srq;
  }
  pub.handle = pub.qp_num = qp.pair->qpn.raw();
  pub.state = IBV_QPS_RESET;
  pub.qp_type = a.qp_type;
  init_sync(pub.mutex, pub.cond);
}

std::uint32_t create_flags_of(const ibv_qp_init_attr_ex& a) {
  return a.comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS ? a.create_flags : 0;
}

ibv_qp* create_qp(ibv_context* c, ibv_qp_init_attr_ex& a, std::uint64_t ops) {
  if (const int error = fault(Call::create_qp)) return errno = error, nullptr;
  Context* context = of(c);
  if (!context->works()) return errno = EIO, nullptr;
  if (const int error = check_type(a.qp_type)) return errno = error, nullptr;
  if (const int error = check_objects(context, a)) return errno = error, nullptr;
  if (const int error = check_cap(a)) return errno = error, nullptr;
  if (a.qp_type == IBV_QPT_RAW_PACKET)
    if (const int error = need_raw_packets(*context, "create_qp")) return errno = error, nullptr;
  auto qp = std::make_unique<Qp>();
  if (const int error = qp->claim.hold(context->use(), Limit::max_qp, 1, "create_qp"))
    return errno = error, nullptr;
  qp->context = context;
  if (a.qp_type == IBV_QPT_XRC_RECV) {
    qp->xrcd = of(a.xrcd);
  } else {
    qp->pd = of(a.pd);
    qp->send_cq = of(a.send_cq);
  }
  if (a.qp_type != IBV_QPT_XRC_RECV && a.qp_type != IBV_QPT_XRC_SEND) {
    qp->recv_cq = of(a.recv_cq);
    qp->srq = a.srq ? of(a.srq) : nullptr;
  }
  qp->cap = granted(a);
  qp->sq_sig_all = a.sq_sig_all;
  if (ops)
    if (const int error = init_batch(*qp, static_cast<engine::QpType>(a.qp_type), ops))
      return errno = error, nullptr;
  const engine::QpInit init{.type = static_cast<engine::QpType>(a.qp_type),
                            .pd = qp->pd ? qp->pd->id : 0,
                            .xrcd = qp->xrcd ? qp->xrcd->domain->id : 0,
                            .store = qp->xrcd ? qp->xrcd->domain->store() : nullptr,
                            .send_cq = qp->send_cq ? qp->send_cq->queue : nullptr,
                            .recv_cq = qp->recv_cq ? qp->recv_cq->queue : nullptr,
                            .srq = qp->srq ? qp->srq->queue : nullptr,
                            .max_send_wr = std::max(qp->cap.max_send_wr, 1u),
                            .max_recv_wr = qp->cap.max_recv_wr,
                            .max_send_sge = qp->cap.max_send_sge,
                            .max_recv_sge = qp->cap.max_recv_sge,
                            .max_inline = inline_room(qp->cap, ops),
                            .sq_sig_all = qp->sq_sig_all,
                            .strip_vlan = (create_flags_of(a) & IBV_QP_CREATE_CVLAN_STRIPPING) != 0,
                            .user = qp.get()};
  qp->pair =
      context->device->with_engine([&](engine::Engine& e, Instant) { return e.create_qp(init); });
  if (!qp->pair) return fail(ENOMEM, "create_qp: all QPs of this process are in use");
  a.cap = qp->cap;
  return enter(std::move(qp), c, a);
}

// What of create_qp_ex there is: a PD or an XRC domain, and the operations that the extended post
// interface is to have.
int check_extended(const ibv_qp_init_attr_ex& a) {
  constexpr std::uint32_t known = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_XRCD |
                                  IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  if (a.comp_mask & ~known) return EOPNOTSUPP;
  if (a.qp_type == IBV_QPT_XRC_RECV) {
    if (!(a.comp_mask & IBV_QP_INIT_ATTR_XRCD)) return EINVAL;
  } else if (!(a.comp_mask & IBV_QP_INIT_ATTR_PD) || !a.pd) {
    return EINVAL;
  }
  // No queue pair gets back what it sends to a group, so that nothing is to be blocked.
  const std::uint32_t flags = a.qp_type == IBV_QPT_RAW_PACKET ? IBV_QP_CREATE_CVLAN_STRIPPING
                                                              : IBV_QP_CREATE_BLOCK_SELF_MCAST_LB;
  return create_flags_of(a) & ~flags ? EOPNOTSUPP : 0;
}

void log_refusal(const Qp& qp, engine::QpState from, engine::QpState to,
                 const engine::ModifyResult& r) {
  using enum engine::TransitionError::Kind;
  const auto log = [&](std::string_view why) {
    nic::log(nic::LogLevel::warn, "modify_qp qp {:#x}: {} on {}", qp.qp.qp_num, why,
             qp.context->info().name);
  };
  char names[256];
  engine::describe_mask(r.transition.mask, names, sizeof names);
  const char* type = name_of(qp.qp.qp_type);
  switch (r.transition.kind) {
    case no_such_transition:
      return log(
          fmt::format("no transition from {} to {}", engine::name_of(from), engine::name_of(to)));
    case missing_attribute:
      return log(fmt::format("{} {} to {} needs {}", type, engine::name_of(from),
                             engine::name_of(to), names));
    case attribute_not_allowed:
      return log(fmt::format("{} {} to {} does not allow {}", type, engine::name_of(from),
                             engine::name_of(to), names));
    case none:
      break;
  }
  const std::string_view what = r.what ? r.what : "refused";
  if (what == "path_mtu above active_mtu")
    return log(fmt::format("path_mtu {} > active_mtu {}",
                           engine::bytes_of(static_cast<engine::Mtu>(r.value)),
                           engine::bytes_of(static_cast<engine::Mtu>(r.limit))));
  log(fmt::format("{}: {} (limit {})", what, r.value, r.limit));
}

engine::QpAttributes convert(const ibv_qp_attr& a, unsigned mask) {
  engine::QpAttributes out;
  out.state = static_cast<engine::QpState>(a.qp_state);
  out.cur_state = static_cast<engine::QpState>(a.cur_qp_state);
  if (mask & IBV_QP_PATH_MTU) out.path_mtu = static_cast<engine::Mtu>(a.path_mtu);
  out.qkey = a.qkey;
  out.rq_psn = Psn(a.rq_psn);
  out.sq_psn = Psn(a.sq_psn);
  out.dest_qpn = Qpn(a.dest_qp_num);
  out.access_flags = a.qp_access_flags;
  out.pkey_index = a.pkey_index;
  out.en_sqd_async_notify = a.en_sqd_async_notify;
  out.max_rd_atomic = a.max_rd_atomic;
  out.max_dest_rd_atomic = a.max_dest_rd_atomic;
  out.min_rnr_timer = a.min_rnr_timer;
  out.port = a.port_num;
  out.timeout = a.timeout;
  out.retry_cnt = a.retry_cnt;
  out.rnr_retry = a.rnr_retry;
  out.path_mig_state = static_cast<std::uint8_t>(a.path_mig_state);
  return out;
}

// What the device has and the engine does not know.
int check_device_attributes(const Qp& qp, const ibv_qp_attr& a, unsigned mask) {
  const std::uint32_t n = qp.qp.qp_num;
  if (mask & IBV_QP_CAP) return refuse(EINVAL, "modify_qp qp {:#x}: queues cannot be resized", n);
  if (mask & IBV_QP_ALT_PATH)
    return refuse(EINVAL, "modify_qp qp {:#x}: RoCE has no alternate paths", n);
  if (mask & IBV_QP_PORT && a.port_num != 1)
    return refuse(EINVAL, "modify_qp qp {:#x}: port {} does not exist on {}", n, a.port_num,
                  qp.context->info().name);
  if (mask & IBV_QP_PKEY_INDEX && a.pkey_index != 0)
    return refuse(EINVAL, "modify_qp qp {:#x}: pkey_index {} of a table of 1", n, a.pkey_index);
  if (mask & IBV_QP_PATH_MTU && (a.path_mtu < IBV_MTU_256 || a.path_mtu > IBV_MTU_4096))
    return refuse(EINVAL, "modify_qp qp {:#x}: path_mtu {} is no ibv_mtu", n,
                  static_cast<unsigned>(a.path_mtu));
  if (mask & IBV_QP_PATH_MIG_STATE && static_cast<unsigned>(a.path_mig_state) > IBV_MIG_ARMED)
    return refuse(EINVAL, "modify_qp qp {:#x}: path_mig_state {} is no ibv_mig_state", n,
                  static_cast<unsigned>(a.path_mig_state));
  if (mask & IBV_QP_MAX_QP_RD_ATOMIC && a.max_rd_atomic > limit(Limit::max_qp_init_rd_atom))
    return refuse(EINVAL, "modify_qp qp {:#x}: max_rd_atomic {} > max_qp_init_rd_atom {}", n,
                  a.max_rd_atomic, limit(Limit::max_qp_init_rd_atom));
  if (mask & IBV_QP_MAX_DEST_RD_ATOMIC && a.max_dest_rd_atomic > limit(Limit::max_qp_rd_atom))
    return refuse(EINVAL, "modify_qp qp {:#x}: max_dest_rd_atomic {} > max_qp_rd_atom {}", n,
                  a.max_dest_rd_atomic, limit(Limit::max_qp_rd_atom));
  if (mask & IBV_QP_CUR_STATE && static_cast<unsigned>(a.cur_qp_state) > IBV_QPS_ERR)
    return refuse(EINVAL, "modify_qp qp {:#x}: unknown state {}", n,
                  static_cast<unsigned>(a.cur_qp_state));
  if (mask & IBV_QP_STATE && static_cast<unsigned>(a.qp_state) > IBV_QPS_ERR)
    return refuse(EINVAL, "modify_qp qp {:#x}: unknown state {}", n,
                  static_cast<unsigned>(a.qp_state));
  return 0;
}

int hold_responder_resources(Qp& qp, std::uint64_t n) {
  return qp.responder_resources.hold(qp.context->use(), Limit::max_res_rd_atom, n, "modify_qp");
}

// Each half of XRC passes over the attributes of the other, as the kernel has it: programs give
// both the same ones.
unsigned applicable(const Qp& qp, unsigned mask) {
  constexpr unsigned of_responder = IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
                     of_requester = IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY;
  if (qp.qp.qp_type == IBV_QPT_XRC_SEND) return mask & ~of_responder;
  if (qp.qp.qp_type == IBV_QPT_XRC_RECV) return mask & ~of_requester;
  return mask;
}

// The address vector for modify_qp.  What the engine would refuse is refused before the search.
int set_address(Qp& qp, const ibv_ah_attr& a, engine::QpAttributes& attr, unsigned mask) {
  const std::string who = fmt::format("modify_qp qp {:#x}", qp.qp.qp_num);
  if (const int error = make_address(*qp.context, a, who.c_str(), attr.av)) return error;
  engine::QpState from{};
  const engine::ModifyResult result =
      qp.context->device->with_engine([&](engine::Engine& e, Instant) {
        e.refresh(*qp.pair);
        from = qp.pair->state.load(std::memory_order_relaxed);
        return e.check_modify(*qp.pair, attr, mask);
      });
  if (!result.ok()) {
    log_refusal(qp, from, mask & IBV_QP_STATE ? attr.state : from, result);
    return EINVAL;
  }
  if (const int error = find_way(*qp.context, who.c_str(), attr.av)) return error;
  // The kernel puts the route's in place of what the program has, which is 1 in many examples
  // and would end at the first router.
  attr.av.hop_limit = engine::AddressVector{}.hop_limit;
  return 0;
}

int modify_qp(Qp& qp, const ibv_qp_attr& a, unsigned given) {
  if (const int error = fault(Call::modify_qp)) return error;
  if (!qp.context->works()) return EIO;
  if (const int error = live().check(&qp, Kind::qp)) return error;
  if (qp.pair->scaling)
    return refuse(EOPNOTSUPP, "modify_qp qp {:#x}: an RSS queue pair has no states", qp.qp.qp_num);
  const unsigned mask = applicable(qp, given);
  if (const int error = check_device_attributes(qp, a, mask)) return error;
  engine::QpAttributes attr = convert(a, mask);
  if (mask & IBV_QP_AV)
    if (const int error = set_address(qp, a.ah_attr, attr, mask)) return error;
  const std::uint64_t held = qp.responder_resources.amount();
  if (mask & IBV_QP_MAX_DEST_RD_ATOMIC)
    if (const int error = hold_responder_resources(qp, a.max_dest_rd_atomic)) return error;
  engine::QpState from{};
  const engine::ModifyResult result =
      qp.context->device->with_engine([&](engine::Engine& e, Instant now) {
        from = qp.pair->state.load(std::memory_order_relaxed);
        return e.modify_qp(now, *qp.pair, attr, mask);
      });
  if (!result.ok()) {
    hold_responder_resources(qp, held);
    log_refusal(qp, from, mask & IBV_QP_STATE ? attr.state : from, result);
    return EINVAL;
  }
  if (mask & IBV_QP_STATE) qp.qp.state = a.qp_state;
  if (qp.qp.state == IBV_QPS_RESET) hold_responder_resources(qp, 0);
  return 0;
}

void fill_attr(const Qp& qp, const engine::QpAttributes& a, ibv_qp_attr& out) {
  out.cur_qp_state = out.qp_state;
  out.path_mtu = static_cast<ibv_mtu>(a.path_mtu);
  out.path_mig_state = static_cast<ibv_mig_state>(a.path_mig_state);
  out.qkey = a.qkey;
  out.dest_qp_num = a.dest_qpn.raw();
  // A NIC keeps no others: local rights are the regions'.
  constexpr std::uint32_t remote_rights = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                                          IBV_ACCESS_REMOTE_ATOMIC | access_flush_global |
                                          access_flush_persistent;
  out.qp_access_flags = a.access_flags & remote_rights;
  out.cap = qp.cap;
  if (!a.av.dgid.is_zero()) fill_ah_attr(a.av, out.ah_attr);
  out.pkey_index = a.pkey_index;
  out.en_sqd_async_notify = a.en_sqd_async_notify;
  out.max_rd_atomic = a.max_rd_atomic;
  out.max_dest_rd_atomic = a.max_dest_rd_atomic;
  out.min_rnr_timer = a.min_rnr_timer;
  out.port_num = a.port;
  out.timeout = a.timeout;
  out.retry_cnt = a.retry_cnt;
  out.rnr_retry = a.rnr_retry;
}

int query_qp(Qp& qp, ibv_qp_attr& out, ibv_qp_init_attr& init) {
  if (const int error = fault(Call::query_qp)) return error;
  if (!qp.context->works()) return EIO;
  if (const int error = live().check(&qp, Kind::qp)) return error;
  if (qp.pair->scaling) return EOPNOTSUPP;
  out = {};
  engine::QpAttributes attr;
  qp.context->device->with_engine([&](engine::Engine& e, Instant) {
    e.refresh(*qp.pair);
    const engine::QueuePair& p = *qp.pair;
    attr = p.attr;
    const engine::QpState state = p.state.load(std::memory_order_relaxed);
    out.qp_state = static_cast<ibv_qp_state>(state);
    out.sq_draining = state == engine::QpState::sqd && p.draining;
    // Behind RTR and RTS the next PSNs, before them what was set.
    const bool receives = state >= engine::QpState::rtr, sends = state >= engine::QpState::rts;
    out.rq_psn = receives ? p.resp.expected.raw() : attr.rq_psn.raw();
    out.sq_psn = sends ? p.req.psn.raw() : attr.sq_psn.raw();
  });
  fill_attr(qp, attr, out);
  qp.qp.state = out.qp_state;
  init = {.qp_context = qp.qp.qp_context,
          .send_cq = qp.qp.send_cq,
          .recv_cq = qp.qp.recv_cq,
          .srq = qp.qp.srq,
          .cap = qp.cap,
          .qp_type = qp.qp.qp_type,
          .sq_sig_all = qp.sq_sig_all};
  return 0;
}

// Takes the handle out of those of its queue pair; false: it was the only one.
bool leave_handles(Qp& qp) {
  std::lock_guard hold(handles_mutex());
  auto* first = static_cast<Qp*>(qp.pair->user);
  if (first == &qp) {
    if (!qp.next_handle) return false;
    qp.pair->user = qp.next_handle;
    return true;
  }
  while (first->next_handle != &qp) first = first->next_handle;
  first->next_handle = qp.next_handle;  // its own stays for an event that is on its way along
  return true;
}

// In a multicast group, or the target of a flow rule.
bool in_use(const Qp& qp) {
  if (qp.qp.qp_type != IBV_QPT_UD && qp.qp.qp_type != IBV_QPT_RAW_PACKET) return false;
  return qp.context->device->with_engine([&](engine::Engine& e, Instant) {
    return e.multicast().attached(*qp.pair) || e.flows().uses(*qp.pair);
  });
}

int detach_qp(ibv_qp* q, std::uint32_t& async) {
  if (const int error = fault(Call::destroy_qp)) return error;
  if (const int error = live().check(q, Kind::qp)) return error;
  Qp* qp = of(q);
  if (!qp->context->alive()) return EIO;
  if (in_use(*qp)) return EBUSY;
  live().remove(q, Kind::qp);
  qp->context->device->retire([&](engine::Engine& e) {
    if (!leave_handles(*qp)) e.destroy_qp(qp->pair);
  });
  if (qp->async_events)
    qp->async_events -= qp->context->async.purge(reinterpret_cast<std::uintptr_t>(qp));
  async = qp->async_events;
  return 0;
}

void free_qp(ibv_qp* q) {
  Qp* qp = of(q);
  Pd* pd = qp->pd;
  Context* context = qp->context;
  Xrcd* xrcd = qp->xrcd;
  delete qp;  // may give memory back to the domain's allocator
  if (pd) pd->release();
  if (xrcd) --xrcd->references;
  context->release();
}

ibv_qp* do_open_qp(ibv_context* c, const ibv_qp_open_attr& a) {
  constexpr std::uint32_t needed =
      IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
  if (const int error = fault(Call::open_qp)) return errno = error, nullptr;
  Context* context = of(c);
  if (!context->works()) return errno = EIO, nullptr;
  if (a.comp_mask >= IBV_QP_OPEN_ATTR_RESERVED) return errno = EOPNOTSUPP, nullptr;
  if ((a.comp_mask & needed) != needed || a.qp_type != IBV_QPT_XRC_RECV ||
      !live().contains(a.xrcd, Kind::xrcd) || of(a.xrcd)->context != context)
    return fail(EINVAL, "open_qp: needs the number of an XRC_RECV QP and its XRC domain");
  auto qp = std::make_unique<Qp>();
  qp->context = context;
  qp->xrcd = of(a.xrcd);
  qp->pair = context->device->with_engine([&](engine::Engine& e, Instant) -> engine::QueuePair* {
    const nic::XrcDomain& domain = *qp->xrcd->domain;
    engine::QueuePair* pair = e.open_target(domain.id, domain.store(), Qpn(a.qp_num));
    if (!pair) return nullptr;
    std::lock_guard hold(handles_mutex());
    qp->next_handle = static_cast<Qp*>(std::exchange(pair->user, qp.get()));
    return pair;
  });
  if (!qp->pair) return fail(EINVAL, "open_qp: no QP {:#x} in that XRC domain", a.qp_num);
  ibv_qp_init_attr_ex init{};
  init.qp_type = IBV_QPT_XRC_RECV;
  if (a.comp_mask & IBV_QP_OPEN_ATTR_CONTEXT) init.qp_context = a.qp_context;
  ibv_qp* pub = enter(std::move(qp), c, init);
  pub->state = static_cast<ibv_qp_state>(of(pub)->pair->state.load(std::memory_order_relaxed));
  return pub;
}

// ibv_query_qp_data_in_order(3): packets are taken by PSN, and each is stored in ascending order.
// Flag 1 (release 45) asks for a mask: 1 the whole message, 2 each aligned 128 bytes.
int data_in_order(unsigned opcode, std::uint32_t flags) {
  constexpr std::uint32_t return_caps = 1;
  if (flags & ~return_caps) return 0;
  switch (opcode) {
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
    case IBV_WR_SEND_WITH_INV:
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
    case IBV_WR_RDMA_READ:
      return flags & return_caps ? 3 : 1;
    default:
      return 0;
  }
}

}  // namespace

int need_raw_packets(const Context& context, const char* who) {
  const int error = context.device->open_ethernet();
  return error ? refuse(error, "{}: raw packets need CAP_NET_RAW: {}", who, std::strerror(error))
               : 0;
}

ibv_qp* enter(std::unique_ptr<Qp> qp, ibv_context* c, const ibv_qp_init_attr_ex& a) {
  fill_public(*qp, c, a);
  if (qp->pd) ++qp->pd->references;
  if (qp->xrcd) ++qp->xrcd->references;
  ++qp->context->references;
  live().add(qp.get(), Kind::qp);
  return &qp.release()->qp;
}

ibv_qp* open_qp(ibv_context* c, ibv_qp_open_attr* a) {
  return guarded([&] { return do_open_qp(c, *a); });
}

ibv_qp* create_qp_ex(ibv_context* c, ibv_qp_init_attr_ex* a) {
  return guarded([&]() -> ibv_qp* {
    if (a->comp_mask & (IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH))
      return create_scaling_qp(c, *a);
    if (const int error = check_extended(*a)) return errno = error, nullptr;
    return create_qp(c, *a, a->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS ? a->send_ops_flags : 0);
  });
}

}  // namespace adverb::verbs

using namespace adverb::verbs;

ADVERB_API ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* a) {
  return guarded([&] {
    ibv_qp_init_attr_ex ex{.qp_context = a->qp_context,
                           .send_cq = a->send_cq,
                           .recv_cq = a->recv_cq,
                           .srq = a->srq,
                           .cap = a->cap,
                           .qp_type = a->qp_type,
                           .sq_sig_all = a->sq_sig_all,
                           .comp_mask = IBV_QP_INIT_ATTR_PD,
                           .pd = pd};
    ibv_qp* qp = create_qp(pd->context, ex, 0);
    if (qp) a->cap = ex.cap;
    return qp;
  });
}

ADVERB_API ibv_qp_ex* ibv_qp_to_qp_ex(ibv_qp* qp) {
  return of(qp)->batch ? &of(qp)->ext.ex : nullptr;
}

ADVERB_API int ibv_modify_qp(ibv_qp* qp, ibv_qp_attr* attr, int mask) {
  return guarded([&] { return modify_qp(*of(qp), *attr, static_cast<unsigned>(mask)); });
}

ADVERB_API int ibv_query_qp(ibv_qp* qp, ibv_qp_attr* attr, int, ibv_qp_init_attr* init) {
  return guarded([&] { return query_qp(*of(qp), *attr, *init); });
}

ADVERB_API int ibv_query_qp_data_in_order(ibv_qp*, ibv_wr_opcode opcode, std::uint32_t flags) {
  return data_in_order(opcode, flags);
}

ADVERB_API int ibv_destroy_qp(ibv_qp* qp) {
  std::uint32_t async = 0;
  if (const int error = guarded([&] { return detach_qp(qp, async); })) return error;
  wait_for_acks(qp->mutex, qp->cond, qp->events_completed, async);
  guarded([&] { free_qp(qp); });
  return 0;
}
