#include "libckpt_rt/core/threads/of_ours/urgency.h"

#include <errno.h>

#include "base/sys.h"
#include "libckpt_rt/core/kernel/proc_text.h"
#include "libckpt_rt/core/kernel/task_list.h"
#include "libckpt_rt/core/threads/thread_context.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

constexpr int kFirstOfAll = -20;
constexpr uint64_t kResetOnFork = 1;  // SCHED_FLAG_RESET_ON_FORK

constexpr uint64_t kManyForEach = 4;

// Threads of the machine that run or would run, this one included: the fourth word of /proc/loadavg, before
// its slash. Where it cannot be read, more than any number.
uint64_t runnable_threads() {
  char text[128];
  const long n = read_small_file("/proc/loadavg", text, sizeof(text));
  long at = 0;
  for (int word = 0; word < 3 && at < n; ++at) word += text[at] == ' ' ? 1 : 0;
  if (at >= n || text[at] < '0' || text[at] > '9') return ~uint64_t{0};
  uint64_t number = 0;
  for (; at < n && text[at] >= '0' && text[at] <= '9'; ++at)
    number = number * 10 + static_cast<uint64_t>(text[at] - '0');
  return number;
}

}  // namespace

uint64_t allowed_processors() {
  unsigned long allowed[1024 / 64] = {};
  if (sys::call(__NR_sched_getaffinity, 0L, sizeof(allowed), allowed) < 0) return 0;
  uint64_t processors = 0;
  for (const unsigned long word : allowed) processors += static_cast<uint64_t>(__builtin_popcountl(word));
  return processors;
}

bool many_threads_run() {
  const uint64_t processors = allowed_processors();
  const long threads = count_tasks();
  if (processors == 0 || threads < 0) return true;
  const uint64_t most = kManyForEach * processors;
  return static_cast<uint64_t>(threads) > most && runnable_threads() > most;
}

void Urgency::begin() {
  if (raised_) return;
  SchedAttr attributes{};
  attributes.size = sizeof(attributes);
  if (sys::call(__NR_sched_getattr, 0L, &attributes, sizeof(attributes), 0L) != 0) return;
  before_ = attributes.nice;
  slice_before_ = attributes.runtime;
  attributes.nice = kFirstOfAll;
  attributes.flags |= kResetOnFork;
  raised_ = sys::call(__NR_sched_setattr, 0L, &attributes, 0L) == 0;
}

void Urgency::end() {
  if (!raised_) return;
  raised_ = false;
  SchedAttr attributes{};
  attributes.size = sizeof(attributes);
  if (sys::call(__NR_sched_getattr, 0L, &attributes, sizeof(attributes), 0L) != 0) return;
  attributes.nice = before_;
  attributes.runtime = slice_before_;  // a child has the kernel's, by the flag
  attributes.flags &= ~kResetOnFork;
  if (sys::call(__NR_sched_setattr, 0L, &attributes, 0L) != -EPERM) return;
  // A thread that may raise its priority by RLIMIT_NICE alone may not clear the flag, but may put the rest
  // back.
  attributes.flags |= kResetOnFork;
  sys::call(__NR_sched_setattr, 0L, &attributes, 0L);
}

}  // namespace ckpt
