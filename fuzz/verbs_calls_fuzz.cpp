// SPDX-License-Identifier: Apache-2.0
// A program that calls the verbs API in any order and with any arguments: unknown enumerators,
// absurd sizes, objects of another context, destroy calls for what is in use.  The device is the
// real one on lo.  Judged, besides the sanitizers: return conventions as the man pages have them,
// EBUSY while in use, a refused modify_qp changes nothing, one completion for each work request,
// and nothing is left at the end (verbs_session.hpp).
#include <optional>
#include <span>

#include "verbs_session.hpp"

namespace adverb::fuzz {
namespace {

// Any number as an enumerator of the C API.
template <class E>
E any(std::uint32_t v) {
  E e;
  static_assert(sizeof e == sizeof v);
  std::memcpy(&e, &v, sizeof e);
  return e;
}

class Program {
 public:
  explicit Program(Record in) : s_(in.chance(96)) {}

  void run(Script& script) {
    while (!script.empty()) {
      Record in = script.next();
      step(in);
    }
    s_.finish();
  }

 private:
  using Step = void (Program::*)(Record&);
  void step(Record& in) {
    static constexpr Step all[] = {
        &Program::pd,         &Program::mr,       &Program::rereg,       &Program::channel,
        &Program::cq,         &Program::srq,      &Program::qp,          &Program::qp,
        &Program::bring_up,   &Program::bring_up, &Program::bring_up,    &Program::modify,
        &Program::ah,         &Program::send,     &Program::send,        &Program::send,
        &Program::receive,    &Program::receive,  &Program::srq_receive, &Program::batch,
        &Program::poll,       &Program::poll,     &Program::poll_ex,     &Program::arm,
        &Program::events,     &Program::query,    &Program::names,       &Program::rare,
        &Program::modify_srq, &Program::ready,    &Program::ready,       &Program::drain};
    (this->*in.one_of(all))(in);
  }

  // --- choosing
  ibv_context* context(Record& in) {
    ibv_context* c = s_.contexts[in.below(2)];
    return c ? c : s_.contexts[0];
  }
  // An object of that kind, if there is one: the chosen place, or the first that is taken.
  template <class Places, class Member>
  auto* pick(Places& places, Member member, Record& in) {
    auto* p = &places[in.below(static_cast<unsigned>(places.size()))];
    if (p->*member) return p;
    for (auto& each : places)
      if (each.*member) return &each;
    return static_cast<decltype(p)>(nullptr);
  }
  PdPlace* a_pd(Record& in) { return pick(s_.pds, &PdPlace::pd, in); }
  CqPlace* a_cq(Record& in) { return pick(s_.cqs, &CqPlace::cq, in); }
  QpPlace* a_qp(Record& in) { return pick(s_.qps, &QpPlace::qp, in); }
  std::uint32_t size(Record& in) {
    constexpr std::uint32_t all[] = {0, 1, 2, 4, 8, 33, 1025, 0x7fffffff, 0xffffffff};
    const std::uint8_t how = in.byte();
    return how < 200 ? 1 + how % 8 : all[how % std::size(all)];
  }
  static std::uint8_t* inside(Record& in) {
    return Session::buffer().data() + Session::guard + in.byte() * 8;
  }

  // --- objects
  void pd(Record& in) {
    PdPlace& p = s_.pds[in.below(3)];
    if (p.pd) return s_.destroy(p);
    ibv_context* c = context(in);
    PdPlace* domain = in.chance(64) ? a_pd(in) : nullptr;
    if (!domain) {
      p.pd = made([&] { return ibv_alloc_pd(c); });
      return REQUIRE(p.pd);
    }
    ibv_parent_domain_init_attr a{};
    a.pd = domain->pd;
    a.comp_mask = in.chance(240) ? 0 : in.word();
    p.pd = made([&] { return ibv_alloc_parent_domain(c, &a); });
    REQUIRE((p.pd != nullptr) ==
            (domain->pd->context == c && (a.comp_mask | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT) ==
                                             IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT));
    if (p.pd) p.domain = domain, ++domain->users;
  }
  void mr(Record& in) {
    MrPlace& p = s_.mrs[in.below(4)];
    if (p.mr && in.chance(128)) return s_.destroy(p);
    PdPlace* pd = a_pd(in);
    if (p.mr || !pd) return;
    constexpr int rights[] = {0xf, 0x1f, 0x1f, 1, 4, 0x30f, 0x3f};
    const bool sane = in.chance(160);
    int access = sane ? in.one_of(rights) : any_access(in);
    auto* at = inside(in);
    std::size_t length = in.byte() * 16u;
    if (!sane && in.chance(64))
      at = reinterpret_cast<std::uint8_t*>(std::uintptr_t{in.word()} << 32);
    if (!sane && in.chance(64)) length = std::size_t{in.word()} << 32 | in.word();
    const bool on_demand = sane && in.chance(32);
    if (on_demand) access |= IBV_ACCESS_ON_DEMAND;
    p.mr = made([&] {
      if (in.chance(200)) return ibv_reg_mr(pd->pd, at, length, access);
      return ibv_reg_mr_iova2(pd->pd, at, length, in.word(), static_cast<unsigned>(access));
    });
    REQUIRE(p.mr || !sane);
    if (p.mr) p.pd = pd, ++pd->users, p.on_demand = on_demand;
  }
  // Without ON_DEMAND: such a region may cover memory that is not mapped, or not the fuzzer's.
  static int any_access(Record& in) { return static_cast<int>(in.word() & ~IBV_ACCESS_ON_DEMAND); }
  void rereg(Record& in) {
    MrPlace* p = pick(s_.mrs, &MrPlace::mr, in);
    PdPlace* pd = a_pd(in);
    if (!p) return;
    const int flags = in.chance(200) ? static_cast<int>(in.below(8)) : static_cast<int>(in.word());
    auto* at = inside(in);
    const bool small = in.chance(200) || p->on_demand;
    const std::size_t length = small ? in.byte() : std::size_t{in.word()} << 32;
    const bool with_pd = pd && in.chance(200);
    const int error = ibv_rereg_mr(p->mr, flags, with_pd ? pd->pd : nullptr, at, length,
                                   in.chance(200) ? 0xf : any_access(in));
    REQUIRE(error >= IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW && error <= 0);
    if (p->null || p->imported) REQUIRE(error == IBV_REREG_MR_ERR_INPUT);
    if (error == 0 && flags & IBV_REREG_MR_CHANGE_PD) {
      REQUIRE(with_pd && pd->pd->context == p->mr->context && p->mr->pd == pd->pd);
      --p->pd->users, ++pd->users, p->pd = pd;
    }
  }
  void channel(Record& in) {
    ChannelPlace& p = s_.channels[in.below(2)];
    if (p.channel) return s_.destroy(p);
    p.channel = made([&] { return ibv_create_comp_channel(context(in)); });
    REQUIRE(p.channel);
  }
  void cq(Record& in) {
    CqPlace& p = s_.cqs[in.below(3)];
    if (p.cq) return in.chance(128) ? s_.destroy(p) : void();
    ibv_context* c = context(in);
    ChannelPlace* channel = &s_.channels[in.below(2)];
    if (!channel->channel) channel = nullptr;
    const bool small = in.chance(32), sane = in.chance(220);
    const std::uint32_t cqe = small ? 1 + in.below(4) : sane ? 512 : size(in);
    const std::uint32_t vector = sane ? 0 : in.byte();
    if (cqe > 2048 && cqe < 1u << 23) return;
    const bool extended = in.chance(96);
    PdPlace* domain = nullptr;
    if (extended) {
      ibv_cq_init_attr_ex a{};
      a.cqe = cqe;
      a.channel = channel ? channel->channel : nullptr;
      a.comp_vector = vector;
      a.wc_flags = sane ? std::uint64_t{IBV_WC_STANDARD_FLAGS} : in.word();
      if (in.chance(128)) a.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
      a.flags = sane ? in.below(2) : in.byte();
      PdPlace* pd = a_pd(in);
      if (pd && pd->domain && pd->pd->context == c && in.chance(128)) {
        a.comp_mask |= IBV_CQ_INIT_ATTR_MASK_PD;
        a.parent_domain = pd->pd;
        domain = pd;
      }
      p.ex = made([&] { return ibv_create_cq_ex(c, &a); });
      p.cq = p.ex ? ibv_cq_ex_to_cq(p.ex) : nullptr;
    } else {
      p.cq = made([&] {
        return ibv_create_cq(c, static_cast<int>(cqe), this, channel ? channel->channel : nullptr,
                             static_cast<int>(vector));
      });
    }
    const bool foreign = channel && channel->channel->context != c;
    REQUIRE(!(p.cq && foreign) && (p.cq || foreign || !sane));
    if (!p.cq) return;
    p.small = cqe < 512;
    if (channel) p.channel = channel, ++channel->users;
    if (domain) p.domain = domain, ++domain->users;
  }
  void xrcd(Record& in) {
    XrcdPlace& p = s_.xrcds[in.below(2)];
    if (p.xrcd) return s_.destroy(p);
    const bool sane = in.chance(220);
    ibv_xrcd_init_attr a{sane ? 3u : in.word(), sane ? -1 : static_cast<int>(in.word()),
                         sane ? O_CREAT : static_cast<int>(in.word())};
    if (a.fd >= 0) a.fd |= 1 << 20;  // no descriptor of the fuzzer's
    p.xrcd = made([&] { return ibv_open_xrcd(context(in), &a); });
    REQUIRE(p.xrcd || !sane);
  }
  // An XRC SRQ, if there is what it needs.
  bool xrc_srq(SrqPlace& p, PdPlace& pd, Record& in) {
    XrcdPlace* xrcd = pick(s_.xrcds, &XrcdPlace::xrcd, in);
    CqPlace* cq = a_cq(in);
    if (!xrcd || !cq) return false;
    ibv_srq_init_attr_ex a{};
    a.attr = {1 + in.below(16), 1 + in.below(4), 0};
    a.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD |
                  IBV_SRQ_INIT_ATTR_CQ;
    a.srq_type = IBV_SRQT_XRC;
    a.pd = pd.pd;
    a.xrcd = xrcd->xrcd;
    a.cq = cq->cq;
    ibv_context* c = pd.pd->context;
    p.srq = made([&] { return ibv_create_srq_ex(c, &a); });
    REQUIRE((p.srq != nullptr) == (xrcd->xrcd->context == c && cq->cq->context == c));
    if (p.srq) p.pd = &pd, p.xrcd = xrcd, p.cq = cq, ++pd.users, ++xrcd->users, ++cq->users;
    return true;
  }
  void srq(Record& in) {
    SrqPlace& p = s_.srqs[in.below(2)];
    if (p.srq) return in.chance(128) ? s_.destroy(p) : void();
    PdPlace* pd = a_pd(in);
    if (!pd) return;
    if (in.chance(96) && xrc_srq(p, *pd, in)) return;
    const ibv_srq_attr attr{size(in), size(in) % 64, 0};
    p.srq = made([&] {
      if (in.chance(128)) {
        ibv_srq_init_attr a{this, attr};
        return ibv_create_srq(pd->pd, &a);
      }
      ibv_srq_init_attr_ex a{};
      a.attr = attr;
      a.comp_mask = IBV_SRQ_INIT_ATTR_PD | (in.chance(32) ? in.byte() : 0u);
      a.srq_type = any<ibv_srq_type>(in.byte());
      a.pd = pd->pd;
      return ibv_create_srq_ex(pd->pd->context, &a);
    });
    if (p.srq) p.pd = pd, ++pd->users;
  }
  void qp(Record& in) {
    QpPlace& p = s_.qps[in.below(4)];
    if (p.qp) return in.chance(64) ? s_.destroy(p) : void();
    if (in.chance(64)) return target(p, in);
    PdPlace* pd = a_pd(in);
    CqPlace *send = a_cq(in), *receive = a_cq(in);
    if (!pd || !send) return;
    SrqPlace* srq = in.chance(64) ? pick(s_.srqs, &SrqPlace::srq, in) : nullptr;
    constexpr std::uint32_t types[] = {IBV_QPT_RC, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD,
                                       IBV_QPT_XRC_SEND};
    const std::uint32_t type = in.chance(240) ? in.one_of(types) : in.word();
    const ibv_qp_cap cap{size(in), size(in), size(in) % 64, size(in) % 64,
                         in.chance(200) ? in.byte() : in.word()};
    ibv_qp_init_attr_ex a{};
    a.send_cq = in.chance(250) ? send->cq : nullptr;
    a.recv_cq = receive->cq;
    a.srq = srq ? srq->srq : nullptr;
    a.cap = cap;
    a.qp_type = any<ibv_qp_type>(type);
    a.sq_sig_all = in.byte() & 1;
    const bool extended = in.chance(128);
    p.qp = made([&] { return extended ? create_extended(*pd, a, in) : create_plain(*pd, a); });
    if (!p.qp) return;
    ibv_context* c = pd->pd->context;
    const bool receives = p.qp->qp_type != IBV_QPT_XRC_SEND;
    REQUIRE(a.send_cq && send->cq->context == c);
    REQUIRE(!receives ||
            (receive->cq->context == c && (!srq || (srq->srq->context == c && !srq->xrcd))));
    p.ex = extended ? ibv_qp_to_qp_ex(p.qp) : nullptr;
    p.pd = pd, p.send = send;
    if (receives) p.receive = receive, p.srq = srq;
    p.sig_all = a.sq_sig_all;
    p.serial = ++s_.serials;
    s_.count(p, 1);
  }
  // An XRC target, or one more handle of one.
  void target(QpPlace& p, Record& in) {
    XrcdPlace* xrcd = pick(s_.xrcds, &XrcdPlace::xrcd, in);
    if (!xrcd) return;
    ibv_context* c = xrcd->xrcd->context;
    const QpPlace* first = a_qp(in);
    if (first && in.chance(96)) {
      ibv_qp_open_attr a{};
      a.comp_mask = in.chance(240) ? 0xf : in.word();
      a.qp_num = first->qp->qp_num;
      a.xrcd = xrcd->xrcd;
      a.qp_type = IBV_QPT_XRC_RECV;
      p.qp = made([&] { return ibv_open_qp(c, &a); });
      REQUIRE((p.qp != nullptr) == (first->xrcd == xrcd && (a.comp_mask | 4) == 0xf));
    } else {
      ibv_qp_init_attr_ex a{};
      a.qp_type = IBV_QPT_XRC_RECV;
      a.comp_mask = IBV_QP_INIT_ATTR_XRCD;
      a.xrcd = xrcd->xrcd;
      p.qp = made([&] { return ibv_create_qp_ex(c, &a); });
      REQUIRE(p.qp);
    }
    if (!p.qp) return;
    p.xrcd = xrcd;
    p.serial = ++s_.serials;
    s_.count(p, 1);
  }
  static ibv_qp* create_plain(PdPlace& pd, const ibv_qp_init_attr_ex& a) {
    ibv_qp_init_attr b{a.qp_context, a.send_cq, a.recv_cq, a.srq, a.cap, a.qp_type, a.sq_sig_all};
    return ibv_create_qp(pd.pd, &b);
  }
  static ibv_qp* create_extended(PdPlace& pd, ibv_qp_init_attr_ex& a, Record& in) {
    a.pd = pd.pd;
    a.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    if (in.chance(16)) a.comp_mask = in.word();
    const bool reliable = a.qp_type == IBV_QPT_RC || a.qp_type == IBV_QPT_XRC_SEND;
    const std::uint64_t ops = reliable ? 0x83f : a.qp_type == IBV_QPT_UD ? 0xc : 0xf;
    a.send_ops_flags = in.chance(230) ? ops : in.word();
    return ibv_create_qp_ex(pd.pd->context, &a);
  }
  void ah(Record& in) {
    AhPlace& p = s_.ahs[in.below(2)];
    if (p.ah) return s_.destroy(p);
    PdPlace* pd = a_pd(in);
    if (!pd) return;
    ibv_ah_attr a = address(in);
    p.ah = made([&] { return ibv_create_ah(pd->pd, &a); });
    if (p.ah) p.pd = pd, ++pd->users;
  }
  ibv_ah_attr address(Record& in) {
    ibv_ah_attr a{};
    a.is_global = in.chance(250);
    a.port_num = in.chance(250) ? 1 : in.byte();
    a.grh.sgid_index = in.chance(250) ? 0 : in.byte();
    a.grh.hop_limit = 64;
    ibv_query_gid(s_.contexts[0], 1, 0, &a.grh.dgid);
    if (in.chance(8)) a.grh.dgid.raw[in.below(16)] = in.byte();
    return a;
  }

  // --- the state machine
  ibv_qp_attr right_attributes(const QpPlace& own, Record& in) {
    QpPlace* peer = a_qp(in);
    for (QpPlace& q : s_.qps) {  // an XRC initiator's peer is a target, and the other way round
      const bool halves =
          q.qp && (q.xrcd ? own : q).qp->qp_type == IBV_QPT_XRC_SEND && (q.xrcd || own.xrcd);
      if (halves) peer = &q;
    }
    ibv_qp_attr a{};
    a.path_mtu = IBV_MTU_1024;
    a.dest_qp_num = peer->qp->qp_num;
    a.rq_psn = a.sq_psn = 7;
    a.qkey = 0x11;
    a.qp_access_flags = 0xe;
    a.max_rd_atomic = a.max_dest_rd_atomic = 2;
    a.min_rnr_timer = 1;
    a.timeout = 8;
    a.retry_cnt = a.rnr_retry = 1;
    a.port_num = 1;
    a.ah_attr.is_global = a.ah_attr.port_num = 1;
    a.ah_attr.grh.hop_limit = 64;
    ibv_query_gid(s_.contexts[0], 1, 0, &a.ah_attr.grh.dgid);
    return a;
  }
  static std::uint32_t mask_from(ibv_qp_state from, ibv_qp_type type) {
    const bool rc = type != IBV_QPT_UC && type != IBV_QPT_UD, ud = type == IBV_QPT_UD;
    switch (from) {
      case IBV_QPS_RESET:
        return IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX |
               (ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
      case IBV_QPS_INIT:
        if (ud) return IBV_QP_STATE;
        return IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
               (rc ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0);
      default:
        return IBV_QP_STATE | IBV_QP_SQ_PSN |
               (rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC
                   : 0);
    }
  }
  void bring_up(Record& in) {
    if (QpPlace* p = a_qp(in)) advance(*p, in);
  }
  // As far as RTS.
  void ready(Record& in) {
    QpPlace* p = a_qp(in);
    for (int i = 0; p && i < 3; ++i) advance(*p, in);
  }
  void advance(QpPlace& p, Record& in) {
    const ibv_qp_state from = current(p).qp_state;
    if (from > IBV_QPS_RTR) return;
    ibv_qp_attr a = right_attributes(p, in);
    a.qp_state = any<ibv_qp_state>(from + 1u);
    const int mask = static_cast<int>(mask_from(from, p.qp->qp_type));
    const int error = ibv_modify_qp(p.qp, &a, mask);
    // A peer's bad request may have moved it to the error state meanwhile.
    REQUIRE(error == 0 || (error == EINVAL && current(p).qp_state == IBV_QPS_ERR));
  }
  ibv_qp_attr current(QpPlace& p) {
    ibv_qp_attr a;
    ibv_qp_init_attr init;
    REQUIRE(ibv_query_qp(p.qp, &a, 0, &init) == 0);
    REQUIRE(init.send_cq == (p.send ? p.send->cq : nullptr));
    REQUIRE(init.recv_cq == (p.receive ? p.receive->cq : nullptr));
    return a;
  }
  void modify(Record& in) {
    QpPlace* p = a_qp(in);
    if (!p) return;
    const ibv_qp_attr before = current(*p);
    ibv_qp_attr a = right_attributes(*p, in);
    a.qp_state = any<ibv_qp_state>(in.chance(240) ? in.below(7) : in.word());
    a.cur_qp_state = before.qp_state;
    std::uint32_t mask = IBV_QP_STATE;
    if (in.chance(128)) mask = mask_from(before.qp_state, p->qp->qp_type);
    if (in.chance(128)) spoil(a, in);
    if (in.chance(64)) mask ^= 1u << in.below(32);
    if (in.chance(32)) mask = in.word();
    const int error = checked(ibv_modify_qp(p->qp, &a, static_cast<int>(mask)));
    const ibv_qp_attr after = current(*p);
    if (error) {
      REQUIRE(same(before, after));
    } else if (mask & IBV_QP_STATE && a.qp_state == IBV_QPS_RESET) {
      s_.forget(p->serial);
    } else {
      if (mask & IBV_QP_TIMEOUT) REQUIRE(after.timeout == a.timeout);
      if (mask & IBV_QP_ACCESS_FLAGS) REQUIRE(after.qp_access_flags == a.qp_access_flags);
      if (mask & IBV_QP_PATH_MTU) REQUIRE(after.path_mtu == a.path_mtu);
      if (mask & IBV_QP_QKEY) REQUIRE(after.qkey == a.qkey);
    }
  }
  static void spoil(ibv_qp_attr& a, Record& in) {
    switch (in.below(12)) {
      case 0:
        a.path_mtu = any<ibv_mtu>(in.chance(128) ? in.byte() : in.word());
        break;
      case 1:
        a.cur_qp_state = any<ibv_qp_state>(in.word());
        break;
      case 2:
        a.timeout = in.byte();
        break;
      case 3:
        a.retry_cnt = in.byte(), a.rnr_retry = in.byte();
        break;
      case 4:
        a.max_rd_atomic = in.byte(), a.max_dest_rd_atomic = in.byte();
        break;
      case 5:
        a.min_rnr_timer = in.byte();
        break;
      case 6:
        a.port_num = in.byte(), a.pkey_index = in.byte();
        break;
      case 7:
        a.ah_attr.grh.sgid_index = in.byte(), a.ah_attr.port_num = in.byte();
        break;
      case 8:
        a.ah_attr.is_global = 0;
        break;
      case 9:
        a.ah_attr.grh.dgid = {};
        a.ah_attr.grh.dgid.raw[in.below(16)] = in.byte();
        break;
      case 10:
        a.dest_qp_num = in.word(), a.rq_psn = in.word(), a.sq_psn = in.word();
        break;
      default:
        a.qp_access_flags = in.word(), a.path_mig_state = any<ibv_mig_state>(in.word());
    }
  }
  // What traffic cannot have changed in the meantime.
  static bool same(const ibv_qp_attr& a, const ibv_qp_attr& b) {
    return a.path_mtu == b.path_mtu && a.qkey == b.qkey && a.dest_qp_num == b.dest_qp_num &&
           a.qp_access_flags == b.qp_access_flags && a.pkey_index == b.pkey_index &&
           a.max_rd_atomic == b.max_rd_atomic && a.max_dest_rd_atomic == b.max_dest_rd_atomic &&
           a.min_rnr_timer == b.min_rnr_timer && a.port_num == b.port_num &&
           a.timeout == b.timeout && a.retry_cnt == b.retry_cnt && a.rnr_retry == b.rnr_retry &&
           std::memcmp(&a.ah_attr.grh, &b.ah_attr.grh, sizeof a.ah_attr.grh) == 0;
  }

  // --- posting
  std::uint32_t length(Record& in) {
    constexpr std::uint32_t all[] = {0, 1, 8, 64, 1024, 1025, 2000, 4096, 0x40000000, 0xffffffff};
    return in.one_of(all);
  }
  void elements(Record& in) {
    MrPlace* m = pick(s_.mrs, &MrPlace::mr, in);
    for (ibv_sge& e : std::span(sges_).first(4)) {
      e.addr = reinterpret_cast<std::uintptr_t>(inside(in));
      e.length = length(in);
      e.lkey = m && in.chance(240) ? m->mr->lkey : in.byte();
    }
    of_device_ = m && m->dm;
  }
  // Elements of device memory have offsets, except for inline data, which is read here and now.
  void to_offsets() {
    for (ibv_sge& e : sges_)
      if (of_device_) e.addr %= 128;
  }
  int element_count(Record& in) {
    constexpr int all[] = {-1, 5, 33, 256, 0x7fffffff, -0x7fffffff};
    const std::uint8_t how = in.byte();
    return how < 240 ? how % 4 : all[how % std::size(all)];
  }
  void fill_remote(ibv_send_wr& wr, Record& in) {
    MrPlace* m = pick(s_.mrs, &MrPlace::mr, in);
    std::uint64_t va = reinterpret_cast<std::uintptr_t>(inside(in)) & ~7ull;
    if (m && m->dm) va %= 128;  // an offset
    MwPlace* w = pick(s_.mws, &MwPlace::mw, in);
    std::uint32_t key = m && in.chance(240) ? m->mr->rkey : in.word();
    if (w && in.chance(64)) key = w->mw->rkey + in.below(4);
    if (wr.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
      wr.wr.atomic = {va, 1, 2, key};
    else
      wr.wr.rdma = {va, key};
  }
  // BIND_MW has a binding, and what invalidates a key that may be a window's.
  void fill_window(ibv_send_wr& wr, Record& in) {
    MwPlace* w = pick(s_.mws, &MwPlace::mw, in);
    if (wr.opcode == IBV_WR_BIND_MW)
      wr.bind_mw = {w ? w->mw : nullptr, w ? w->mw->rkey + in.below(4) : 0, binding(in)};
    else
      wr.invalidate_rkey = w && in.chance(200) ? w->mw->rkey + in.below(4) : in.word();
  }
  void send(Record& in) {
    QpPlace* p = a_qp(in);
    if (!p) return;
    elements(in);
    ibv_send_wr wr[3]{}, *bad = nullptr;
    const unsigned n = in.chance(200) ? 1 : 3;
    const unsigned opcode = in.chance(240) ? in.below(16) : in.word();
    AhPlace* ah = pick(s_.ahs, &AhPlace::ah, in);
    for (unsigned i = 0; i < n; ++i) {
      wr[i].wr_id = s_.next_id() + i;
      wr[i].next = i + 1 < n ? &wr[i + 1] : nullptr;
      wr[i].opcode = any<ibv_wr_opcode>(i ? std::uint32_t{IBV_WR_SEND} : opcode);
      wr[i].send_flags = in.chance(240) ? in.below(16) & ~IBV_SEND_FENCE : in.word();
      wr[i].sg_list = sges_;
      wr[i].num_sge = element_count(in);
      if (p->qp->qp_type == IBV_QPT_UD)
        wr[i].wr.ud = {ah ? ah->ah : nullptr, p->qp->qp_num, 0x11};
      else
        fill_remote(wr[i], in);
      constexpr unsigned of_windows =
          1u << IBV_WR_BIND_MW | 1u << IBV_WR_LOCAL_INV | 1u << IBV_WR_SEND_WITH_INV;
      if (opcode < 32 && of_windows >> wr[i].opcode & 1) fill_window(wr[i], in);
      if (p->qp->qp_type == IBV_QPT_XRC_SEND) wr[i].qp_type.xrc.remote_srqn = srq_number(in);
    }
    if (std::none_of(wr, wr + n, [](auto& w) { return w.send_flags & IBV_SEND_INLINE; }))
      to_offsets();
    const int error = checked(ibv_post_send(p->qp, wr, &bad));
    const auto posted = error ? static_cast<unsigned>(bad - wr) : n;
    REQUIRE(posted <= n && (!error || posted < n));
    for (unsigned i = 0; i < posted; ++i)
      s_.enter(p->serial, false, p->sig_all || wr[i].send_flags & IBV_SEND_SIGNALED);
  }
  std::uint32_t srq_number(Record& in) {
    SrqPlace* p = pick(s_.srqs, &SrqPlace::srq, in);
    std::uint32_t n = in.word();
    if (p && in.chance(240)) REQUIRE(ibv_get_srq_num(p->srq, &n) == 0);
    return n;
  }
  template <class F>
  void post_receives(Record& in, unsigned serial, F&& post, bool xrc = false) {
    elements(in);
    to_offsets();
    ibv_recv_wr wr[2]{}, *bad = nullptr;
    for (unsigned i = 0; i < 2; ++i)
      wr[i] = {s_.next_id() + i, i ? nullptr : &wr[1], sges_, element_count(in)};
    const int error = checked(post(wr, &bad));
    const auto posted = error ? static_cast<unsigned>(bad - wr) : 2;
    REQUIRE(posted <= 2 && (!error || posted < 2));
    for (unsigned i = 0; i < posted; ++i) s_.enter(serial, true, true, xrc);
  }
  void receive(Record& in) {
    if (QpPlace* p = a_qp(in))
      post_receives(in, p->serial, [&](auto* w, auto** b) { return ibv_post_recv(p->qp, w, b); });
  }
  void srq_receive(Record& in) {
    if (SrqPlace* p = pick(s_.srqs, &SrqPlace::srq, in))
      post_receives(
          in, 0, [&](auto* w, auto** b) { return ibv_post_srq_recv(p->srq, w, b); },
          p->xrcd != nullptr);
  }
  // The extended interface: some requests, posted together or not at all.
  void batch(Record& in) {
    QpPlace* p = a_qp(in);
    if (!p || !p->ex) return;
    elements(in);
    to_offsets();
    ibv_qp_ex* q = p->ex;
    ibv_wr_start(q);
    const unsigned n = in.below(4);
    bool signaled[4];
    for (unsigned i = 0; i < n; ++i) {
      q->wr_id = s_.next_id() + i;
      q->wr_flags = in.chance(240) ? in.below(16) & ~IBV_SEND_FENCE : in.word();
      signaled[i] = p->sig_all || q->wr_flags & IBV_SEND_SIGNALED;
      build(*p, in);
    }
    if (in.chance(32)) return ibv_wr_abort(q);
    if (checked(ibv_wr_complete(q))) return;
    for (unsigned i = 0; i < n; ++i) s_.enter(p->serial, false, signaled[i]);
  }
  void build(QpPlace& p, Record& in) {
    ibv_qp_ex* q = p.ex;
    MrPlace* m = pick(s_.mrs, &MrPlace::mr, in);
    const std::uint64_t va = reinterpret_cast<std::uintptr_t>(inside(in)) & ~7ull;
    const std::uint32_t key = m ? m->mr->rkey : 7;
    MwPlace* w = pick(s_.mws, &MwPlace::mw, in);
    switch (in.below(11)) {
      case 7:
        ibv_wr_local_inv(q, w ? w->mw->rkey : key);
        break;
      case 8: {
        const ibv_mw_bind_info info = binding(in);
        ibv_wr_bind_mw(q, w ? w->mw : nullptr, key, &info);
        break;
      }
      case 0:
        ibv_wr_rdma_write(q, key, va);
        break;
      case 1:
        ibv_wr_rdma_write_imm(q, key, va, 3);
        break;
      case 2:
        ibv_wr_rdma_read(q, key, va);
        break;
      case 3:
        ibv_wr_atomic_cmp_swp(q, key, va, 1, 2);
        break;
      case 4:
        ibv_wr_atomic_fetch_add(q, key, va, 1);
        break;
      case 5:
        ibv_wr_send_imm(q, 5);
        break;
      case 6:
        ibv_wr_send_inv(q, key);
        break;
      default:
        ibv_wr_send(q);
    }
    const ibv_data_buf buffers[2] = {
        {inside(in), in.chance(240) ? in.byte() : ~std::size_t{0}},
        {inside(in), in.chance(240) ? in.byte() : std::size_t{1} << 63}};
    switch (in.below(4)) {
      case 0:
        ibv_wr_set_inline_data_list(q, 2, buffers);
        break;
      case 1:
        ibv_wr_set_inline_data(q, buffers[0].addr, buffers[0].length);
        break;
      case 2:
        ibv_wr_set_sge(q, sges_[0].lkey, sges_[0].addr, sges_[0].length);
        break;
      default:
        ibv_wr_set_sge_list(q, in.below(5), sges_);
    }
    if (p.qp->qp_type == IBV_QPT_XRC_SEND) ibv_wr_set_xrc_srqn(q, srq_number(in));
    AhPlace* ah = pick(s_.ahs, &AhPlace::ah, in);
    if (p.qp->qp_type == IBV_QPT_UD && ah) ibv_wr_set_ud_addr(q, ah->ah, p.qp->qp_num, 0x11);
  }

  // --- completions and events
  void poll(Record& in) {
    if (CqPlace* p = a_cq(in)) s_.poll(*p, in.chance(240) ? in.below(9) : -1);
  }
  void drain(Record& in) {
    CqPlace* p = a_cq(in);
    for (int i = 0; p && i < 20; ++i) s_.poll(*p, 8);
  }
  void poll_ex(Record& in) {
    CqPlace* p = a_cq(in);
    if (!p || !p->ex) return;
    ibv_poll_cq_attr attr{};
    if (in.chance(16)) attr.comp_mask = 1;
    const int first = checked(ibv_start_poll(p->ex, &attr));
    if (first) return REQUIRE(first == (attr.comp_mask ? EINVAL : ENOENT));
    do {
      ibv_wc wc{};
      wc.wr_id = p->ex->wr_id;
      wc.status = p->ex->status;
      wc.opcode = ibv_wc_read_opcode(p->ex);
      wc.qp_num = ibv_wc_read_qp_num(p->ex);
      ibv_wc_read_byte_len(p->ex);
      ibv_wc_read_imm_data(p->ex);
      ibv_wc_read_vendor_err(p->ex);
      s_.completed(wc);
    } while (checked(ibv_next_poll(p->ex)) == 0);
    ibv_end_poll(p->ex);
  }
  void arm(Record& in) {
    if (CqPlace* p = a_cq(in)) checked(ibv_req_notify_cq(p->cq, in.byte() & 1));
  }
  static bool readable(int fd) {
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fd, &set);
    timeval none{};
    return select(fd + 1, &set, nullptr, nullptr, &none) == 1;
  }
  void events(Record& in) {
    for (ChannelPlace& p : s_.channels) {
      if (!p.channel || !readable(p.channel->fd)) continue;
      ibv_cq* cq = nullptr;
      void* user = nullptr;
      REQUIRE(ibv_get_cq_event(p.channel, &cq, &user) == 0);
      REQUIRE(cq->channel == p.channel);
      ibv_ack_cq_events(cq, 1);
    }
    ibv_context* c = context(in);
    if (!readable(c->async_fd)) return;
    ibv_async_event event;
    REQUIRE(ibv_get_async_event(c, &event) == 0);
    REQUIRE(event.event_type <= IBV_EVENT_WQ_FATAL);
    ibv_ack_async_event(&event);
  }

  // --- questions
  void query(Record& in) {
    ibv_context* c = context(in);
    ibv_device_attr_ex device;
    ibv_query_device_ex_input input{in.chance(16) ? in.word() : 0};
    checked(ibv_query_device_ex(c, in.chance(128) ? nullptr : &input, &device));
    ibv_port_attr port;
    const auto number = static_cast<std::uint8_t>(in.chance(128) ? 1 : in.byte());
    REQUIRE(checked(ibv_query_port(c, number, &port)) == (number == 1 ? 0 : EINVAL));
    ibv_gid gid;
    const int index = in.chance(240) ? in.byte() : static_cast<int>(in.word());
    errno = 0;
    const int error = ibv_query_gid(c, number, index, &gid);
    REQUIRE(error == 0 || (error == -1 && errno > 0));
    __be16 pkey = 0;
    errno = 0;
    const int second = ibv_query_pkey(c, number, index, &pkey);
    REQUIRE(second == 0 || (second == -1 && errno > 0));
    ibv_gid_entry entries[4];
    const ssize_t n = ibv_query_gid_table(c, entries, in.below(5), 0);
    REQUIRE(n >= -4096 && n <= 4);
    checked(ibv_query_gid_ex(c, number, static_cast<std::uint32_t>(index), entries, 0));
    ibv_srq_attr srq;
    if (SrqPlace* p = pick(s_.srqs, &SrqPlace::srq, in)) checked(ibv_query_srq(p->srq, &srq));
  }
  void names(Record& in) {
    const std::uint32_t v = in.chance(200) ? in.byte() : in.word();
    REQUIRE(ibv_wc_status_str(any<ibv_wc_status>(v)));
    REQUIRE(ibv_event_type_str(any<ibv_event_type>(v)));
    REQUIRE(ibv_port_state_str(any<ibv_port_state>(v)));
    REQUIRE(ibv_node_type_str(any<ibv_node_type>(v)));
    REQUIRE(ibv_rate_to_mult(any<ibv_rate>(v)) >= -1);
    REQUIRE(ibv_rate_to_mbps(any<ibv_rate>(v)) >= -1);
    REQUIRE(mult_to_ibv_rate(static_cast<int>(v)) <= IBV_RATE_1200_GBPS);
    REQUIRE(mbps_to_ibv_rate(static_cast<int>(v)) <= IBV_RATE_1200_GBPS);
  }
  // --- device memory, advice, and what there is not
  void rare(Record& in) {
    switch (in.below(9)) {
      case 7:
        return import(in);
      case 4:
        return window(in);
      case 5:
        return null_region(in);
      case 0:
        return device_memory(in);
      case 1:
        return dm_region(in);
      case 2:
        return advise(in);
      case 3:
      case 6:
        return xrcd(in);
      default:
        return unsupported(in);
    }
  }
  void device_memory(Record& in) {
    DmPlace& p = s_.dms[in.below(2)];
    if (p.dm && in.chance(64)) return s_.destroy(p);
    if (p.dm) return copy(p, in);
    const bool sane = in.chance(200);
    ibv_alloc_dm_attr a{sane ? 1u + in.byte() : size(in), sane ? 0 : in.byte() % 16u,
                        sane ? 0 : in.byte() & 1u};
    p.dm = made([&] { return ibv_alloc_dm(context(in), &a); });
    REQUIRE(p.dm || !sane);
    p.length = a.length;
  }
  void copy(DmPlace& p, Record& in) {
    std::uint8_t bytes[512] = {};
    const std::uint64_t offset = in.chance(230) ? in.byte() : ~std::uint64_t{in.byte()};
    const std::size_t length = in.byte() + 4u;
    const bool aligned = offset % 4 == 0 && length % 4 == 0;
    const bool inside = offset <= p.length && length <= p.length - offset;
    const int expected = !aligned ? EINVAL : !inside ? EFAULT : 0;
    REQUIRE(ibv_memcpy_to_dm(p.dm, offset, bytes, length) == expected);
    REQUIRE(ibv_memcpy_from_dm(bytes, p.dm, offset, length) == expected);
  }
  void dm_region(Record& in) {
    DmPlace* dm = pick(s_.dms, &DmPlace::dm, in);
    PdPlace* pd = a_pd(in);
    MrPlace& p = s_.mrs[in.below(4)];
    if (p.mr && in.chance(64)) return s_.destroy(p);
    if (p.mr || !dm || !pd) return;
    const std::uint64_t offset = in.chance(200) ? 0 : in.byte();
    const std::size_t length = in.chance(200) ? dm->length : in.word();
    const unsigned access = in.chance(200) ? 0x2f : in.byte();
    p.mr = made([&] { return ibv_reg_dm_mr(pd->pd, dm->dm, offset, length, access); });
    const bool fits = offset <= dm->length && length <= dm->length - offset;
    REQUIRE(!p.mr ||
            (fits && access & IBV_ACCESS_ZERO_BASED && pd->pd->context == dm->dm->context));
    if (p.mr) p.pd = pd, p.dm = dm, ++pd->users, ++dm->users;
  }
  void advise(Record& in) {
    PdPlace* pd = a_pd(in);
    if (!pd) return;
    elements(in);
    to_offsets();
    const auto advice = any<ibv_advise_mr_advice>(in.chance(240) ? in.below(3) : in.word());
    const std::uint32_t flags = in.chance(240) ? in.below(2) : in.word();
    checked(ibv_advise_mr(pd->pd, advice, flags, sges_, in.below(5)));
  }
  void window(Record& in) {
    MwPlace& p = s_.mws[in.below(3)];
    if (p.mw && in.chance(64)) return s_.destroy(p);
    if (p.mw) return bind(p, in);
    PdPlace* pd = a_pd(in);
    if (!pd) return;
    const std::uint32_t type = in.chance(240) ? 1 + in.below(2) : in.word();
    p.mw = made([&] { return ibv_alloc_mw(pd->pd, any<ibv_mw_type>(type)); });
    REQUIRE((p.mw != nullptr) == (type == IBV_MW_TYPE_1 || type == IBV_MW_TYPE_2));
    if (p.mw) p.pd = pd, ++pd->users;
  }
  ibv_mw_bind_info binding(Record& in) {
    MrPlace* m = pick(s_.mrs, &MrPlace::mr, in);
    if (!m || in.chance(32)) return {};
    m->maybe_bound = true;
    const unsigned access = in.chance(200) ? 0xe : in.word();
    const std::uint64_t length = in.chance(230) ? in.byte() * 8u : std::uint64_t{in.word()} << 8;
    const auto at = reinterpret_cast<std::uintptr_t>(in.chance(128) ? m->mr->addr : inside(in));
    return {m->mr, at, length, access};
  }
  // By the verb: what completes has the wr_id of the binding.
  void bind(MwPlace& p, Record& in) {
    QpPlace* q = a_qp(in);
    if (!q) return;
    ibv_mw_bind b{s_.next_id(), in.chance(240) ? in.below(8) : in.word(), binding(in)};
    const std::uint32_t before = p.mw->rkey;
    const int error = checked(ibv_bind_mw(q->qp, p.mw, &b));
    REQUIRE(p.mw->rkey == (error ? before : ibv_inc_rkey(before)));
    if (!error) s_.enter(q->serial, false, q->sig_all || b.send_flags & IBV_SEND_SIGNALED);
  }
  // What a handle names, or may name, in a context that knows it or does not.
  template <class Place, class Member>
  std::uint32_t a_handle(Place* p, Member member, Record& in) {
    return p && in.chance(220) ? (p->*member)->handle : in.word() | 1u << 20;  // behind the table
  }
  void import(Record& in) {
    PdPlace* pd = a_pd(in);
    MrPlace& m = s_.mrs[in.below(4)];
    if (!m.mr && pd && in.chance(128)) {
      MrPlace* from = pick(s_.mrs, &MrPlace::mr, in);
      const bool on_demand = from && from->on_demand;
      if (from && from->dm) return;
      const std::uint32_t handle = a_handle(from, &MrPlace::mr, in);
      m.mr = made([&] { return ibv_import_mr(pd->pd, handle); });
      if (m.mr) m.pd = pd, m.imported = true, m.on_demand = on_demand, ++pd->users;
      return;
    }
    PdPlace& p = s_.pds[in.below(3)];
    if (!p.pd && in.chance(128)) {
      const std::uint32_t handle = a_handle(pd, &PdPlace::pd, in);
      p.pd = made([&] { return ibv_import_pd(context(in), handle); });
      p.imported = p.pd;
      return;
    }
    DmPlace& d = s_.dms[in.below(2)];
    DmPlace* from = pick(s_.dms, &DmPlace::dm, in);
    if (d.dm || !from) return;
    const std::size_t length = from->length;
    d.dm = made([&] { return ibv_import_dm(context(in), from->dm->handle); });
    if (d.dm) d.length = length, d.twin_of = from, ++from->twins;
  }
  void null_region(Record& in) {
    PdPlace* pd = a_pd(in);
    MrPlace& p = s_.mrs[in.below(4)];
    if (p.mr || !pd) return;
    p.mr = made([&] { return ibv_alloc_null_mr(pd->pd); });
    REQUIRE(p.mr && p.mr->rkey == 0 && p.mr->length == SIZE_MAX);
    p.pd = pd, p.null = true, ++pd->users;
  }
  void unsupported(Record& in) {
    CqPlace* cq = a_cq(in);
    QpPlace* qp = a_qp(in);
    ibv_gid gid{};
    if (cq) REQUIRE(checked(ibv_resize_cq(cq->cq, static_cast<int>(in.word()))) != 0);
    if (qp) REQUIRE(checked(ibv_attach_mcast(qp->qp, &gid, 0)) != 0);
  }
  void modify_srq(Record& in) {
    SrqPlace* p = pick(s_.srqs, &SrqPlace::srq, in);
    if (!p) return;
    ibv_srq_attr a{size(in), size(in), size(in)};
    const int mask = in.chance(200) ? IBV_SRQ_LIMIT : static_cast<int>(in.word());
    checked(ibv_modify_srq(p->srq, &a, mask));
  }

  Session s_;
  // As many as a queue pair may allow; those behind the first four are empty.
  ibv_sge sges_[33]{};
  bool of_device_ = false;
};

}  // namespace
}  // namespace adverb::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t max_script = 64 * adverb::fuzz::record_bytes;
  if (size > max_script) return 0;
  adverb::fuzz::device();
  adverb::fuzz::Script script(data, size);
  adverb::fuzz::Program program(script.next());
  program.run(script);
  return 0;
}
