// SPDX-License-Identifier: Apache-2.0
// Multicast between processes.
//
//   group_client receive MGID GID_INDEX N   attaches two queue pairs to the group, says "ready",
//   and
//                                           waits for N datagrams on each
//   group_client send MGID GID_INDEX N      sends N datagrams to the group
//   group_client both MGID GID_INDEX N      as `send`, from one of two attached queue pairs: the
//                                           other one gets all of them, the sender none
//
// Every datagram must come once, in order and whole, under the header of the group.
#include <arpa/inet.h>

#include <chrono>
#include <vector>

#include "tests/clients/kit.hpp"

namespace adverb::clients {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t header_bytes = 40, message_bytes = 512, slot_bytes = 1024;
constexpr std::uint32_t group_qpn = 0xffffff;

struct Member {
  ibv_qp* qp = nullptr;
  ibv_cq* cq = nullptr;
  unsigned got = 0;
};

class Client {
 public:
  Client(const char* group, unsigned gid_index, unsigned count) : count_(count) {
    if (inet_pton(AF_INET6, group, group_.raw) != 1) die(exit_usage, "%s is no GID", group);
    nic_.open("", gid_index);
    buffer_.resize((count + 1) * slot_bytes * 2);
    mr_ = need(ibv_reg_mr(nic_.pd, buffer_.data(), buffer_.size(), IBV_ACCESS_LOCAL_WRITE),
               "ibv_reg_mr");
  }

  Member make(bool attached) {
    Member m;
    m.cq = need(ibv_create_cq(nic_.context, static_cast<int>(2 * count_ + 2), nullptr, nullptr, 0),
                "ibv_create_cq");
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = m.cq;
    init.cap = {count_ + 1, count_ + 1, 1, 1, 0};
    init.qp_type = IBV_QPT_UD;
    m.qp = need(ibv_create_qp(nic_.pd, &init), "ibv_create_qp");
    to_init(m.qp);
    to_rtr(m.qp, nic_, {}, 0, 0, {});
    to_rts(m.qp, 0, {});
    if (!attached) return m;
    need_zero(ibv_attach_mcast(m.qp, &group_, 0), "ibv_attach_mcast");
    const std::size_t first = members_++ * (count_ + 1);
    for (unsigned i = 0; i <= count_; ++i) {  // one more than can come
      ibv_sge sge{address_of(first + i), slot_bytes, mr_->lkey};
      ibv_recv_wr wr{first + i, nullptr, &sge, 1}, *bad;
      need_zero(ibv_post_recv(m.qp, &wr, &bad), "ibv_post_recv");
    }
    return m;
  }

  void send(Member& m) {
    ibv_ah_attr attr = nic_.address(group_);
    ibv_ah* ah = need(ibv_create_ah(nic_.pd, &attr), "ibv_create_ah");
    std::vector<std::uint8_t> message(message_bytes);
    ibv_mr* mr = need(ibv_reg_mr(nic_.pd, message.data(), message.size(), 0), "ibv_reg_mr");
    for (unsigned i = 0; i < count_; ++i) {
      fill(message.data(), message.size(), i);
      ibv_sge sge{reinterpret_cast<std::uintptr_t>(message.data()), message_bytes, mr->lkey};
      ibv_send_wr wr{}, *bad;
      wr.sg_list = &sge, wr.num_sge = 1;
      wr.opcode = IBV_WR_SEND, wr.send_flags = IBV_SEND_SIGNALED;
      wr.wr.ud = {.ah = ah, .remote_qpn = group_qpn, .remote_qkey = ud_qkey};
      need_zero(ibv_post_send(m.qp, &wr, &bad), "ibv_post_send");
      ibv_wc wc;
      while (ibv_poll_cq(m.cq, 1, &wc) == 0) {
      }
      if (wc.status != IBV_WC_SUCCESS) die(exit_failed, "send: %s", ibv_wc_status_str(wc.status));
      if (wc.opcode != IBV_WC_SEND) die(exit_wrong_data, "the sender got its own datagram");
    }
    ibv_dereg_mr(mr);
    ibv_destroy_ah(ah);
  }

  // Until every member has got all, and then for a moment, lest one comes twice.
  void receive(std::vector<Member*> members) {
    const auto patience = Clock::now() + std::chrono::seconds(10);
    auto end = patience;
    while (Clock::now() < end) {
      bool all = true;
      for (Member* m : members) {
        take(*m);
        all = all && m->got == count_;
      }
      if (all && end == patience) end = Clock::now() + std::chrono::milliseconds(200);
    }
    for (Member* m : members)
      if (m->got != count_) die(exit_stuck, "%u of %u datagrams came", m->got, count_);
  }

  void nothing_for(Member& m) {
    ibv_wc wc;
    if (ibv_poll_cq(m.cq, 1, &wc)) die(exit_wrong_data, "the sender got its own datagram");
  }

  void destroy(Member& m, bool attached) {
    if (attached) need_zero(ibv_detach_mcast(m.qp, &group_, 0), "ibv_detach_mcast");
    need_zero(ibv_destroy_qp(m.qp), "ibv_destroy_qp");
    need_zero(ibv_destroy_cq(m.cq), "ibv_destroy_cq");
  }

 private:
  std::uint64_t address_of(std::size_t slot) const {
    return reinterpret_cast<std::uintptr_t>(buffer_.data()) + slot * slot_bytes;
  }
  void take(Member& m) {
    ibv_wc wc;
    if (ibv_poll_cq(m.cq, 1, &wc) != 1) return;
    if (wc.status != IBV_WC_SUCCESS) die(exit_failed, "receive: %s", ibv_wc_status_str(wc.status));
    const std::uint8_t* p = buffer_.data() + wc.wr_id * slot_bytes;
    if (wc.byte_len != header_bytes + message_bytes) die(exit_wrong_data, "%u bytes", wc.byte_len);
    if (first_difference(p + header_bytes, message_bytes, m.got) != message_bytes)
      die(exit_wrong_data, "datagram %u: wrong data, or not its turn", m.got);
    const bool v4 = IN6_IS_ADDR_V4MAPPED(reinterpret_cast<const in6_addr*>(group_.raw));
    if (std::memcmp(p + (v4 ? 36 : 24), group_.raw + (v4 ? 12 : 0), v4 ? 4 : 16) != 0)
      die(exit_wrong_data, "datagram %u: not to the group", m.got);
    ++m.got;
  }

  unsigned count_;
  std::size_t members_ = 0;
  ibv_gid group_{};
  Nic nic_;
  std::vector<std::uint8_t> buffer_;
  ibv_mr* mr_ = nullptr;
};

int run(const std::string& what, Client& client) {
  const bool sends = what != "receive", attached = what != "send";
  Member a = client.make(attached), b = client.make(attached);
  std::puts("ready");
  std::fflush(stdout);
  if (sends) client.send(a);
  if (what == "receive") client.receive({&a, &b});
  if (what == "both") {
    client.receive({&b});
    client.nothing_for(a);
  }
  client.destroy(a, attached);
  client.destroy(b, attached);
  std::puts("done");
  return exit_good;
}

}  // namespace
}  // namespace adverb::clients

int main(int argc, char** argv) {
  using namespace adverb::clients;
  const std::string what = argc == 5 ? argv[1] : "";
  if (what != "receive" && what != "send" && what != "both")
    die(exit_usage, "usage: group_client receive|send|both MGID GID_INDEX N");
  Client client(argv[2], static_cast<unsigned>(std::atoi(argv[3])),
                static_cast<unsigned>(std::atoi(argv[4])));
  return run(what, client);
}
