// What the process and its threads had used of the processor before a restart (getrusage(2), clocks of
// processor time): the kernel counts a restarted process from 0.
//
// Owner:     libckpt_rt. In the library's data, so that an image holds it, and a restarted process begins
//            with it.
// Callers:   of_thread: a thread in the handler of the stop, for itself. note_process: the agent, threads
//            standing. begin_again, process_came_back: the leader at restart; thread_came_back: each thread
//            there. forget: a forked child. add_earlier: threads of the program, in interposed calls.
// Never:     makes a system call before there was a restart, but in of_thread and note_process; allocates,
//            locks.
#pragma once

#include <sys/resource.h>
#include <time.h>

#include <atomic>
#include <cstdint>

namespace ckpt {

struct ProcessorUse {
  static constexpr int kCounts = 6;
  int64_t ran_ns;  // clock of processor time; of children: 0
  int64_t user_us, system_us;
  int64_t counts[kCounts];  // faults without and with a read, blocks read and written, switches of both kinds
  int64_t most_memory;      // KiB
};

namespace processor_time {

// This process came back, and what it has used counts.
extern constinit std::atomic<bool> came_back;

// Of the calling thread, with what it had used before.
ProcessorUse of_thread();
// Of the process and of its children that were waited for.
void note_process();

// Before other threads exist.
void begin_again();
// By the thread itself; `used`: what of_thread() had said.
void thread_came_back(int tid, const ProcessorUse& used);
// Just before the program goes on.
void process_came_back();

// A child begins with nothing.
inline void forget() {
  // relaxed: one thread. Written only if it must be: the page is its parent's still.
  if (came_back.load(std::memory_order_relaxed)) came_back.store(false, std::memory_order_relaxed);
}

// What a clock had counted before, in ns; 0: it is none of this process.
int64_t earlier(clockid_t clock);
// A time of such a clock as the program knows it, in the kernel's words; what has passed is 0.
timespec as_counted_anew(clockid_t clock, const timespec& time);
// who: as getrusage(2). Adds what was used before.
void add_earlier(int who, rusage& used);

// Does the clock count processor time? Below 0: of any process or thread (pthread_getcpuclockid(3)), but for
// 3 in its lower bits, which is a device.
inline bool is_processor_clock(clockid_t clock) {
  constexpr unsigned kKind = 7, kDevice = 3;
  return clock == CLOCK_PROCESS_CPUTIME_ID || clock == CLOCK_THREAD_CPUTIME_ID ||
         (clock < 0 && (static_cast<unsigned>(clock) & kKind) != kDevice);
}

}  // namespace processor_time
}  // namespace ckpt
