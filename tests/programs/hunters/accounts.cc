#include "tests/programs/hunters/hunters.h"

namespace hunters {

using namespace victim;

namespace {
constexpr uint64_t kAccounts = 3001;  // each on a page of its own
constexpr uint64_t kOpening = 1'000'000;
constexpr uint64_t kTransfers = 20'000;  // a thread makes between two audits
constexpr unsigned kThreads = 2;
}  // namespace

// Both threads take from and give to all accounts, one atomic operation each, with the amount under
// way in a register. Balances may wrap; sums do not mind.
std::string accounts(uint64_t iterations) {
  std::byte* pages = map_pages(kAccounts);
  auto account = [&](uint64_t i) -> std::atomic<uint64_t>& { return word_at(pages + i * kPage); };
  for (uint64_t i = 0; i < kAccounts; ++i) account(i).store(kOpening);
  SpinBarrier barrier(kThreads);
  run_threads(kThreads, [&](unsigned t) {
    Random random(t + 100);
    for (uint64_t audit = 0; audit < iterations; ++audit) {
      for (uint64_t n = 0; n < kTransfers; ++n) {
        uint64_t amount = random.below(1000);
        account(random.below(kAccounts)).fetch_sub(amount, std::memory_order_relaxed);
        account(random.below(kAccounts)).fetch_add(amount, std::memory_order_relaxed);
      }
      barrier.wait();
      if (t == 0) {
        uint64_t total = 0;
        for (uint64_t i = 0; i < kAccounts; ++i) total += account(i).load(std::memory_order_relaxed);
        require(total == kAccounts * kOpening, "accounts: audit {} finds {}, not {}", audit, total,
                kAccounts * kOpening);
      }
      barrier.wait();
    }
  });
  uint64_t digest = 0;
  for (uint64_t i = 0; i < kAccounts; ++i) digest = mix(digest ^ account(i).load());
  return fmt::format("{} transfers, digest {:016x}", iterations * kTransfers * kThreads, digest);
}

}  // namespace hunters
