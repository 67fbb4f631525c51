#include "libckpt_rt/core/process/seccomp/own_filters.h"

#include <errno.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/memory/large_table.h"
#include "base/sys.h"
#include "libckpt_rt/core/threads/thread_context.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::own_filters {

namespace {

struct Filter {
  uint32_t first, count;  // of instructions
  unsigned flags;
  By by;
  std::atomic<bool> whole;  // release: what is above, and the instructions, are there
};

constinit std::atomic<uint32_t> used{0}, used_instructions{0};
constinit Filter filters[kMost]{};
CKPT_LARGE_TABLE constinit sock_filter instructions[kMostInstructions]{};
constinit std::atomic<bool> unknown{false};  // relaxed: read when all stand
constinit bool all_known = false;

// What a thread sets for itself alone.
constexpr unsigned kFlagsOfOneThread = SECCOMP_FILTER_FLAG_LOG | SECCOMP_FILTER_FLAG_SPEC_ALLOW;

template <typename Use>
void each_whole(Use&& use) {
  const uint32_t count = std::min(used.load(std::memory_order_relaxed), kMost);
  for (uint32_t i = 0; i < count; ++i) {
    if (filters[i].whole.load(std::memory_order_acquire)) use(filters[i]);
  }
}

}  // namespace

long set(By by, unsigned flags, const void* program) {
  return by == By::kPrctl
             ? sys::call(__NR_prctl, long{PR_SET_SECCOMP}, long{SECCOMP_MODE_FILTER}, program, 0L, 0L)
             : sys::call(__NR_seccomp, long{SECCOMP_SET_MODE_FILTER}, long{flags}, program);
}

void note(By by, unsigned flags, const void* program, bool all_have_it) {
  if (!all_have_it || (flags & SECCOMP_FILTER_FLAG_NEW_LISTENER) != 0) {
    unknown.store(true, std::memory_order_relaxed);
    return;
  }
  const auto& p = *static_cast<const sock_fprog*>(program);
  // relaxed: each has its own place.
  const uint32_t first = used_instructions.fetch_add(p.len, std::memory_order_relaxed);
  if (first >= kMostInstructions || p.len > kMostInstructions - first) return;
  const uint32_t index = used.fetch_add(1, std::memory_order_relaxed);
  if (index >= kMost) return;
  std::memcpy(instructions + first, p.filter, p.len * sizeof(sock_filter));
  Filter& f = filters[index];
  f.first = first;
  f.count = p.len;
  f.flags = flags & kFlagsOfOneThread;
  f.by = by;
  f.whole.store(true, std::memory_order_release);
}

void look_stopped(const ThreadSlot* threads, uint32_t before) {
  uint32_t known = 0;
  each_whole([&](const Filter&) { ++known; });
  all_known = known != 0 && !unknown.load(std::memory_order_relaxed);
  for (const ThreadSlot* s = threads; all_known && s != nullptr; s = s->next)
    all_known = s->credentials.filters == before + known;
}

bool come_back() { return all_known; }

void reset_after_restart() {
  if (all_known) return;
  used.store(0, std::memory_order_relaxed);
  used_instructions.store(0, std::memory_order_relaxed);
  for (Filter& f : filters) f.whole.store(false, std::memory_order_relaxed);
  unknown.store(false, std::memory_order_relaxed);
}

bool may_be_set_again() {
  if (!all_known) return true;
  bool may = sys::call(__NR_prctl, PR_GET_NO_NEW_PRIVS, 0L, 0L, 0L, 0L) == 1;
  if (!may) {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct data[2]{};
    may = sys::call(__NR_capget, &header, data) == 0 && (data[0].effective >> CAP_SYS_ADMIN & 1) != 0;
  }
  // Filters around ckpt-restart may forbid the call. Else the kernel looks for a program where there is none.
  each_whole([&](const Filter& f) { may = may && set(f.by, f.flags, nullptr) == -EFAULT; });
  return may;
}

long set_again() {
  long error = 0;
  if (!all_known || !may_be_set_again()) return error;
  each_whole([&](const Filter& f) {
    const sock_fprog program{static_cast<unsigned short>(f.count), instructions + f.first};
    if (error == 0) error = set(f.by, f.flags, &program);
  });
  return error;
}

}  // namespace ckpt::own_filters
