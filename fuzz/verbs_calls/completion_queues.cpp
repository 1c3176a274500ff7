// SPDX-License-Identifier: Apache-2.0
// Completion queues: made, resized, moderated.
#include "verbs_calls/steps.hpp"

namespace adverb::fuzz {
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

// With everything that a completion can tell.
void cq_of_all(Session& s, Record& in) {
  CqPlace& p = s.cqs[in.below(3)];
  if (p.cq) return;
  constexpr std::uint64_t all =
      std::uint64_t{IBV_CREATE_CQ_SUP_WC_FLAGS} & ~std::uint64_t{IBV_WC_EX_WITH_TM_INFO};
  ibv_context* c = context(s, in);
  ibv_cq_init_attr_ex a{};
  a.cqe = 512;
  a.wc_flags = in.chance(128) ? all : in.word() & all;
  if (in.chance(16)) a.wc_flags |= std::uint64_t{1} << in.below(64);
  a.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
  a.flags = in.below(4);  // SINGLE_THREADED, IGNORE_OVERRUN
  if (in.chance(32)) a.cqe = 1 + in.below(8);
  ChannelPlace* channel = pick(s.channels, &ChannelPlace::channel, in);
  if (channel && channel->channel->context != c) channel = nullptr;
  a.channel = channel ? channel->channel : nullptr;
  p.ex = made([&] { return ibv_create_cq_ex(c, &a); });
  REQUIRE((p.ex != nullptr) == ((a.wc_flags & ~all) == 0));
  if (!p.ex) return;
  p.cq = ibv_cq_ex_to_cq(p.ex);
  p.small = a.cqe < 512;
  p.wallclock = a.wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
  if (channel) p.channel = channel, ++channel->users;
}

void resize(Session& s, Record& in) {
  CqPlace* p = a_cq(s, in);
  if (!p) return;
  const std::uint32_t wanted = in.chance(128) ? 512 : in.chance(128) ? in.byte() : size(in);
  if (wanted > 2048 && wanted < 1u << 23) return;
  const int before = p->cq->cqe, cqe = static_cast<int>(wanted);
  const int error = checked(ibv_resize_cq(p->cq, cqe));
  if (error) {
    REQUIRE(error == EINVAL && p->cq->cqe == before);
    REQUIRE(cqe != 512 || before > 512);  // no more than that wait
    return;
  }
  REQUIRE(cqe >= 1 && p->cq->cqe >= cqe);
  if (cqe < 512) p->small = true;
}

void moderate(Session& s, Record& in) {
  CqPlace* p = a_cq(s, in);
  if (!p) return;
  ibv_modify_cq_attr a{};
  a.attr_mask = in.chance(240) ? std::uint32_t{IBV_CQ_ATTR_MODERATE} : in.word();
  a.moderate.cq_count = static_cast<std::uint16_t>(in.chance(128) ? in.below(8) : in.word());
  a.moderate.cq_period = static_cast<std::uint16_t>(in.chance(128) ? in.below(64) : in.word());
  const bool good = a.attr_mask == IBV_CQ_ATTR_MODERATE && a.moderate.cq_period <= 4095;
  REQUIRE(checked(ibv_modify_cq(p->cq, &a)) == (good ? 0 : EINVAL));
}

}  // namespace step
}  // namespace adverb::fuzz
