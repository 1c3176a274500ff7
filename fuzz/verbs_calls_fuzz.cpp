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

// Tables are added, not changed, so that inputs that were found before keep their meaning: half of
// the first bytes are of the first one, and the last eight of the third.
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
  static constexpr step::Step third[] = {
      step::wq,         step::wq,         step::modify_wq, step::wq_receive,
      step::wq_receive, step::scaling_qp, step::table,     step::scaling_qp,
  };
  constexpr std::uint8_t of_first = 128, of_second = 256 - std::size(third);
  const std::uint8_t which = in.byte();
  if (which < of_first) return first[which % std::size(first)](s, in);
  if (which < of_second) return second[(which - of_first) % std::size(second)](s, in);
  third[which - of_second](s, in);
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
