// SPDX-License-Identifier: Apache-2.0
// An XRC target that two processes share: two engines on one memory, and a peer whose requests come
// to the engine whose SRQ they name (annex A14).
#include <gtest/gtest.h>

#include <list>
#include <memory>
#include <set>

#include "engine/talk.hpp"

namespace adverb::engine::talk {
namespace {

// The memory of a domain, and one process's view of it.
struct Domain {
  struct Record {
    SharedTarget target;
    std::set<unsigned> holders;
    bool locked = false;
  };
  std::list<Record> records;
  std::uint32_t news = 0;
  bool stuck = false;  // somebody has a lock and does not go on

  void forget(unsigned process) {  // it was killed
    for (Record& r : records)
      if (r.holders.erase(process) && r.holders.empty()) r.target.qpn = 0, ++news;
  }
};

class Store final : public TargetStore {
 public:
  Store(Domain& domain, unsigned process) : d_(domain), process_(process) {}
  SharedTarget* find(Qpn qpn) override {
    for (auto& r : d_.records)
      if (r.target.qpn == qpn.raw()) return &r.target;
    return nullptr;
  }
  SharedTarget* create(Qpn qpn) override {
    auto& r = d_.records.emplace_back();
    r.holders.insert(process_);
    r.target.qpn = qpn.raw();
    return &r.target;
  }
  bool hold(SharedTarget& t) override { return t.qpn && record(t).holders.insert(process_).second; }
  bool release(SharedTarget& t) override {
    record(t).holders.erase(process_);
    if (!record(t).holders.empty()) return false;
    t.qpn = 0;
    ++d_.news;
    return true;
  }
  bool lock(SharedTarget& t) override {
    EXPECT_FALSE(record(t).locked);
    return !d_.stuck && (record(t).locked = true);
  }
  void unlock(SharedTarget& t) override { record(t).locked = false; }
  void tell_others(const SharedTarget&) override { ++d_.news; }
  std::uint32_t news() const override { return d_.news; }

 private:
  Domain::Record& record(SharedTarget& t) {
    for (auto& r : d_.records)
      if (&r.target == &t) return r;
    std::abort();
  }
  Domain& d_;
  unsigned process_;
};

Options process(unsigned slot, TargetStore& store, bool makes_target) {
  Options o{.type = QpType::xrc_recv};
  o.config.slot = slot;
  o.config.seed = slot;
  o.store = &store;
  if (!makes_target) o.state = QpState::reset;
  return o;
}

// `a` makes the target and connects it; `b` has an SRQ of the domain, and a handle if it asks.
struct Shared : ::testing::Test {
  Domain domain;
  Store store_a{domain, 1}, store_b{domain, 2};
  std::unique_ptr<Talk> a = std::make_unique<Talk>(process(1, store_a, true));
  std::unique_ptr<Talk> b = std::make_unique<Talk>(process(2, store_b, false));
  Qpn target = a->qp->qpn;

  // What `b` is told names the target of `a`.
  Said to_b(const Said& s) const { return s.to(target).srqn(b->srq->srqn); }
  QueuePair* open_in_b() {
    QueuePair* q = b->engine.open_target(Talk::xrcd, &store_b, target);
    if (q) q->user = &b->qp;
    return q;
  }
};

TEST_F(Shared, EachProcessTakesItsOwnMessages) {
  auto ra = a->post_recv(0, 100), rb = b->post_recv(0, 100);
  b->in(to_b(send_only(0, "to b").ack_req()));
  b->out(ack(0, 1));
  a->in(send_only(1, "to a").ack_req());
  a->out(ack(1, 2));
  b->in(to_b(write_only(2, b->at(512), "written")), to_b(read_request(3, b->at(512), 7)));
  b->out(read_response_only(3, 4, "written"));
  a->received(ra, 4);
  EXPECT_EQ(a->text(0, 4), "to a");
  std::optional<Cqe> c = b->poll(*b->recv_cq);
  ASSERT_TRUE(c);
  EXPECT_EQ(c->wr_id, rb);
  EXPECT_EQ(c->qp_num, target);
  EXPECT_EQ(b->text(0, 4) + b->text(512, 7), "to bwritten");
  a->silent(), b->silent();
}

TEST_F(Shared, C35_AnAtomicIsRepeatedWhereItWasExecuted) {
  b->set_word(64, 1);
  b->in(to_b(fetch_add(0, b->at(64), 5)));
  b->out(atomic_acknowledge(0, 1, 1));
  a->post_recv(0, 100);
  a->in(send_only(1, "x").ack_req());
  a->out(ack(1, 2));
  b->in(to_b(fetch_add(0, b->at(64), 5)));  // its answer was lost
  b->out(atomic_acknowledge(0, 1, 1));
  EXPECT_EQ(b->word(64), 6u);
  a->in(fetch_add(0, a->at(64), 5));  // nobody has asked that of `a`
  a->silent();
  EXPECT_EQ(a->word(64), 0u);
}

TEST_F(Shared, SequenceIsOneForAll) {
  b->post_recv(0, 100);
  b->in(to_b(send_only(1, "later").ack_req()));
  b->out(nak(0, NakCode::psn_sequence_error, 0));
  a->in(write_only(5, a->at(0), "much later"));  // the NAK is out, whoever sent it
  a->silent();
  a->in(write_only(0, a->at(0), "now").ack_req());
  a->out(ack(0, 1));
  b->in(to_b(send_only(1, "later").ack_req()));
  b->out(ack(1, 2));
}

TEST_F(Shared, AMessageStaysWithItsProcess) {
  a->post_recv(0, 4000), b->post_recv(0, 4000);
  b->in(to_b(send_first(0, pattern(1024))));
  a->in(send_last(1, "x").ack_req());  // names another SRQ
  a->out(nak(1, NakCode::invalid_request, 0));
  EXPECT_EQ(a->state(), QpState::error);
  std::optional<Cqe> c = b->poll(*b->recv_cq);
  ASSERT_TRUE(c);
  EXPECT_EQ(c->status, WcStatus::wr_flush_err) << "the open receive is flushed";
}

TEST_F(Shared, ErrorsAreToldToEveryHandle) {
  ASSERT_TRUE(open_in_b());
  a->in(write_only(0, {a->address(0), 0xdead00}, "x"));
  a->out(nak(0, NakCode::remote_access_error, 0));
  EXPECT_EQ(a->events(), (Words{"qp QP_ACCESS_ERR", "qp LAST_WQE"}));
  EXPECT_FALSE(b->engine.idle()) << "there is news";
  EXPECT_EQ(b->events(), (Words{"qp QP_ACCESS_ERR", "qp LAST_WQE"}));
  EXPECT_TRUE(b->engine.idle());
  EXPECT_EQ(b->engine.open_target(Talk::xrcd, &store_b, target)->state, QpState::error);
}

TEST_F(Shared, AnyHandleChangesTheState) {
  QueuePair* handle = open_in_b();
  ASSERT_TRUE(handle);
  EXPECT_EQ(handle->state, QpState::rts);
  b->modify(*handle, QpState::reset);
  a->in(write_only(0, a->at(0), "x").ack_req());
  a->silent();
  EXPECT_EQ(a->state(), QpState::reset);
  b->modify_to(*handle, QpState::rts);
  a->in(write_only(0, a->at(0), "y").ack_req());
  a->out(ack(0, 1));
  EXPECT_EQ(a->text(0, 1), "y");
}

// --- who lives how long

TEST_F(Shared, TheTargetOutlivesItsMaker) {
  ASSERT_TRUE(open_in_b());
  b->post_recv(0, 100);
  a->in(write_only(0, a->at(0), "x").ack_req());
  a->out(ack(0, 1));
  a.reset();  // killed
  domain.forget(1);
  b->in(to_b(send_only(1, "on").ack_req()));
  b->out(ack(1, 2));
  EXPECT_EQ(b->text(0, 2), "on");
}

TEST_F(Shared, WithoutAHandleItGoesWithItsMaker) {
  b->post_recv(0, 100);
  b->in(to_b(send_only(0, "x").ack_req()));
  b->out(ack(0, 1));
  a.reset();
  domain.forget(1);
  b->post_recv(0, 100);
  b->in(to_b(send_only(1, "on").ack_req()));
  b->silent();
  EXPECT_EQ(b->counters().drop_no_qp, 1u);
  EXPECT_EQ(open_in_b(), nullptr);
}

TEST_F(Shared, ItsMakerMayCloseItsHandle) {
  QueuePair* handle = open_in_b();
  ASSERT_TRUE(handle);
  a->engine.destroy_qp(a->qp);
  a->qp = a->create_qp();  // for Talk to look at
  a->post_recv(0, 100);
  a->in(send_only(0, "still").to(target).ack_req());  // the SRQ is there, and the target
  a->out(ack(0, 1));
  EXPECT_EQ(a->text(0, 5), "still");
  b->engine.destroy_qp(handle);
  a->in(send_only(1, "gone").to(target).ack_req());
  a->silent();
  EXPECT_EQ(a->engine.find(target), nullptr);
}

TEST_F(Shared, WhoIsKeptOutDropsThePacket) {
  b->post_recv(0, 100);
  domain.stuck = true;
  b->in(to_b(send_only(0, "x").ack_req()));
  b->silent();
  EXPECT_EQ(b->counters().drop_target_busy, 1u);
  domain.stuck = false;
  b->in(to_b(send_only(0, "x").ack_req()));
  b->out(ack(0, 1));
}

// Killed between writing a state and bringing it into force: the old one holds.
TEST_F(Shared, HalfAStateIsNone) {
  a->in(write_only(0, a->at(0), "x").ack_req());
  a->out(ack(0, 1));
  SharedTarget* t = store_a.find(target);
  ASSERT_TRUE(t);
  TargetState& draft = t->copies[(t->generation + 1) & 1];
  draft.progress.expected = Psn(77);
  draft.progress.msn = 99;
  a.reset();
  b->post_recv(0, 100);
  b->in(to_b(send_only(1, "on").ack_req()));
  b->out(ack(1, 2));
}

}  // namespace
}  // namespace adverb::engine::talk
