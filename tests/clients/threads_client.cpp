// SPDX-License-Identifier: Apache-2.0
// Many threads on the same objects, in one process.  Two RC queue pairs talk to each other; every
// thread posts to the one, and all threads, some polling and some sleeping on a completion channel,
// take the completions of both, while other threads create, use and destroy objects of their own.
// What must hold in spite of that: each message arrives once and whole, each work request completes
// once, and FETCH_ADD loses nothing.
//
//   threads_client [-d DEVICE] [-g GID] [-n MESSAGES_PER_THREAD] [-t POSTERS]
#include <getopt.h>
#include <poll.h>
#include <sched.h>

#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/clients/kit.hpp"

namespace adverb::clients {
namespace {

constexpr unsigned max_payload = 5000, depth = 64;

struct Head {  // of each message
  std::uint32_t poster, number, size, zero;
};

ibv_qp* make_qp(const Nic& nic, ibv_cq* send_cq, ibv_cq* recv_cq, unsigned n) {
  ibv_qp_init_attr a{};
  a.send_cq = send_cq;
  a.recv_cq = recv_cq;
  a.qp_type = IBV_QPT_RC;
  a.cap = {.max_send_wr = n,
           .max_recv_wr = n,
           .max_send_sge = 1,
           .max_recv_sge = 1,
           .max_inline_data = 0};
  ibv_qp* qp = need(ibv_create_qp(nic.pd, &a), "ibv_create_qp");
  to_init(qp);
  return qp;
}

void join(const Nic& nic, ibv_qp* a, ibv_qp* b) {
  const ConnectOptions o{.timeout = 18};  // a sanitizer makes everything slow
  to_rtr(a, nic, nic.gid, b->qp_num, 7, o);
  to_rtr(b, nic, nic.gid, a->qp_num, 7, o);
  to_rts(a, 7, o);
  to_rts(b, 7, o);
}

void expect_success(const ibv_wc& wc) {
  if (wc.status != IBV_WC_SUCCESS)
    die(exit_failed, "wr_id 0x%llx: %s", (unsigned long long)wc.wr_id,
        ibv_wc_status_str(wc.status));
}

// A completion queue that several threads poll, and more of them sleep on.
struct Queue {
  ibv_comp_channel* channel = nullptr;
  ibv_cq* cq = nullptr;
  void open(const Nic& nic) {
    channel = need(ibv_create_comp_channel(nic.context), "ibv_create_comp_channel");
    cq = need(ibv_create_cq(nic.context, 4 * depth, nullptr, channel, 0), "ibv_create_cq");
    need_zero(ibv_req_notify_cq(cq, 0), "ibv_req_notify_cq");
  }
  void close() {
    need_zero(ibv_destroy_cq(cq), "ibv_destroy_cq");
    need_zero(ibv_destroy_comp_channel(channel), "ibv_destroy_comp_channel");
  }
};

class Program {
 public:
  Program(std::string device, unsigned gid, unsigned messages, unsigned posters)
      : messages_(messages), posters_(posters), seen_(posters * messages) {
    nic_.open(device, gid);
    sends_.open(nic_);
    receives_.open(nic_);
    a_ = make_qp(nic_, sends_.cq, receives_.cq, depth);
    b_ = make_qp(nic_, sends_.cq, receives_.cq, depth);
    join(nic_, a_, b_);
    slots_ = std::vector<Slot>(depth);
    source_.resize(depth * max_payload);
    target_.resize(depth * max_payload);
    source_mr_ = reg(source_.data(), source_.size(), IBV_ACCESS_LOCAL_WRITE);
    target_mr_ = reg(target_.data(), target_.size(), IBV_ACCESS_LOCAL_WRITE);
    word_mr_ = reg(&word_, sizeof word_, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
    for (unsigned i = 0; i < depth; ++i) post_receive(i);
  }

  int run() {
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < posters_; ++i) threads.emplace_back([this, i] { poster(i); });
    for (Queue* q : {&sends_, &receives_}) {
      threads.emplace_back([this, q] { poller(*q); });
      for (int i = 0; i < 2; ++i) threads.emplace_back([this, q] { sleeper(*q); });
    }
    for (unsigned i = 0; i < 2; ++i) threads.emplace_back([this, i] { churner(i); });
    for (std::thread& t : threads) t.join();
    verify();
    close();
    return exit_good;
  }

 private:
  struct Slot {  // of the send queue: a buffer that one work request has
    std::atomic<bool> busy = false;
  };

  ibv_mr* reg(void* p, std::size_t size, int access) {
    return need(ibv_reg_mr(nic_.pd, p, size, access), "ibv_reg_mr");
  }
  bool finished() const {
    return sent_ == posters_ * messages_ && received_ + added_ == posters_ * messages_;
  }

  // --- posting

  unsigned take_slot() {
    for (unsigned i = 0;; i = (i + 1) % depth) {
      if (!slots_[i].busy.exchange(true, std::memory_order_acquire)) return i;
      if (i == 0) sched_yield();
    }
  }

  // Every fourth is a FETCH_ADD, the others are SENDs.
  void poster(unsigned self) {
    Prng prng(self);
    for (unsigned number = 0; number < messages_; ++number) {
      const unsigned slot = take_slot();
      std::uint8_t* at = &source_[slot * max_payload];
      ibv_sge sge{reinterpret_cast<std::uintptr_t>(at), 8, source_mr_->lkey};
      ibv_send_wr wr{}, *bad = nullptr;
      wr.wr_id = slot;
      wr.sg_list = &sge;
      wr.num_sge = 1;
      wr.send_flags = IBV_SEND_SIGNALED;
      if (number % 4 == 3) {
        wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
        wr.wr.atomic = {reinterpret_cast<std::uintptr_t>(&word_), self + 1, 0, word_mr_->rkey};
        seen_[self * messages_ + number] = 1;
      } else {
        const auto more = static_cast<std::uint32_t>(prng.next() % (max_payload - sizeof(Head)));
        const Head head{self, number, more, 0};
        std::memcpy(at, &head, sizeof head);
        fill(at + sizeof head, more, self * 1000003ull + number);
        sge.length = sizeof head + more;
        wr.opcode = IBV_WR_SEND;
      }
      int error;  // the slot is free a little before the queue's entry is
      while ((error = ibv_post_send(a_, &wr, &bad)) == ENOMEM) sched_yield();
      need_zero(error, "ibv_post_send");
    }
  }

  void post_receive(unsigned slot) {
    ibv_sge sge{reinterpret_cast<std::uintptr_t>(&target_[slot * max_payload]), max_payload,
                target_mr_->lkey};
    ibv_recv_wr wr{}, *bad = nullptr;
    wr.wr_id = slot;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    need_zero(ibv_post_recv(b_, &wr, &bad), "ibv_post_recv");
  }

  // --- completing

  void on_completion(const ibv_wc& wc) {
    expect_success(wc);
    if (wc.opcode == IBV_WC_RECV) {
      check_message(&target_[wc.wr_id * max_payload], wc.byte_len);
      post_receive(static_cast<unsigned>(wc.wr_id));
      ++received_;
      return;
    }
    if (wc.opcode == IBV_WC_FETCH_ADD) ++added_;
    if (!slots_[wc.wr_id].busy.exchange(false, std::memory_order_release))
      die(exit_wrong_data, "WRONG: work request %u completed twice", unsigned(wc.wr_id));
    ++sent_;
  }

  void check_message(const std::uint8_t* at, std::uint32_t size) {
    Head head;
    std::memcpy(&head, at, sizeof head);
    if (head.poster >= posters_ || head.number >= messages_ || head.size + sizeof head != size)
      die(exit_wrong_data, "WRONG: message %u of poster %u with %u bytes", head.number, head.poster,
          size);
    const std::size_t same =
        first_difference(at + sizeof head, head.size, head.poster * 1000003ull + head.number);
    if (same != head.size)
      die(exit_wrong_data, "WRONG: message %u of poster %u: byte %zu", head.number, head.poster,
          same);
    if (seen_[head.poster * messages_ + head.number].exchange(1))
      die(exit_wrong_data, "WRONG: message %u of poster %u came twice", head.number, head.poster);
  }

  bool drain(ibv_cq* cq) {
    ibv_wc wcs[4];
    const int n = ibv_poll_cq(cq, 4, wcs);
    if (n < 0) die(exit_failed, "ibv_poll_cq returned %d", n);
    for (int i = 0; i < n; ++i) on_completion(wcs[i]);
    return n != 0;
  }

  void poller(Queue& q) {
    while (!finished())
      if (!drain(q.cq)) sched_yield();
  }

  // An event may have been taken by the other sleeper, and then this one would wait for ever:
  // poll(2) with a limit, on a descriptor that does not block.
  void sleeper(Queue& q) {
    while (!finished()) {
      pollfd p{q.channel->fd, POLLIN, 0};
      if (::poll(&p, 1, 20) != 1) continue;
      std::unique_lock lock(event_mutex_);
      if (::poll(&p, 1, 0) != 1) continue;
      ibv_cq* cq = nullptr;
      void* context = nullptr;
      need_zero(ibv_get_cq_event(q.channel, &cq, &context), "ibv_get_cq_event");
      lock.unlock();
      ibv_ack_cq_events(cq, 1);
      ++events_;
      need_zero(ibv_req_notify_cq(cq, 0), "ibv_req_notify_cq");
      while (drain(cq)) {
      }
    }
  }

  // --- other objects that come and go

  void churner(unsigned self) {
    for (unsigned round = 0; !finished(); ++round) {
      std::vector<std::uint8_t> from(20000), to(20000);
      fill(from.data(), from.size(), self + round);
      ibv_mr* from_mr = reg(from.data(), from.size(), 0);
      ibv_mr* to_mr = reg(to.data(), to.size(), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
      ibv_cq* cq = need(ibv_create_cq(nic_.context, 16, nullptr, nullptr, 0), "ibv_create_cq");
      ibv_qp *x = make_qp(nic_, cq, cq, 8), *y = make_qp(nic_, cq, cq, 8);
      join(nic_, x, y);
      write(x, cq, from, from_mr, to, to_mr);
      // Half of the time a WRITE is still under way when its queue pair goes.
      if (round % 2) post_write(x, from, from_mr, to, to_mr);
      need_zero(ibv_destroy_qp(x), "ibv_destroy_qp");
      need_zero(ibv_destroy_qp(y), "ibv_destroy_qp");
      need_zero(ibv_destroy_cq(cq), "ibv_destroy_cq");
      need_zero(ibv_dereg_mr(from_mr), "ibv_dereg_mr");
      need_zero(ibv_dereg_mr(to_mr), "ibv_dereg_mr");
      if (first_difference(to.data(), to.size(), self + round) != to.size())
        die(exit_wrong_data, "WRONG: a WRITE between short-lived queue pairs");
      ++churned_;
    }
  }

  static void post_write(ibv_qp* qp, std::vector<std::uint8_t>& from, ibv_mr* from_mr,
                         std::vector<std::uint8_t>& to, ibv_mr* to_mr) {
    ibv_sge sge{reinterpret_cast<std::uintptr_t>(from.data()),
                static_cast<std::uint32_t>(from.size()), from_mr->lkey};
    ibv_send_wr wr{}, *bad = nullptr;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma = {reinterpret_cast<std::uintptr_t>(to.data()), to_mr->rkey};
    need_zero(ibv_post_send(qp, &wr, &bad), "ibv_post_send");
  }

  static void write(ibv_qp* qp, ibv_cq* cq, std::vector<std::uint8_t>& from, ibv_mr* from_mr,
                    std::vector<std::uint8_t>& to, ibv_mr* to_mr) {
    post_write(qp, from, from_mr, to, to_mr);
    ibv_wc wc{};
    while (ibv_poll_cq(cq, 1, &wc) == 0) sched_yield();
    expect_success(wc);
  }

  // --- the end

  void verify() {
    std::uint64_t sum = 0;
    for (unsigned i = 0; i < posters_; ++i) sum += (i + 1ull) * (messages_ / 4);
    if (word_ != sum)
      die(exit_wrong_data, "WRONG: FETCH_ADDs left %llu, expected %llu", (unsigned long long)word_,
          (unsigned long long)sum);
    for (auto& seen : seen_)
      if (!seen) die(exit_wrong_data, "WRONG: a message is missing");
    std::printf("%u SENDs, %u FETCH_ADDs by %u threads; %u events; %u short-lived queue pairs\n",
                received_.load(), added_.load(), posters_, events_.load(), 2 * churned_.load());
  }
  void close() {
    need_zero(ibv_destroy_qp(a_), "ibv_destroy_qp");
    need_zero(ibv_destroy_qp(b_), "ibv_destroy_qp");
    sends_.close();
    receives_.close();
    for (ibv_mr* mr : {source_mr_, target_mr_, word_mr_})
      need_zero(ibv_dereg_mr(mr), "ibv_dereg_mr");
    nic_.close();
  }

  Nic nic_;
  unsigned messages_, posters_;
  Queue sends_, receives_;
  ibv_qp *a_ = nullptr, *b_ = nullptr;
  std::vector<Slot> slots_;
  std::vector<std::uint8_t> source_, target_;
  ibv_mr *source_mr_ = nullptr, *target_mr_ = nullptr, *word_mr_ = nullptr;
  alignas(8) std::uint64_t word_ = 0;
  std::vector<std::atomic<char>> seen_;
  std::atomic<unsigned> sent_ = 0, received_ = 0, added_ = 0, events_ = 0, churned_ = 0;
  std::mutex event_mutex_;
};

}  // namespace
}  // namespace adverb::clients

int main(int argc, char** argv) {
  std::string device;
  unsigned gid = 0, messages = 2000, posters = 4;
  for (int c; (c = getopt(argc, argv, "d:g:n:t:")) != -1;) {
    switch (c) {
      case 'd':
        device = optarg;
        break;
      case 'g':
        gid = static_cast<unsigned>(std::strtoul(optarg, nullptr, 0));
        break;
      case 'n':
        messages = static_cast<unsigned>(std::strtoul(optarg, nullptr, 0));
        break;
      case 't':
        posters = static_cast<unsigned>(std::strtoul(optarg, nullptr, 0));
        break;
      default:
        return adverb::clients::exit_usage;
    }
  }
  return adverb::clients::Program(device, gid, messages, posters).run();
}
