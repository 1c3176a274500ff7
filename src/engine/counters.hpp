// SPDX-License-Identifier: Apache-2.0
// What happened, as plain integers: one writer (whoever holds the engine), any reader.  Names
// follow `rdma statistic` where the kernel has one.  The list is the only place that knows them:
// printing and exporting fold over it.
#pragma once

#include <cstdint>
#include <string_view>

namespace adverb::engine {

// clang-format off
#define ADVERB_COUNTERS(X) \
  X(sent_pkts) \
  X(rcvd_pkts) \
  X(sent_bytes) \
  X(rcvd_bytes) \
  X(sent_without_credit)        /* UC and UD packets to a receiver on this host that is stopped */ \
  X(retransmitted_pkts)         /* packets sent again, whatever the reason */ \
  X(local_ack_timeout_err)      /* the ACK timer expired */ \
  X(implied_nak_seq_err)        /* a response was missing */ \
  X(packet_seq_err)             /* NAK of a PSN sequence error received */ \
  X(rnr_nak_retry_err)          /* RNR NAK received */ \
  X(retry_exceeded_err) \
  X(rnr_retry_exceeded_err) \
  X(out_of_sequence)            /* a request ahead of the expected PSN */ \
  X(duplicate_request)          /* a request behind the expected PSN */ \
  X(out_of_buffer)              /* no receive WQE: RNR NAK or drop; datagrams to an overrun CQ */ \
  X(sent_naks) \
  X(sent_rnr_naks) \
  X(sent_acks) \
  X(rcvd_acks) \
  X(stale_acks) \
  X(np_ecn_marked_roce_packets) \
  X(np_cnp_sent) \
  X(rp_cnp_handled) \
  X(resp_local_length_error) \
  X(resp_remote_access_errors) \
  X(req_remote_access_errors) \
  X(req_remote_invalid_request) \
  X(resp_cqe_error) \
  X(req_cqe_error) \
  X(resp_cqe_flush_error) \
  X(req_cqe_flush_error) \
  X(memory_faults) \
  X(cq_overruns) \
  X(drop_no_qp) \
  X(drop_target_busy) \
  X(drop_qp_state) \
  X(drop_transport) \
  X(drop_source) \
  X(drop_pkey) \
  X(drop_qkey) \
  X(drop_psn) \
  X(drop_sequence) \
  X(drop_length) \
  X(drop_unexpected) \
  X(drop_duplicate_resource) \
  X(drop_unseen_psn) \
  X(drop_response_buffer) \
  X(duplicated_read_responses) \
  X(sends) \
  X(writes) \
  X(reads) \
  X(atomics) \
  X(recvs) \
  X(rx_write_requests)          /* received by the responder, once a message */ \
  X(rx_read_requests) \
  X(rx_atomic_requests)
// clang-format on

struct Counters {
#define ADVERB_COUNTER(name) std::uint64_t name = 0;
  ADVERB_COUNTERS(ADVERB_COUNTER)
#undef ADVERB_COUNTER
};

// Calls f(name, value) for each counter.
template <class F>
void for_each_counter(const Counters& c, F&& f) {
#define ADVERB_COUNTER(name) f(std::string_view(#name), c.name);
  ADVERB_COUNTERS(ADVERB_COUNTER)
#undef ADVERB_COUNTER
}

}  // namespace adverb::engine
