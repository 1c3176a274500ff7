// SPDX-License-Identifier: Apache-2.0
// Address handles: what may be in them, and how a receiver makes one from a completion and the 40
// bytes in front of a datagram (ibv_create_ah(3), ibv_create_ah_from_wc(3)).
#include <arpa/inet.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>

#include <string>

#include "verbs/testing.hpp"

namespace {

using adverb::verbs::run_alone;
using adverb::verbs::Verbs;

using Header = std::array<unsigned char, 40>;

struct Address : Verbs {
  ibv_ah_attr own_address_at(unsigned index) {
    ibv_ah_attr a = own_address();
    a.grh.sgid_index = static_cast<std::uint8_t>(index);
    EXPECT_EQ(ibv_query_gid(context, 1, static_cast<int>(index), &a.grh.dgid), 0);
    return a;
  }
  int error_of_ah(ibv_ah_attr a) {
    errno = 0;
    return error_of(ibv_create_ah(pd, &a));
  }
  // 20 unspecified bytes and an IPv4 header with the right checksum.
  Header ipv4_header(const unsigned char* destination) {
    Header grh{};
    const unsigned char header[20] = {0x45, 0x0a, 0, 60, 0, 0, 0x40, 0, 63, 17, 0, 0, 10, 9, 8, 7};
    std::memcpy(grh.data() + 20, header, 20);
    std::memcpy(grh.data() + 36, destination, 4);
    std::uint32_t sum = 0;
    for (int i = 20; i < 40; i += 2) sum += grh[i] << 8 | grh[i + 1];
    while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
    grh[30] = static_cast<unsigned char>(~sum >> 8);
    grh[31] = static_cast<unsigned char>(~sum);
    return grh;
  }
  int init_from(Header& grh, ibv_ah_attr& a, std::uint8_t port = 1) {
    ibv_wc wc{};
    wc.wc_flags = IBV_WC_GRH;
    errno = 0;
    const int result =
        ibv_init_ah_from_wc(context, port, &wc, reinterpret_cast<ibv_grh*>(grh.data()), &a);
    EXPECT_EQ(result, errno ? -1 : 0);
    return errno;
  }

  // Sends `text`; the receiver's completion.
  ibv_wc datagram(ibv_qp* from, ibv_ah* ah, std::uint32_t to, ibv_mr* mr, const std::string& text) {
    std::memcpy(buffer.data(), text.data(), text.size());
    ibv_sge sge = sge_of(buffer.data(), static_cast<std::uint32_t>(text.size()), mr);
    ibv_send_wr wr{}, *bad;
    wr.sg_list = &sge, wr.num_sge = 1, wr.opcode = IBV_WR_SEND;
    wr.wr.ud = {.ah = ah, .remote_qpn = to, .remote_qkey = qkey};
    EXPECT_EQ(ibv_post_send(from, &wr, &bad), 0);
    ibv_wc received{};
    for (const ibv_wc& wc : completions(2)) {
      EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
      if (wc.opcode == IBV_WC_RECV) received = wc;
    }
    return received;
  }
  // What stands in front of a datagram that was sent to oneself.
  static void expect_ipv4(const Header& grh, const ibv_ah_attr& a, int datagram_bytes) {
    EXPECT_EQ(grh[20], 0x45);
    EXPECT_EQ(grh[21], a.grh.traffic_class);
    EXPECT_EQ(grh[22] << 8 | grh[23], 20 + datagram_bytes);
    EXPECT_EQ(grh[28], a.grh.hop_limit);
    EXPECT_EQ(grh[29], IPPROTO_UDP);
    EXPECT_EQ(std::memcmp(&grh[32], a.grh.dgid.raw + 12, 4), 0);
    EXPECT_EQ(std::memcmp(&grh[36], a.grh.dgid.raw + 12, 4), 0);
  }
  static void expect_ipv6(const Header& grh, const ibv_ah_attr& a, int datagram_bytes) {
    EXPECT_EQ(grh[0], 0x60 | a.grh.traffic_class >> 4);
    EXPECT_EQ(grh[1] >> 4, a.grh.traffic_class & 15);
    EXPECT_EQ(grh[4] << 8 | grh[5], datagram_bytes);
    EXPECT_EQ(grh[6], IPPROTO_UDP);
    EXPECT_EQ(grh[7], a.grh.hop_limit);
    EXPECT_EQ(std::memcmp(&grh[8], a.grh.dgid.raw, 16), 0);
    EXPECT_EQ(std::memcmp(&grh[24], a.grh.dgid.raw, 16), 0);
  }
};

TEST_F(Address, NeedsAGidTableEntry) {
  ibv_ah_attr a = own_address();
  a.is_global = 0;
  EXPECT_EQ(error_of_ah(a), EINVAL);
  a = own_address();
  a.grh.sgid_index = 7;  // empty
  EXPECT_EQ(error_of_ah(a), ENODATA);
  a.grh.sgid_index = 200;
  EXPECT_EQ(error_of_ah(a), EINVAL);
  for (const std::uint8_t port : {0, 2}) {
    a = own_address();
    a.port_num = port;
    EXPECT_EQ(error_of_ah(a), EINVAL);
  }
}

TEST_F(Address, HasARateThatThereIs) {
  ibv_ah_attr a = own_address();
  for (const std::uint8_t rate : {1, IBV_RATE_1200_GBPS + 1, 255}) {
    a.static_rate = rate;
    EXPECT_EQ(error_of_ah(a), EINVAL) << unsigned{rate};
  }
  for (const std::uint8_t rate : {IBV_RATE_MAX, IBV_RATE_2_5_GBPS, IBV_RATE_1200_GBPS}) {
    a.static_rate = rate;
    ibv_ah* ah = ibv_create_ah(pd, &a);
    ASSERT_TRUE(ah) << unsigned{rate};
    EXPECT_EQ(ibv_destroy_ah(ah), 0);
  }
}

TEST_F(Address, IsOfOneFamilyWithItsSource) {
  ibv_ah_attr a = own_address();
  a.grh.dgid = {};
  EXPECT_EQ(error_of_ah(a), EINVAL);
  a.grh.dgid.raw[0] = 0xfd;
  EXPECT_EQ(error_of_ah(a), EINVAL);
}

TEST_F(Address, FromAReceivedIpv4Header) {
  ibv_gid own;
  ASSERT_EQ(ibv_query_gid(context, 1, 0, &own), 0);
  Header grh = ipv4_header(own.raw + 12);
  const unsigned char source[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 9, 8, 7};
  // The bytes before it are unspecified, and may look like an IPv6 header.
  for (const unsigned char first : {0x00, 0x6f, 0xff}) {
    grh[0] = first;
    ibv_ah_attr a;
    ASSERT_EQ(init_from(grh, a), 0);
    EXPECT_EQ(a.is_global, 1);
    EXPECT_EQ(a.port_num, 1);
    EXPECT_EQ(a.grh.sgid_index, 0);
    EXPECT_EQ(a.grh.traffic_class, 0x0a);
    EXPECT_EQ(a.grh.hop_limit, 63);
    EXPECT_EQ(a.grh.flow_label, 0u);
    EXPECT_EQ(std::memcmp(a.grh.dgid.raw, source, 16), 0);
  }
}

TEST_F(Address, FromAHeaderThatHasNoAnswer) {
  ibv_gid own;
  ibv_ah_attr a;
  ASSERT_EQ(ibv_query_gid(context, 1, 0, &own), 0);
  Header grh = ipv4_header(own.raw + 12);
  EXPECT_EQ(init_from(grh, a, 2), EINVAL);
  const unsigned char group[4] = {239, 1, 2, 3}, stranger[4] = {198, 51, 100, 77};
  grh = ipv4_header(group);
  EXPECT_EQ(init_from(grh, a), EINVAL);
  grh = ipv4_header(stranger);
  EXPECT_EQ(init_from(grh, a), EINVAL);
  grh.fill(0);
  EXPECT_EQ(init_from(grh, a), EPROTONOSUPPORT);
  grh[0] = 0x60;
  grh[6] = 6;  // TCP
  EXPECT_EQ(init_from(grh, a), EPROTONOSUPPORT);
  ibv_wc wc{};
  wc.wc_flags = IBV_WC_GRH;
  errno = 0;
  EXPECT_EQ(ibv_create_ah_from_wc(pd, &wc, reinterpret_cast<ibv_grh*>(grh.data()), 1), nullptr);
  EXPECT_EQ(errno, EPROTONOSUPPORT);
}

// Over every GID of the port: what the receiver finds in front of the datagram, and that an answer
// to it arrives.
TEST_F(Address, AReceiverAnswers) {
  ibv_mr* mr = ibv_reg_mr(pd, buffer.data(), buffer.size(), IBV_ACCESS_LOCAL_WRITE);
  ASSERT_TRUE(mr);
  unsigned families = 0;
  for (unsigned index = 0; index < 8; ++index) {
    ibv_ah_attr attr = own_address_at(index);
    if (!attr.grh.dgid.global.interface_id) continue;
    attr.grh.traffic_class = 0x40;
    attr.grh.hop_limit = 17;
    ibv_qp *asks = make_ud(), *answers = make_ud();
    ibv_ah* ah = ibv_create_ah(pd, &attr);
    ASSERT_TRUE(ah);
    const char* const got = buffer.data() + 4096;  // of post_receive
    std::memset(buffer.data() + 4096, 0xff, 100);
    ASSERT_EQ(post_receive(answers, 1, mr, 100), 0);
    ibv_wc wc = datagram(asks, ah, answers->qp_num, mr, "who is there");
    EXPECT_EQ(wc.byte_len, 52u);
    EXPECT_EQ(wc.wc_flags & IBV_WC_GRH, unsigned{IBV_WC_GRH});
    EXPECT_EQ(wc.src_qp, asks->qp_num);
    EXPECT_EQ(std::string(got + 40, 12), "who is there");

    Header grh;
    std::memcpy(grh.data(), got, 40);
    const bool v4 = IN6_IS_ADDR_V4MAPPED(reinterpret_cast<const in6_addr*>(attr.grh.dgid.raw));
    families |= v4 ? 1 : 2;
    constexpr int datagram_bytes = 8 + 12 + 8 + 12 + 4;  // UDP, BTH, DETH, payload, ICRC
    v4 ? expect_ipv4(grh, attr, datagram_bytes) : expect_ipv6(grh, attr, datagram_bytes);

    ibv_ah* back = ibv_create_ah_from_wc(pd, &wc, reinterpret_cast<ibv_grh*>(grh.data()), 1);
    ASSERT_TRUE(back) << std::strerror(errno);
    ASSERT_EQ(post_receive(asks, 2, mr, 100), 0);
    wc = datagram(answers, back, wc.src_qp, mr, "it is me");
    EXPECT_EQ(wc.qp_num, asks->qp_num);
    EXPECT_EQ(std::string(got + 40, 8), "it is me");
    EXPECT_EQ(ibv_destroy_ah(back), 0);
    EXPECT_EQ(ibv_destroy_ah(ah), 0);
    EXPECT_EQ(ibv_destroy_qp(asks), 0);
    EXPECT_EQ(ibv_destroy_qp(answers), 0);
  }
  EXPECT_NE(families & 1, 0u);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
}

// As the kernel has it for every NIC, while it looks for the peer's Ethernet address.
TEST(AddressWithoutRoute, IsUnreachable) {
  if (!run_alone({"ADVERB_DEVICE=lo"})) return;
  if (unshare(CLONE_NEWNET)) GTEST_SKIP() << "network namespaces need privileges";
  const int s = socket(AF_INET, SOCK_DGRAM, 0);
  ifreq up{.ifr_ifrn = {"lo"}, .ifr_ifru = {}};
  up.ifr_flags = IFF_UP;
  ASSERT_EQ(ioctl(s, SIOCSIFFLAGS, &up), 0);
  close(s);
  ibv_device** list = ibv_get_device_list(nullptr);
  ASSERT_TRUE(list && list[0]);
  ibv_context* context = ibv_open_device(list[0]);
  ASSERT_TRUE(context);
  ibv_pd* pd = ibv_alloc_pd(context);
  ibv_ah_attr a{};
  a.is_global = a.port_num = 1;
  ASSERT_EQ(ibv_query_gid(context, 1, 0, &a.grh.dgid), 0);
  ibv_ah* ah = ibv_create_ah(pd, &a);
  EXPECT_TRUE(ah) << std::strerror(errno);
  EXPECT_EQ(ibv_destroy_ah(ah), 0);
  constexpr std::uint8_t of_nobody_here[] = {203, 0, 113, 9};
  std::memcpy(a.grh.dgid.raw + 12, of_nobody_here, 4);
  errno = 0;
  EXPECT_FALSE(ibv_create_ah(pd, &a));
  EXPECT_EQ(errno, ENETUNREACH);
  ibv_cq* cq = ibv_create_cq(context, 1, nullptr, nullptr, 0);
  ibv_qp_init_attr init{};
  init.send_cq = init.recv_cq = cq;
  init.qp_type = IBV_QPT_UC;
  ibv_qp* qp = ibv_create_qp(pd, &init);
  ASSERT_TRUE(qp);
  ASSERT_EQ(Verbs::to_init(qp), 0);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = IBV_MTU_1024;
  attr.ah_attr = a;
  EXPECT_EQ(
      ibv_modify_qp(qp, &attr,
                    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN),
      ENETUNREACH);
  EXPECT_EQ(ibv_destroy_qp(qp), 0);
  EXPECT_EQ(ibv_destroy_cq(cq), 0);
  EXPECT_EQ(ibv_dealloc_pd(pd), 0);
  EXPECT_EQ(ibv_close_device(context), 0);
  ibv_free_device_list(list);
}

}  // namespace
