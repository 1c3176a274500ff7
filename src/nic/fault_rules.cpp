// SPDX-License-Identifier: Apache-2.0
#include "nic/fault_rules.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <new>
#include <sstream>

#include "base/anew.hpp"
#include "nic/clock.hpp"
#include "nic/log.hpp"

namespace adverb::nic {
namespace {

struct Header {
  static constexpr std::uint64_t magic_of_this_version = 0x4164764661756c31;
  std::uint64_t magic = magic_of_this_version;
  std::uint64_t fingerprint = 0;
};

// FNV-1a over what the rules say.
std::uint64_t fingerprint(std::span<const faults::Rule> rules) {
  std::uint64_t h = 0xcbf29ce484222325;
  for (const faults::Rule& r : rules)
    for (const char c : r.text + "\n") h = (h ^ static_cast<std::uint8_t>(c)) * 0x100000001b3;
  return h;
}

void add(faults::Parsed&& parsed, std::vector<faults::Rule>& rules, std::string& errors) {
  for (auto& r : parsed.rules) rules.push_back(std::move(r));
  for (const auto& e : parsed.errors) errors += (errors.empty() ? "" : "\n") + e.text();
}

}  // namespace

std::expected<std::vector<faults::Rule>, std::string> read_fault_rules() {
  std::vector<faults::Rule> rules;
  std::string errors;
  if (const char* path = secure_getenv("ADVERB_FAULTS"); path && *path) {
    std::ifstream file(path);
    std::stringstream text;
    if (file) text << file.rdbuf();
    if (!file || file.bad()) return std::unexpected(std::string(path) + ": " + strerror(errno));
    add(faults::parse(text.str(), path), rules, errors);
  }
  if (const char* text = secure_getenv("ADVERB_FAULT"); text && *text)
    add(faults::parse(text, "ADVERB_FAULT"), rules, errors);
  if (!errors.empty()) return std::unexpected(errors);
  return rules;
}

// --- totals

std::unique_ptr<FaultTotals> FaultTotals::map(int fd, std::size_t rules) {
  std::unique_ptr<FaultTotals> t(new FaultTotals);
  t->rules_ = rules;
  t->size_ = sizeof(Header) + rules * sizeof(faults::SharedCount);
  void* memory = ::mmap(nullptr, t->size_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return nullptr;
  t->memory_ = memory;
  return t;
}

std::unique_ptr<FaultTotals> FaultTotals::create(const std::string& path,
                                                 std::span<const faults::Rule> rules) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return nullptr;
  const std::size_t size = sizeof(Header) + rules.size() * sizeof(faults::SharedCount);
  std::unique_ptr<FaultTotals> t;
  // Written, not left sparse: a full file system is found here and not by a SIGBUS later.
  const std::string zeros(size, '\0');
  if (::write(fd, zeros.data(), size) == static_cast<ssize_t>(size)) t = map(fd, rules.size());
  const int error = errno;
  ::close(fd);
  errno = error;
  if (t) new (t->memory_) Header{.fingerprint = fingerprint(rules)};
  return t;
}

std::unique_ptr<FaultTotals> FaultTotals::open(const std::string& path,
                                               std::span<const faults::Rule> rules,
                                               std::string& why) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return why = path + ": " + strerror(errno), nullptr;
  struct stat st{};
  const std::size_t size = sizeof(Header) + rules.size() * sizeof(faults::SharedCount);
  std::unique_ptr<FaultTotals> t;
  if (::fstat(fd, &st) == 0 && static_cast<std::size_t>(st.st_size) == size)
    t = map(fd, rules.size());
  ::close(fd);
  Header header;
  if (t) std::memcpy(&header, t->memory_, sizeof header);
  if (!t || header.magic != Header::magic_of_this_version ||
      header.fingerprint != fingerprint(rules))
    return why = path + ": was made for other fault rules", nullptr;
  return t;
}

FaultTotals::~FaultTotals() {
  if (memory_) ::munmap(memory_, size_);
}

std::span<faults::SharedCount> FaultTotals::counts() const {
  auto* first = static_cast<std::byte*>(memory_) + sizeof(Header);
  return {reinterpret_cast<faults::SharedCount*>(first), rules_};
}

// --- the process's

FaultRules::FaultRules(std::vector<faults::Rule> rules) : rules_(std::move(rules)) {}

std::expected<FaultRules*, std::string> FaultRules::get() {
  static const std::expected<FaultRules*, std::string> made =
      []() -> std::expected<FaultRules*, std::string> {
    auto rules = read_fault_rules();
    if (!rules) return std::unexpected(rules.error());
    if (rules->empty()) return nullptr;
    // For ever: verbs may be called from exit handlers.
    auto* made = new FaultRules(std::move(*rules));
    if (const char* path = secure_getenv("ADVERB_FAULT_TOTALS"); path && *path) {
      std::string why;
      made->totals_ = FaultTotals::open(path, made->rules_, why);
      if (!made->totals_) log(LogLevel::warn, "fault rules are not counted for the run: {}", why);
    }
    made->forked();
    return made;
  }();
  return made;
}

std::span<faults::SharedCount> FaultRules::total() const {
  return totals_ ? totals_->counts() : std::span<faults::SharedCount>();
}

void FaultRules::forked() {
  make_anew(mutex_);  // whoever held it is the parent's
  calls_ = std::make_unique<faults::Matcher>(rules_, clock_now(), total());
  told_.assign(rules_.size(), {});
}

int FaultRules::call(faults::Call call) {
  std::lock_guard hold(mutex_);
  return calls_->decide(clock_now(), call);
}

std::vector<faults::RuleCount> FaultRules::take_call_counts() {
  std::lock_guard hold(mutex_);
  std::vector<faults::RuleCount> fresh(rules_.size());
  const auto counts = calls_->counts();
  for (std::size_t i = 0; i < fresh.size(); ++i) {
    fresh[i] = {counts[i].matched - told_[i].matched, counts[i].hits - told_[i].hits};
    told_[i] = counts[i];
  }
  return fresh;
}

}  // namespace adverb::nic
