#include "tests/programs/hunters/hunters.h"

namespace hunters {

using namespace victim;

namespace {
constexpr uint64_t kSlots = 509;
constexpr uint64_t kWords = 6;  // of a message, spread over its page
}  // namespace

std::string ring(uint64_t iterations) {
  std::byte* slots = map_pages(kSlots);
  std::byte* ends = map_pages(2);
  std::atomic<uint64_t>& head = word_at(ends);          // messages written
  std::atomic<uint64_t>& tail = word_at(ends + kPage);  // messages taken
  auto word = [&](uint64_t n, uint64_t w) -> std::atomic<uint64_t>& {
    return word_at(slots + n % kSlots * kPage + w * (kPage / kWords & ~uint64_t{7}));
  };
  uint64_t digest = 0;
  run_threads(2, [&](unsigned t) {
    for (uint64_t n = 0; n < iterations; ++n) {
      if (t == 0) {
        // acquire: the consumer is done with the slot that is used again.
        while (n - tail.load(std::memory_order_acquire) >= kSlots) std::this_thread::yield();
        uint64_t own = head.load(std::memory_order_relaxed);
        require(own == n, "ring: the producer is at {} and finds {}", n, own);
        for (uint64_t w = 0; w < kWords; ++w)
          word(n, w).store(mix(n * kWords + w), std::memory_order_relaxed);
        head.store(n + 1, std::memory_order_release);
      } else {
        // acquire: the message is complete.
        while (head.load(std::memory_order_acquire) <= n) std::this_thread::yield();
        uint64_t own = tail.load(std::memory_order_relaxed);
        require(own == n, "ring: the consumer is at {} and finds {}", n, own);
        for (uint64_t w = 0; w < kWords; ++w) {
          uint64_t v = word(n, w).load(std::memory_order_relaxed);
          require(v == mix(n * kWords + w), "ring: word {} of message {} is {:x}", w, n, v);
          digest = mix(digest ^ v);
        }
        tail.store(n + 1, std::memory_order_release);
      }
    }
  });
  return fmt::format("{} messages, digest {:016x}", iterations, digest);
}

}  // namespace hunters
