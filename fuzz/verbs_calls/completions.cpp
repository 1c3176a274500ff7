// SPDX-License-Identifier: Apache-2.0
// Polling, and the events of completion queues and of everything else.
#include <sys/select.h>

#include <algorithm>

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

// Looks at every field that the queue was made to have.
void read_all(Session& s, Record& in) {
  CqPlace* p = a_cq(s, in);
  if (!p || !p->ex) return;
  ibv_cq_ex* q = p->ex;
  ibv_poll_cq_attr attr{};
  const int first = checked(ibv_start_poll(q, &attr));
  if (first) return REQUIRE(first == ENOENT);
  unsigned left = 1 + in.below(20);
  std::uint64_t before = 0;
  do {
    ibv_wc wc{};
    wc.wr_id = q->wr_id, wc.status = q->status;
    wc.opcode = ibv_wc_read_opcode(q), wc.qp_num = ibv_wc_read_qp_num(q);
    REQUIRE((ibv_wc_read_wc_flags(q) & ~unsigned{IBV_WC_GRH | IBV_WC_WITH_IMM | IBV_WC_WITH_INV}) ==
            0);
    REQUIRE(ibv_wc_read_src_qp(q) < 1u << 24);
    REQUIRE(ibv_wc_read_slid(q) == 0 && ibv_wc_read_dlid_path_bits(q) == 0);
    REQUIRE(ibv_wc_read_cvlan(q) == 0 && ibv_wc_read_flow_tag(q) == 0);
    ibv_wc_read_sl(q);
    ibv_wc_read_invalidated_rkey(q);
    const std::uint64_t at = ibv_wc_read_completion_ts(q);
    REQUIRE(at >= before);
    before = at;
    if (p->wallclock) REQUIRE(ibv_wc_read_completion_wallclock_ns(q) > at);
    s.completed(wc);
  } while (--left && checked(ibv_next_poll(q)) == 0);
  ibv_end_poll(q);
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

// Events that are acknowledged later, together.
void hold_events(Session& s, Record& in) {
  for (ChannelPlace& p : s.channels)
    for (unsigned n = in.below(4); n && p.channel && readable(p.channel->fd); --n) {
      ibv_cq* cq = nullptr;
      void* user = nullptr;
      REQUIRE(ibv_get_cq_event(p.channel, &cq, &user) == 0);
      const auto place =
          std::find_if(s.cqs.begin(), s.cqs.end(), [&](const CqPlace& c) { return c.cq == cq; });
      REQUIRE(place != s.cqs.end() && place->channel == &p && user == cq->cq_context);
      ++place->unacked;
    }
  for (ibv_context* c : s.contexts)
    for (unsigned n = in.below(4); n && c && readable(c->async_fd); --n) {
      ibv_async_event event;
      REQUIRE(ibv_get_async_event(c, &event) == 0);
      s.unacked.push_back(event);
    }
}

void ack_events(Session& s, Record& in) {
  if (CqPlace* p = a_cq(s, in)) s.acknowledge(*p);
  if (in.chance(128)) s.acknowledge_async();
}

}  // namespace step
}  // namespace adverb::fuzz
