#include "libckpt_rt/core/threads/of_ours/thread_times.h"

#include <fmt/core.h>

#include <atomic>

#include "base/clock.h"
#include "libckpt_rt/core/kernel/proc_text.h"
#include "libckpt_rt/core/kernel/task_list.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::thread_times {

namespace {

constinit std::atomic<bool> is_allowed{false};

// clock_getcpuclockid(3) is for processes only; the kernel's make_thread_cpuclock(): bit 2, one thread; 2,
// the time that the scheduler counts.
clockid_t processor_clock(int tid) {
  return static_cast<clockid_t>(~static_cast<uint32_t>(tid) << 3 | 4 | 2);
}

}  // namespace

// relaxed: threads that look are started, or joined, afterwards.
void allow(bool allowed) { is_allowed.store(allowed, std::memory_order_relaxed); }

ThreadTimes of(int tid) {
  if (tid == 0 || !is_allowed.load(std::memory_order_relaxed)) return {};
  char path[64], text[128];
  *fmt::format_to_n(path, sizeof(path) - 1, "/proc/self/task/{}/schedstat", tid).out = '\0';
  uint64_t fields[2] = {};  // ran, waited for a processor
  if (read_small_file(path, text, sizeof(text)) > 0) numbers(text, 10, fields, 2);
  // Not the first field: that of a thread that runs is as old as the last turn of the scheduler.
  return {now_ns(processor_clock(tid)), static_cast<int64_t>(fields[1])};
}

}  // namespace ckpt::thread_times
