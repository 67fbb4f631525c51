#include "libckpt_rt/core/threads/late_signals.h"

#include <errno.h>

#include "base/memory/large_table.h"
#include "base/sys.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::late_signals {

namespace {

constexpr uint32_t kMost = 256;
CKPT_LARGE_TABLE constinit PendingSignal list[kMost]{};
constinit std::atomic<uint32_t> count{0};  // relaxed: of one thread at a time

// -EAGAIN: no place.
long queue(PendingSignal& s) {
  const int pid = sys::getpid();
  // Only the leader may say that the kernel sent a signal, or who did (rt_sigqueueinfo(2)).
  if (s.info.si_code == SI_TKILL) return sys::call(__NR_tgkill, pid, s.tid != 0 ? s.tid : pid, s.signal);
  if (s.info.si_code >= 0) s.info.si_code = SI_QUEUE;
  return s.tid == 0 ? sys::call(__NR_rt_sigqueueinfo, pid, s.signal, &s.info)
                    : sys::call(__NR_rt_tgsigqueueinfo, pid, s.tid, s.signal, &s.info);
}

}  // namespace

bool add(const PendingSignal& signal) {
  const uint32_t n = count.load(std::memory_order_relaxed);
  if (n == kMost) return false;
  list[n] = signal;
  count.store(n + 1, std::memory_order_relaxed);
  return true;
}

bool any() { return count.load(std::memory_order_relaxed) != 0; }

void send() {
  const uint32_t n = count.load(std::memory_order_relaxed);
  uint32_t sent = 0;
  // The first that finds no place ends it: those behind it stay behind it.
  while (sent < n && queue(list[sent]) != -EAGAIN) ++sent;
  for (uint32_t i = sent; i < n; ++i) list[i - sent] = list[i];
  count.store(n - sent, std::memory_order_relaxed);
}

void add_to(PendingSignals& pending) {
  for (uint32_t i = 0; i < count.load(std::memory_order_relaxed); ++i) {
    if (pending.count < PendingSignals::kMost) pending.list[pending.count++] = list[i];
  }
}

void forget() { count.store(0, std::memory_order_relaxed); }

}  // namespace ckpt::late_signals
