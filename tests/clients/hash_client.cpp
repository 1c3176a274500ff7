// SPDX-License-Identifier: Apache-2.0
// Server and client that send each other seeded random operations and check every byte: SEND,
// WRITE, READ and atomics of 0 bytes to 1 MiB, with and without immediate data, inline, scattered,
// in lists of work requests, signaled or not, over several queue pairs at once.
//
//   hash_client [-p PORT] [--bind ADDRESS] [--peers N]                         (server)
//   hash_client [-p PORT] [-q QPS] [-r ROUNDS] [--type rc|uc|ud] ... ADDRESS   (client)
//
// The client chooses the work, the server learns it over TCP.  Exit status: 0 all was right; 1
// wrong data; 2 usage; 3 nothing completed for --patience seconds; 4 a call or a completion failed.
#include <getopt.h>
#include <poll.h>
#include <sched.h>

#include <chrono>
#include <memory>

#include "tests/clients/side_channel.hpp"
#include "tests/clients/streams.hpp"

namespace adverb::clients {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  std::string device, bind, host, port = "18600";
  unsigned gid_index = 0, peers = 1, patience = 20;
  bool events = false;
  std::uint8_t timeout = 14;
  Setup setup{1, 4, 32, 1 << 20, 1024, {20, 20}, IBV_QPT_RC};
};

struct Endpoint {
  std::uint32_t qpn, psn;
  RemoteArea arena;
};
struct Hello {
  ibv_gid gid;
  RemoteArea pattern, words;
  std::uint64_t pattern_seed;
  Endpoint control;
};
struct Goodbye {
  Totals totals;
  std::uint64_t own[256];
};

// One peer: its queue pairs, and one more RC queue pair that carries the credits.
class Session {
 public:
  Session(const Nic& nic, ibv_cq* cq, const Options& options, SideChannel channel, unsigned number)
      : nic_(nic), channel_(channel), number_(number), server_(options.host.empty()) {
    setup_ = options.setup;
    if (server_) {
      setup_ = channel_.get<Setup>();
    } else {
      channel_.put(setup_);
    }
    connect_.timeout = options.timeout;
    while (setup_.mtu > 128u << connect_.mtu) connect_.mtu = ibv_mtu(connect_.mtu + 1);
    while (setup_.mtu < 128u << connect_.mtu) connect_.mtu = ibv_mtu(connect_.mtu - 1);
    make_memory();
    make_queue_pairs(cq);
    connect();
  }

  void start() {
    channel_.exchange('r');  // both are ready
    for (auto& r : requesters_) r.advance();
  }

  void on_completion(const WrId& id, const ibv_wc& wc) {
    if (id.control) {
      on_control(id, wc);
    } else if (!id.receive) {
      requesters_[id.qp].on_completion(id, wc);
    } else if (responders_[id.qp].on_completion(id, wc)) {
      credits_owed_.push_back(id.qp);
      send_credits();
    }
  }

  bool done() const {
    return credits_owed_.empty() && !control_busy_ &&
           std::all_of(requesters_.begin(), requesters_.end(), [](auto& r) { return r.done(); }) &&
           std::all_of(responders_.begin(), responders_.end(), [](auto& r) { return r.done(); });
  }

  // Both sides' accounts must agree; prints the totals.
  void finish() {
    Goodbye mine{};
    for (unsigned i = 0; i < setup_.qps; ++i) {
      mine.own[i] = requesters_[i].own_word();
      const Totals& t = requesters_[i].totals;
      for (unsigned w = 0; w < what_count; ++w) mine.totals.ops[w] += t.ops[w];
      mine.totals.bytes += t.bytes;
      mine.totals.shared_sum += t.shared_sum;
    }
    const Goodbye theirs = channel_.exchange(mine);
    check_word(0, theirs.totals.shared_sum);
    for (unsigned i = 0; i < setup_.qps; ++i) check_word(1 + i, theirs.own[i]);
    print("sent", mine.totals);
    print("received", theirs.totals);
    channel_.exchange('d');  // nobody closes before the other has looked
    close();
  }

  // An empty WRITE, to see whether the peer is still there: when all that was sent has been
  // answered nothing else would tell.
  void ping() {
    if (control_busy_) return;
    ibv_send_wr wr{}, *bad = nullptr;
    wr.wr_id = WrId{false, true, number_, 0, 0, ping_op}.pack();
    wr.opcode = IBV_WR_RDMA_WRITE;
    wr.send_flags = IBV_SEND_SIGNALED;
    ++control_busy_;
    need_zero(ibv_post_send(control_, &wr, &bad), "ibv_post_send");
  }
  static bool is_ping(const WrId& id) { return id.control && id.op == ping_op; }

  void describe() const {
    for (unsigned i = 0; i < setup_.qps; ++i)
      std::fprintf(stderr, "session %u, queue pair %u: sent %u of %u rounds, received %u of %u\n",
                   number_, i, requesters_[i].completed(), requesters_[i].rounds(),
                   responders_[i].received(), responders_[i].rounds());
  }
  std::string name(const WrId& id) const {
    char text[160];
    if (id.control)
      std::snprintf(text, sizeof text, "session %u, credit", number_);
    else
      std::snprintf(text, sizeof text, "session %u, queue pair %u, round %u, operation %u (%s)",
                    number_, id.qp, id.round, id.op,
                    id.receive ? "receive" : name_of[int(requesters_[id.qp].op_of(id).what)]);
    return text;
  }

 private:
  void make_memory() {
    pattern_seed_ = SplitMix::mix(setup_.seed + server_);
    pattern_.make(nic_, pattern_size, IBV_ACCESS_REMOTE_READ);
    fill(pattern_.p, pattern_size, pattern_seed_);
    words_.make(nic_, 8 * 256 + 8,
                IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
  }

  ibv_qp* make_qp(ibv_cq* cq, ibv_qp_type type, unsigned depth) {
    ibv_qp_init_attr a{};
    a.send_cq = a.recv_cq = cq;
    a.qp_type = type;
    a.cap = {.max_send_wr = depth,
             .max_recv_wr = depth,
             .max_send_sge = 4,
             .max_recv_sge = 4,
             .max_inline_data = 64};
    ibv_qp* qp = need(ibv_create_qp(nic_.pd, &a), "ibv_create_qp");
    max_inline_ = a.cap.max_inline_data;
    to_init(qp);
    return qp;
  }

  void make_queue_pairs(ibv_cq* cq) {
    requesters_ = std::vector<Requester>(setup_.qps);
    responders_ = std::vector<Responder>(setup_.qps);
    for (unsigned i = 0; i < setup_.qps; ++i) {
      ibv_qp* qp = make_qp(cq, setup_.type, 2 * setup_.depth);
      qps_.push_back(qp);
      requesters_[i].open(nic_, setup_, {number_, server_, i}, qp, max_inline_);
      responders_[i].open(nic_, setup_, {number_, !server_, i}, qp);
    }
    control_room_ = 4 * setup_.qps + 16;
    control_ = make_qp(cq, IBV_QPT_RC, control_room_);
    for (unsigned i = 0; i < control_room_; ++i) post_control_receive();
  }

  Endpoint endpoint(ibv_qp* qp) {
    return {qp->qp_num, std::uint32_t(SplitMix::mix(setup_.seed + qp->qp_num) & 0xffffff), {}};
  }
  void join(ibv_qp* qp, const Endpoint& mine, const Endpoint& theirs, const ibv_gid& gid) {
    to_rtr(qp, nic_, gid, theirs.qpn, theirs.psn, connect_);
    to_rts(qp, mine.psn, connect_);
  }
  static RemoteArea remote(const Area& a) {
    return {reinterpret_cast<std::uintptr_t>(a.p), a.mr->rkey};
  }

  void connect() {
    const Hello mine{nic_.gid, remote(pattern_), remote(words_), pattern_seed_, endpoint(control_)};
    const Hello theirs = channel_.exchange(mine);
    join(control_, mine.control, theirs.control, theirs.gid);
    for (unsigned i = 0; i < setup_.qps; ++i) {
      Endpoint here = endpoint(qps_[i]);
      here.arena = responders_[i].arena();
      const Endpoint there = channel_.exchange(here);
      join(qps_[i], here, there, theirs.gid);
      Requester& r = requesters_[i];
      r.arena = there.arena, r.pattern = theirs.pattern, r.words = theirs.words;
      r.pattern_seed = theirs.pattern_seed;
      r.remote_qpn = there.qpn;
      if (setup_.type != IBV_QPT_UD) continue;
      ibv_ah_attr address = nic_.address(theirs.gid);
      r.ah = need(ibv_create_ah(nic_.pd, &address), "ibv_create_ah");
    }
  }

  void post_control_receive() {
    ibv_recv_wr wr{}, *bad = nullptr;
    wr.wr_id = WrId{true, true, number_, 0, 0, 0}.pack();
    need_zero(ibv_post_recv(control_, &wr, &bad), "ibv_post_recv");
  }
  void on_control(const WrId& id, const ibv_wc& wc) {
    if (id.receive) {
      post_control_receive();
      requesters_.at(be32toh(wc.imm_data)).on_credit();
    } else {
      --control_busy_;
      send_credits();
    }
  }
  void send_credits() {
    while (!credits_owed_.empty() && control_busy_ < control_room_) {
      ibv_send_wr wr{}, *bad = nullptr;
      wr.wr_id = WrId{false, true, number_, 0, 0, 0}.pack();
      wr.opcode = IBV_WR_SEND_WITH_IMM;
      wr.send_flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED;
      wr.imm_data = htobe32(credits_owed_.back());
      credits_owed_.pop_back();
      ++control_busy_;
      need_zero(ibv_post_send(control_, &wr, &bad), "ibv_post_send");
    }
  }

  void check_word(unsigned i, std::uint64_t expected) {
    std::uint64_t got;
    std::memcpy(&got, words_.p + 8 * i, 8);
    if (got != expected)
      die(exit_wrong_data, "WRONG: session %u: atomics left 0x%llx in word %u, expected 0x%llx",
          number_, (unsigned long long)got, i, (unsigned long long)expected);
  }
  void print(const char* what, const Totals& t) {
    std::printf("session %u %s %llu bytes:", number_, what, (unsigned long long)t.bytes);
    for (unsigned w = 0; w < what_count; ++w)
      if (t.ops[w]) std::printf(" %llu %s;", (unsigned long long)t.ops[w], name_of[w]);
    std::printf(" 0 errors\n");
  }
  void close() {
    for (ibv_qp* qp : qps_) need_zero(ibv_destroy_qp(qp), "ibv_destroy_qp");
    need_zero(ibv_destroy_qp(control_), "ibv_destroy_qp");
    for (auto& r : requesters_) r.close();
    for (auto& r : responders_) r.close();
    pattern_.free();
    words_.free();
    channel_.close();
  }

  static constexpr std::uint32_t ping_op = 1;

  const Nic& nic_;
  SideChannel channel_;
  unsigned number_;
  bool server_;
  Setup setup_;
  ConnectOptions connect_;
  Area pattern_, words_;
  std::uint64_t pattern_seed_ = 0;
  unsigned max_inline_ = 0;
  std::vector<ibv_qp*> qps_;
  std::vector<Requester> requesters_;
  std::vector<Responder> responders_;
  ibv_qp* control_ = nullptr;
  unsigned control_room_ = 0, control_busy_ = 0;
  std::vector<unsigned> credits_owed_;
};

class Program {
 public:
  explicit Program(Options options) : o_(std::move(options)) {}

  int run() {
    nic_.open(o_.device, o_.gid_index);
    if (o_.events)
      channel_ = need(ibv_create_comp_channel(nic_.context), "ibv_create_comp_channel");
    cq_ = need(ibv_create_cq(nic_.context, 1 << 16, nullptr, channel_, 0), "ibv_create_cq");
    meet();
    if (o_.events) need_zero(ibv_req_notify_cq(cq_, 0), "ibv_req_notify_cq");
    for (auto& s : sessions_) s->start();
    last_ = Clock::now();
    while (!all_done())
      if (!drain()) wait();
    for (auto& s : sessions_) s->finish();
    need_zero(ibv_destroy_cq(cq_), "ibv_destroy_cq");
    if (channel_) need_zero(ibv_destroy_comp_channel(channel_), "ibv_destroy_comp_channel");
    nic_.close();
    return exit_good;
  }

 private:
  void meet() {
    if (!o_.host.empty()) {
      sessions_.push_back(
          std::make_unique<Session>(nic_, cq_, o_, connect_to(o_.host, o_.port), 0));
      return;
    }
    const int listener = listen_on(o_.bind, o_.port);
    for (unsigned i = 0; i < o_.peers; ++i) {
      const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0) die(exit_failed, "accept: %s", std::strerror(errno));
      sessions_.push_back(std::make_unique<Session>(nic_, cq_, o_, SideChannel(fd), i));
    }
    ::close(listener);
  }

  bool all_done() const {
    return std::all_of(sessions_.begin(), sessions_.end(), [](auto& s) { return s->done(); });
  }

  bool drain() {
    ibv_wc wcs[16];
    const int n = ibv_poll_cq(cq_, 16, wcs);
    if (n < 0) die(exit_failed, "ibv_poll_cq returned %d", n);
    for (int i = 0; i < n; ++i) {
      const WrId id = WrId::unpack(wcs[i].wr_id);
      Session& session = *sessions_.at(id.session);
      if (wcs[i].status != IBV_WC_SUCCESS)
        die(exit_failed, "%s: %s after %.3f s", session.name(id).c_str(),
            ibv_wc_status_str(wcs[i].status), idle());
      session.on_completion(id, wcs[i]);
      if (!Session::is_ping(id)) last_ = Clock::now();
    }
    return n != 0;
  }

  double idle() const { return std::chrono::duration<double>(Clock::now() - last_).count(); }

  void wait() {
    if (idle() > o_.patience) {
      for (auto& s : sessions_) s->describe();
      die(exit_stuck, "nothing completed for %u s", o_.patience);
    }
    if (idle() > 1)
      for (auto& s : sessions_) s->ping();
    if (!channel_) {
      sched_yield();
      return;
    }
    if (!armed_) {  // arm, and look once more
      need_zero(ibv_req_notify_cq(cq_, 0), "ibv_req_notify_cq");
      armed_ = true;
      return;
    }
    pollfd p{channel_->fd, POLLIN, 0};
    if (::poll(&p, 1, 1000) <= 0) return;
    ibv_cq* cq = nullptr;
    void* context = nullptr;
    need_zero(ibv_get_cq_event(channel_, &cq, &context), "ibv_get_cq_event");
    ibv_ack_cq_events(cq, 1);
    armed_ = false;
  }

  Options o_;
  Nic nic_;
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* cq_ = nullptr;
  bool armed_ = true;
  std::vector<std::unique_ptr<Session>> sessions_;
  Clock::time_point last_;
};

[[noreturn]] void usage() {
  die(exit_usage,
      "usage: hash_client [-d DEVICE] [-g GID] [-p PORT] [-e] [--patience SECONDS] [--timeout "
      "CODE]\n"
      "  server: [--bind ADDRESS] [--peers N]\n"
      "  client: [-q QPS] [-r ROUNDS] [--one-way] [--depth N] [-s MAX_SIZE] [-m MTU] [--seed N]\n"
      "          [--type rc|uc|ud] ADDRESS");
}

ibv_qp_type type_of(const std::string& name) {
  if (name == "rc") return IBV_QPT_RC;
  if (name == "uc") return IBV_QPT_UC;
  if (name == "ud") return IBV_QPT_UD;
  usage();
}

void complete(Options& o, bool one_way, int argc, char** argv) {
  Setup& s = o.setup;
  if (optind < argc) o.host = argv[optind++];
  if (one_way) s.rounds[1] = 0;
  if (s.type == IBV_QPT_UD) s.max_size = std::min(s.max_size, s.mtu);
  if (optind < argc || !s.qps || s.qps > 255 || !s.depth || s.depth > max_depth || !o.peers ||
      o.peers > 64 || s.mtu < 256 || s.mtu > 4096)
    usage();
}

Options parse(int argc, char** argv) {
  static const option names[] = {
      {"bind", 1, nullptr, 'b'},    {"peers", 1, nullptr, 'P'},   {"patience", 1, nullptr, 'w'},
      {"type", 1, nullptr, 't'},    {"seed", 1, nullptr, 'S'},    {"depth", 1, nullptr, 'D'},
      {"one-way", 0, nullptr, '1'}, {"timeout", 1, nullptr, 'T'}, {}};
  Options o;
  Setup& s = o.setup;
  bool one_way = false;
  for (int c; (c = getopt_long(argc, argv, "d:g:p:eq:r:s:m:", names, nullptr)) != -1;) {
    const auto number = [] { return static_cast<unsigned>(std::strtoul(optarg, nullptr, 0)); };
    switch (c) {
      case 'd':
        o.device = optarg;
        break;
      case 'g':
        o.gid_index = number();
        break;
      case 'p':
        o.port = optarg;
        break;
      case 'e':
        o.events = true;
        break;
      case 'q':
        s.qps = number();
        break;
      case 'r':
        s.rounds[0] = s.rounds[1] = number();
        break;
      case 's':
        s.max_size = number();
        break;
      case 'm':
        s.mtu = number();
        break;
      case 'b':
        o.bind = optarg;
        break;
      case 'P':
        o.peers = number();
        break;
      case 'w':
        o.patience = number();
        break;
      case 't':
        s.type = type_of(optarg);
        break;
      case 'S':
        s.seed = std::strtoull(optarg, nullptr, 0);
        break;
      case 'D':
        s.depth = number();
        break;
      case '1':
        one_way = true;
        break;
      case 'T':
        o.timeout = static_cast<std::uint8_t>(number());
        break;
      default:
        usage();
    }
  }
  complete(o, one_way, argc, argv);
  return o;
}

}  // namespace
}  // namespace adverb::clients

int main(int argc, char** argv) {
  return adverb::clients::Program(adverb::clients::parse(argc, argv)).run();
}
