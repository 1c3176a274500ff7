// SPDX-License-Identifier: Apache-2.0
// What a program sees of each profile, point by point (nic/profile.cpp has the table), and of GID
// layouts.
#include <sys/mman.h>

#include <utility>

#include "verbs/testing.hpp"

namespace {

using adverb::verbs::run_alone;
using adverb::verbs::Verbs;

// What came of a work request: the errno of post_send, or the status of its completion.
struct Outcome {
  int error = 0;
  ibv_wc_status status = IBV_WC_SUCCESS;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};
constexpr Outcome refused_with(int error) { return {error, IBV_WC_SUCCESS}; }
constexpr Outcome completes_with(ibv_wc_status status) { return {0, status}; }
void PrintTo(const Outcome& o, std::ostream* out) {
  *out << (o.error ? std::strerror(o.error) : ibv_wc_status_str(o.status));
}

struct Profiles : Verbs {
  ibv_mr* mr = nullptr;
  void SetUp() override {
    Verbs::SetUp();
    mr = ibv_reg_mr(pd, buffer.data(), buffer.size(),
                    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_REMOTE_READ);
    ASSERT_TRUE(mr);
  }
  void TearDown() override {
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
    Verbs::TearDown();
  }
  static ibv_qp_cap cap_of(ibv_qp* qp) {
    ibv_qp_attr attr;
    ibv_qp_init_attr init;
    EXPECT_EQ(ibv_query_qp(qp, &attr, IBV_QP_CAP, &init), 0);
    EXPECT_EQ(std::memcmp(&attr.cap, &init.cap, sizeof init.cap), 0);
    return init.cap;
  }
  Outcome post(ibv_qp* qp, ibv_send_wr wr, std::vector<ibv_sge> list) {
    ibv_send_wr* bad = nullptr;
    wr.sg_list = list.data();
    wr.num_sge = static_cast<int>(list.size());
    if (const int error = ibv_post_send(qp, &wr, &bad)) {
      EXPECT_EQ(bad, &wr);
      return refused_with(error);
    }
    const auto done = completions(1);
    return completes_with(done.empty() ? IBV_WC_GENERAL_ERR : done[0].status);
  }

  Outcome inline_too_long() {
    ibv_qp* qp = make_connected();
    ibv_send_wr wr{};
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = IBV_SEND_INLINE;
    const Outcome o = post(qp, wr, {sge_of(buffer.data(), cap_of(qp).max_inline_data + 10, mr)});
    EXPECT_EQ(ibv_destroy_qp(qp), 0);
    return o;
  }
  Outcome too_many_sges() {
    ibv_qp* qp = make_connected();
    ibv_send_wr wr{};
    wr.opcode = IBV_WR_SEND;
    const Outcome o =
        post(qp, wr, std::vector(cap_of(qp).max_send_sge + 1, sge_of(buffer.data(), 1, mr)));
    EXPECT_EQ(ibv_destroy_qp(qp), 0);
    return o;
  }
  int recv_beside_srq() {
    ibv_srq_init_attr a{.srq_context = nullptr, .attr = {.max_wr = 4, .max_sge = 1}};
    ibv_srq* srq = ibv_create_srq(pd, &a);
    ibv_qp* qp = make_qp(IBV_QPT_RC, srq);
    EXPECT_EQ(to_init(qp), 0);
    const int error = post_receive(qp, 1);
    EXPECT_EQ(ibv_destroy_qp(qp), 0);
    EXPECT_EQ(ibv_destroy_srq(srq), 0);
    return error;
  }
  Outcome read_on_uc() {
    ibv_qp* qp = make_qp(IBV_QPT_UC);
    ibv_qp_attr a{};
    a.qp_state = IBV_QPS_INIT;
    a.port_num = 1;
    EXPECT_EQ(
        ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
        0);
    a.qp_state = IBV_QPS_RTR;
    a.path_mtu = IBV_MTU_1024;
    a.dest_qp_num = qp->qp_num;
    a.ah_attr = own_address();
    EXPECT_EQ(
        ibv_modify_qp(qp, &a,
                      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN),
        0);
    a.qp_state = IBV_QPS_RTS;
    EXPECT_EQ(ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
    ibv_send_wr wr{};
    wr.opcode = IBV_WR_RDMA_READ;
    const Outcome o = post(qp, wr, {sge_of(buffer.data(), 8, mr)});
    EXPECT_EQ(ibv_destroy_qp(qp), 0);
    return o;
  }
  Outcome misaligned_atomic() {
    const auto pair = make_pair();
    ibv_send_wr wr{};
    wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
    wr.wr.atomic.remote_addr = reinterpret_cast<std::uintptr_t>(buffer.data()) + 1;
    wr.wr.atomic.rkey = mr->rkey;
    const Outcome o = post(pair[0], wr, {sge_of(buffer.data() + 64, 8, mr)});
    for (ibv_qp* qp : pair) EXPECT_EQ(ibv_destroy_qp(qp), 0);
    return o;
  }
  // Its remote address lies where a SEND's address handle would.
  Outcome read_on_ud() {
    ibv_qp* qp = make_ud();
    ibv_send_wr wr{};
    wr.opcode = IBV_WR_RDMA_READ;
    wr.wr.rdma = {.remote_addr = 0x123456789, .rkey = 1};
    const Outcome o = post(qp, wr, {sge_of(buffer.data(), 8, mr)});
    EXPECT_EQ(ibv_destroy_qp(qp), 0);
    return o;
  }
  // A datagram one byte longer than the MTU; nothing may arrive.
  Outcome long_datagram() {
    ibv_port_attr port;
    EXPECT_EQ(ibv_query_port(context, 1, &port), 0);
    ibv_qp* qp = make_ud();
    EXPECT_EQ(post_receive(qp, 1, mr, 8192), 0);
    ibv_ah_attr address = own_address();
    ibv_ah* ah = ibv_create_ah(pd, &address);
    ibv_send_wr wr{};
    wr.opcode = IBV_WR_SEND;
    wr.wr.ud = {.ah = ah, .remote_qpn = qp->qp_num, .remote_qkey = 0x11111111};
    const unsigned mtu = 128u << port.active_mtu;
    const Outcome o = post(qp, wr, {sge_of(buffer.data(), mtu + 1, mr)});
    ibv_wc wc;
    for (int i = 0; i < 100; ++i) EXPECT_EQ(ibv_poll_cq(cq, 1, &wc), 0);
    EXPECT_EQ(ibv_destroy_qp(qp), 0);
    EXPECT_EQ(ibv_destroy_ah(ah), 0);
    return o;
  }
  // The service level in the completion of a datagram to ourselves, by that GID.
  unsigned sl_of_datagram(int gid) {
    ibv_qp* qp = make_ud();
    EXPECT_EQ(post_receive(qp, 1, mr, 100), 0);
    ibv_ah_attr address = own_address();
    EXPECT_EQ(ibv_query_gid(context, 1, gid, &address.grh.dgid), 0);
    address.grh.sgid_index = static_cast<std::uint8_t>(gid);
    ibv_ah* ah = ibv_create_ah(pd, &address);
    ibv_sge sge = sge_of(buffer.data(), 8, mr);
    ibv_send_wr wr{}, *bad;
    wr.opcode = IBV_WR_SEND;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.wr.ud = {.ah = ah, .remote_qpn = qp->qp_num, .remote_qkey = qkey};
    EXPECT_EQ(ibv_post_send(qp, &wr, &bad), 0);
    unsigned sl = 99;
    for (const ibv_wc& wc : completions(2))
      if (wc.opcode == IBV_WC_RECV) sl = wc.sl;
    EXPECT_EQ(ibv_destroy_qp(qp), 0);
    EXPECT_EQ(ibv_destroy_ah(ah), 0);
    return sl;
  }
  unsigned sl_over_ipv4() { return sl_of_datagram(0); }
  unsigned sl_over_ipv6() { return sl_of_datagram(1); }
  // Entries of a send queue, a receive queue, an SRQ and a CQ that were asked for with 5.
  std::array<unsigned, 4> sizes_for_five() {
    ibv_qp_init_attr q = init_attr();
    q.cap.max_send_wr = q.cap.max_recv_wr = 5;
    ibv_qp* qp = ibv_create_qp(pd, &q);
    ibv_srq_init_attr s{.srq_context = nullptr, .attr = {.max_wr = 5, .max_sge = 1}};
    ibv_srq* srq = ibv_create_srq(pd, &s);
    ibv_cq* own = ibv_create_cq(context, 5, nullptr, nullptr, 0);
    EXPECT_TRUE(qp && srq && own);
    const std::array<unsigned, 4> sizes{q.cap.max_send_wr, q.cap.max_recv_wr, s.attr.max_wr,
                                        static_cast<unsigned>(own->cqe)};
    EXPECT_EQ(ibv_resize_cq(own, 5), 0);
    EXPECT_EQ(own->cqe, static_cast<int>(sizes[3]));
    EXPECT_EQ(cap_of(qp).max_send_wr, sizes[0]);
    EXPECT_EQ(ibv_destroy_qp(qp), 0);
    EXPECT_EQ(ibv_destroy_srq(srq), 0);
    EXPECT_EQ(ibv_destroy_cq(own), 0);
    return sizes;
  }
  // max_inline_data of an RC QP that asked for 20 bytes, with 4 elements.
  unsigned inline_for_twenty() {
    ibv_qp_init_attr q = init_attr();
    q.cap.max_inline_data = 20;
    ibv_qp* qp = ibv_create_qp(pd, &q);
    EXPECT_TRUE(qp);
    EXPECT_EQ(cap_of(qp).max_inline_data, q.cap.max_inline_data);
    EXPECT_EQ(ibv_destroy_qp(qp), 0);
    return q.cap.max_inline_data;
  }
  unsigned max_msg_sz() {
    ibv_port_attr port;
    EXPECT_EQ(ibv_query_port(context, 1, &port), 0);
    return port.max_msg_sz;
  }
  ibv_atomic_cap atomic_cap() {
    ibv_device_attr a;
    EXPECT_EQ(ibv_query_device(context, &a), 0);
    return a.atomic_cap;
  }
  // What becomes of an RDMA WRITE of so many bytes to where nothing may be written.
  Outcome write_of(std::uint64_t bytes) {
    const std::size_t room = std::size_t{1} << 32;
    void* p = mmap(nullptr, room, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    EXPECT_NE(p, MAP_FAILED);
    ibv_mr* large = ibv_reg_mr(pd, p, room, 0);
    EXPECT_TRUE(large);
    const auto pair = make_pair();
    ibv_send_wr wr{};
    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.wr.rdma = {reinterpret_cast<std::uintptr_t>(buffer.data()), mr->rkey};
    const Outcome o = post(pair[0], wr, {sge_of(p, 1, large), sge_of(p, bytes - 1, large)});
    for (ibv_qp* qp : pair) EXPECT_EQ(ibv_destroy_qp(qp), 0);
    EXPECT_EQ(ibv_dereg_mr(large), 0);
    munmap(p, room);
    return o;
  }
};

using Sizes = std::array<unsigned, 4>;

// C05, C34 and C57 are of this profile, the default.
TEST_F(Profiles, Mlx5_C05_C34_C57) {
  EXPECT_EQ(inline_too_long(), refused_with(ENOMEM));
  EXPECT_EQ(too_many_sges(), refused_with(ENOMEM));
  EXPECT_EQ(recv_beside_srq(), ENOMEM);
  EXPECT_EQ(read_on_uc(), completes_with(IBV_WC_LOC_QP_OP_ERR));
  EXPECT_EQ(read_on_ud(), completes_with(IBV_WC_LOC_QP_OP_ERR));
  EXPECT_EQ(misaligned_atomic(), completes_with(IBV_WC_REM_INV_REQ_ERR));
  EXPECT_EQ(long_datagram(), completes_with(IBV_WC_LOC_LEN_ERR));
  EXPECT_EQ(sl_over_ipv4(), 10u);
  EXPECT_EQ(sl_over_ipv6(), 9u);
  EXPECT_EQ(sizes_for_five(), (Sizes{8, 8, 7, 7}));
  EXPECT_EQ(inline_for_twenty(), 60u);  // 256 bytes less 192 of control segments and a length
  EXPECT_EQ(max_msg_sz(), 1u << 30);
  EXPECT_EQ(atomic_cap(), IBV_ATOMIC_HCA);
}

TEST_F(Profiles, Rxe) {
  if (!run_alone({"ADVERB_PROFILE=rxe"})) return;
  EXPECT_EQ(inline_too_long(), refused_with(EINVAL));
  EXPECT_EQ(too_many_sges(), refused_with(EINVAL));
  EXPECT_EQ(recv_beside_srq(), EINVAL);
  EXPECT_EQ(read_on_uc(), completes_with(IBV_WC_LOC_QP_OP_ERR));
  EXPECT_EQ(read_on_ud(), completes_with(IBV_WC_LOC_QP_OP_ERR));
  EXPECT_EQ(misaligned_atomic(), refused_with(EINVAL));
  EXPECT_EQ(long_datagram(), completes_with(IBV_WC_SUCCESS));
  EXPECT_EQ(sl_over_ipv4(), 0u);
  EXPECT_EQ(sl_over_ipv6(), 0u);
  EXPECT_EQ(sizes_for_five(), (Sizes{7, 7, 7, 7}));
  EXPECT_EQ(inline_for_twenty(), 64u);
  EXPECT_EQ(max_msg_sz(), 1u << 23);
  EXPECT_EQ(atomic_cap(), IBV_ATOMIC_HCA);
}

TEST_F(Profiles, Strict) {
  if (!run_alone({"ADVERB_PROFILE=strict"})) return;
  EXPECT_EQ(inline_too_long(), refused_with(EINVAL));
  EXPECT_EQ(too_many_sges(), refused_with(EINVAL));
  EXPECT_EQ(recv_beside_srq(), EINVAL);
  EXPECT_EQ(read_on_uc(), refused_with(EINVAL));
  EXPECT_EQ(read_on_ud(), refused_with(EINVAL));
  EXPECT_EQ(misaligned_atomic(), completes_with(IBV_WC_REM_INV_REQ_ERR));
  EXPECT_EQ(long_datagram(), completes_with(IBV_WC_SUCCESS));
  EXPECT_EQ(sl_over_ipv4(), 0u);
  EXPECT_EQ(sl_over_ipv6(), 0u);
  EXPECT_EQ(sizes_for_five(), (Sizes{5, 5, 5, 5}));
  EXPECT_EQ(inline_for_twenty(), 20u);
  EXPECT_EQ(max_msg_sz(), 1u << 31);
  EXPECT_EQ(atomic_cap(), IBV_ATOMIC_GLOB);
  ibv_mr* empty = ibv_reg_mr(pd, buffer.data() + 1, 0, 0);
  ASSERT_TRUE(empty);
  EXPECT_EQ(ibv_dereg_mr(empty), 0);
}

// The longest message goes out (and is refused by the peer, whose region is smaller); one byte more
// is an error of the sender's.
TEST_F(Profiles, C10_LongestMessage) {
  EXPECT_EQ(write_of(max_msg_sz()), completes_with(IBV_WC_REM_ACCESS_ERR));
  EXPECT_EQ(write_of(std::uint64_t{max_msg_sz()} + 1), completes_with(IBV_WC_LOC_LEN_ERR));
  EXPECT_EQ(write_of(0xffffffff), completes_with(IBV_WC_LOC_LEN_ERR));
}

TEST_F(Profiles, C10_LongestMessageOfTheSpecification) {
  if (!run_alone({"ADVERB_PROFILE=strict"})) return;
  EXPECT_EQ(write_of(1u << 31), completes_with(IBV_WC_REM_ACCESS_ERR));
  EXPECT_EQ(write_of((1ull << 31) + 1), completes_with(IBV_WC_LOC_LEN_ERR));
}

// --- names

TEST_F(Profiles, NamesAndNumbers) {
  if (!run_alone({"ADVERB_DEVICE_NAME=mlx5_", "ADVERB_VENDOR_ID=0x15b3", "ADVERB_PART_ID=0x1017"}))
    return;
  EXPECT_STREQ(ibv_get_device_name(list[0]), "mlx5_0");
  ibv_device_attr a;
  ASSERT_EQ(ibv_query_device(context, &a), 0);
  EXPECT_EQ(a.vendor_id, 0x15b3u);
  EXPECT_EQ(a.vendor_part_id, 4119u);
}

TEST_F(Profiles, PartNumbersAloneAreMellanox) {
  if (!run_alone({"ADVERB_PART_ID=4119"})) return;
  ibv_device_attr a;
  ASSERT_EQ(ibv_query_device(context, &a), 0);
  EXPECT_EQ(a.vendor_id, 0x02c9u);
  EXPECT_EQ(a.vendor_part_id, 4119u);
}

// --- GID layouts

struct GidLayouts : Verbs {
  static bool is_v4(const ibv_gid& gid) {
    static const unsigned char prefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    return std::memcmp(gid.raw, prefix, 12) == 0;
  }
  std::vector<ibv_gid_entry> table() {
    ibv_port_attr port;
    EXPECT_EQ(ibv_query_port(context, 1, &port), 0);
    std::vector<ibv_gid_entry> entries(port.gid_tbl_len);
    const ssize_t n = ibv_query_gid_table(context, entries.data(), entries.size(), 0);
    EXPECT_GE(n, 1);
    entries.resize(n);
    return entries;
  }
};

TEST_F(GidLayouts, Default) {
  const auto entries = table();
  EXPECT_EQ(entries[0].gid_index, 0u);
  for (const auto& e : entries) EXPECT_EQ(e.gid_type, unsigned{IBV_GID_TYPE_ROCE_V2});
}

TEST_F(GidLayouts, Mlx5_Index3IsRoceV2OverIpv4) {
  if (!run_alone({"ADVERB_GID_LAYOUT=mlx5"})) return;
  for (const auto& e : table()) {
    EXPECT_EQ(e.gid_type, unsigned{e.gid_index % 2 ? IBV_GID_TYPE_ROCE_V2 : IBV_GID_TYPE_ROCE_V1});
    ibv_gid partner;
    ASSERT_EQ(ibv_query_gid(context, 1, static_cast<int>(e.gid_index ^ 1), &partner), 0);
    EXPECT_EQ(std::memcmp(&partner, &e.gid, 16), 0);
  }
  ibv_ah_attr a = own_address();
  for (const std::uint8_t index : {2, 3}) {
    ASSERT_EQ(ibv_query_gid(context, 1, index, &a.grh.dgid), 0);
    EXPECT_TRUE(is_v4(a.grh.dgid));
  }
  a.grh.sgid_index = 3;
  ibv_ah* ah = ibv_create_ah(pd, &a);
  EXPECT_TRUE(ah);
  EXPECT_EQ(ibv_destroy_ah(ah), 0);
  a.grh.sgid_index = 2;  // RoCE v1, which is spoken where raw packets may be
  ibv_qp* raw = make_qp(IBV_QPT_RAW_PACKET);
  ah = ibv_create_ah(pd, &a);
  if (raw) {
    ASSERT_TRUE(ah) << std::strerror(errno);
    EXPECT_EQ(ibv_destroy_ah(ah), 0);
    EXPECT_EQ(ibv_destroy_qp(raw), 0);
  } else {
    EXPECT_EQ(error_of(ah), EINVAL);
  }
}

TEST_F(GidLayouts, Rxe_Index1IsIpv4) {
  if (!run_alone({"ADVERB_GID_LAYOUT=rxe"})) return;
  ibv_gid gid;
  ASSERT_EQ(ibv_query_gid(context, 1, 0, &gid), 0);
  EXPECT_FALSE(is_v4(gid));
  ASSERT_EQ(ibv_query_gid(context, 1, 1, &gid), 0);
  EXPECT_TRUE(is_v4(gid));
  for (const auto& e : table()) EXPECT_EQ(e.gid_type, unsigned{IBV_GID_TYPE_ROCE_V2});
}

}  // namespace
