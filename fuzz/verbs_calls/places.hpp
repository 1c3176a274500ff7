// SPDX-License-Identifier: Apache-2.0
// The places of a session's objects: each knows what its object was made from, and how many others
// were made from it.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace adverb::fuzz {

struct TdPlace {
  ibv_td* td = nullptr;
  unsigned users = 0;
};
struct PdPlace {
  ibv_pd* pd = nullptr;
  unsigned users = 0;
  PdPlace* domain = nullptr;  // of a parent domain: what it stands for
  bool imported = false;
  // Of a parent domain: what else it was made of.
  TdPlace* td = nullptr;
  std::uint8_t allocator = 0;  // what its functions do: 0 there are none
  unsigned allocations = 0;    // that they have not got back
};
struct DmPlace {
  ibv_dm* dm = nullptr;
  std::size_t length = 0;
  unsigned users = 0;
  DmPlace* twin_of = nullptr;  // imported: the one whose memory it is
  unsigned twins = 0;          // it must outlive them
};
struct MrPlace {
  ibv_mr* mr = nullptr;
  PdPlace* pd = nullptr;
  DmPlace* dm = nullptr;
  bool on_demand = false, null = false, imported = false;
  bool dmabuf = false;
  bool maybe_bound = false;  // a binding to it was posted: it may be in use
};
struct MwPlace {
  ibv_mw* mw = nullptr;
  PdPlace* pd = nullptr;
};
struct ChannelPlace {
  ibv_comp_channel* channel = nullptr;
  unsigned users = 0;
};
struct CqPlace {
  ibv_cq* cq = nullptr;
  ibv_cq_ex* ex = nullptr;
  ChannelPlace* channel = nullptr;
  PdPlace* domain = nullptr;
  unsigned users = 0;
  bool small = false;  // it may overrun
  bool wallclock = false;
  unsigned unacked = 0;  // events that were got
};
struct XrcdPlace {
  ibv_xrcd* xrcd = nullptr;
  bool of_file = false;  // of the one file: one domain, however often it is opened
  unsigned users = 0;
};
struct SrqPlace {
  ibv_srq* srq = nullptr;
  PdPlace* pd = nullptr;
  XrcdPlace* xrcd = nullptr;  // of an XRC SRQ, and where its messages complete
  CqPlace* cq = nullptr;
  unsigned users = 0;
};
struct QpPlace {
  ibv_qp* qp = nullptr;
  ibv_qp_ex* ex = nullptr;
  PdPlace* pd = nullptr;  // null, as the next: an XRC target
  CqPlace *send = nullptr, *receive = nullptr;
  SrqPlace* srq = nullptr;
  XrcdPlace* xrcd = nullptr;  // of an XRC target
  bool sig_all = false;
  unsigned serial = 0;
  unsigned flows = 0;  // rules that lead to it
};
struct AhPlace {
  ibv_ah* ah = nullptr;
  bool group = false;
  PdPlace* pd = nullptr;
};
struct FlowPlace {
  ibv_flow* flow = nullptr;
  QpPlace* qp = nullptr;
};
struct WqPlace {
  ibv_wq* wq = nullptr;
  PdPlace* pd = nullptr;
  CqPlace* cq = nullptr;
  unsigned users = 0;  // tables
  unsigned serial = 0;
};
struct TablePlace {
  ibv_rwq_ind_table* table = nullptr;
  std::vector<WqPlace*> wqs;  // each once
  unsigned users = 0;
};
// A queue pair that spreads what it gets over a table.
struct ScalingPlace {
  ibv_qp* qp = nullptr;
  PdPlace* pd = nullptr;
  TablePlace* table = nullptr;
  ibv_flow* flow = nullptr;
};
// A queue pair in a multicast group.
struct Membership {
  QpPlace* qp;
  ibv_gid group;
};

}  // namespace adverb::fuzz
