// SPDX-License-Identifier: Apache-2.0
#include "cli/fleet.hpp"

#include <fmt/core.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "base/assert.hpp"

namespace adverb::cli {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int failed_run = 1, broken_pipe = 2;
constexpr auto stuck_after = std::chrono::seconds(120);

void to_report(const sim::Result& r, Report& out) {
  out.hash = r.hash;
  out.events = r.events;
  out.frames = r.frames;
  out.operations = r.operations;
  out.end = r.end;
  out.errors = r.completions_in_error;
  out.generations = r.generations;
  std::strncpy(out.violation, r.violation.c_str(), sizeof out.violation - 1);
}

int report_pipe = -1;
Report current{};

void say(const Report& r) {
  if (write(report_pipe, &r, sizeof r) != static_cast<ssize_t>(sizeof r)) _exit(broken_pipe);
}

// A broken invariant ends a worker; its report says which.
void on_assert(const char* expression, const char* file, int line) {
  current.begins = 0;
  const std::string text = fmt::format("ASSERT({}) at {}:{}", expression, file, line);
  std::strncpy(current.violation, text.c_str(), sizeof current.violation - 1);
  say(current);
  _exit(failed_run);
}

struct Worker {
  pid_t pid = -1;
  int pipe = -1;
  std::uint64_t seed = 0;
  bool running = false;
  Clock::time_point since{};
};

// Forks; the child runs `work`, which reports over the pipe, and is gone after it.
template <class F>
Worker start(F&& work) {
  int ends[2];
  if (pipe(ends) != 0) throw std::runtime_error("pipe: " + std::string(std::strerror(errno)));
  std::fflush(nullptr);
  const pid_t pid = fork();
  if (pid < 0) throw std::runtime_error("fork: " + std::string(std::strerror(errno)));
  if (pid) {
    close(ends[1]);
    return {.pid = pid, .pipe = ends[0]};
  }
  close(ends[0]);
  report_pipe = ends[1];
  assert_hook = on_assert;
  work();
  _exit(0);
}

void run_and_report(const sim::Scenario& scenario, std::uint64_t seed) {
  current = {};
  current.seed = seed;
  current.begins = 1;
  say(current);
  sim::Trace trace;
  sim::World world(scenario, trace);
  current.begins = 0;
  to_report(world.run(), current);
  say(current);
}

Worker start_worker(const Seeds& s, std::uint64_t first, std::uint64_t stride) {
  return start([&] {
    for (std::uint64_t seed = first; seed <= s.last && seed >= first; seed += stride) {
      run_and_report(sim::draw_scenario(seed), seed);
      if (current.violation[0] && !s.keep_going) _exit(failed_run);
    }
  });
}

// False: the pipe is at its end.
bool read_report(int pipe, Report& r) {
  std::size_t got = 0;
  while (got < sizeof r) {
    const ssize_t n = read(pipe, reinterpret_cast<char*>(&r) + got, sizeof r - got);
    if (n <= 0) return false;
    got += static_cast<std::size_t>(n);
  }
  return true;
}

class Fleet {
 public:
  explicit Fleet(const Seeds& o) : o_(o) {
    jobs_ = o.jobs ? o.jobs : std::max(1u, std::thread::hardware_concurrency());
    jobs_ = static_cast<unsigned>(std::min<std::uint64_t>(jobs_, o.last - o.first + 1));
    if (o.hashes) hashes_.resize(o.last - o.first + 1);
  }
  // The first report of a failure, if any.
  std::optional<Report> run() {
    begun_ = Clock::now();
    for (unsigned j = 0; j < jobs_; ++j) workers_.push_back(start_worker(o_, o_.first + j, jobs_));
    while (alive() && (!failure_ || o_.keep_going)) {
      std::vector<pollfd> fds;
      for (Worker& w : workers_) fds.push_back({w.pipe, POLLIN, 0});
      poll(fds.data(), fds.size(), 500);
      for (std::size_t i = 0; i < fds.size(); ++i)
        if (fds[i].revents) hear(workers_[i]);
      for (Worker& w : workers_)
        if (w.pipe >= 0 && w.running && Clock::now() - w.since > stuck_after) give_up(w, "stuck");
      progress();
    }
    for (Worker& w : workers_) {
      if (w.pid > 0 && failure_) kill(w.pid, SIGKILL);
      if (w.pid > 0) waitpid(w.pid, nullptr, 0);
    }
    if (shown_) fmt::print(stderr, "\r\033[K");
    return failure_;
  }
  void summary() const {
    for (std::size_t i = 0; i < hashes_.size(); ++i)
      fmt::print("{} {:016x}\n", o_.first + i, hashes_[i]);
    if (o_.hashes) return;
    const double seconds = std::chrono::duration<double>(Clock::now() - begun_).count();
    fmt::print(
        "{} seeds, {} operations, {} frames, {} completions in error, {} connections; "
        "{:.1f} s of virtual time in {:.1f} s; {:.0f} seeds a minute and process\n",
        done_, operations_, frames_, errors_, generations_, static_cast<double>(virtual_ns_) / 1e9,
        seconds, static_cast<double>(done_) / seconds * 60 / jobs_);
  }

 private:
  bool alive() const {
    for (const Worker& w : workers_)
      if (w.pipe >= 0) return true;
    return false;
  }
  void hear(Worker& w) {
    Report r;
    if (!read_report(w.pipe, r)) {
      if (w.running) return give_up(w, "the process died");
      close(std::exchange(w.pipe, -1));
      return;
    }
    w.running = r.begins;
    w.seed = r.seed;
    w.since = Clock::now();
    if (r.begins) return;
    ++done_;
    frames_ += r.frames;
    operations_ += r.operations;
    virtual_ns_ += r.end / 1000;
    errors_ += r.errors;
    generations_ += r.generations;
    if (!hashes_.empty()) hashes_[r.seed - o_.first] = r.hash;
    if (r.violation[0]) fail(r);
  }
  void fail(const Report& r) {
    if (!failure_) failure_ = r;
    if (o_.keep_going) fmt::print("seed {}: {}\n", r.seed, r.violation), std::fflush(stdout);
  }
  void give_up(Worker& w, const char* why) {
    Report r{};
    r.seed = w.seed;
    std::strncpy(r.violation, why, sizeof r.violation - 1);
    fail(r);
    close(std::exchange(w.pipe, -1));
  }
  void progress() {
    if (!isatty(STDERR_FILENO) || Clock::now() - drawn_ < std::chrono::milliseconds(100)) return;
    drawn_ = Clock::now();
    shown_ = true;
    const std::uint64_t all = o_.last - o_.first + 1;
    const auto width = static_cast<unsigned>(40 * done_ / all);
    const double seconds = std::chrono::duration<double>(Clock::now() - begun_).count();
    fmt::print(stderr, "\r[{:=<{}}{:<{}}] {}/{} seeds, {:.0f}/s ", "", width, "", 40 - width, done_,
               all, static_cast<double>(done_) / seconds);
    std::fflush(stderr);
  }

  const Seeds& o_;
  unsigned jobs_ = 1;
  std::vector<Worker> workers_;
  std::vector<std::uint64_t> hashes_;
  std::optional<Report> failure_;
  Clock::time_point begun_{}, drawn_{};
  bool shown_ = false;
  std::uint64_t done_ = 0, frames_ = 0, operations_ = 0, virtual_ns_ = 0, errors_ = 0,
                generations_ = 0;
};

}  // namespace

std::optional<Report> run_seeds(const Seeds& seeds) {
  Fleet fleet(seeds);
  const auto failure = fleet.run();
  if (!failure || seeds.keep_going) fleet.summary();
  return failure;
}

Report run_apart(const sim::Scenario& scenario) {
  const Worker w = start([&] { run_and_report(scenario, scenario.seed); });
  Report r{}, last{};
  bool ended = false;
  for (;;) {
    pollfd fd{w.pipe, POLLIN, 0};
    if (poll(&fd, 1, std::chrono::milliseconds(stuck_after).count()) == 0) {
      kill(w.pid, SIGKILL);
      std::strcpy(last.violation, "stuck");
      ended = true;
      break;
    }
    if (!read_report(w.pipe, r)) break;
    last = r;
    ended = !r.begins;
  }
  close(w.pipe);
  waitpid(w.pid, nullptr, 0);
  if (!ended) std::strcpy(last.violation, "the process died");
  return last;
}

}  // namespace adverb::cli
