// SPDX-License-Identifier: Apache-2.0
// What one program of the verbs API holds: objects in a few places of each kind, and a book of work
// requests.  It knows which object is in use by which, hence what each destroy call must answer,
// and takes everything down at the end.
#pragma once

#include <fcntl.h>
#include <infiniband/verbs.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "script.hpp"

namespace adverb::fuzz {

// Before there are threads: a network namespace where port 4791 is ours, if this may be.  The
// adverbd of the same build serves it.
inline bool enter_namespace() {
  const auto here = std::filesystem::canonical("/proc/self/exe").parent_path();
  setenv("ADVERB_DAEMON", (here / "adverbd").c_str(), 0);
  setenv("ADVERB_LOG", "error", 0);
  setenv("ADVERB_DEVICE", "lo", 1);
  if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return false;
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq r{};
  std::strcpy(r.ifr_name, "lo");
  r.ifr_flags = IFF_UP;
  const bool up = ioctl(fd, SIOCSIFFLAGS, &r) == 0;
  close(fd);
  return up;
}
inline const bool in_namespace = enter_namespace();

// A call that returns an errno.
inline int checked(int error) {
  REQUIRE(error >= 0 && error < 4096);
  return error;
}
// A call that returns an object, or null and errno.
template <class F>
auto made(F&& f) {
  errno = 0;
  auto* p = f();
  REQUIRE(p || (errno > 0 && errno < 4096));
  return p;
}

// The device stays open for the life of the process: opening it anew for each input is another
// matter (and slow).
inline ibv_device* device() {
  static ibv_device* const it = [] {
    ibv_device** list = ibv_get_device_list(nullptr);
    REQUIRE(list && list[0]);
    ibv_device* first = list[0];
    ibv_free_device_list(list);
    static ibv_context* const keeper = ibv_open_device(first);
    REQUIRE(keeper);
    return first;
  }();
  return it;
}

struct PdPlace {
  ibv_pd* pd = nullptr;
  unsigned users = 0;
  PdPlace* domain = nullptr;  // of a parent domain: what it stands for
  bool imported = false;
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
};
struct XrcdPlace {
  ibv_xrcd* xrcd = nullptr;
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
};
struct AhPlace {
  ibv_ah* ah = nullptr;
  PdPlace* pd = nullptr;
};

class Session {
 public:
  static constexpr std::size_t buffer_bytes = 16384, guard = 4096;

  explicit Session(bool two_contexts) {
    lowest_fd_ = lowest_fd();
    for (unsigned i = 0; i < (two_contexts ? 2u : 1u); ++i)
      REQUIRE((contexts[i] = i ? second() : ibv_open_device(device())));
    std::memset(buffer().data(), 0x5a, buffer().size());
  }

  // Shares its objects with the first.
  ibv_context* second() { return ibv_import_device(dup(contexts[0]->cmd_fd)); }

  // Where memory regions lie; the first and last `guard` bytes are in none.
  static std::vector<std::uint8_t>& buffer() {
    static std::vector<std::uint8_t> all(buffer_bytes);
    return all;
  }

  // --- destroy calls: each must answer what its users say
  void destroy(PdPlace& p) {
    const int expected = p.users ? EBUSY : 0;
    REQUIRE(ibv_dealloc_pd(p.pd) == expected);
    if (expected) return;
    if (p.domain) --p.domain->users;
    p = {};
  }
  void destroy(DmPlace& p) {
    if (p.twins) return;
    const int expected = p.users ? EBUSY : 0;
    REQUIRE(ibv_free_dm(p.dm) == expected);
    if (expected) return;
    if (p.twin_of) --p.twin_of->twins;
    p = {};
  }
  void destroy(MrPlace& p) {
    const int error = ibv_dereg_mr(p.mr);
    REQUIRE(error == 0 || (error == EBUSY && p.maybe_bound));
    if (error) return;
    --p.pd->users;
    if (p.dm) --p.dm->users;
    p = {};
  }
  void destroy(MwPlace& p) {
    REQUIRE(ibv_dealloc_mw(p.mw) == 0);
    --p.pd->users;
    p = {};
  }
  void destroy(ChannelPlace& p) {
    const int expected = p.users ? EBUSY : 0;
    REQUIRE(ibv_destroy_comp_channel(p.channel) == expected);
    if (!expected) p = {};
  }
  void destroy(CqPlace& p) {
    const int expected = p.users ? EBUSY : 0;
    REQUIRE(ibv_destroy_cq(p.cq) == expected);
    if (expected) return;
    if (p.channel) --p.channel->users;
    if (p.domain) --p.domain->users;
    p = {};
  }
  void destroy(SrqPlace& p) {
    const int expected = p.users ? EBUSY : 0;
    REQUIRE(ibv_destroy_srq(p.srq) == expected);
    if (expected) return;
    --p.pd->users;
    if (p.xrcd) --p.xrcd->users, --p.cq->users;
    p = {};
  }
  void destroy(XrcdPlace& p) {
    const int expected = p.users ? EBUSY : 0;
    REQUIRE(ibv_close_xrcd(p.xrcd) == expected);
    if (!expected) p = {};
  }
  void destroy(QpPlace& p) {
    REQUIRE(ibv_destroy_qp(p.qp) == 0);
    forget(p.serial);
    count(p, ~0u);
    p = {};
  }
  // Counts the queue pair among the users of what it was made with, or out.
  static void count(QpPlace& p, unsigned by) {
    if (p.pd) p.pd->users += by;
    if (p.send) p.send->users += by;
    if (p.receive) p.receive->users += by;
    if (p.srq) p.srq->users += by;
    if (p.xrcd) p.xrcd->users += by;
  }
  void destroy(AhPlace& p) {
    REQUIRE(ibv_destroy_ah(p.ah) == 0);
    --p.pd->users;
    p = {};
  }
  void finish() {
    for (QpPlace& q : qps) flush(q);
    for (QpPlace& q : qps)
      if (q.qp) destroy(q);
    for (AhPlace& a : ahs)
      if (a.ah) destroy(a);
    for (SrqPlace& s : srqs)
      if (s.srq) destroy(s);
    for (XrcdPlace& x : xrcds)
      if (x.xrcd) destroy(x), REQUIRE(!x.xrcd);
    for (CqPlace& c : cqs)
      if (c.cq) destroy(c);
    for (ChannelPlace& c : channels)
      if (c.channel) destroy(c);
    for (MwPlace& w : mws)
      if (w.mw) destroy(w);
    for (MrPlace& m : mrs)
      if (m.mr) destroy(m), REQUIRE(!m.mr);
    for (std::size_t i = 0; i < dms.size(); ++i)
      for (DmPlace& d : dms)
        if (d.dm) destroy(d);
    for (DmPlace& d : dms) REQUIRE(!d.dm);
    // A parent domain goes before what it stands for.
    for (std::size_t i = 0; i < pds.size(); ++i)
      for (PdPlace& p : pds)
        if (p.pd) destroy(p);
    for (PdPlace& p : pds) REQUIRE(!p.pd);
    for (ibv_context*& c : contexts)
      if (c) REQUIRE(ibv_close_device(c) == 0);
    REQUIRE(lowest_fd() == lowest_fd_);
    const auto& b = buffer();
    for (std::size_t i = 0; i < guard; ++i) REQUIRE(b[i] == 0x5a && b[b.size() - 1 - i] == 0x5a);
  }

  // --- work requests: wr_id is the place in the book
  struct Work {
    unsigned serial;  // of the QP; 0: an SRQ's
    bool receive, signaled, xrc, done = false, gone = false;
  };
  std::uint64_t next_id() const { return book.size(); }
  void enter(unsigned serial, bool receive, bool signaled, bool xrc = false) {
    book.push_back({serial, receive, signaled, xrc});
  }
  void forget(unsigned serial) {
    for (Work& w : book)
      if (w.serial == serial) w.gone = true;
  }
  void completed(const ibv_wc& c) {
    REQUIRE(c.wr_id < book.size());
    Work& w = book[c.wr_id];
    REQUIRE(!w.done && !w.gone);
    if (c.status == IBV_WC_SUCCESS) {
      REQUIRE(w.receive == ((c.opcode & IBV_WC_RECV) != 0));
      REQUIRE(w.signaled);
    }
    REQUIRE(c.status <= IBV_WC_GENERAL_ERR);
    const QpPlace* q = nullptr;
    for (const QpPlace& each : qps)
      if (each.qp && each.qp->qp_num == c.qp_num) q = &each;
    // What came by XRC stays when its queue pair goes.
    REQUIRE(w.xrc || (q && (w.serial == 0 || w.serial == q->serial)));
    w.done = true;
  }
  unsigned poll(CqPlace& p, int n) {
    ibv_wc wc[8];
    const int got = ibv_poll_cq(p.cq, std::min(n, 8), wc);
    REQUIRE(got >= 0 && got <= 8);
    for (int i = 0; i < got; ++i) completed(wc[i]);
    return static_cast<unsigned>(got);
  }
  // To the error state: whatever is in the queues completes now.
  void flush(QpPlace& q) {
    if (!q.qp) return;
    ibv_qp_attr a{};
    a.qp_state = IBV_QPS_ERR;
    const bool error = ibv_modify_qp(q.qp, &a, IBV_QP_STATE) == 0;
    for (CqPlace* c : {q.send, q.receive})
      while (c && poll(*c, 8)) {
      }
    if (!error || (q.send && q.send->small) || (q.receive && q.receive->small)) return;
    for (const Work& w : book) REQUIRE(w.serial != q.serial || w.gone || w.done || !w.signaled);
  }

  std::array<ibv_context*, 2> contexts{};
  std::array<PdPlace, 3> pds{};
  std::array<DmPlace, 2> dms{};
  std::array<MrPlace, 4> mrs{};
  std::array<MwPlace, 3> mws{};
  std::array<ChannelPlace, 2> channels{};
  std::array<CqPlace, 3> cqs{};
  std::array<SrqPlace, 2> srqs{};
  std::array<XrcdPlace, 2> xrcds{};
  std::array<QpPlace, 4> qps{};
  std::array<AhPlace, 2> ahs{};
  std::vector<Work> book;
  unsigned serials = 0;

 private:
  static int lowest_fd() {
    const int fd = dup(STDERR_FILENO);
    close(fd);
    return fd;
  }
  int lowest_fd_;
};

}  // namespace adverb::fuzz
