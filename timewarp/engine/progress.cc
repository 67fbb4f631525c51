#include "timewarp/engine/progress.h"

#include <cstdio>

#include "base/clock.h"
#include "timewarp/engine/worker.h"

namespace ckpt::timewarp {

namespace {

// The first call only begins the interval.
bool due(const Setup& setup, int64_t* next) {
  const int64_t now = now_ns();
  if (now < *next) return false;
  const bool first = *next == 0;
  *next = now + static_cast<int64_t>(setup.options.progress * 1e9);
  return !first;
}

}  // namespace

void report_sequential(const Setup& setup, double now, uint64_t executed, int64_t* next) {
  if (!due(setup, next)) return;
  std::fprintf(stderr, "time %g of %g, %llu events\n", now, setup.options.end,
               static_cast<unsigned long long>(executed));
}

void report_progress(Setup& setup, double gvt, int64_t* next) {
  if (!due(setup, next)) return;
  uint64_t committed = 0, undone = 0, uncommitted = 0;
  for (const auto& worker : setup.workers) {
    committed += worker->shared.committed.load(std::memory_order_relaxed);
    undone += worker->shared.rolled_back.load(std::memory_order_relaxed);
    uncommitted += worker->shared.uncommitted.load(std::memory_order_relaxed);
  }
  std::fprintf(stderr, "time %g of %g, %llu events final, %llu not yet, %llu undone\n", gvt,
               setup.options.end, static_cast<unsigned long long>(committed),
               static_cast<unsigned long long>(uncommitted), static_cast<unsigned long long>(undone));
}

}  // namespace ckpt::timewarp
