// SPDX-License-Identifier: Apache-2.0
// Runs a fuzz target over the files of a folder, without libFuzzer.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

int main(int argc, char** argv) {
  unsigned files = 0;
  for (int i = 1; i < argc; ++i)
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
      std::ifstream in(entry.path(), std::ios::binary);
      std::vector<char> text{std::istreambuf_iterator<char>(in), {}};
      std::vector<std::uint8_t> bytes(text.begin(), text.end());  // exactly its size
      LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
      ++files;
    }
  std::printf("%u inputs\n", files);
  return files ? 0 : 1;
}
