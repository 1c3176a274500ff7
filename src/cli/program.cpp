// SPDX-License-Identifier: Apache-2.0
#include "cli/program.hpp"

#include <elf.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

namespace adverb::cli {
namespace fs = std::filesystem;

std::optional<std::string> find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  const char* path = std::getenv("PATH");
  std::istringstream folders(path ? path : "/bin:/usr/bin");
  for (std::string folder; std::getline(folders, folder, ':');) {
    std::string file = (folder.empty() ? "." : folder) + "/" + name;
    if (access(file.c_str(), X_OK) == 0 && !fs::is_directory(file)) return file;
  }
  return std::nullopt;
}

static std::string elf_obstacle(std::ifstream& file) {
  Elf64_Ehdr header{};
  file.seekg(0);
  if (!file.read(reinterpret_cast<char*>(&header), sizeof header)) return {};
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return {};
  if (header.e_ident[EI_CLASS] != ELFCLASS64) return "it is a 32-bit program";
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment{};
    file.seekg(static_cast<std::streamoff>(header.e_phoff + i * sizeof segment));
    if (!file.read(reinterpret_cast<char*>(&segment), sizeof segment)) return {};
    if (segment.p_type == PT_INTERP) return {};
  }
  return "it is linked statically";
}

std::string preload_obstacle(const std::string& path) {
  struct stat st{};
  if (stat(path.c_str(), &st) != 0) return {};
  if ((st.st_mode & S_ISUID) && st.st_uid != getuid()) return "it is set-user-ID";
  if ((st.st_mode & S_ISGID) && st.st_gid != getgid()) return "it is set-group-ID";
  if (getuid() != 0 && getxattr(path.c_str(), "security.capability", nullptr, 0) > 0)
    return "it has file capabilities";
  std::ifstream file(path, std::ios::binary);
  std::string line;
  if (file.get() == '#' && file.get() == '!' && std::getline(file, line)) {
    std::istringstream words(line);
    std::string interpreter;
    words >> interpreter;
    return interpreter.empty() || interpreter == path ? "" : preload_obstacle(interpreter);
  }
  file.clear();
  return elf_obstacle(file);
}

std::string library_folder() {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  return (self.parent_path().parent_path() / "lib" / "adverb").string();
}

}  // namespace adverb::cli
