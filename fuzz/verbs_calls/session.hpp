// SPDX-License-Identifier: Apache-2.0
// What one program of the verbs API holds: objects in a few places of each kind, and a book of work
// requests.  It knows which object is in use by which, hence what each destroy call must answer,
// and takes everything down at the end.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cerrno>
#include <vector>

#include "script.hpp"
#include "verbs_calls/places.hpp"

namespace adverb::fuzz {

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
ibv_device* device();

class Session {
 public:
  static constexpr std::size_t buffer_bytes = 16384, guard = 4096;

  // The second context is an import of the first, so that the two share their objects.
  explicit Session(bool two_contexts);

  // Where memory regions lie; the first and last `guard` bytes are in none.
  static std::vector<std::uint8_t>& buffer() {
    static std::vector<std::uint8_t> all(buffer_bytes);
    return all;
  }

  // --- destroy calls: each must answer what its users say
  void destroy(PdPlace&);
  void destroy(DmPlace&);
  void destroy(MrPlace&);
  void destroy(MwPlace&);
  void destroy(ChannelPlace&);
  void destroy(CqPlace&);
  void destroy(SrqPlace&);
  void destroy(XrcdPlace&);
  void destroy(QpPlace&);
  void destroy(AhPlace&);
  void destroy(TdPlace&);
  void destroy(FlowPlace&);
  void destroy(WqPlace&);
  void destroy(TablePlace&);
  void destroy(ScalingPlace&);
  // Destroy calls wait for these.
  void acknowledge(CqPlace&);
  void acknowledge_async();
  // Counts the queue pair among the users of what it was made with, or out.
  static void count(QpPlace&, unsigned by);
  // Everything goes, and nothing is left.
  void finish();

  // --- work requests: wr_id is the place in the book
  struct Work {
    unsigned serial;  // of the QP or WQ; 0: an SRQ's
    bool receive, signaled, xrc, done = false, gone = false;
  };
  std::uint64_t next_id() const { return book.size(); }
  void enter(unsigned serial, bool receive, bool signaled, bool xrc = false) {
    book.push_back({serial, receive, signaled, xrc});
  }
  void forget(unsigned serial);
  void completed(const ibv_wc&);
  // Polls at most `n` entries and no more than 8, and says how many there were.
  unsigned poll(CqPlace&, int n);

  std::array<ibv_context*, 2> contexts{};
  std::array<TdPlace, 2> tds{};
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
  std::array<FlowPlace, 3> flows{};
  std::array<WqPlace, 3> wqs{};
  std::array<TablePlace, 2> tables{};
  std::array<ScalingPlace, 2> scaling{};
  std::vector<Membership> memberships;
  std::vector<ibv_async_event> unacked;
  std::vector<Work> book;
  unsigned serials = 0;

 private:
  // To the error state: whatever is in the queues completes now.
  void flush(QpPlace&);
  void flush(WqPlace&);
  void finish_scaling();
  // Of the QP or WQ of that number; 0: there is none.
  unsigned serial_of(std::uint32_t number) const;
  int lowest_fd_;
};

}  // namespace adverb::fuzz
