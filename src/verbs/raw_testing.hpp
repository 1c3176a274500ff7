// SPDX-License-Identifier: Apache-2.0
// What tests of raw packets begin with: queue pairs, frames and rules on the loopback interface.
// They need CAP_NET_RAW; without it `permitted` is false, and that creating says so was seen.
#pragma once

#include <string>

#include "verbs/testing.hpp"

namespace adverb::verbs {

using Frame = std::string;

struct Raw : Loopback {
  ibv_mr* mr = nullptr;
  bool permitted = true;

  void SetUp() override {
    Loopback::SetUp();
    mr = ibv_reg_mr(pd, buffer.data(), buffer.size(), IBV_ACCESS_LOCAL_WRITE);
    ibv_qp* qp = make_qp(IBV_QPT_RAW_PACKET);
    permitted = qp != nullptr;
    if (qp) {
      EXPECT_EQ(ibv_destroy_qp(qp), 0);
    } else {
      EXPECT_EQ(errno, EPERM);
    }
  }
  void TearDown() override {
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
    Loopback::TearDown();
  }

  ibv_qp* make_raw() { return started(make_qp(IBV_QPT_RAW_PACKET)); }
  static ibv_qp* started(ibv_qp* qp) {
    EXPECT_TRUE(qp) << std::strerror(errno);
    ibv_qp_attr a{};
    a.qp_state = IBV_QPS_INIT;
    a.port_num = 1;
    EXPECT_EQ(ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PORT), 0);
    a.qp_state = IBV_QPS_RTR;
    EXPECT_EQ(ibv_modify_qp(qp, &a, IBV_QP_STATE), 0);
    a.qp_state = IBV_QPS_RTS;
    EXPECT_EQ(ibv_modify_qp(qp, &a, IBV_QP_STATE), 0);
    return qp;
  }
  // An Ethernet frame of a type that nobody uses (IEEE 802 local experimental), or with a VLAN tag.
  static Frame frame(char to, std::size_t payload, bool tagged = false) {
    Frame f{2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, 9};
    if (tagged) f += {static_cast<char>(0x81), 0, 0, 7};
    f += {static_cast<char>(0x88), static_cast<char>(0xb5)};
    for (std::size_t i = 0; i < payload; ++i) f += static_cast<char>(i * 7);
    return f;
  }
  int send(ibv_qp* qp, const Frame& f) {
    std::memcpy(buffer.data(), f.data(), f.size());
    ibv_sge sge = sge_of(buffer.data(), static_cast<std::uint32_t>(f.size()), mr);
    return post_send(qp, 1, &sge);
  }
  void silent(unsigned milliseconds = 30) {
    ibv_wc wc;
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds);
    while (std::chrono::steady_clock::now() < end) ASSERT_EQ(ibv_poll_cq(cq, 1, &wc), 0);
  }

  struct EthRule {
    ibv_flow_attr attr{.comp_mask = 0,
                       .type = IBV_FLOW_ATTR_NORMAL,
                       .size = 0,
                       .priority = 0,
                       .num_of_specs = 1,
                       .port = 1,
                       .flags = 0};
    ibv_flow_spec_eth eth{.type = IBV_FLOW_SPEC_ETH, .size = sizeof eth, .val = {}, .mask = {}};
  };
  static EthRule rule_to(char last) {
    EthRule r;
    r.attr.size = sizeof r;
    r.eth.val.dst_mac[0] = 2, r.eth.val.dst_mac[5] = static_cast<std::uint8_t>(last);
    std::memset(r.eth.mask.dst_mac, 0xff, 6);
    return r;
  }
};

}  // namespace adverb::verbs
