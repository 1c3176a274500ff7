// SPDX-License-Identifier: Apache-2.0
// More spinning threads than CPUs: each thread READs from the memory of its own process over a pair
// of RC queue pairs of its own, one READ at a time, and polls its own CQ without a pause.  A NIC
// does the same number of READs per second however many threads there are.
//
//   adverb_bench_crowd DEVICE THREADS SECONDS     prints READs per second
#include <atomic>
#include <barrier>
#include <chrono>
#include <thread>
#include <vector>

#include "tests/clients/kit.hpp"

namespace adverb::clients {
namespace {

constexpr unsigned bytes = 8, depth = 4;

struct Crowd {
  Nic nic;
  std::vector<std::uint8_t> memory = std::vector<std::uint8_t>(4096);
  ibv_mr* mr = nullptr;
  std::atomic<bool> stop{false};
  std::atomic<long> reads{0};
};

class Pair {
 public:
  explicit Pair(Crowd& crowd) : crowd_(crowd) {
    cq_ = need(ibv_create_cq(crowd.nic.context, 2 * depth, nullptr, nullptr, 0), "ibv_create_cq");
    reader_ = make_qp();
    target_ = make_qp();
    const ConnectOptions o;
    to_rtr(reader_, crowd.nic, crowd.nic.gid, target_->qp_num, 0, o);
    to_rtr(target_, crowd.nic, crowd.nic.gid, reader_->qp_num, 0, o);
    to_rts(reader_, 0, o);
    to_rts(target_, 0, o);
  }

  void read() {
    const auto at = reinterpret_cast<std::uintptr_t>(crowd_.memory.data());
    ibv_sge sge{.addr = at, .length = bytes, .lkey = crowd_.mr->lkey};
    ibv_send_wr wr{}, *bad = nullptr;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_RDMA_READ;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma = {.remote_addr = at + bytes, .rkey = crowd_.mr->rkey};
    need_zero(ibv_post_send(reader_, &wr, &bad), "ibv_post_send");
    ibv_wc wc{};
    int found = 0;
    while (found == 0) found = ibv_poll_cq(cq_, 1, &wc);
    if (found < 0 || wc.status != IBV_WC_SUCCESS)
      die(exit_failed, "READ: %s", ibv_wc_status_str(wc.status));
  }

 private:
  ibv_qp* make_qp() {
    ibv_qp_init_attr a{};
    a.send_cq = a.recv_cq = cq_;
    a.qp_type = IBV_QPT_RC;
    a.cap.max_send_wr = a.cap.max_recv_wr = depth;
    a.cap.max_send_sge = a.cap.max_recv_sge = 1;
    ibv_qp* qp = need(ibv_create_qp(crowd_.nic.pd, &a), "ibv_create_qp");
    to_init(qp);
    return qp;
  }

  Crowd& crowd_;
  ibv_cq* cq_;
  ibv_qp *reader_, *target_;
};

double reads_per_second(const char* device, unsigned count, std::chrono::duration<double> time) {
  using Clock = std::chrono::steady_clock;
  Crowd crowd;
  crowd.nic.open(device, 0);
  crowd.mr = need(ibv_reg_mr(crowd.nic.pd, crowd.memory.data(), crowd.memory.size(),
                             IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ),
                  "ibv_reg_mr");
  std::barrier ready(count + 1);
  std::vector<std::jthread> threads;
  for (unsigned i = 0; i < count; ++i)
    threads.emplace_back([&] {
      Pair pair(crowd);
      ready.arrive_and_wait();
      long n = 0;
      for (; !crowd.stop.load(std::memory_order_relaxed); ++n) pair.read();
      crowd.reads += n;
    });
  ready.arrive_and_wait();
  const auto start = Clock::now();
  std::this_thread::sleep_for(time);
  crowd.stop = true;
  const std::chrono::duration<double> passed = Clock::now() - start;
  threads.clear();
  return static_cast<double>(crowd.reads.load()) / passed.count();
}

}  // namespace
}  // namespace adverb::clients

int main(int argc, char** argv) {
  using namespace adverb::clients;
  const int threads = argc == 4 ? std::atoi(argv[2]) : 0;
  const double seconds = argc == 4 ? std::atof(argv[3]) : 0;
  if (threads < 1 || seconds <= 0)
    die(exit_usage, "usage: adverb_bench_crowd DEVICE THREADS SECONDS, both above 0");
  std::printf("%.0f\n", reads_per_second(argv[1], static_cast<unsigned>(threads),
                                         std::chrono::duration<double>(seconds)));
}
