// SPDX-License-Identifier: Apache-2.0
// A program that calls the verbs API in any order and with any arguments: unknown enumerators,
// absurd sizes, objects of another context, destroy calls for what is in use.  The device is the
// real one on lo.  Judged, besides the sanitizers: return conventions as the man pages have them,
// EBUSY while in use, a refused modify_qp changes nothing, one completion for each work request,
// and nothing is left at the end (verbs_calls/session.hpp).
#include "verbs_calls/steps.hpp"

namespace adverb::fuzz {
namespace {

// Refused whatever the arguments are.
void unsupported(Session& s, Record& in) {
  CqPlace* cq = a_cq(s, in);
  QpPlace* qp = a_qp(s, in);
  ibv_gid gid{};
  if (cq) REQUIRE(checked(ibv_resize_cq(cq->cq, static_cast<int>(in.word()))) != 0);
  if (qp) REQUIRE(checked(ibv_attach_mcast(qp->qp, &gid, 0)) != 0);
}

void rare(Session& s, Record& in) {
  static constexpr step::Step all[] = {
      step::device_memory, step::dm_region, step::advise, step::xrcd,  step::window,
      step::null_region,   step::xrcd,      step::import, unsupported,
  };
  in.one_of(all)(s, in);
}

void run_step(Session& s, Record& in) {
  static constexpr step::Step all[] = {
      step::pd,       step::mr,      step::rereg,   step::channel,     step::cq,
      step::srq,      step::qp,      step::qp,      step::bring_up,    step::bring_up,
      step::bring_up, step::modify,  step::ah,      step::send,        step::send,
      step::send,     step::receive, step::receive, step::srq_receive, step::batch,
      step::poll,     step::poll,    step::poll_ex, step::arm,         step::events,
      step::query,    step::names,   rare,          step::modify_srq,  step::ready,
      step::ready,    step::drain,
  };
  in.one_of(all)(s, in);
}

}  // namespace
}  // namespace adverb::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace adverb::fuzz;
  constexpr std::size_t max_script = 64 * record_bytes;
  if (size > max_script) return 0;
  device();
  Script script(data, size);
  Session session(script.next().chance(96));
  while (!script.empty()) {
    Record in = script.next();
    run_step(session, in);
  }
  session.finish();
  return 0;
}
