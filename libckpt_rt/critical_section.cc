#include "libckpt_rt/critical_section.h"

#include "base/clock.h"
#include "base/futex.h"

namespace ckpt::critical_section {

namespace {

// Depth for each thread that is inside, found by tid: no TLS, threads made by clone may share one.
struct Entry {
  std::atomic<int> tid{0};
  uint32_t depth = 0;  // its own thread's
};
constexpr uint32_t kThreads = 4096, kProbes = 64;
Entry entries[kThreads];
FutexWord total{0};  // threads inside

Entry* find(int tid, int wanted) {
  for (uint32_t i = 0; i < kProbes; ++i) {
    Entry& e = entries[(static_cast<uint32_t>(tid) + i) % kThreads];
    if (e.tid.load(std::memory_order_relaxed) == wanted) return &e;
  }
  return nullptr;
}

}  // namespace

bool enter(int tid) {
  Entry* e = find(tid, tid);
  while (e == nullptr) {
    e = find(tid, 0);
    if (e == nullptr) return false;
    int free = 0;
    if (!e->tid.compare_exchange_strong(free, tid, std::memory_order_relaxed)) e = nullptr;
  }
  if (e->depth++ == 0) total.fetch_add(1, std::memory_order_seq_cst);
  return true;
}

bool leave(int tid) {
  Entry* e = find(tid, tid);
  if (e == nullptr || e->depth == 0) return false;
  if (--e->depth != 0) return true;
  e->tid.store(0, std::memory_order_relaxed);
  if (total.fetch_sub(1, std::memory_order_seq_cst) == 1) futex_wake(total);
  return true;
}

bool inside(int tid) {
  Entry* e = find(tid, tid);
  return e != nullptr && e->depth != 0;
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

void reset_in_child() {
  for (Entry& e : entries) {
    if (e.tid.load(std::memory_order_relaxed) == 0) continue;
    e.tid.store(0, std::memory_order_relaxed);
    e.depth = 0;
  }
  total.store(0, std::memory_order_relaxed);
}

}  // namespace ckpt::critical_section
