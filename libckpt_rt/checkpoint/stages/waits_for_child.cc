#include "libckpt_rt/checkpoint/stages/waits_for_child.h"

#include <linux/sched.h>
#include <sched.h>
#include <sys/uio.h>

#include <charconv>
#include <string_view>

#include "base/clock.h"
#include "libckpt_rt/capture/process/process_state.h"
#include "libckpt_rt/core/kernel/descriptor_info.h"
#include "libckpt_rt/core/kernel/task_list.h"
#include "libckpt_rt/core/process/seccomp/seccomp_state.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::waits_for_child {

namespace {

// The flags are the first argument of clone(2); that of clone3(2) points to them.
uint64_t flags_of(long nr, uint64_t argument) {
  if (nr == __NR_clone) return argument;
  uint64_t flags = 0;
  const iovec to{&flags, sizeof(flags)}, from{Addr{argument}.as<void>(), sizeof(flags)};
  if (nr != __NR_clone3 ||
      sys::call(__NR_process_vm_readv, sys::gettid(), &to, 1L, &from, 1L, 0L) != sizeof(flags))
    return 0;
  return flags;
}

// "56 0x4011 0x0 ..." of a thread that is in a system call, "running" of another.
bool waits(int tid) {
  char text[256];
  const long size = read_small_file(TaskPath(tid, "syscall").c_str(), text, sizeof(text));
  if (size <= 0) return false;
  const char* const end = text + size;
  long nr = -1;
  const auto [behind, error] = std::from_chars(text, end, nr);
  constexpr std::string_view kHex = " 0x";
  if (error != std::errc() || !std::string_view(behind, static_cast<size_t>(end - behind)).starts_with(kHex))
    return false;
  uint64_t argument = 0;
  std::from_chars(behind + kHex.size(), end, argument, 16);
  return (flags_of(nr, argument) & (CLONE_VFORK | CLONE_VM)) == CLONE_VFORK;
}

// 0: none.
int find(ArenaVector<int>& tids) {
  tids.clear();
  if (!list_tasks(tids)) return 0;
  for (int tid : tids) {
    if (waits(tid)) return tid;
  }
  return 0;
}

}  // namespace

Result<void> await_none(Arena& arena) {
  if (!seccomp_state.waits_for_child.load(std::memory_order_relaxed) || is_filtered()) return {};
  constexpr timespec kBetween{0, 1'000'000};
  ArenaVector<int> tids(arena);
  const int64_t until = now_ns() + kLongestNs;
  for (int tid; (tid = find(tids)) != 0;) {
    if (now_ns() > until) {
      return make_error(ExitCode::kTimeout, 0,
                        "thread {} waits for a child with memory of its own (CLONE_VFORK), which has neither "
                        "ended nor executed a program for 30 s; the program goes on, ask again later",
                        tid);
    }
    sys::call(__NR_nanosleep, &kBetween, nullptr);
  }
  return {};
}

}  // namespace ckpt::waits_for_child
