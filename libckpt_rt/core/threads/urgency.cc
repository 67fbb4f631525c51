#include "libckpt_rt/core/threads/urgency.h"

#include "base/sys.h"
#include "libckpt_rt/core/threads/thread_context.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

constexpr int kFirstOfAll = -20;
constexpr uint64_t kResetOnFork = 1;  // SCHED_FLAG_RESET_ON_FORK

}  // namespace

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
