// SPDX-License-Identifier: Apache-2.0
// The words of the rule language, each kind in one table: parser, messages and explanations read
// the same ones.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "wire/opcode.hpp"

namespace adverb::faults {

// The verbs that a rule can make fail, named as the API does without its ibv_.  The extended posts
// (wr_complete) and polls (start_poll) are names of their own.
// clang-format off
#define ADVERB_FAULT_CALLS(X) \
  X(get_device_list) X(open_device) X(close_device) X(query_device) X(query_port) X(query_gid) \
  X(query_pkey) X(alloc_pd) X(dealloc_pd) X(reg_mr) X(rereg_mr) X(dereg_mr) \
  X(create_comp_channel) X(destroy_comp_channel) X(create_cq) X(resize_cq) X(modify_cq) \
  X(destroy_cq) X(poll_cq) X(start_poll) X(req_notify_cq) X(get_cq_event) X(get_async_event) \
  X(create_srq) X(modify_srq) X(query_srq) X(destroy_srq) X(post_srq_recv) X(create_qp) \
  X(modify_qp) X(query_qp) X(destroy_qp) X(post_send) X(wr_complete) X(post_recv) X(create_ah) \
  X(destroy_ah) X(alloc_td) X(dealloc_td) X(alloc_parent_domain) X(advise_mr) X(alloc_dm) \
  X(free_dm) X(reg_dm_mr) X(memcpy_to_dm) X(memcpy_from_dm) X(open_xrcd) X(close_xrcd) \
  X(open_qp) X(attach_mcast) X(detach_mcast) X(create_flow) X(destroy_flow) X(create_wq) \
  X(modify_wq) X(destroy_wq) X(post_wq_recv) X(create_rwq_ind_table) X(destroy_rwq_ind_table) \
  X(alloc_mw) X(dealloc_mw) X(bind_mw) X(alloc_null_mr) X(import_device) X(import_pd) \
  X(import_mr) X(import_dm) X(reg_dmabuf_mr)
// clang-format on

enum class Call : std::uint8_t {
#define ADVERB_FAULT_CALL(name) name,
  ADVERB_FAULT_CALLS(ADVERB_FAULT_CALL)
#undef ADVERB_FAULT_CALL
};
std::string_view name_of(Call);

// A name and what it stands for.
struct Word {
  std::string_view name;
  int value;
};
std::span<const Word> calls();   // Call
std::span<const Word> errnos();  // errno
std::span<const Word> events();  // ibv_event_type, without IBV_EVENT_
std::span<const Word> naks();    // AETH syndrome; rnr has timer code 0

// Every name is found whatever its case.
std::optional<int> find(std::span<const Word>, std::string_view name);
std::string_view name_of(std::span<const Word>, int value);  // "?" for none

// Opcodes as a set of BTH opcode bytes.
using OpcodeSet = std::bitset<256>;
struct OpcodeGroup {
  std::string_view name;
  std::string_view meaning;
  bool (*holds)(const wire::OpcodeInfo&);
};
std::span<const OpcodeGroup> opcode_groups();
// A group, or an operation by the specification's name (RDMA_ in front of it may stand or not), of
// every transport that has it.
std::optional<OpcodeSet> find_opcodes(std::string_view name);

// The word of `known` that `word` was probably meant to be; empty when none is near.
std::string_view nearest(std::string_view word, std::span<const std::string_view> known);

bool same_word(std::string_view, std::string_view);  // ASCII, whatever the case

}  // namespace adverb::faults
