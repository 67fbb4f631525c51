// What travels of an increment, and what it costs: whole, by lz4, and as differences of words
// (cluster/keeper/word_differences.h), for programs that write more or less of each page.
//
// usage: words_speed [--mib 64] [--rounds 5]
//
// The increment has the 64 KiB around each page that was written, as the library writes them. lz4: of these
// 64 KiB each. Memory is random bytes, or numbers of double precision that are alike.
#include <fcntl.h>
#include <lz4.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/raii_fd.h"
#include "bench/frame/command_line.h"
#include "cluster/keeper/word_differences.h"

namespace ckpt::keeper {
namespace {

constexpr size_t kSegment = 64 << 10;
using Bytes = std::vector<std::byte>;

double cpu_ms() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_nsec) / 1e6;
}

template <typename Work>
double median_ms(unsigned rounds, Work work) {
  std::vector<double> all;
  for (unsigned i = 0; i < rounds; ++i) {
    const double begin = cpu_ms();
    work();
    all.push_back(cpu_ms() - begin);
  }
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

Bytes memory_of(bool numbers, size_t bytes) {
  Bytes memory(bytes);
  std::mt19937_64 random(1);
  for (size_t i = 0; i < bytes; i += 8) {
    uint64_t word = random();
    if (numbers) {
      // A smooth field, in single precision widened: three bytes of eight are zeros.
      const double value = static_cast<float>(std::sin(static_cast<double>(i) * 1e-5));
      memcpy(&word, &value, 8);
    }
    memcpy(memory.data() + i, &word, 8);
  }
  return memory;
}

struct Pattern {
  const char* what;
  size_t pages;  // every so many pages one is written
  size_t words;  // of each of these pages, spread over it
};

// Only segments with a page that was written are in the increment; `then` has the same ones as they were.
void increment_of(const Bytes& memory, const Pattern& p, Bytes& now, Bytes& then) {
  std::mt19937_64 random(2);
  now.clear();
  then.clear();
  Bytes segment(kSegment);
  for (size_t at = 0; at + kSegment <= memory.size(); at += kSegment) {
    memcpy(segment.data(), memory.data() + at, kSegment);
    bool written = false;
    for (size_t page = 0; page < kSegment / kWordsBlock; ++page) {
      if ((at / kWordsBlock + page) % p.pages != 0) continue;
      written = true;
      for (size_t w = 0; w < p.words; ++w) {
        const uint64_t word = random();
        // The lower half of a word: a number that has changed a little, or a counter.
        memcpy(segment.data() + page * kWordsBlock + w * (512 / p.words) * 8, &word, 4);
      }
    }
    if (!written) continue;
    now.insert(now.end(), segment.begin(), segment.end());
    then.insert(then.end(), memory.begin() + static_cast<ptrdiff_t>(at),
                memory.begin() + static_cast<ptrdiff_t>(at + kSegment));
  }
}

ScopedFd file_of(const Bytes& bytes) {
  ScopedFd fd(memfd_create("words", MFD_CLOEXEC));
  if (write(fd.get(), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) exit(74);
  return fd;
}

void measure(bool numbers, const Bytes& memory, const Pattern& p, unsigned rounds) {
  Bytes now, then;
  increment_of(memory, p, now, then);
  const ScopedFd file = file_of(now), old = file_of(then);
  const int sources[] = {old.get()};
  const std::string names[] = {"old"};
  const OldPlace place[] = {{0, now.size(), 0, 0}};
  size_t words = 0, packed = 0;
  WordsStats stats;
  const ScopedFd to(memfd_create("differences", MFD_CLOEXEC));
  const double words_ms = median_ms(rounds, [&] {
    stats = {};
    words =
        *write_words(file.get(), now.size(), sources, names, place, now.size() / 4 * 3, to.get(), 0, &stats);
  });
  std::vector<char> room(static_cast<size_t>(LZ4_compressBound(kSegment)));
  const double lz4_ms = median_ms(rounds, [&] {
    packed = 0;
    for (size_t at = 0; at < now.size(); at += kSegment)
      packed += std::min<size_t>(kSegment, static_cast<size_t>(LZ4_compress_default(
                                               reinterpret_cast<const char*>(now.data()) + at, room.data(),
                                               kSegment, static_cast<int>(room.size()))));
  });
  const auto mib = [](size_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  printf("| %s | %s | %.1f | %.2f | %.1f | %.3f | %.1f |\n", numbers ? "numbers" : "random", p.what,
         mib(now.size()), mib(packed), lz4_ms, words != 0 ? mib(words) : mib(now.size()), words_ms);
}

}  // namespace
}  // namespace ckpt::keeper

int main(int argc, char** argv) {
  bench::CommandLine line("words_speed",
                          "What travels of an increment: whole, by lz4, as differences of words.", "");
  unsigned rounds = 5;
  uint64_t mib = 64;
  line.number("--mib", mib, "of memory", 1, 4096);
  line.number("--rounds", rounds, "of each, the median", 1, 1000);
  if (const auto exit = line.parse(argc, argv)) return *exit;
  using ckpt::keeper::Pattern;
  printf("| memory | written | increment, MiB | lz4, MiB | its CPU, ms | words, MiB | their CPU, ms |\n");
  printf("| --- | --- | --- | --- | --- | --- | --- |\n");
  for (const bool numbers : {false, true}) {
    const auto memory = ckpt::keeper::memory_of(numbers, mib << 20);
    for (const Pattern& p : {Pattern{"a word of every 100th page", 100, 1},
                             {"a word of each page", 1, 1},
                             {"16 words of each page", 1, 16},
                             {"every 4th word", 1, 128},
                             {"half of the words", 1, 256},
                             {"all words", 1, 512}})
      ckpt::keeper::measure(numbers, memory, p, rounds);
  }
  return 0;
}
