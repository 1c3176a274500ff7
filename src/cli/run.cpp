// SPDX-License-Identifier: Apache-2.0
#include "cli/run.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "cli/faults.hpp"
#include "cli/program.hpp"
#include "cli/supervise.hpp"
#include "nic/settings.hpp"

namespace adverb::cli {

// Both are needed: the folder catches dlopen(3) of either name of the library, the preload catches
// programs with an RPATH of their own (old style), which the loader searches before
// LD_LIBRARY_PATH.
static bool join(const char* name, const std::string& value, bool first) {
  const char* old = std::getenv(name);
  if (!old || !*old) return setenv(name, value.c_str(), 1) == 0;
  const std::string list = ":" + std::string(old) + ":";
  if (list.find(":" + value + ":") != std::string::npos)
    return true;  // adverb run inside adverb run
  const std::string joined = first ? value + ":" + old : std::string(old) + ":" + value;
  return setenv(name, joined.c_str(), 1) == 0;
}

static int set_environment(const std::vector<Variable>& variables) {
  const std::string folder = library_folder();
  for (const char* name : libraries) {
    const std::string library = folder + "/" + name;
    if (access(library.c_str(), R_OK) == 0) continue;
    fmt::print(stderr, "adverb: cannot read {}: {}; build or install Adverb again\n", library,
               strerror(errno));
    return exit_failure;
  }
  if (folder.find_first_of(":;") != std::string::npos) {
    fmt::print(stderr,
               "adverb: the loader cannot use a folder with a colon or semicolon in its name: {}\n",
               folder);
    return exit_failure;
  }
  // LD_PRELOAD is split at blanks too: then the bare name, which LD_LIBRARY_PATH resolves.
  const std::string preload_from =
      folder.find_first_of(" \t") != std::string::npos ? "" : folder + "/";
  bool good = join("LD_LIBRARY_PATH", folder, true);
  for (const char* name : libraries) good = good && join("LD_PRELOAD", preload_from + name, false);
  // Rules of our own are counted on their own.
  for (const Variable& variable : variables)
    if (variable.name == "ADVERB_FAULTS" || variable.name == "ADVERB_FAULT")
      good = good && unsetenv("ADVERB_FAULT_TOTALS") == 0;
  for (const Variable& variable : variables)
    good = good && setenv(variable.name.c_str(), variable.value.c_str(), 1) == 0;
  return good ? 0 : exit_failure;
}

static bool is_set(const char* variable) {
  const char* value = std::getenv(variable);
  return value && *value && std::string_view(value) != "0";
}

static int not_started(const std::vector<std::string>& command, int error) {
  fmt::print(stderr, "adverb: {}: {}\n", command.front(), strerror(error));
  return error == ENOENT || error == ENOTDIR ? exit_not_found : exit_not_executable;
}

static int run_counted(FaultCount& faults, bool must_fire, bool report,
                       std::vector<std::string>& command) {
  if (!faults.share()) return exit_failure;
  const auto status = supervise(command);
  if (!status) return not_started(command, errno);
  if (report) faults.report();
  const bool missed = must_fire && !faults.all_fired();
  faults.remove();
  if (missed && *status == 0) return exit_not_fired;
  end_as(*status);
}

int run(const std::vector<Variable>& variables, std::vector<std::string> command) {
  if (const int status = set_environment(variables)) return status;
  if (const auto settings = nic::read_settings(); !settings) {
    fmt::print(stderr, "adverb: {}\n", settings.error());
    return exit_failure;
  }
  if (const auto program = find_program(command.front())) {
    if (const std::string obstacle = preload_obstacle(*program); !obstacle.empty())
      fmt::print(stderr,
                 "adverb: warning: {}: {}, so Adverb's libibverbs cannot be loaded into it\n",
                 *program, obstacle);
  }
  FaultCount faults;
  if (!faults.prepare()) return exit_failure;
  const bool must_fire = is_set("ADVERB_FAULTS_MUST_FIRE"), report = is_set("ADVERB_FAULTS_REPORT");
  // Inside a run that counts already, and with its rules, that one's parent sees to it.
  const bool counted = is_set("ADVERB_FAULT_TOTALS");
  if (faults.has_rules() && (must_fire || report) && !counted)
    return run_counted(faults, must_fire, report, command);
  std::vector<char*> argv;
  for (std::string& word : command) argv.push_back(word.data());
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  return not_started(command, errno);
}

}  // namespace adverb::cli
