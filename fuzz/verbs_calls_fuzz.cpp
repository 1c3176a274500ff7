// SPDX-License-Identifier: Apache-2.0
// A program that calls the verbs API in any order and with any arguments: unknown enumerators,
// absurd sizes, objects of another context, destroy calls for what is in use.  The device is the
// real one on lo.  Judged, besides the sanitizers: return conventions as the man pages have them,
// EBUSY while in use, what is refused changes nothing, one completion for each work request,
// and nothing is left at the end (verbs_calls/session.hpp).
#include "verbs_calls/steps.hpp"

namespace adverb::fuzz {
namespace {

void rare(Session& s, Record& in) {
  static constexpr step::Step all[] = {
      step::device_memory, step::dm_region, step::advise, step::xrcd,        step::window,
      step::null_region,   step::xrcd,      step::import, step::unsupported,
  };
  in.one_of(all)(s, in);
}

// Half of the first bytes mean what they did before there was the second table: inputs that were
// found then keep their meaning.
void run_step(Session& s, Record& in) {
  static constexpr step::Step first[] = {
      step::pd,       step::mr,      step::rereg,   step::channel,     step::cq,
      step::srq,      step::qp,      step::qp,      step::bring_up,    step::bring_up,
      step::bring_up, step::modify,  step::ah,      step::send,        step::send,
      step::send,     step::receive, step::receive, step::srq_receive, step::batch,
      step::poll,     step::poll,    step::poll_ex, step::arm,         step::events,
      step::query,    step::names,   rare,          step::modify_srq,  step::ready,
      step::ready,    step::drain,
  };
  static constexpr step::Step second[] = {
      step::attach,
      step::attach,
      step::detach,
      step::group_ah,
      step::raw_qp,
      step::raw_qp,
      step::frame,
      step::frame,
      step::frame,
      step::frame_receive,
      step::frame_receive,
      step::flow,
      step::flow,
      step::flow,
      step::td,
      step::parent_domain,
      step::xrcd_of_file,
      step::dmabuf,
      step::unimport,
      step::import_context,
      step::batch_rare,
      step::batch_rare,
      step::cq_of_all,
      step::resize,
      step::moderate,
      step::read_all,
      step::hold_events,
      step::ack_events,
      step::query_constants,
      step::address_of_sender,
  };
  const std::uint8_t which = in.byte();
  const auto n = which % 128u;
  (which < 128 ? first[n % std::size(first)] : second[n % std::size(second)])(s, in);
}

}  // namespace
}  // namespace adverb::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace adverb::fuzz;
  constexpr std::size_t max_script = 64 * record_bytes;
  if (size > max_script) return 0;
  device();
  Script script(data, size);
  Record first = script.next();
  Session session(first.chance(96));
  prelude(session, first);
  while (!script.empty()) {
    Record in = script.next();
    run_step(session, in);
  }
  session.finish();
  return 0;
}
