#include "libckpt_rt/core/threads/urgency.h"

#include "base/sys.h"
#include "libckpt_rt/core/kernel/task_list.h"
#include "libckpt_rt/core/threads/thread_context.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

constexpr int kFirstOfAll = -20;
constexpr uint64_t kResetOnFork = 1;  // SCHED_FLAG_RESET_ON_FORK

constexpr uint64_t kManyForEach = 4;

}  // namespace

bool has_many_threads() {
  unsigned long allowed[1024 / 64] = {};
  const long bytes = sys::call(__NR_sched_getaffinity, 0L, sizeof(allowed), allowed);
  const long threads = count_tasks();
  if (bytes < 0 || threads < 0) return true;
  uint64_t processors = 0;
  for (const unsigned long word : allowed) processors += static_cast<uint64_t>(__builtin_popcountl(word));
  return static_cast<uint64_t>(threads) > kManyForEach * processors;
}

void Urgency::begin() {
  if (raised_) return;
  SchedAttr attributes{};
  attributes.size = sizeof(attributes);
  if (sys::call(__NR_sched_getattr, 0L, &attributes, sizeof(attributes), 0L) != 0) return;
  before_ = attributes.nice;
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
  attributes.flags &= ~kResetOnFork;
  sys::call(__NR_sched_setattr, 0L, &attributes, 0L);
}

}  // namespace ckpt
