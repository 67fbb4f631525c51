#include "restart/plan/memory/layout.h"

#include <pthread.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include "restart/plan/memory/address_space.h"

namespace ckpt {
namespace {

// Set for the second execution: the soft limit on the stack before.
constexpr const char* kDone = "CKPT_RESTART_STACK_LIMIT";

constexpr size_t kThreadStack = 1 << 20;        // bytes
constexpr uint64_t kLeastStackGap = 128 << 20;  // the kernel's own least distance
constexpr uint64_t kMostStackGap = uint64_t{64} << 30;

uint64_t wanted_gap(const ImageMeta& meta) {
  uint64_t stack = meta.mm.record.start_stack;
  for (const ParsedMapping& m : meta.mappings) {
    if (stack < m.record.start || stack >= m.record.end) continue;
    uint64_t limit = meta.limits.soft[RLIMIT_STACK];
    uint64_t growth = std::clamp<uint64_t>(limit, kLeastStackGap, uint64_t{1} << 30);
    if (m.record.end >= kTaskEnd) return growth;
    return std::min(kTaskEnd - m.record.end + growth, kMostStackGap);
  }
  return 0;
}

}  // namespace

void choose_mmap_base(std::span<const ImageMeta* const> metas, char** argv) {
  rlimit limit{};
  getrlimit(RLIMIT_STACK, &limit);
  if (const char* before = std::getenv(kDone); before != nullptr) {
    limit.rlim_cur = std::min<rlim_t>(std::strtoull(before, nullptr, 10), limit.rlim_max);
    unsetenv(kDone);
    setrlimit(RLIMIT_STACK, &limit);
    prctl(PR_SET_NAME, "ckpt-restart");  // not "exe"
    // libc has taken the limit of the exec as the size of a thread's stack.
    pthread_attr_t threads;
    pthread_attr_init(&threads);
    pthread_attr_setstacksize(&threads, kThreadStack);
    pthread_setattr_default_np(&threads);
    pthread_attr_destroy(&threads);
    return;
  }
  uint64_t gap = 0;
  for (const ImageMeta* meta : metas) gap = std::max(gap, wanted_gap(*meta));
  if (gap == 0 || gap > limit.rlim_max) gap = std::min<uint64_t>(limit.rlim_cur, limit.rlim_max);
  // A preloaded libckpt_rt.so would take checkpoints of ckpt-restart. The program has its own.
  const char* preload = std::getenv("LD_PRELOAD");
  bool preloaded = preload != nullptr && std::strstr(preload, "libckpt_rt") != nullptr;
  if (gap == limit.rlim_cur && !preloaded) return;
  if (preloaded) unsetenv("LD_PRELOAD");
  std::string before = std::to_string(static_cast<uint64_t>(limit.rlim_cur));
  rlimit raised{gap, limit.rlim_max};
  int persona = personality(0xffffffff);
  if (persona < 0 || setrlimit(RLIMIT_STACK, &raised) != 0) return;
  setenv(kDone, before.c_str(), 1);
  // Without randomization the limit alone decides.
  personality(static_cast<unsigned long>(persona) | ADDR_NO_RANDOMIZE);
  execv("/proc/self/exe", argv);
  personality(static_cast<unsigned long>(persona));
  unsetenv(kDone);
  setrlimit(RLIMIT_STACK, &limit);
}

}  // namespace ckpt
