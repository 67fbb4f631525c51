// Threads of our own inside the victim: made by clone(2), unknown to libc.
//
// Owner:     libckpt_rt. A RawThread owns its stack and a block that stands in for TLS: %fs points at
//            it, so that code which reads errno or the stack canary finds memory. It is not a libc
//            thread: nothing that uses libc's per-thread state (malloc, stdio, locks) may be called.
// Callers:   spawn() from a signal handler with all signals blocked (the new thread inherits that
//            mask and never unblocks), or from another RawThread.
// Descriptors: kOwnTable gives the thread an empty descriptor table, so that the program sees none of
//            our descriptors and we hold none of its; kShareWithCaller shares the caller's.
#pragma once

#include "base/locks/futex.h"
#include "base/units.h"
#include "libckpt_rt/core/threads/of_ours/thread_times.h"

// raw_thread.S: clone(2) whose child calls fn(arg) on the new stack and exits.
extern "C" long ckpt_clone_thread(unsigned long flags, void* stack_top, int* parent_tid, void* child_tid,
                                  void* tls, void (*fn)(void*), void* arg);

namespace ckpt {

enum class DescriptorTable { kOwnTable, kShareWithCaller };

// A tracer of the job that asks for the threads of its tracee (PTRACE_O_TRACECLONE) does not get ours. One of
// ours that traces a stopped process (base/tracing/stopped_tracer.h) does: as the process is stopped, they
// would be too. Threads that their tracer's library has told of itself, while one may start the agent.
extern constinit std::atomic<int> are_born_untraced;

class RawThread {
 public:
  static constexpr size_t kStackBytes = 256 << 10;
  static constexpr size_t kTlsBytes = 32 << 10;  // below and above the thread pointer
  static constexpr size_t kBlockBytes = kPageSize + kStackBytes + 2 * kTlsBytes;

  // Reserves the thread's block (address space only until used). False: no address space left.
  [[nodiscard]] bool reserve();
  // Takes kBlockBytes of memory that the caller has reserved.
  void use(Addr block) { block_ = block; }
  void release();
  AddrRange block() const { return {block_, block_ + kBlockBytes}; }

  // Starts fn(arg). 0, or -errno (EAGAIN: limit on processes). The previous run must have ended.
  long spawn(void (*fn)(void*), void* arg, DescriptorTable table);
  // Waits until the thread has left its stack for good.
  void join();
  // After join(): until the kernel does not count it any more, which is a moment later.
  void await_gone();
  // Does it run? The same word as join() waits for, without waiting.
  bool running() const { return alive_.load(std::memory_order_acquire) != 0; }
  int tid() const { return tid_; }
  // Of all its runs. While it runs or after join(), not in between.
  ThreadTimes times() const;
  // In a forked child no RawThread exists.
  void forget() {
    alive_.store(0, std::memory_order_relaxed);
    tid_ = 0;
    ended_runs_ = {};
  }

 private:
  struct Start;
  static void entry(void* start);

  Addr block_{};
  int tid_ = 0;
  // The kernel stores 0 here and wakes when the thread is gone (CLONE_CHILD_CLEARTID).
  FutexWord alive_{0};
  // Written by the thread as the last thing, read after join().
  ThreadTimes ended_runs_;
};

}  // namespace ckpt
