// The order in which locks are taken: docs/locks.md as a table, checked in builds without NDEBUG.
//
// Each lock has a rank, which is its row. While a thread holds a lock it takes only locks that the row names
// under "inside", and those that are inside of these. Where it takes another one, the check that fails names
// both locks (base/checks/check.h: a test aborts, an attempt at a checkpoint is given up). It fails each time
// that the order is wrong, not only when two threads meet and wait for each other.
//
// In builds with NDEBUG nothing of this exists: the rank is a part of a lock's type, so a lock has no more
// bytes than its words.
//
// What a thread holds is in a table by its id: threads of the program have no thread_local variables of ours
// (base/preload_rules.h). A signal handler counts to the thread that it has interrupted, as it does for the
// lock. 64 threads at a time have a place in the table; what more threads hold is not checked.
//
// Owner:     base. Callers: the locks of base/locks, and what waits for another thread by other means. Any
//            thread, also in a signal handler. forget(): whoever makes the locks of a process new.
// Never:     allocates, waits, touches errno.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ckpt {

enum class LockRank : uint8_t {
  kJobDirectory,
  kCreationGates,
  kCallbacks,
  kExcludedMemory,
  kDebts,
  kRequests,
  kStatistics,
  kForkHold,
  kPuttingRight,
  kMappingGate,
  kReleaseSlots,
  kServing,
  kCrowd,
  kTurn,
  kFutexHold,
  kActions,
  kCompressionThreads,
  kEngineCopies,
  kBufferPool,
  kFilledQueue,
  kDmaChannel,
};

namespace lock_ranks {

struct Row {
  LockRank rank;
  const char* name;  // as docs/locks.md names the lock
  uint32_t inside;   // a bit for each rank
};

constexpr uint32_t bit(LockRank rank) { return uint32_t{1} << static_cast<unsigned>(rank); }
constexpr uint32_t kLeaf = 0;
template <typename... Ranks>
constexpr uint32_t ranks(Ranks... all) {
  return (bit(all) | ...);
}
constexpr uint32_t all_below(LockRank rank) { return ~(bit(rank) | (bit(rank) - 1)); }

using enum LockRank;

// tests/house/locks_test.py compares this with docs/locks.md.
inline constexpr Row kTable[] = {
    {kJobDirectory, "job's directory", all_below(kJobDirectory)},
    {kCreationGates, "creation gates of a job", kLeaf},
    {kCallbacks, "callbacks lock", ranks(kRequests, kPuttingRight)},
    {kExcludedMemory, "excluded_memory lock", ranks(kRequests, kPuttingRight)},
    {kDebts, "debts to semaphores", ranks(kRequests)},
    {kRequests, "agent's queue of requests", ranks(kStatistics, kCrowd)},
    {kStatistics, "statistics lock", ranks(kCrowd)},
    {kForkHold, "hold of fork", kLeaf},
    {kPuttingRight, "putting right", kLeaf},
    {kMappingGate, "mapping gate", ranks(kReleaseSlots, kServing, kCrowd)},
    {kReleaseSlots, "slots of release_guard", kLeaf},
    {kServing, "serving lock", ranks(kFutexHold, kEngineCopies, kBufferPool, kFilledQueue, kDmaChannel)},
    {kCrowd, "guarded memory's crowd", ranks(kTurn)},
    {kTurn, "guarded memory's turn", ranks(kFutexHold)},
    {kFutexHold, "hold of futexes", kLeaf},
    {kActions, "actions of signals", kLeaf},
    {kCompressionThreads, "threads that compress", kLeaf},
    {kEngineCopies, "copies of an engine", kLeaf},
    {kBufferPool, "BufferPool lock", kLeaf},
    {kFilledQueue, "FilledQueue lock", kLeaf},
    {kDmaChannel, "DmaCopyEngine channels", kLeaf},
};
inline constexpr size_t kRanks = sizeof(kTable) / sizeof(kTable[0]);

// A lock that names one above it would make a circle.
constexpr bool is_in_order() {
  for (size_t i = 0; i < kRanks; ++i) {
    if (static_cast<size_t>(kTable[i].rank) != i) return false;
    if ((kTable[i].inside & ~all_below(kTable[i].rank)) != 0) return false;
  }
  return kRanks <= 32;
}
static_assert(is_in_order());

// May be taken by a thread that holds the lock: what its row names, and what is inside of that.
constexpr uint32_t may_be_inside(LockRank rank) {
  uint32_t all = kTable[static_cast<size_t>(rank)].inside;
  for (size_t i = static_cast<size_t>(rank) + 1; i < kRanks; ++i) {
    if ((all & bit(kTable[i].rank)) != 0) all |= kTable[i].inside;
  }
  return all;
}

#ifdef NDEBUG
inline void takes(LockRank) {}
inline void released(LockRank) {}
inline void waits_for(LockRank) {}
inline void forget() {}
#else
// Before the caller waits for the lock. From then on it counts as held.
void takes(LockRank rank);
// A thread that does not hold it may call this: the lock was taken in another process, or before forget().
void released(LockRank rank);
// Before the caller waits for something that it does not come to hold, as takes() otherwise.
void waits_for(LockRank rank);
// Nobody holds a lock: a new child, a restarted process, one that goes back.
void forget();
#endif

}  // namespace lock_ranks
}  // namespace ckpt
