// An ordinary program to go back with: writes a part of its memory again and again.
//   back_writes MIB PERCENT RUN_KIB      until it is killed; says "ready" when its memory is there
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "back_writes MIB PERCENT RUN_KIB\n");
    return 64;
  }
  const size_t words = std::strtoull(argv[1], nullptr, 10) * (1 << 20) / 8;
  const size_t run = std::strtoull(argv[3], nullptr, 10) * 1024 / 8;
  const auto runs =
      static_cast<size_t>(static_cast<double>(words) * std::atof(argv[2]) / 100 / static_cast<double>(run));
  if (words == 0 || run == 0 || run > words) return 64;
  std::mt19937_64 random(1);
  std::vector<uint64_t> memory(words);
  for (uint64_t& word : memory) word = random();
  std::puts("ready");
  std::fflush(stdout);
  for (;;) {
    // The same runs each time: what is written since a checkpoint is so much and no more.
    std::mt19937_64 places(2);
    for (size_t i = 0; i < runs; ++i) {
      const size_t at = places() % (words / run) * run;
      for (size_t w = at; w < at + run; w += 512) memory[w] = random();
    }
    usleep(10'000);
  }
}
