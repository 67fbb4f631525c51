// Puts the stored inputs of a fuzz target through its own entry point, without libFuzzer: each must come out
// as was written down.
//   replay_TARGET DIRECTORY VERDICTS            the inputs, and the file that has the name and the verdict of
//   each replay_TARGET DIRECTORY VERDICTS --write    writes that file
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "tests/fuzz/verdict.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" __attribute__((weak)) int LLVMFuzzerInitialize(int* argc, char*** argv);
// For the mutators, which nobody calls here.
extern "C" size_t LLVMFuzzerMutate(uint8_t*, size_t size, size_t) { return size; }

namespace {

using Verdicts = std::map<std::string, std::string>;  // by the name of the input

Verdicts read_verdicts(const std::string& path) {
  Verdicts verdicts;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const size_t space = line.find(' ');
    if (space != std::string::npos) verdicts[line.substr(0, space)] = line.substr(space + 1);
  }
  return verdicts;
}

// If the reader crashes, the last name printed is that of the input.
Verdicts judge_all(const std::filesystem::path& directory) {
  std::vector<std::filesystem::path> inputs;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) inputs.push_back(entry.path());
  std::sort(inputs.begin(), inputs.end());
  Verdicts verdicts;
  for (const auto& path : inputs) {
    std::ifstream file(path, std::ios::binary);
    const std::string bytes(std::istreambuf_iterator<char>(file), {});
    std::printf("%s ", path.filename().c_str());
    std::fflush(stdout);
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    std::printf("%s\n", ckpt::verdict.c_str());
    verdicts[path.filename()] = ckpt::verdict;
  }
  return verdicts;
}

// The number of inputs that came out otherwise.
int compare(const Verdicts& expected, const Verdicts& found) {
  int wrong = 0;
  auto complain = [&](const std::string& name, const std::string& wanted, const std::string& got) {
    std::printf("WRONG: %s\n  expected: %s\n  found:    %s\n", name.c_str(), wanted.c_str(), got.c_str());
    wrong++;
  };
  for (const auto& [name, verdict] : found) {
    auto it = expected.find(name);
    if (it == expected.end()) {
      complain(name, "no such input", verdict);
    } else if (it->second != verdict) {
      complain(name, it->second, verdict);
    }
  }
  for (const auto& [name, verdict] : expected) {
    if (found.count(name) == 0) complain(name, verdict, "no such input");
  }
  return wrong;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: %s DIRECTORY VERDICTS [--write]\n", argv[0]);
    return 64;
  }
  if (LLVMFuzzerInitialize != nullptr) LLVMFuzzerInitialize(&argc, &argv);
  const Verdicts found = judge_all(argv[1]);
  if (argc > 3 && std::strcmp(argv[3], "--write") == 0) {
    std::ofstream file(argv[2], std::ios::trunc);
    for (const auto& [name, verdict] : found) file << name << ' ' << verdict << '\n';
    return file.flush() ? 0 : 74;
  }
  const int wrong = compare(read_verdicts(argv[2]), found);
  if (wrong != 0) {
    std::printf(
        "%d of %zu inputs came out otherwise than written down. If that is meant (another text, another "
        "format version):\n"
        "tests/fuzz/grow_corpus.sh --verdicts, or without --verdicts for inputs of the new version.\n",
        wrong, found.size());
  }
  return wrong == 0 && !found.empty() ? 0 : 1;
}
