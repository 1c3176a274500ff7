// SPDX-License-Identifier: Apache-2.0
// What one record does, by kind (verbs_calls_fuzz.cpp has the table), and what the files of the
// steps have in common.  A step does nothing when what it needs is not there.
#pragma once

#include "verbs_calls/choose.hpp"

namespace adverb::fuzz {

// --- objects.cpp
ibv_ah_attr address(Session&, Record&);
// --- raw.cpp
bool is_raw(const QpPlace&);
// --- queue_pairs.cpp: for ibv_create_qp_ex
std::uint64_t every_operation(ibv_qp_type);
// --- domains.cpp: a parent domain whose memory is counted
void own_allocators(PdPlace&, PdPlace& domain, TdPlace*, ibv_context*);
// a parent domain whose function has no memory to give, so that what needs some cannot be made
bool gives_no_memory(const PdPlace&);
// --- prelude.cpp
void prelude(Session&, Record&);
// --- states.cpp: as far as RTS, with a peer out of the record
void ready(Session&, QpPlace&, Record&);
// also that the queue pair has the CQs that it was made with
ibv_qp_attr current(QpPlace&);
// --- scaling.cpp: two work queues, and everything goes to one of them
void spread_frames(Session&);
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
void xrcd_of_file(Session&, Record&);
void ah(Session&, Record&);
// --- domains.cpp
void td(Session&, Record&);
void parent_domain(Session&, Record&);
// --- memory.cpp
void mr(Session&, Record&);
void rereg(Session&, Record&);
void dmabuf(Session&, Record&);
void null_region(Session&, Record&);
void device_memory(Session&, Record&);
void dm_region(Session&, Record&);
void advise(Session&, Record&);
// --- windows.cpp
void window(Session&, Record&);
// --- imports.cpp
void import(Session&, Record&);
void unimport(Session&, Record&);
void import_context(Session&, Record&);
// --- groups.cpp
void attach(Session&, Record&);
void detach(Session&, Record&);
void group_ah(Session&, Record&);
// --- raw.cpp
void raw_qp(Session&, Record&);
void frame(Session&, Record&);
void frame_receive(Session&, Record&);
// --- flows.cpp
void flow(Session&, Record&);
// --- scaling.cpp
void wq(Session&, Record&);
void modify_wq(Session&, Record&);
void wq_receive(Session&, Record&);
void table(Session&, Record&);
void scaling_qp(Session&, Record&);
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
void batch_rare(Session&, Record&);
// --- completion_queues.cpp
void cq(Session&, Record&);
void cq_of_all(Session&, Record&);
void resize(Session&, Record&);
void moderate(Session&, Record&);
// --- completions.cpp
void poll(Session&, Record&);
void drain(Session&, Record&);
void poll_ex(Session&, Record&);
void read_all(Session&, Record&);
void arm(Session&, Record&);
void events(Session&, Record&);
void hold_events(Session&, Record&);
void ack_events(Session&, Record&);
// --- queries.cpp
void query(Session&, Record&);
void names(Session&, Record&);
void query_constants(Session&, Record&);
void address_of_sender(Session&, Record&);
void unsupported(Session&, Record&);

}  // namespace step
}  // namespace adverb::fuzz
