// What the thread that traces stopped processes (stopped_tracer.h) is told by another.
//
// Owner:     base. Header only. Callers: one thread gives orders, one at a time; the tracer has
//            serve_orders() as its life.
// Never:     libc.
#pragma once

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/locks/futex.h"
#include "base/tracing/stopped_tracer.h"

namespace ckpt {

struct TracerOrders {
  enum class What : uint32_t { kSeize, kStopSignal, kExpect, kEnd };
  FutexWord given{0};
  FutexWord done{0};
  What what = What::kSeize;
  int pid = 0, signal = 0;
  long result = 0;

  // By the other thread. tracer: a thread id of the tracer's, of process `of`. -ECHILD: it is gone.
  long give(What order, int of_pid, int of_signal, int of, int tracer) {
    what = order;
    pid = of_pid;
    signal = of_signal;
    // release: the tracer that sees the number sees the order. acquire below: the same for its result.
    const uint32_t number = given.fetch_add(1, std::memory_order_release) + 1;
    for (;;) {
      const uint32_t seen = done.load(std::memory_order_acquire);
      if (seen == number) return result;
      // What wakes it. A child of ours that has ended can be signalled until it is waited for.
      siginfo_t ended{};
      if (sys::call(__NR_tgkill, of, tracer, long{SIGCHLD}) != 0 ||
          (sys::call(__NR_waitid, P_PID, of, &ended, WEXITED | WNOHANG | WNOWAIT | __WALL, 0L) == 0 &&
           ended.si_pid != 0))
        return -ECHILD;
      constexpr timespec kWhile{0, 20'000'000};
      futex_wait(done, seen, &kWhile);
    }
  }
};

// By the tracer, with SIGCHLD blocked. Returns when it was told to end, and all of ours in the processes has
// ended or waits.
inline void serve_orders(TracerOrders& orders, void* memory) {
  // An agent may sleep for a moment on its way to the end, and would be stopped there for as long as its
  // process.
  constexpr int kLooks = 100;
  constexpr int64_t kBusyNs = 100'000, kIdleNs = 2'000'000, kLongestEndNs = 2'000'000'000;
  StoppedTracer tracer(memory);
  for (bool ends = false; !ends;) {
    const uint32_t given = orders.given.load(std::memory_order_acquire);
    if (given == orders.done.load(std::memory_order_relaxed)) {
      tracer.serve(tracer.is_busy() ? kBusyNs : kIdleNs);
      continue;
    }
    if (orders.what == TracerOrders::What::kSeize) orders.result = tracer.seize(orders.pid, orders.signal);
    if (orders.what == TracerOrders::What::kStopSignal) orders.result = tracer.stop_signal(orders.pid);
    if (orders.what == TracerOrders::What::kExpect) tracer.expect_signals();
    if (orders.what == TracerOrders::What::kEnd) {
      const int64_t deadline = now_ns() + kLongestEndNs;
      for (int quiet = 0; quiet < kLooks && now_ns() < deadline;) {
        tracer.serve(kBusyNs);
        quiet = tracer.is_quiet() ? quiet + 1 : 0;
      }
      tracer.release_all();
      ends = true;
    }
    orders.done.store(given, std::memory_order_release);
    futex_wake(orders.done);
  }
}

}  // namespace ckpt
