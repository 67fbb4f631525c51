// What the kernel knows about one thread, saved by that thread inside its signal handler and given
// back by the thread that takes its place at restart.
//
// Owner:     the thread: a ThreadSlot lives in the stack frame of the stop handler, so it is part of
//            the image like any other memory of the program, and there is no limit on threads.
// Callers:   save_thread_in_handler: the stopping thread. restore_thread_in_handler: its successor.
//            In between, while the thread waits, the agent reads the slot.
// Registers, extended state, signal mask and alternate stack are in the kernel's signal frame
// (slot.frame), and come back by rt_sigreturn.
#pragma once

#include <signal.h>
#include <ucontext.h>

#include <cstdint>

#include "base/locks/futex.h"
#include "base/units.h"
#include "libckpt_rt/core/threads/processor_time.h"
#include "libckpt_rt/core/threads/thread_credentials.h"

namespace ckpt {

struct SchedAttr {  // struct sched_attr of sched_setattr(2), first version
  uint32_t size, policy;
  uint64_t flags;
  int32_t nice;
  uint32_t priority;
  uint64_t runtime, deadline, period;
};

struct PendingSignal {
  int32_t tid;  // 0: of the process
  int32_t signal;
  siginfo_t info;
};

// Signals that were pending at the stop, in the order of their queues.
struct PendingSignals {
  static constexpr uint32_t kMost = 4096;
  uint32_t count = 0;
  bool overflow = false;
  PendingSignal list[kMost] = {};
};

// set_mempolicy(2): on which nodes what the thread touches first is to lie.
struct MemoryPolicy {
  static constexpr uint32_t kMostNodes = 1024;  // a kernel knows no more (CONFIG_NODES_SHIFT)
  int32_t mode = 0;                             // MPOL_*, with its flags; 0: none
  uint64_t nodes[kMostNodes / 64] = {};
};

// What the processor may do ahead of time (PR_SET_SPECULATION_CTRL): PR_SPEC_* of each kind that the thread
// may set for itself, 0 for others.
struct Speculation {
  static constexpr int kKinds = 3;  // PR_SPEC_STORE_BYPASS, PR_SPEC_INDIRECT_BRANCH, PR_SPEC_L1D_FLUSH
  uint8_t allowed[kKinds] = {};
};

enum class SlotOrder : uint32_t { kNone = 0, kGiven = 1, kDone = 2 };

struct ThreadSlot {
  ThreadSlot* next = nullptr;  // list of stopped threads, newest first
  int tid = 0;
  ucontext_t* frame = nullptr;
  uint64_t fs_base = 0, gs_base = 0;
  uint64_t robust_list = 0, robust_list_len = 0;
  uint64_t clear_child_tid = 0;
  uint64_t rseq = 0;
  uint32_t rseq_len = 0, rseq_signature = 0;
  SchedAttr sched{};
  uint64_t timer_slack_ns = 0;
  int32_t io_priority = 0;          // ioprio_get(2)
  int32_t parent_death_signal = 0;  // not given back
  int32_t machine_check = -1;       // PR_MCE_KILL_*; -1: this kernel does not say
  int32_t time_stamps = 0;          // PR_TSC_*; 0: this kernel does not say
  bool cpuid_forbidden = false;     // ARCH_SET_CPUID
  Speculation speculation{};
  uint16_t data_segment = 0, extra_segment = 0;  // which a signal frame does not have
  uint16_t fs_segment = 0, gs_segment = 0;
  uint32_t affinity_len = 0;
  uint8_t affinity[128] = {};
  char name[16] = {};
  ProcessorUse used{};
  ThreadCredentials credentials{};
  MemoryPolicy memory_policy{};
  // rt_sigpending() of this thread, its own and the process's; from collect_pending on, what it need not
  // report.
  uint64_t pending_mask = 0;

  int traced = 0, tracer = 0;  // what its tracer's library has told, and its thread id (stop/tracing)

  uint32_t group = 0;      // what it waits as (StopWorld)
  uint32_t processor = 0;  // where it came to stand: a hint
  // The agent's order to a waiting thread: call work(argument), which makes raw system calls only.
  FutexWord order{0};
  void (*work)(void*) = nullptr;
  void* work_argument = nullptr;

  // The thread's own signals, which it is to take out of its queue, and where to put them (take_pending).
  uint64_t collect_private = 0;
  PendingSignals* pending = nullptr;
};

void save_thread_in_handler(ThreadSlot& slot, ucontext_t* frame);
// Takes the caller's `wanted` pending signals out of the queues, and notes them as those of `tid`, or of the
// process (0). A thread's own signals only the thread itself can take, those of the process any thread …
void take_pending(uint64_t wanted, int tid, PendingSignals& all);
// … and puts them back as they were, the sender included. Only the leader may say who sent a signal
// (rt_sigqueueinfo(2): the caller's tid must be the process id). From another thread the signals come
// back as sent by the process itself. Only what is in the set `signals`.
void queue_again(const PendingSignals& pending, uint32_t from, uint64_t signals = ~0ull);

// The first thing without which the thread cannot go on, or 0; what else could not be restored is added to
// the LibraryNotes. Runs on the thread itself, all signals blocked. Pending signals are the leader's to
// restore.
long restore_thread_in_handler(const ThreadSlot& slot, uint32_t& notes);

// What the handler and the kernel's frame under it take of a stack, at most as far as we know: a hint.
inline constexpr uint64_t kHandlerStackBytes = 8 << 10;

// Where libc has the rseq area that it registers for each of its threads: bytes from the thread pointer. Said
// once, by the constructor; until then, and with length 0, there is none.
void know_rseq_area(int64_t offset, uint32_t length);
// The program's threads have another libc, or none: the calling one, which was libc's, has no such area from
// here on.
void forget_rseq_area();

}  // namespace ckpt
