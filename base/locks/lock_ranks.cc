#include "base/locks/lock_ranks.h"

#ifndef NDEBUG

#include <atomic>
#include <bit>

#include "base/checks/check.h"
#include "base/sys.h"
#include "base/preload_rules.h"

namespace ckpt::lock_ranks {

namespace {

// A word for each thread that holds a lock: its id, then a bit for each rank. One word, so that a signal
// handler that comes between two steps here finds nothing half made, and leaves the word as it was. 0: free.
constexpr size_t kMost = 64;
constinit std::atomic<uint64_t> holders[kMost] = {};

struct Place {
  std::atomic<uint64_t>* word = nullptr;  // the thread's own, or a free one; nullptr: all are taken
  uint64_t seen = 0;
};

uint64_t thread_of(uint64_t word) { return word >> 32; }
uint32_t ranks_of(uint64_t word) { return static_cast<uint32_t>(word); }

// relaxed, here and below: only the thread itself changes what it holds, but for forget().
Place place_of(uint64_t thread) {
  Place place;
  for (size_t i = 0; i < kMost; ++i) {
    std::atomic<uint64_t>& word = holders[(thread + i) % kMost];
    const uint64_t seen = word.load(std::memory_order_relaxed);
    if (seen != 0 && thread_of(seen) == thread) return {&word, seen};
    if (seen == 0 && place.word == nullptr) place.word = &word;
  }
  return place;
}

[[gnu::cold, gnu::noinline]] void fail(LockRank rank, uint32_t around) {
  // The innermost of those that are wrong.
  const int held = 31 - std::countl_zero(around);
  char text[160];
  const auto end =
      fmt::format_to_n(text, sizeof(text), "ASSERT({} may be taken inside {})",
                       kTable[static_cast<size_t>(rank)].name, kTable[static_cast<size_t>(held)].name);
  check::failed(__FILE__, __LINE__, {text, static_cast<size_t>(end.out - text)});
}

void check_order(LockRank rank, uint32_t held) {
  uint32_t wrong = 0;
  for (const Row& row : kTable) {
    if ((held & bit(row.rank)) != 0 && (may_be_inside(row.rank) & bit(rank)) == 0) wrong |= bit(row.rank);
  }
  if (wrong != 0) fail(rank, wrong);
}

}  // namespace

void waits_for(LockRank rank) { check_order(rank, ranks_of(place_of(sys::gettid()).seen)); }

void takes(LockRank rank) {
  const auto thread = static_cast<uint64_t>(sys::gettid());
  Place place = place_of(thread);
  check_order(rank, ranks_of(place.seen));
  while (place.word != nullptr) {
    const uint64_t with = (place.seen != 0 ? place.seen : thread << 32) | bit(rank);
    if (place.word->compare_exchange_strong(place.seen, with, std::memory_order_relaxed)) return;
    place = place_of(thread);  // another thread has taken the free place
  }
}

void released(LockRank rank) {
  const auto thread = static_cast<uint64_t>(sys::gettid());
  for (Place place = place_of(thread); place.word != nullptr && place.seen != 0; place = place_of(thread)) {
    const uint64_t without = place.seen & ~uint64_t{bit(rank)};
    const uint64_t left = ranks_of(without) != 0 ? without : 0;
    if (place.word->compare_exchange_strong(place.seen, left, std::memory_order_relaxed)) return;
  }
}

void forget() {
  for (std::atomic<uint64_t>& word : holders) word.store(0, std::memory_order_relaxed);
}

}  // namespace ckpt::lock_ranks

#endif
