// SPDX-License-Identifier: Apache-2.0
// The responder of a reliable queue pair, in conversations: what a request does, what it is
// answered with, and what the application hears of it.
#include <gtest/gtest.h>

#include "engine/talk.hpp"

namespace adverb::engine::talk {
namespace {

// --- SEND

//= IBTA 9.7.4.1, 9.7.5.1: a SEND fills one receive WQE and is acknowledged with the new MSN
TEST(Responder, SendOnly) {
  Talk t;
  auto r = t.post_recv(100, 50);
  t.in(send_only(0, "hello").ack_req());
  t.out(ack(0, 1));
  t.silent();
  t.received(r, 5);
  EXPECT_EQ(t.text(100, 5), "hello");
}

TEST(Responder, SendOfSeveralPacketsAtEveryPathMtu) {
  for (Mtu m : {Mtu::mtu_256, Mtu::mtu_512, Mtu::mtu_1024, Mtu::mtu_2048, Mtu::mtu_4096}) {
    Talk t({.mtu = m});
    std::uint32_t mtu = bytes_of(m);
    std::string data = pattern(2 * mtu + 3);
    auto r = t.post_recv(0, 3 * mtu);
    t.in(send_first(0, data.substr(0, mtu)), send_middle(1, data.substr(mtu, mtu)));
    t.silent();
    t.no_completion();
    t.in(send_last(2, data.substr(2 * mtu)).ack_req());
    t.out(ack(2, 1));
    t.received(r, 2 * mtu + 3);
    EXPECT_EQ(t.text(0, data.size()), data);
  }
}

TEST(Responder, SendWithImmediate) {
  Talk t;
  auto a = t.post_recv(0, 50), b = t.post_recv(100, 2000);
  t.in(send_only_imm(0, "x").imm(0x01020304).ack_req());
  t.in(send_first(1, pattern(1024)), send_last_imm(2, "y").imm(9).ack_req());
  t.out(ack(2, 2));
  t.received(a, 1, WcOpcode::recv, wc_with_imm, 0x01020304);
  t.received(b, 1025, WcOpcode::recv, wc_with_imm, 9);
}

// C53
//= IBTA 9.9.6.3 / 9.4.1: SEND with invalidate: the key has stopped working when the receiver
// hears of it
TEST(Responder, C53_SendWithInvalidate) {
  Talk t;
  MemoryRegion* window = t.add_region(4096, 100, 0xf);
  window->invalidatable = true;
  Remote key{t.address(4096), window->key};
  auto r = t.post_recv(0, 50), q = t.post_recv(0, 50);
  t.in(write_only(0, key, "ok"));
  t.in(send_only_invalidate(1, "x").inv(key.rkey).ack_req());
  t.out(ack(1, 2).credits(1));
  t.received(r, 1, WcOpcode::recv, wc_with_inv, key.rkey);
  t.in(write_only(2, key, "no").ack_req());
  t.out(nak(2, NakCode::remote_access_error, 2));
  EXPECT_EQ(t.text(4096, 2), "ok");
  t.receive_failed(q, WcStatus::wr_flush_err);
}

TEST(Responder, C53_InvalidateOfAKeyThatMayNotBe) {
  for (int bad = 0; bad < 2; ++bad) {
    Talk t;
    auto r = t.post_recv(0, 2000);
    std::uint32_t key = bad ? 0xdead00 : t.mr->key;
    t.in(send_first(0, pattern(1024)), send_last_invalidate(1, "x").inv(key).ack_req());
    t.silent();
    t.receive_failed(r, WcStatus::loc_access_err);
    EXPECT_EQ(t.state(), QpState::error);
    EXPECT_EQ(t.events(), Words{"qp QP_ACCESS_ERR"});
    EXPECT_NE(t.engine.keys().find(t.mr->key), nullptr);
  }
}

// C03
TEST(Responder, C03_EmptySendConsumesAReceive) {
  Talk t;
  auto r = t.post_recv(100, 50);
  auto none = t.post_recv(std::vector<Sge>{});
  t.in(send_only(0).ack_req(), send_only(1).ack_req());
  t.out(ack(1, 2));
  t.received(r, 0);
  t.received(none, 0);
}

// C08
TEST(Responder, C08_ScattersOverThirtyTwoElements) {
  Talk t({.mtu = Mtu::mtu_256});
  std::vector<Sge> list;
  std::uint64_t at = 0;
  for (unsigned i = 0; i < 32; ++i) {
    constexpr std::uint32_t sizes[] = {1, 0, 1023, 0, 3, 700, 13, 511};
    std::uint32_t n = sizes[i % 8];
    list.push_back({t.address(at), n, n ? t.mr->key : 0xdead});
    at += n + 5;
  }
  auto r = t.post_recv(list);
  std::string data = pattern(7 * 256 + 77);
  t.in(send_first(0, data.substr(0, 256)));
  for (unsigned i = 1; i < 7; ++i) t.in(send_middle(i, data.substr(i * 256, 256)));
  t.in(send_last(7, data.substr(7 * 256)).ack_req());
  t.out(ack(7, 1));
  t.received(r, static_cast<std::uint32_t>(data.size()));
  std::string got;
  for (const Sge& s : list) got += t.text(s.addr - t.address(0), s.length);
  EXPECT_EQ(got.substr(0, data.size()), data);
  EXPECT_EQ(got.substr(data.size()), std::string(got.size() - data.size(), 0));
}

// C15
//= IBTA 9.9.3: a message longer than its receive WQE is an invalid request, and a local length
// error
TEST(Responder, C15_ReceiveOneByteShort) {
  for (std::size_t n : {10u, 1500u}) {
    Talk t;
    auto r = t.post_recv(0, static_cast<std::uint32_t>(n - 1));
    std::string data = pattern(n);
    if (n > 1024)
      t.in(send_first(0, data.substr(0, 1024)), send_last(1, data.substr(1024)));
    else
      t.in(send_only(0, data));
    t.out(nak(n > 1024 ? 1 : 0, NakCode::invalid_request, 0));
    t.receive_failed(r, WcStatus::loc_len_err);
    EXPECT_EQ(t.state(), QpState::error);
    EXPECT_EQ(t.events(), Words{"qp QP_REQ_ERR"});
    EXPECT_EQ(t.counters().resp_local_length_error, 1u);
  }
}

//= IBTA 9.9.3: a fault of the responder's own receive list is a remote operational error
TEST(Responder, BadReceiveListIsAnOperationalError) {
  Talk t;
  auto r = t.post_recv({{t.address(0), 10, 0xdead00}});
  t.in(send_only(0, "abc").ack_req());
  t.out(nak(0, NakCode::remote_operational_error, 0));
  t.receive_failed(r, WcStatus::loc_prot_err);
  EXPECT_EQ(t.events(), Words{"qp QP_FATAL"});
}

// Programs round their receive buffers up beyond the region: only where the message goes counts.
TEST(Responder, ReceiveElementMayReachBeyondItsRegion) {
  Talk t;
  MemoryRegion* region = t.add_region(0, 1500, 0xf);
  const std::vector<Sge> list{{t.address(0), 4000, region->key}};
  const auto fits = t.post_recv(list), too_long = t.post_recv(list);
  const std::string data = pattern(1500);
  t.in(send_first(0, data.substr(0, 1024)), send_last(1, data.substr(1024)).ack_req());
  t.out(ack(1, 1).credits(1));
  t.received(fits, 1500);
  EXPECT_EQ(t.text(0, 1500), data);
  t.in(send_first(2, data.substr(0, 1024)), send_last(3, data.substr(0, 477)).ack_req());
  t.out(nak(3, NakCode::remote_operational_error, 1));
  t.receive_failed(too_long, WcStatus::loc_prot_err);
  EXPECT_EQ(t.text(0, 1500), data);
}

// C49
TEST(Responder, C49_ReceiveListOfAnotherDomain) {
  Talk t;
  MemoryRegion* other = t.add_region(0, 100, 0xf, Talk::other_pd);
  auto r = t.post_recv({{t.address(0), 10, other->key}});
  t.in(send_only(0, "abc"));
  t.out(nak(0, NakCode::remote_operational_error, 0));
  t.receive_failed(r, WcStatus::loc_prot_err);
}

// --- WRITE

TEST(Responder, WriteOnly) {
  Talk t;
  t.in(write_only(0, t.at(10), "abc").ack_req());
  t.out(ack(0, 1));
  t.silent();
  t.no_completion();
  EXPECT_EQ(t.text(10, 3), "abc");
}

TEST(Responder, WriteOfSeveralPackets) {
  for (Mtu m : {Mtu::mtu_256, Mtu::mtu_4096}) {
    Talk t({.mtu = m});
    std::uint32_t mtu = bytes_of(m);
    std::string data = pattern(3 * mtu);
    t.in(write_first(0, t.at(7), data.substr(0, mtu)).length(3 * mtu));
    t.in(write_middle(1, data.substr(mtu, mtu)), write_last(2, data.substr(2 * mtu)).ack_req());
    t.out(ack(2, 1));
    EXPECT_EQ(t.text(7, 3 * mtu), data);
  }
}

// C04
//= IBTA 9.4.3 / 9.7.4.1.5: RDMA WRITE with immediate data consumes a receive WQE, also when empty
TEST(Responder, C04_WriteWithImmediate) {
  Talk t;
  auto a = t.post_recv(0, 0), b = t.post_recv(0, 0), c = t.post_recv(0, 0);
  t.in(write_only_imm(0, {0, 0}).imm(1).ack_req());  // the key of an empty WRITE is not looked at
  t.out(ack(0, 1).credits(2));
  t.received(a, 0, WcOpcode::recv_rdma_with_imm, wc_with_imm, 1);
  t.in(write_only_imm(1, t.at(5), "abc").imm(2));
  t.received(b, 3, WcOpcode::recv_rdma_with_imm, wc_with_imm, 2);
  t.in(write_first(2, t.at(0), pattern(1024)).length(1030),
       write_last_imm(3, "123456").imm(3).ack_req());
  t.out(ack(3, 3));
  t.received(c, 1030, WcOpcode::recv_rdma_with_imm, wc_with_imm, 3);
  EXPECT_EQ(t.text(1024, 6), "123456");
}

//= IBTA 9.7.4.1.5: the whole range is checked at the first packet
TEST(Responder, WriteBeyondItsRegionTouchesNothing) {
  Talk t;
  MemoryRegion* small = t.add_region(0, 1500, 0xf);
  t.in(write_first(0, {t.address(0), small->key}, pattern(1024)).length(1501));
  t.out(nak(0, NakCode::remote_access_error, 0));
  EXPECT_EQ(t.text(0, 1500), std::string(1500, 0));
}

//= IBTA 11.6.2: a WRITE with immediate data that may not write ends its receive WQE with a local
// access error
TEST(Responder, WriteWithImmediateThatMayNotWrite) {
  Talk t;
  auto r = t.post_recv(0, 10);
  auto next = t.post_recv(0, 10);
  t.in(write_only_imm(0, {t.address(64), t.mr->key ^ 1}, "abc").imm(2).ack_req());
  t.out(nak(0, NakCode::remote_access_error, 0));
  EXPECT_EQ(t.events(), Words{"qp QP_ACCESS_ERR"});
  t.receive_failed(r, WcStatus::loc_access_err);
  t.receive_failed(next, WcStatus::wr_flush_err);

  Talk none;  // nothing to end
  none.in(write_only_imm(0, {none.address(64), none.mr->key ^ 1}, "abc").imm(2).ack_req());
  none.out(nak(0, NakCode::remote_access_error, 0));
  none.no_completion();
}

// C20, C47, C49
//= IBTA 10.6.3, 9.9.3: no right, no key, another domain, out of range: NAK remote access error at
// once
TEST(Responder, C20_C47_C49_AccessIsRefusedAtOnce) {
  struct Row {
    std::uint32_t access;
    PdId pd;
    std::uint64_t offset;
    bool bad_key;
  };
  constexpr std::uint32_t all = 0xf;
  for (Row row : {Row{access_local_write | access_remote_read, Talk::pd, 0, false},
                  {access_local_write | access_remote_atomic, Talk::pd, 0, false},
                  {all, Talk::other_pd, 0, false},
                  {all, Talk::pd, 98, false},
                  {all, Talk::pd, 0, true}}) {
    Talk t;
    MemoryRegion* mr = t.add_region(64, 100, row.access, row.pd);
    std::uint32_t key = row.bad_key ? mr->key ^ 1 : mr->key;
    auto r = t.post_recv(0, 10);
    t.in(write_only(0, {t.address(64 + row.offset), key}, "abc").ack_req());
    t.out(nak(0, NakCode::remote_access_error, 0));
    EXPECT_EQ(t.state(), QpState::error);
    EXPECT_EQ(t.events(), Words{"qp QP_ACCESS_ERR"});
    EXPECT_EQ(t.text(64, 103), std::string(103, 0));
    EXPECT_EQ(t.counters().resp_remote_access_errors, 1u);
    t.receive_failed(r, WcStatus::wr_flush_err);
  }
}

TEST(Responder, C47_ReadAndAtomicRightsAreChecked) {
  for (int i = 0; i < 4; ++i) {
    Talk t;
    MemoryRegion* mr = t.add_region(64, 100, access_local_write | access_remote_write);
    Remote r{t.address(64), mr->key};
    t.in(i == 0   ? read_request(0, r, 4)
         : i == 1 ? fetch_add(0, r, 1)
         : i == 2 ? compare_swap(0, r, 0, 1)
                  : flush(0, r, 8, 2));
    t.out(nak(0, NakCode::remote_access_error, 0));
    EXPECT_EQ(t.word(64), 0u);
  }
}

//= IBTA 9.7.4.1.4: an operation that the QP does not allow is an invalid request
TEST(Responder, OperationsThatTheQpDoesNotAllow) {
  for (int i = 0; i < 4; ++i) {
    Talk t({.access = 0});
    t.in(i == 0   ? read_request(0, t.at(0), 4)
         : i == 1 ? fetch_add(0, t.at(0), 1)
         : i == 2 ? write_only(0, t.at(0), "abc")
                  : atomic_write(0, t.at(0), "12345678"));
    t.out(nak(0, NakCode::invalid_request, 0));
    EXPECT_EQ(t.events(), Words{"qp QP_REQ_ERR"});
  }
}

// C60
//= IBTA 9.7.4.1.6, 9.7.1.1: lengths of FIRST, MIDDLE, LAST and ONLY; RETH length against what comes
TEST(Responder, C60_WrongLengthsAreInvalidRequests) {
  std::string full = pattern(1024), half = pattern(512);
  using Packets = std::vector<Said>;
  Talk model;
  Remote r = model.at(0);
  auto cases = [&](Remote at) {
    return std::vector<Packets>{
        {send_first(0, half)},
        {send_first(0, full), send_middle(1, half)},
        {send_first(0, full), send_last(1, "")},
        {send_first(0, full), send_last(1, full + "abcd")},
        {send_only(0, full + "abcd")},
        {write_first(0, at, half).length(2000)},
        {write_first(0, at, full).length(1024)},
        {write_first(0, at, full).length(3000), write_middle(1, half)},
        {write_first(0, at, full).length(2000), write_middle(1, full)},
        {write_first(0, at, full).length(2000), write_last(1, half)},
        {write_first(0, at, full).length(2000), write_last(1, full)},
        {write_first(0, at, full).length(2000), write_last(1, "")},
        {write_only(0, at, "abc").length(4)},
        {write_only(0, at, "abc").length(2)},
        {write_first(0, at, full).length((1u << 31) + 1)},
        {read_request(0, at, (1u << 31) + 1)},
        {atomic_write(0, at, "1234")},
        {atomic_write(0, at, std::string(16, 'x'))},
        {atomic_write(0, at, "12345678").length(4)},
        {flush(0, at, 8, 0)},
    };
  };
  for (std::size_t i = 0; i < cases(r).size(); ++i) {
    Talk t;
    t.post_recv(0, 4000);
    Packets p = cases(t.at(0))[i];
    for (const Said& s : p) t.in(s);
    t.out(nak(static_cast<std::uint32_t>(p.size() - 1), NakCode::invalid_request, 0));
    EXPECT_EQ(t.state(), QpState::error) << i;
    EXPECT_EQ(t.events(), Words{"qp QP_REQ_ERR"}) << i;
  }
}

// --- READ

TEST(Responder, ReadOfEveryShape) {
  for (std::uint32_t n : {1u, 1023u, 1024u, 1025u, 2048u, 2500u}) {
    Talk t;
    std::string data = pattern(n);
    t.fill(33, data);
    t.in(read_request(0, t.at(33), n).ack_req());
    std::uint32_t packets = (n + 1023) / 1024;
    for (std::uint32_t k = 0; k < packets; ++k) {
      std::string piece = data.substr(k * 1024, 1024);
      if (packets == 1)
        t.out(read_response_only(0, 1, piece));
      else if (k == 0)
        t.out(read_response_first(0, 1, piece));
      else if (k + 1 == packets)
        t.out(read_response_last(k, 1, piece));
      else
        t.out(read_response_middle(k, piece));
    }
    t.silent();
    t.in(write_only(packets, t.at(0), "x").ack_req());  // the next PSN is after the response
    t.out(ack(packets, 2));
  }
}

// C01
//= IBTA 9.7.4.1.5: the key of a READ of length 0 is not checked
TEST(Responder, C01_ReadOfLengthZero) {
  Talk t;
  t.in(read_request(0, {0, 0xdead00}, 0).ack_req());
  t.out(read_response_only(0, 1));
  t.silent();
}

// C37
//= IBTA 9.7.5.1.1 / 9.7.4.1.2: a repeated READ is executed again, for the part that is asked for
TEST(Responder, C37_ReadAgainWholeAndPartly) {
  Talk t;
  std::string data = pattern(4096);
  t.fill(0, data);
  t.in(read_request(0, t.at(0), 4096).ack_req());
  t.discard();
  t.fill(2048, "fresh");  // what is there now is read
  data.replace(2048, 5, "fresh");
  t.in(read_request(0, t.at(0), 4096).ack_req());
  t.out(read_response_first(0, 1, data.substr(0, 1024)));
  t.out(read_response_middle(1, data.substr(1024, 1024)));
  t.out(read_response_middle(2, data.substr(2048, 1024)));
  t.out(read_response_last(3, 1, data.substr(3072)));
  t.in(read_request(2, t.at(2048), 2048).ack_req());
  t.out(read_response_first(2, 1, data.substr(2048, 1024)));
  t.out(read_response_last(3, 1, data.substr(3072)));
  t.in(read_request(3, t.at(3072), 1024).ack_req());
  t.out(read_response_only(3, 1, data.substr(3072)));
  t.silent();
  EXPECT_EQ(t.counters().duplicate_request, 3u);
}

TEST(Responder, C37_ReadAgainThatWasNeverAskedIsDropped) {
  Talk t;
  t.in(read_request(0, t.at(0), 4096).ack_req());
  t.discard();
  t.in(read_request(2, t.at(2049), 2047).ack_req());               // another address
  t.in(read_request(2, t.at(2048), 2049).ack_req());               // more than there was
  t.in(read_request(2, t.at(2048), 2048).rkey(0xdead).ack_req());  // another key
  t.in(read_request(2, t.at(1024), 2048).ack_req());
  t.silent();
  EXPECT_EQ(t.counters().drop_duplicate_resource, 4u);
  EXPECT_EQ(t.state(), QpState::rts);
}

TEST(Responder, ReadAgainWhileItsResponseIsOnTheWayStartsAnew) {
  Talk t;
  std::string data = pattern(4096);
  t.fill(0, data);
  t.in(read_request(0, t.at(0), 4096).ack_req());
  t.in(read_request(4, t.at(0), 10).ack_req());
  std::vector<std::uint8_t> arena(TxBurst::max_frame + 2100);
  TxBurst tx(arena);
  EXPECT_TRUE(t.engine.transmit(t.now, tx));  // part of the first response
  ASSERT_LT(tx.frames().size(), 4u);
  t.in(read_request(1, t.at(1024), 3072).ack_req());
  t.out(read_response_first(1, 1, data.substr(1024, 1024)));
  t.out(read_response_middle(2, data.substr(2048, 1024)));
  t.out(read_response_last(3, 1, data.substr(3072, 1024)));
  t.out(read_response_only(4, 2, data.substr(0, 10)));  // not forgotten
  t.silent();
}

// A network that doubles a request takes nothing from those behind it.
TEST(Responder, DoubledReadRequestsCostNoResponse) {
  Talk t;
  t.fill(0, "abcd");
  auto r = t.post_recv(100, 10);
  Said one = read_request(0, t.at(0), 1).ack_req(), two = read_request(1, t.at(1), 1).ack_req();
  t.in(one, two, one, send_only(2, "x").ack_req(), two, one);
  t.out(read_response_only(0, 1, "a"));
  t.out(read_response_only(1, 2, "b"));
  t.out(ack(2, 3));
  t.silent();
  t.in(two, one);
  t.out(read_response_only(0, 1, "a"));
  t.out(read_response_only(1, 2, "b"));
  t.silent();
  t.received(r, 1);
}

//= IBTA 9.7.4.1.7 / 9.4.5: more READs at once than agreed are an invalid request
TEST(Responder, MoreReadsThanResources) {
  Talk t({.max_dest_rd_atomic = 2});
  t.fill(0, "ab");
  t.in(read_request(0, t.at(0), 1).ack_req(), read_request(1, t.at(1), 1).ack_req(),
       read_request(2, t.at(1), 1).ack_req());
  t.out(read_response_only(0, 1, "a"));  // what was accepted is answered, then the NAK
  t.out(read_response_only(1, 2, "b"));
  t.out(nak(2, NakCode::invalid_request, 2));
  t.silent();
  EXPECT_EQ(t.state(), QpState::error);
}

TEST(Responder, NoResourcesAtAll) {
  for (int i = 0; i < 4; ++i) {
    Talk t({.max_dest_rd_atomic = 0});
    t.in(i == 0   ? read_request(0, t.at(0), 1)
         : i == 1 ? fetch_add(0, t.at(0), 1)
         : i == 2 ? flush(0, t.at(0), 1, 1)
                  : atomic_write(0, t.at(0), "12345678"));
    t.out(nak(0, NakCode::invalid_request, 0));
    EXPECT_EQ(t.word(0), 0u);
  }
}

TEST(Responder, ReplayThatWaitsDoesNotTakeTheResourceOfANewRead) {
  Talk t({.max_dest_rd_atomic = 2});
  t.fill(0, "abcd");
  Said first = read_request(0, t.at(0), 1).ack_req();
  t.in(first, read_request(1, t.at(1), 1).ack_req());
  t.discard();
  t.in(first, read_request(1, t.at(1), 1).ack_req(), read_request(2, t.at(2), 1).ack_req());
  t.out(read_response_only(1, 2, "b"));
  t.out(read_response_only(2, 3, "c"));
  t.silent();
  EXPECT_EQ(t.state(), QpState::rts);
}

TEST(Responder, OldResourcesAreReused) {
  Talk t({.max_dest_rd_atomic = 2});
  for (std::uint32_t i = 0; i < 5; ++i) {
    t.in(read_request(i, t.at(0), 1).ack_req());
    t.out(read_response_only(i, i + 1, t.text(0, 1)));
  }
  t.in(read_request(0, t.at(0), 1).ack_req());  // too long ago
  t.silent();
  EXPECT_EQ(t.counters().drop_duplicate_resource, 1u);
}

// The key is taken away between request and response.
TEST(Responder, KeyThatVanishesUnderAReadIsNaked) {
  Talk t;
  MemoryRegion* mr = t.add_region(0, 4096, 0xf);
  t.in(read_request(0, {t.address(0), mr->key}, 3000).ack_req());
  t.engine.keys().remove(*mr);
  t.out(nak(0, NakCode::remote_access_error, 1));
  EXPECT_EQ(t.state(), QpState::error);
  EXPECT_EQ(t.events(), Words{"qp QP_ACCESS_ERR"});
}

// --- atomics

//= IBTA 9.4.5
TEST(Responder, Atomics) {
  Talk t;
  t.set_word(64, 10);
  t.in(fetch_add(0, t.at(64), 5).ack_req());
  t.out(atomic_acknowledge(0, 1, 10));
  t.in(compare_swap(1, t.at(64), 15, 77).ack_req());
  t.out(atomic_acknowledge(1, 2, 15));
  t.in(compare_swap(2, t.at(64), 15, 99).ack_req());
  t.out(atomic_acknowledge(2, 3, 77));
  t.silent();
  EXPECT_EQ(t.word(64), 77u);
}

// C35
//= IBTA 9.4.5, 9.7.5.1.1: a repeated atomic is answered from the resources, not executed again
TEST(Responder, C35_RepeatedAtomicIsNotExecutedTwice) {
  Talk t;
  for (std::uint32_t i = 0; i < 100; ++i) {
    t.in(fetch_add(i, t.at(64), 1).ack_req());
    t.out(atomic_acknowledge(i, i + 1, i));
    if (i % 3) continue;
    t.in(fetch_add(i, t.at(64), 1).ack_req());
    t.out(atomic_acknowledge(i, i + 1, i));
  }
  EXPECT_EQ(t.word(64), 100u);
}

// C56
//= IBTA 9.4.5: an address that is no multiple of eight is an invalid request
TEST(Responder, C56_MisalignedAtomic) {
  for (unsigned off = 1; off < 8; ++off) {
    Talk t;
    t.in(fetch_add(0, t.at(64 + off), 1));
    t.out(nak(0, NakCode::invalid_request, 0));
    EXPECT_EQ(t.word(64), 0u);
    EXPECT_EQ(t.word(72), 0u);
  }
}

// A region whose address space is shifted: aligned for the peer, not for the CPU.
TEST(Responder, C56_AtomicOnMemoryThatIsMisaligned) {
  Talk t;
  MemoryRegion* mr = t.add_region(65, 100, 0xf);
  mr->iova = 0x1000;
  t.in(fetch_add(0, {0x1000, mr->key}, 1));
  t.out(nak(0, NakCode::invalid_request, 0));
}

// --- FLUSH and ATOMIC WRITE

// C55
//= annex A19.4, A19.4.2: both are answered by an empty READ response; eight aligned bytes
TEST(Responder, C55_FlushAndAtomicWrite) {
  Talk t;
  t.in(atomic_write(0, t.at(64), "12345678").ack_req());
  t.out(read_response_only(0, 1));
  EXPECT_EQ(t.text(64, 8), "12345678");
  t.in(flush(1, t.at(0), 100, 1).ack_req());
  t.out(read_response_only(1, 2));
  t.in(flush(2, t.at(0), 0, 2, 1).ack_req());  // the whole region
  t.out(read_response_only(2, 3));
  t.set_word(64, 0);
  t.in(atomic_write(0, t.at(64), "12345678").ack_req(), flush(1, t.at(0), 100, 1).ack_req());
  t.out(read_response_only(0, 1));  // again, from the resources
  t.out(read_response_only(1, 2));
  t.silent();
  EXPECT_EQ(t.word(64), 0u);
}

TEST(Responder, C55_FlushRightsAndAlignment) {
  for (int i = 0; i < 5; ++i) {
    Talk t;
    MemoryRegion* mr = t.add_region(0, 100, 0xf | access_flush_global);
    Remote r{t.address(0), mr->key};
    NakCode code = i == 3 ? NakCode::invalid_request : NakCode::remote_access_error;
    t.in(i == 0   ? flush(0, r, 8, 2)
         : i == 1 ? flush(0, r, 101, 1)
         : i == 2 ? flush(0, {0, 0xdead00}, 8, 1, 1)
         : i == 3 ? atomic_write(0, {r.va + 4, r.rkey}, "12345678")
                  : atomic_write(0, {r.va, 0xdead00}, "12345678"));
    t.out(nak(0, code, 0));
  }
}

// --- acknowledgements

//= IBTA 9.7.5.1.1 / 9.7.5.1.2: one ACK covers all before it; none is sent unasked
TEST(Responder, AcksAreCoalesced) {
  Talk t;
  for (std::uint32_t i = 0; i < 5; ++i) t.in(write_only(i, t.at(0), "x").ack_req());
  t.out(ack(4, 5));
  t.silent();
  t.in(write_only(5, t.at(0), "x"));
  t.silent();
  t.in(write_only(6, t.at(0), "x").ack_req());
  t.out(ack(6, 7));
}

TEST(Responder, ResponsesGoOutInOrderWithAcks) {
  Talk t;
  t.fill(0, "abc");
  t.in(write_only(0, t.at(10), "x").ack_req(), read_request(1, t.at(0), 1).ack_req(),
       fetch_add(2, t.at(64), 1).ack_req(), write_only(3, t.at(10), "x").ack_req());
  t.out(read_response_only(1, 2, "a"));
  t.out(atomic_acknowledge(2, 3, 0));
  t.out(ack(3, 4));
  t.silent();
}

//= IBTA 9.7.7.2: credits of the QP's own receive queue, rounded down to a code of the table
TEST(Responder, CreditsInTheAeth) {
  Talk t;
  for (int i = 0; i < 6; ++i) t.post_recv(0, 10);
  t.in(send_only(0, "x").ack_req());
  t.out(ack(0, 1).credits(4));  // five are left; the codes know 4 and 6
  for (int i = 1; i < 5; ++i) t.in(send_only(i, "x"));
  t.in(write_only(5, t.at(0), "x").ack_req());
  t.out(ack(5, 6).credits(1));
  t.in(send_only(6, "x").ack_req());
  t.out(ack(6, 7));  // none is left: says nothing, RNR governs
}

TEST(Responder, NoCreditsAreToldWhenSwitchedOff) {
  Talk t({.config = {.max_qp = 4, .max_mr = 16, .end_to_end_credits = false}});
  for (int i = 0; i < 6; ++i) t.post_recv(0, 10);
  t.in(send_only(0, "x").ack_req());
  t.out(ack(0, 1));
}

// C43
//= IBTA 9.7.2: PSNs are a circle
TEST(Responder, C43_PsnWrap) {
  Talk t({.rq_psn = 0xfffffe});
  t.fill(0, pattern(3000));
  t.in(read_request(0xfffffe, t.at(0), 3000).ack_req());
  t.out(read_response_first(0xfffffe, 1, t.text(0, 1024)));
  t.out(read_response_middle(0xffffff, t.text(1024, 1024)));
  t.out(read_response_last(0, 1, t.text(2048, 952)));
  t.in(write_only(1, t.at(0), "x").ack_req());
  t.out(ack(1, 2));
  t.in(read_request(0xffffff, t.at(1024), 1976).ack_req());  // behind, across the wrap
  t.out(read_response_first(0xffffff, 1, t.text(1024, 1024)));
  t.out(read_response_last(0, 1, t.text(2048, 952)));
}

TEST(Responder, MsnIs24Bits) {
  Talk t;
  t.qp->resp.msn = 0xffffff;
  t.in(write_only(0, t.at(0), "x").ack_req());
  t.out(ack(0, 0));
}

// C36
//= IBTA 9.7.5.1.1: a repeated SEND or WRITE is acknowledged again, not executed
TEST(Responder, C36_DuplicatesOfSendAndWrite) {
  Talk t;
  auto r = t.post_recv(0, 10);
  t.post_recv(0, 10);
  t.in(send_only(0, "one").ack_req());
  t.out(ack(0, 1).credits(1));
  t.in(send_only(0, "two").ack_req());
  t.out(ack(0, 1).credits(1));
  t.received(r, 3);
  t.no_completion();
  t.in(write_only(1, t.at(20), "one"));
  t.in(write_only(1, t.at(20), "two"));  // answered though it does not ask
  t.out(ack(1, 2).credits(1));
  t.silent();
  EXPECT_EQ(t.text(0, 3), "one");
  EXPECT_EQ(t.text(20, 3), "one");
}

//= IBTA 9.7.5.2.8 / 9.7.4.1.2: one NAK for a gap, then silence until the expected PSN comes
TEST(Responder, SequenceErrorIsNakedOnce) {
  Talk t;
  t.in(write_only(0, t.at(0), "a"));
  t.in(write_only(2, t.at(0), "c").ack_req(), write_only(3, t.at(0), "d").ack_req());
  t.out(nak(1, NakCode::psn_sequence_error, 1));
  t.in(write_only(4, t.at(0), "e").ack_req());
  t.silent();
  EXPECT_EQ(t.text(0, 1), "a");
  EXPECT_EQ(t.state(), QpState::rts);
  EXPECT_EQ(t.events(), Words{});
  t.in(write_only(1, t.at(0), "b").ack_req());
  t.out(ack(1, 2));
  t.in(write_only(3, t.at(0), "d").ack_req());  // a new gap, a new NAK
  t.out(nak(2, NakCode::psn_sequence_error, 2));
  EXPECT_EQ(t.counters().out_of_sequence, 4u);
}

TEST(Responder, SequenceNakIsVoidWhenTheExpectedPacketComesFirst) {
  Talk t;
  t.in(write_only(1, t.at(0), "b").ack_req(), write_only(0, t.at(0), "a").ack_req());
  t.out(ack(0, 1));
  t.silent();
}

// --- RNR

//= IBTA 9.7.5.2.8: no receive WQE: RNR NAK with the QP's timer code; nothing is executed
TEST(Responder, ReceiverNotReady) {
  Talk t({.min_rnr_timer = 17});
  t.in(send_only(0, "abc").ack_req(), send_only(1, "def").ack_req());
  t.out(rnr_nak(0, 17, 0));
  t.silent();
  t.in(send_only(0, "abc").ack_req());
  t.out(rnr_nak(0, 17, 0));
  auto r = t.post_recv(0, 10);
  t.in(send_only(0, "abc").ack_req());
  t.out(ack(0, 1));
  t.received(r, 3);
  EXPECT_EQ(t.counters().out_of_buffer, 2u);
  EXPECT_EQ(t.counters().sent_rnr_naks, 2u);
}

TEST(Responder, RnrNakIsVoidWhenAReceiveIsThereAtTheSecondTry) {
  Talk t;
  t.in(send_only(0, "abc").ack_req());
  t.post_recv(0, 10);
  t.in(send_only(0, "abc").ack_req());
  t.out(ack(0, 1));
  t.silent();
}

TEST(Responder, RnrInTheMiddleOfAWriteWithImmediate) {
  Talk t;
  t.in(write_first(0, t.at(0), pattern(1024)).length(1027), write_last_imm(1, "xyz").imm(4));
  t.out(rnr_nak(1, 1, 0));
  EXPECT_EQ(t.text(1024, 3), std::string(3, 0));
  auto r = t.post_recv(0, 0);
  t.in(write_last_imm(1, "xyz").imm(4).ack_req());
  t.out(ack(1, 1));
  t.received(r, 1027, WcOpcode::recv_rdma_with_imm, wc_with_imm, 4);
}

TEST(Responder, RnrNakWaitsForTheResponsesBeforeIt) {
  Talk t;
  t.fill(0, "a");
  t.in(read_request(0, t.at(0), 1).ack_req(), send_only(1, "x").ack_req());
  t.out(read_response_only(0, 1, "a"));
  t.out(rnr_nak(1, 1, 1));
  t.silent();
}

// --- SRQ

// C32
//= IBTA 11.6.3.1 / 10.2.9: the limit event, once, when fewer than the limit are left
TEST(Responder, C32_SrqLimit) {
  Talk t({.srq_depth = 100});
  for (int i = 0; i < 100; ++i) t.post_recv(0, 10);
  t.engine.arm_srq_limit(t.srq, 50);
  std::uint32_t psn = 0;
  for (int i = 0; i < 50; ++i) t.in(send_only(psn++, "x"));
  EXPECT_EQ(t.events(), Words{});
  t.in(send_only(psn++, "x"));
  EXPECT_EQ(t.events(), Words{"srq SRQ_LIMIT"});
  t.in(send_only(psn++, "x"));
  EXPECT_EQ(t.events(), Words{});
  t.engine.arm_srq_limit(t.srq, 40);
  for (int i = 0; i < 9; ++i) t.in(send_only(psn++, "x"));
  EXPECT_EQ(t.events(), Words{"srq SRQ_LIMIT"});
}

TEST(Responder, SrqTellsNoCreditsAndIsNotReadyWhenEmpty) {
  Talk t({.srq_depth = 4});
  auto r = t.post_recv(0, 10);
  t.post_recv(0, 10);
  t.in(send_only(0, "x").ack_req());
  t.out(ack(0, 1));
  t.received(r, 1);
  t.in(send_only(1, "x").ack_req(), send_only(2, "x").ack_req());
  t.out(rnr_nak(2, 1, 2));
}

// C49
//= IBTA 10.2.9: the lists of an SRQ's receive WQEs are of the SRQ's protection domain
TEST(Responder, C49_ReceiveListIsOfTheDomainOfTheSrq) {
  for (bool of_the_qp : {false, true}) {
    Talk t({.srq_depth = 4, .srq_pd = Talk::other_pd});
    MemoryRegion* region = t.add_region(0, 100, 0xf, of_the_qp ? Talk::pd : Talk::other_pd);
    auto r = t.post_recv({{t.address(0), 10, region->key}});
    t.in(send_only(0, "abc").ack_req());
    if (of_the_qp) {
      t.out(nak(0, NakCode::remote_operational_error, 0));
      t.receive_failed(r, WcStatus::loc_prot_err);
    } else {
      t.out(ack(0, 1));
      t.received(r, 3);
      EXPECT_EQ(t.text(0, 3), "abc");
    }
  }
}

// C34
TEST(Responder, C34_SrqTakesNoMoreThanItsDepth) {
  Talk t({.srq_depth = 2});
  EXPECT_NE(t.post_recv(0, 10), 0u);
  EXPECT_NE(t.post_recv(0, 10), 0u);
  EXPECT_EQ(t.post_recv(0, 10), 0u);
  EXPECT_EQ(t.qp->own_rq, nullptr);
}

//= IBTA 10.2.9 shared receive queues: the last WQE reached event: the QP will take nothing more
// from its SRQ
TEST(Responder, SrqLastWqeReached) {
  Talk t({.srq_depth = 4});
  t.post_recv(0, 10);
  t.modify(QpState::error);
  EXPECT_EQ(t.events(), Words{"qp LAST_WQE"});
  t.no_completion();
  EXPECT_EQ(t.srq->queue.available(), 1u);
}

TEST(Responder, SrqWqeOfAnOpenMessageIsFlushed) {
  Talk t({.srq_depth = 4});
  auto r = t.post_recv(0, 2000);
  t.in(send_first(0, pattern(1024)));
  t.modify(QpState::error);
  t.receive_failed(r, WcStatus::wr_flush_err);
  EXPECT_EQ(t.events(), Words{"qp LAST_WQE"});
}

// --- congestion

//= annex A17.9.3: CE is answered with a CNP, no more often than the interval
TEST(Responder, CnpsAreRateLimited) {
  Talk t;
  t.in(write_only(0, t.at(0), "x").ce(), write_only(1, t.at(0), "x").ce().ack_req());
  t.out(cnp());
  t.out(ack(1, 2));
  t.after(49us);
  t.in(write_only(2, t.at(0), "x").ce());
  t.silent();
  t.after(1us);
  t.in(write_only(3, t.at(0), "x").ce());
  t.out(cnp());
  t.silent();
  EXPECT_EQ(t.counters().np_ecn_marked_roce_packets, 4u);
  EXPECT_EQ(t.counters().np_cnp_sent, 2u);
  t.in(write_only(4, t.at(0), "x").tos(2));  // ECT(0), not marked
  t.silent();
}

TEST(Responder, ResponsesThatWereMarkedAreAnsweredToo) {
  Talk t;
  t.post({WrOpcode::rdma_read, 0, 1, send_signaled, {1, 2}});
  t.discard();
  t.in(read_response_only(100, 1, "x").ce());
  t.out(cnp());
}

TEST(Responder, CnpsAreCounted) {
  for (QpType type : {QpType::rc, QpType::uc}) {
    Talk t({.type = type});
    t.in(cnp());
    t.silent();
    EXPECT_EQ(t.counters().rp_cnp_handled, 1u);
  }
  Talk t({.type = QpType::ud});
  t.in(cnp());
  EXPECT_EQ(t.counters().rp_cnp_handled, 0u);
  EXPECT_EQ(t.counters().drop_transport, 1u);
}

// --- states

//= IBTA 10.3.1.3: RTR answers; the first packet is the communication established event
TEST(Responder, RtrReceivesAndSaysSo) {
  Talk t({.state = QpState::rtr});
  t.in(write_only(0, t.at(0), "x").ack_req(), write_only(1, t.at(0), "x"));
  t.out(ack(0 + 1, 2));
  EXPECT_EQ(t.events(), Words{"qp COMM_EST"});
}

TEST(Responder, SqdReceives) {
  Talk t;
  t.modify(QpState::sqd);
  t.in(write_only(0, t.at(0), "x").ack_req());
  t.out(ack(0, 1));
}

// C17
TEST(Responder, C17_ReceivesOfInitAreUsedAfterRtr) {
  Talk t({.state = QpState::init});
  auto r = t.post_recv(0, 10);
  t.in(send_only(0, "early"));
  EXPECT_EQ(t.counters().drop_qp_state, 1u);
  t.modify_to(*t.qp, QpState::init);
  QpAttributes x = t.attributes();
  x.state = QpState::rtr;
  ASSERT_TRUE(t.engine
                  .modify_qp(t.now, *t.qp, x,
                             attr_state | attr_av | attr_path_mtu | attr_dest_qpn | attr_rq_psn |
                                 attr_max_dest_rd_atomic | attr_min_rnr_timer)
                  .ok());
  t.in(send_only(0, "in time"));
  t.received(r, 7);
}

TEST(Responder, WhatWasAcceptedIsAnsweredThoughTheQpIsInError) {
  Talk t;
  std::string data = pattern(100 * 1024);
  t.fill(0, data);
  t.in(read_request(0, t.at(0), 100 * 1024).ack_req());
  t.in(write_only(100, {0, 0xdead00}, "x").ack_req());
  EXPECT_EQ(t.state(), QpState::error);
  for (std::uint32_t k = 0; k < 100; ++k) EXPECT_EQ(t.next().bth.psn, Psn(k));
  t.out(nak(100, NakCode::remote_access_error, 1));
  t.silent();
}

TEST(Responder, ModifyToErrorOwesNothing) {
  Talk t;
  t.in(read_request(0, t.at(0), 100).ack_req(), write_only(2, t.at(0), "x").ce());
  t.modify(QpState::error);
  t.silent();
  t.in(write_only(1, t.at(0), "x").ack_req());
  t.silent();
  EXPECT_EQ(t.counters().drop_qp_state, 1u);
}

// --- same-host credit

TEST(Responder, ReadResponsesWaitForSameHostCredit) {
  Talk t({.config = {.slot = 1, .max_qp = 4, .max_mr = 16}});
  std::vector<CreditLine> lines(4);
  Gid host[] = {t.us(), t.them()};
  t.engine.set_local(host, lines, 3 * frame_cost(1100));
  t.modify(QpState::reset);
  t.modify_to(*t.qp, QpState::rts);
  t.in(read_request(0, t.at(0), 10 * 1024).ack_req());
  EXPECT_GT(lines[1].consumed.load(), 0u);  // the request was taken out of our own socket
  std::size_t n = t.waiting();
  EXPECT_GE(n, 2u);
  EXPECT_LE(n, 3u);
  unsigned slot = Talk::their_qpn.slot();
  while (n < 10) {
    lines[slot].consumed = lines[slot].enqueued.load();
    std::size_t now = t.waiting();
    ASSERT_GT(now, n);
    n = now;
  }
  EXPECT_EQ(n, 10u);
}

}  // namespace
}  // namespace adverb::engine::talk
