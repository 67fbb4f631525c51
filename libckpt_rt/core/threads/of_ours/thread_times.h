// How long a thread of this process ran, and how long it could have run but had no processor.
//
// Owner:     libckpt_rt. Callers: the agent, for threads of ours that exist; each such thread for itself at
//            its end (RawThread).
// Never:     allocates; makes a system call before allow(true).
#pragma once

#include <cstdint>

namespace ckpt {

struct ThreadTimes {
  int64_t ran_ns = 0;      // CLOCK_THREAD_CPUTIME_ID
  int64_t delayed_ns = 0;  // /proc/PID/task/TID/schedstat; 0 where the kernel does not tell

  ThreadTimes& operator+=(const ThreadTimes& other) {
    ran_ns += other.ran_ns;
    delayed_ns += other.delayed_ns;
    return *this;
  }
  ThreadTimes operator-(const ThreadTimes& other) const {
    return {ran_ns - other.ran_ns, delayed_ns - other.delayed_ns};
  }
};

namespace thread_times {

// false: no system calls, since a filter may kill the caller. By the agent, before it starts threads.
void allow(bool allowed);
// Of a thread of this process; all 0: it is gone, or that is not allowed.
ThreadTimes of(int tid);

}  // namespace thread_times
}  // namespace ckpt
