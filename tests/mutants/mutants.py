# SPDX-License-Identifier: Apache-2.0
"""Bugs that the simulator must find: name, file of src/engine, and what is replaced by what.
Each text must stand exactly once in its file; where the engine has moved on, so must the table."""

MUTANTS = [
    ("atomics are done again on replay", "responder.cpp",
     "    if (verb != Verb::read) return replay(i, 0, 1);",
     "    if (verb == Verb::atomic) {\n"
     "      auto g = e_.keys_.resolve(p.atomic.rkey, q_.pd, p.atomic.va, 8,\n"
     "                                access_remote_atomic);\n"
     "      std::uint64_t old = 0;\n"
     "      if (g && p.info().operation == Operation::fetch_add)\n"
     "        (void)guarded_fetch_add(reinterpret_cast<std::uint64_t*>(g->data),\n"
     "                                p.atomic.swap_add, &old);\n"
     "    }\n"
     "    if (verb != Verb::read) return replay(i, 0, 1);"),
    ("PSNs are compared as integers", "responder.cpp",
     "  std::int32_t ahead = p.bth.psn - q_.resp.expected;",
     "  auto ahead = static_cast<std::int32_t>(p.bth.psn.raw()) -\n"
     "               static_cast<std::int32_t>(q_.resp.expected.raw());"),
    ("an ACK of an unseen PSN is taken", "completer.cpp",
     "  if (p.bth.psn - q_.req.highest >= 0) {  // never sent",
     "  if (false) {  // never sent"),
    ("a duplicate WRITE is done again", "responder.cpp",
     "  if (verb == Verb::send || verb == Verb::write) {\n    q_.resp.ack_owed = true;",
     "  if (verb == Verb::write && p.info().has(wire::ext_reth)) {\n"
     "    auto g = e_.keys_.resolve(p.reth.rkey, q_.pd, p.reth.va, p.payload.size(),\n"
     "                              access_remote_write);\n"
     "    if (g) (void)g->copy_in(0, p.payload.data(), p.payload.size());\n"
     "  }\n"
     "  if (verb == Verb::send || verb == Verb::write) {\n    q_.resp.ack_owed = true;"),
    ("the RNR timer is ignored", "completer.cpp",
     "  q_.req.waiting_rnr = true;", "  q_.req.waiting_rnr = false;"),
    ("retry_cnt is never counted down", "completer.cpp",
     "  --q_.comp.retries_left;\n  q_.comp.rewound = true;", "  q_.comp.rewound = true;"),
    ("rnr_retry is never counted down", "completer.cpp",
     "    --q_.comp.rnr_retries_left;", "    (void)q_;"),
    ("the retry budget is not renewed by progress", "completer.cpp",
     "  q_.comp.retries_left = q_.attr.retry_cnt;\n  q_.comp.rnr_retries_left",
     "  q_.comp.rnr_retries_left"),
    ("fences are ignored", "requester.cpp",
     "  if ((wqe.flags & send_fence) && q_.req.reads_outstanding) return Gate::wait_event;",
     "  (void)wqe;"),
    ("max_rd_atomic is ignored", "requester.cpp",
     "      q_.req.reads_outstanding >= q_.attr.max_rd_atomic && q_.attr.max_rd_atomic)",
     "      q_.req.reads_outstanding >= q_.attr.max_rd_atomic + 1u && q_.attr.max_rd_atomic)"),
    ("a duplicate SEND takes a receive WQE", "responder.cpp",
     "  if (verb == Verb::send || verb == Verb::write) {\n    q_.resp.ack_owed = true;",
     "  if (verb == Verb::send && !q_.resp.recv_open) (void)open_receive();\n"
     "  if (verb == Verb::send || verb == Verb::write) {\n    q_.resp.ack_owed = true;"),
    ("one WQE is not flushed", "lifecycle.cpp",
     "  for (std::uint32_t posted = q.sq->posted();",
     "  if (q.sq->posted() - q.comp.acked > 1) ++q.comp.acked;\n"
     "  for (std::uint32_t posted = q.sq->posted();"),
    ("receive WQEs are not flushed", "lifecycle.cpp",
     "  while (q.own_rq->take(q.resp.recv)) flush_one();",
     "  if (q.own_rq->take(q.resp.recv)) flush_one();"),
    ("the protection domain of an rkey is not checked", "memory.cpp",
     "  if (region->pd != pd) return std::unexpected(KeyError::bad_pd);",
     "  (void)pd;"),
    ("access rights are not checked", "memory.cpp",
     "  if ((region->access & access) != access) return std::unexpected(KeyError::bad_access);",
     "  (void)access;"),
    ("the end of a region is off by one", "memory.cpp",
     "length > region->length - offset ||", "length > region->length - offset + 8 ||"),
    ("a WRITE completes before it is acknowledged", "completer.cpp",
     "  Covered covered = advance(now, kind == wire::AethKind::ack ? p.bth.psn + 1 : p.bth.psn);",
     "  Covered covered = advance(now, kind == wire::AethKind::ack ? q_.req.psn : p.bth.psn);"),
    ("the last byte of a SEND is not placed", "responder.cpp",
     "r.received, p.payload.data(),\n                  p.payload.size())) {",
     "r.received, p.payload.data(),\n"
     "                  p.payload.size() - (info.ends() && !p.payload.empty()))) {"),
    ("an implied NAK is lost", "completer.cpp",
     "  ++e_.counters_.implied_nak_seq_err;\n  retry(now, WcStatus::retry_exc_err);",
     "  ++e_.counters_.implied_nak_seq_err;\n  (void)now;"),
    ("a sequence NAK is lost", "completer.cpp",
     "      if (!q_.comp.rewound) retry(now, WcStatus::retry_exc_err);", "      (void)now;"),
    ("the window leaks", "requester.cpp",
     "  q_.req.in_flight -= cost;\n  d.in_flight -= cost;",
     "  q_.req.in_flight -= cost;\n  d.in_flight -= cost / 2;"),
    ("the READ budget leaks", "requester.cpp",
     "  e_.read_bytes_ -= std::exchange(q_.req.read_bytes, 0);",
     "  q_.req.read_bytes = 0;"),
    ("a READ that is asked for again starts from its beginning", "requester.cpp",
     "  p.reth = {wqe.remote_addr + std::uint64_t{from} * q_.mtu, wqe.rkey,",
     "  p.reth = {wqe.remote_addr +\n"
     "                (q_.req.psn == q_.req.highest ? std::uint64_t{from} * q_.mtu : 0),\n"
     "            wqe.rkey,"),
    ("an invalidated key still works", "memory.cpp",
     "  region->key = 0;\n  return true;", "  return true;"),
    ("the first packet of a retransmission is left out", "requester.cpp",
     "  seek(q_.comp.una);\n}\n\nvoid Requester::release_all() {",
     "  seek(q_.req.psn - q_.comp.una > 1 ? q_.comp.una + 1 : q_.comp.una);\n}\n\n"
     "void Requester::release_all() {"),
]
