// SPDX-License-Identifier: Apache-2.0
// The fault rules of this process: ADVERB_FAULTS names a file of them, ADVERB_FAULT holds rules
// itself (docs/faults.md).  They are read once, when the first device is asked for.
//
// ADVERB_FAULT_TOTALS names a file in which all processes of a run count together; `adverb run`
// makes it.  Without it a process counts for itself.
#pragma once

#include <atomic>
#include <expected>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "faults/matcher.hpp"

namespace adverb::nic {

// Rules from the environment; or what is wrong with them, a line each.
std::expected<std::vector<faults::Rule>, std::string> read_fault_rules();

// One count for each rule, in a file that processes share.
class FaultTotals {
 public:
  // A new file at `path`, or null and errno.
  static std::unique_ptr<FaultTotals> create(const std::string& path,
                                             std::span<const faults::Rule>);
  // Null: there is none, or it belongs to other rules; `why` says so.
  static std::unique_ptr<FaultTotals> open(const std::string& path, std::span<const faults::Rule>,
                                           std::string& why);
  ~FaultTotals();
  FaultTotals(const FaultTotals&) = delete;
  std::span<faults::SharedCount> counts() const;

 private:
  FaultTotals() = default;
  static std::unique_ptr<FaultTotals> map(int fd, std::size_t rules);
  void* memory_ = nullptr;
  std::size_t size_ = 0, rules_ = 0;
};

class FaultRules {
 public:
  // Null: this process has no rules.  An error: it has wrong ones, and must not run as if it had
  // none.
  static std::expected<FaultRules*, std::string> get();

  std::span<const faults::Rule> rules() const { return rules_; }
  std::span<faults::SharedCount> total() const;

  // The errno with which a verb is to fail now; 0: it is not.
  int call(faults::Call);
  // Counts of verb rules since the last call of this.
  std::vector<faults::RuleCount> take_call_counts();
  // In a forked child: a process of its own, which counts from nothing.
  void forked();

 private:
  explicit FaultRules(std::vector<faults::Rule>);
  std::vector<faults::Rule> rules_;
  std::unique_ptr<FaultTotals> totals_;
  std::mutex mutex_;
  std::unique_ptr<faults::Matcher> calls_;
  std::vector<faults::RuleCount> told_;
};

}  // namespace adverb::nic
