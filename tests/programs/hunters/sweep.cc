#include "tests/programs/hunters/hunters.h"

namespace hunters {

using namespace victim;

namespace {
constexpr uint64_t kPages = 1531;  // prime: any stride visits every page
constexpr unsigned kThreads = 2;
}  // namespace

// Step n writes page (n * stride) mod kPages, in two regions with different strides. Before it does,
// both must hold n - kPages: an older value is a page saved too early, a newer one too late. The
// thread's own n lives in a register.
std::string sweep(uint64_t iterations) {
  run_threads(kThreads, [&](unsigned t) {
    std::byte* there = map_pages(kPages);
    std::byte* back = map_pages(kPages);
    const uint64_t stride = 619 + 2 * t;
    auto there_at = [&](uint64_t n) -> std::atomic<uint64_t>& {
      return word_at(there + n * stride % kPages * kPage);
    };
    auto back_at = [&](uint64_t n) -> std::atomic<uint64_t>& {
      return word_at(back + (kPages - 1 - n % kPages) * kPage);
    };
    for (uint64_t n = 0; n < kPages; ++n) {
      there_at(n).store(n, std::memory_order_relaxed);
      back_at(n).store(n, std::memory_order_relaxed);
    }
    for (uint64_t n = kPages; n < kPages * iterations; ++n) {
      uint64_t a = there_at(n).load(std::memory_order_relaxed);
      uint64_t b = back_at(n).load(std::memory_order_relaxed);
      require(a == n - kPages && b == n - kPages,
              "sweep: thread {} step {}: the pages hold {} and {}, not {}", t, n, a, b, n - kPages);
      there_at(n).store(n, std::memory_order_relaxed);
      back_at(n).store(n, std::memory_order_relaxed);
    }
  });
  return fmt::format("{} pages swept {} times by {} threads", 2 * kPages, iterations, kThreads);
}

}  // namespace hunters
