#include <mutex>

#include "tests/programs/hunters/hunters.h"

namespace hunters {

using namespace victim;

namespace {
constexpr uint64_t kPages = 257;
constexpr unsigned kThreads = 3;
}  // namespace

// Whenever the mutex is free, page i holds a multiple of i + 1 (modulo 2^64). The counter page holds the
// number of turns, and the page of the last turn says whose it was.
std::string locked(uint64_t iterations) {
  std::byte* pages = map_pages(kPages + 2);
  std::byte* turns = pages + kPages * kPage;
  std::byte* last = turns + kPage;
  std::mutex mutex;
  run_threads(kThreads, [&](unsigned t) {
    Random random(t + 200);
    uint64_t my_last = 0;
    for (uint64_t n = 0; n < iterations; ++n) {
      uint64_t i = random.below(kPages);
      std::lock_guard lock(mutex);
      uint64_t count = word_at(turns).load(std::memory_order_relaxed);
      uint64_t newest = word_at(last).load(std::memory_order_relaxed);
      require(newest / 16 == count, "locked: turn {} was followed by turn {}", newest / 16, count);
      require(my_last <= count, "locked: turn {} of thread {} lies after turn {}", my_last, t, count);
      std::atomic<uint64_t>& mine = word_at(pages + i * kPage);
      uint64_t held = mine.load(std::memory_order_relaxed);
      require(held % (i + 1) == 0, "locked: page {} holds {}", i, held);
      word_at(turns).store(count + 1, std::memory_order_relaxed);
      mine.store(held + i + 1, std::memory_order_relaxed);
      word_at(last).store((count + 1) * 16 + t, std::memory_order_relaxed);
      my_last = count + 1;
    }
  });
  uint64_t sum = 0;
  for (uint64_t i = 0; i < kPages; ++i) sum += word_at(pages + i * kPage).load() / (i + 1);
  require(sum == kThreads * iterations, "locked: {} turns on the pages, {} taken", sum,
          kThreads * iterations);
  return fmt::format("{} turns", sum);
}

}  // namespace hunters
