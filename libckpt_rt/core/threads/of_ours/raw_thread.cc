#include "libckpt_rt/core/threads/of_ours/raw_thread.h"

#include <errno.h>
#include <linux/close_range.h>
#include <linux/sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include <climits>
#include <cstring>

#include "base/machine/cpu_features.h"
#include "base/memory/own_place.h"
#include "libckpt_rt/core/kernel/task_list.h"
#include "libckpt_rt/core/threads/thread_context.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

constinit std::atomic<int> are_born_untraced{0};

// Lives at the low end of the stack block while the thread starts.
struct RawThread::Start {
  void (*fn)(void*);
  void* arg;
  DescriptorTable table;
  RawThread* thread;
};

namespace {

// Linux takes the exit code of the last thread for that of the process. Ours is the last where a program's
// threads have ended past libc (SYS_exit). Then the first thread's code is the program's: of others none can
// be read.
int exit_code_of_program() {
  TaskFacts leader;
  if (!read_task_facts(sys::getpid(), leader) || leader.state != 'Z') return 0;
  return leader.wait_status >> 8 & 0xff;
}

// Of a thread with a deadline (SCHED_DEADLINE) the kernel makes no other, but where that one is not to have
// it as well. The calling thread is such a one as long as this lives.
class WithoutDeadline {
 public:
  WithoutDeadline() {
    attributes_.size = sizeof(attributes_);
    constexpr uint32_t kDeadline = 6;     // SCHED_DEADLINE
    constexpr uint64_t kResetOnFork = 1;  // SCHED_FLAG_RESET_ON_FORK
    if (sys::call(__NR_sched_getattr, 0L, &attributes_, sizeof(attributes_), 0L) != 0 ||
        attributes_.policy != kDeadline || (attributes_.flags & kResetOnFork) != 0)
      return;
    attributes_.flags |= kResetOnFork;
    changed_ = sys::call(__NR_sched_setattr, 0L, &attributes_, 0L) == 0;
    attributes_.flags &= ~kResetOnFork;
  }
  ~WithoutDeadline() {
    if (changed_) sys::call(__NR_sched_setattr, 0L, &attributes_, 0L);
  }
  WithoutDeadline(const WithoutDeadline&) = delete;
  WithoutDeadline& operator=(const WithoutDeadline&) = delete;
  bool changed() const { return changed_; }

 private:
  SchedAttr attributes_{};
  bool changed_ = false;
};

}  // namespace

bool RawThread::reserve() {
  const long p = map_own(kBlockBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE);
  if (sys::failed(p)) return false;
  block_ = Addr{static_cast<uint64_t>(p)};
  return true;
}

void RawThread::release() {
  if (block_.value != 0) sys::call(__NR_munmap, block_.value, kBlockBytes);
  block_ = {};
}

void RawThread::entry(void* start) {
  Start s = *static_cast<Start*>(start);
  if (s.table == DescriptorTable::kOwnTable) {
    // Unsharing and closing in one step: the new table is made empty, so we never hold a descriptor of the
    // program. There is not even a moment between a copy and a close.
    sys::call(__NR_close_range, 0L, UINT_MAX, CLOSE_RANGE_UNSHARE);
  }
  sys::call(__NR_prctl, PR_SET_NAME, "ckpt_rt");
  open_protection_keys();
  // The thread that took the request may be pinned, or have a real-time priority: not for us.
  uint8_t everywhere[128];
  std::memset(everywhere, 0xff, sizeof(everywhere));
  sys::call(__NR_sched_setaffinity, 0L, sizeof(everywhere), everywhere);
  int normal_priority = 0;
  sys::call(__NR_sched_setscheduler, 0L, 0L /* SCHED_OTHER */, &normal_priority);
  // Threads of the program wait for us: a short slice (Linux 6.12) is served early.
  SchedAttr attributes{};
  attributes.size = sizeof(attributes);
  if (sys::call(__NR_sched_getattr, 0L, &attributes, sizeof(attributes), 0L) == 0) {
    attributes.runtime = 100'000;  // ns
    sys::call(__NR_sched_setattr, 0L, &attributes, 0L);
  }
  s.fn(s.arg);
  s.thread->ended_runs_ += thread_times::of(sys::gettid());
  // The agent outlives those that it has started.
  if (s.table == DescriptorTable::kOwnTable) sys::call(__NR_exit, exit_code_of_program());
}

ThreadTimes RawThread::times() const {
  ThreadTimes all = ended_runs_;
  if (running()) all += thread_times::of(tid_);
  return all;
}

long RawThread::spawn(void (*fn)(void*), void* arg, DescriptorTable table) {
  // An overflow faults instead of corrupting. Not before: blocks that were never used are one mapping.
  sys::call(__NR_mprotect, block_.value, kPageSize, PROT_NONE);
  auto* start = (block_ + kPageSize).as<Start>();
  *start = {fn, arg, table, this};
  Addr stack_top = block_ + kPageSize + kStackBytes;
  Addr tls = stack_top + kTlsBytes;
  // glibc's layout: the thread pointer and its self pointers (tcbhead_t: tcb at 0, self at 16).
  std::memset((stack_top).as(), 0, 2 * kTlsBytes);
  tls.as<uint64_t>()[0] = tls.value;
  tls.as<uint64_t>()[2] = tls.value;
  alive_.store(1, std::memory_order_relaxed);
  // Not CLONE_FS: chdir and umask of the program are its own. CLONE_FILES until entry() unshares.
  constexpr unsigned long kFlags = CLONE_VM | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM |
                                   CLONE_SETTLS | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID;
  const unsigned long flags =
      kFlags | (are_born_untraced.load(std::memory_order_relaxed) != 0 ? CLONE_UNTRACED : 0);
  auto clone = [&] {
    return ckpt_clone_thread(flags, stack_top.as(), &tid_, &alive_, tls.as(), &RawThread::entry, start);
  };
  long tid = clone();
  if (tid == -EAGAIN) {
    const WithoutDeadline caller;
    if (caller.changed()) tid = clone();
  }
  if (sys::failed(tid)) {
    alive_.store(0, std::memory_order_relaxed);
    return tid;
  }
  return 0;
}

void RawThread::await_gone() {
  // Its id cannot belong to another thread so soon: the kernel gives them out in a circle.
  while (tid_ != 0 && sys::call(__NR_tgkill, sys::getpid(), tid_, 0) == 0) sys::call(__NR_sched_yield);
  tid_ = 0;
}

void RawThread::join() {
  while (uint32_t v = alive_.load(std::memory_order_acquire)) {
    // Not FUTEX_PRIVATE: the kernel's wake at thread exit is a shared one.
    sys::call(__NR_futex, &alive_, FUTEX_WAIT, v, 0L, 0L, 0L);
  }
}

}  // namespace ckpt
