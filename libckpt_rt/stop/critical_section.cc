#include "libckpt_rt/stop/critical_section.h"

#include "base/clock.h"
#include "base/locks/futex.h"
#include "base/memory/large_table.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::critical_section {

namespace {

// For each thread that is inside its tid and how deep, in one word: a handler of a signal may enter and leave
// between any two instructions of its thread. Found by tid: no TLS, threads made by clone may share one.
// Aligned by itself: clang looks at this, not at the atomic's own alignment, and would call libatomic, which
// locks.
struct alignas(8) Inside {
  uint32_t tid, depth;
};
using Entry = std::atomic<Inside>;
static_assert(Entry::is_always_lock_free);
constexpr Inside kFree{0, 0};
constexpr uint32_t kThreads = 4096, kProbes = 64;
CKPT_LARGE_TABLE constinit Entry entries[kThreads]{};
constinit FutexWord total{0};  // threads inside

// relaxed: an entry is its thread's. At a stop `total` says whether a thread is inside.
Entry* find(int tid, Inside* found, Entry** first_free = nullptr) {
  for (uint32_t i = 0; i < kProbes; ++i) {
    Entry& e = entries[(static_cast<uint32_t>(tid) + i) % kThreads];
    *found = e.load(std::memory_order_relaxed);
    if (found->tid == static_cast<uint32_t>(tid)) return &e;
    if (found->tid == 0 && first_free != nullptr && *first_free == nullptr) *first_free = &e;
  }
  return nullptr;
}

}  // namespace

bool enter(int tid) {
  for (;;) {
    Inside now;
    Entry* free = nullptr;
    if (Entry* e = find(tid, &now, &free)) {
      // A signal handler that comes in between leaves the entry as it was.
      e->store({now.tid, now.depth + 1}, std::memory_order_relaxed);
      return true;
    }
    if (free == nullptr) return false;
    now = kFree;
    // Counted first: an agent that finds the count 0 need not look for entries.
    total.fetch_add(1, std::memory_order_seq_cst);
    if (free->compare_exchange_strong(now, {static_cast<uint32_t>(tid), 1}, std::memory_order_release))
      return true;
    if (total.fetch_sub(1, std::memory_order_seq_cst) == 1) futex_wake(total);
  }
}

bool leave(int tid) {
  Inside now;
  Entry* e = find(tid, &now);
  if (e == nullptr) return false;
  e->store(now.depth == 1 ? kFree : Inside{now.tid, now.depth - 1}, std::memory_order_relaxed);
  if (now.depth == 1 && total.fetch_sub(1, std::memory_order_seq_cst) == 1) futex_wake(total);
  return true;
}

bool inside(int tid) {
  Inside now;
  return find(tid, &now) != nullptr;
}

bool none_inside() { return total.load(std::memory_order_seq_cst) == 0; }

bool await_none(int64_t deadline_ns) {
  while (uint32_t n = total.load(std::memory_order_seq_cst)) {
    int64_t left = deadline_ns - now_ns();
    if (left <= 0) return false;
    timespec t{left / 1'000'000'000, left % 1'000'000'000};
    futex_wait(total, n, &t);
  }
  return true;
}

Error stayed_too_long() {
  return make_error(ExitCode::kTimeout, 0,
                    "a thread stayed in its critical section (ckpt_rt_enter_critical) longer than "
                    "CKPT_STOP_TIMEOUT: try again, or raise it");
}

void reset_in_child() {
  if (total.load(std::memory_order_relaxed) == 0) return;
  for (Entry& e : entries) {
    // Most pages of them were never written to.
    if (e.load(std::memory_order_relaxed).tid != 0) e.store(kFree, std::memory_order_relaxed);
  }
  total.store(0, std::memory_order_relaxed);
}

}  // namespace ckpt::critical_section
