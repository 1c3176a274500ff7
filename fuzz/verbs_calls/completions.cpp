// SPDX-License-Identifier: Apache-2.0
// Completion queues, polling, and events.
#include <sys/select.h>

#include "verbs_calls/steps.hpp"

namespace adverb::fuzz {
namespace {

bool readable(int fd) {
  fd_set set;
  FD_ZERO(&set);
  FD_SET(fd, &set);
  timeval none{};
  return select(fd + 1, &set, nullptr, nullptr, &none) == 1;
}

}  // namespace

namespace step {

void cq(Session& s, Record& in) {
  CqPlace& p = s.cqs[in.below(3)];
  if (p.cq) return in.chance(128) ? s.destroy(p) : void();
  ibv_context* c = context(s, in);
  ChannelPlace* channel = &s.channels[in.below(2)];
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
    PdPlace* pd = a_pd(s, in);
    if (pd && pd->domain && pd->pd->context == c && in.chance(128)) {
      a.comp_mask |= IBV_CQ_INIT_ATTR_MASK_PD;
      a.parent_domain = pd->pd;
      domain = pd;
    }
    p.ex = made([&] { return ibv_create_cq_ex(c, &a); });
    p.cq = p.ex ? ibv_cq_ex_to_cq(p.ex) : nullptr;
  } else {
    p.cq = made([&] {
      return ibv_create_cq(c, static_cast<int>(cqe), &s, channel ? channel->channel : nullptr,
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

void poll(Session& s, Record& in) {
  if (CqPlace* p = a_cq(s, in)) s.poll(*p, in.chance(240) ? in.below(9) : -1);
}

void drain(Session& s, Record& in) {
  CqPlace* p = a_cq(s, in);
  for (int i = 0; p && i < 20; ++i) s.poll(*p, 8);
}

void poll_ex(Session& s, Record& in) {
  CqPlace* p = a_cq(s, in);
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
    s.completed(wc);
  } while (checked(ibv_next_poll(p->ex)) == 0);
  ibv_end_poll(p->ex);
}

void arm(Session& s, Record& in) {
  if (CqPlace* p = a_cq(s, in)) checked(ibv_req_notify_cq(p->cq, in.byte() & 1));
}

void events(Session& s, Record& in) {
  for (ChannelPlace& p : s.channels) {
    if (!p.channel || !readable(p.channel->fd)) continue;
    ibv_cq* cq = nullptr;
    void* user = nullptr;
    REQUIRE(ibv_get_cq_event(p.channel, &cq, &user) == 0);
    REQUIRE(cq->channel == p.channel);
    ibv_ack_cq_events(cq, 1);
  }
  ibv_context* c = context(s, in);
  if (!readable(c->async_fd)) return;
  ibv_async_event event;
  REQUIRE(ibv_get_async_event(c, &event) == 0);
  REQUIRE(event.event_type <= IBV_EVENT_WQ_FATAL);
  ibv_ack_async_event(&event);
}

}  // namespace step
}  // namespace adverb::fuzz
