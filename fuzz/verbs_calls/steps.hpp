// SPDX-License-Identifier: Apache-2.0
// What one record does, by kind (verbs_calls_fuzz.cpp has the table), and what the files of the
// steps have in common.  A step does nothing when what it needs is not there.
#pragma once

#include "verbs_calls/choose.hpp"

namespace adverb::fuzz {

// --- objects.cpp
ibv_ah_attr address(Session&, Record&);
// --- states.cpp: also that the queue pair has the CQs that it was made with
ibv_qp_attr current(QpPlace&);
// --- windows.cpp: to no region, or to one that may from now on be in use
ibv_mw_bind_info binding(Session&, Record&);
// --- posting.cpp
// A list as long as a queue pair may allow; the elements behind the first four are empty.
struct Elements {
  ibv_sge all[33]{};
  bool of_device = false;
};
Elements elements(Session&, Record&);
// Elements of device memory have offsets, except for inline data, which is read here and now.
void to_offsets(Elements&);
// An XRC SRQ's, or any.
std::uint32_t srq_number(Session&, Record&);

namespace step {

using Step = void (*)(Session&, Record&);

// --- objects.cpp
void pd(Session&, Record&);
void channel(Session&, Record&);
void xrcd(Session&, Record&);
void srq(Session&, Record&);
void modify_srq(Session&, Record&);
void ah(Session&, Record&);
// --- memory.cpp
void mr(Session&, Record&);
void rereg(Session&, Record&);
void null_region(Session&, Record&);
void device_memory(Session&, Record&);
void dm_region(Session&, Record&);
void advise(Session&, Record&);
// --- windows.cpp
void window(Session&, Record&);
// --- imports.cpp
void import(Session&, Record&);
// --- queue_pairs.cpp
void qp(Session&, Record&);
// --- states.cpp
void bring_up(Session&, Record&);
void ready(Session&, Record&);
void modify(Session&, Record&);
// --- posting.cpp
void send(Session&, Record&);
void receive(Session&, Record&);
void srq_receive(Session&, Record&);
// --- batch.cpp
void batch(Session&, Record&);
// --- completions.cpp
void cq(Session&, Record&);
void poll(Session&, Record&);
void drain(Session&, Record&);
void poll_ex(Session&, Record&);
void arm(Session&, Record&);
void events(Session&, Record&);
// --- queries.cpp
void query(Session&, Record&);
void names(Session&, Record&);

}  // namespace step
}  // namespace adverb::fuzz
