#include "libckpt_rt/stop/stop_world.h"

#include <errno.h>

#include <algorithm>
#include <iterator>

#include "base/checks/named_points.h"
#include "base/clock.h"
#include "libckpt_rt/core/kernel/task_list.h"
#include "libckpt_rt/stop/tracing/service.h"
#include "libckpt_rt/stop/tracing/traced_thread.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

bool contains(std::span<const int> tids, int tid) {
  for (int t : tids) {
    if (t == tid) return true;
  }
  return false;
}

}  // namespace

// One stop() over all its attempts.
struct StopWorld::Try {
  std::span<const int> own_tids, waiting;
  int signal, pid;
  int64_t deadline;
  ArenaVector<int> tasks, here, signalled, wanted, by_libc_signal, ignored;  // the first three sorted
  int missing = 0;                                                           // a thread that has not arrived
  uint32_t refused = 0;  // threads that could not be signalled
  int64_t called_ns = 0, began_ns = 0;
  Error error;
  int stalled = 0;  // a thread that was missing when no more arrived, and its processor time then
  int64_t stalled_ran_ns = 0;
  uint32_t awaited = 0;  // threads that are signalled and have not arrived

  bool excluded(int tid) const { return contains(own_tids, tid) || contains(ignored.span(), tid); }
  // With so many threads standing, are there no others?
  bool is_everybody(uint32_t arrived) const {
    // Workers of the kernel come and go by themselves.
    if (!ignored.empty()) return false;
    long own = 0;
    for (int tid : own_tids) own += tid != 0;
    return count_tasks() == own + static_cast<long>(arrived);
  }
  static bool in(const ArenaVector<int>& sorted, int tid) {
    return std::binary_search(sorted.begin(), sorted.end(), tid);
  }
  // The threads of the list that begins at `newest`.
  [[nodiscard]] bool look_who_is_here(const ThreadSlot* newest) {
    here.clear();
    for (const ThreadSlot* s = newest; s != nullptr; s = s->next) {
      if (!here.push_back(s->tid)) return false;
    }
    std::sort(here.begin(), here.end());
    return true;
  }
  // Of the listed threads that have not arrived: those that are to be signalled, and how many are awaited.
  // ahead: of those alone that waited in the kernel.
  [[nodiscard]] bool look_who_is_missing(bool ahead) {
    wanted.clear();
    missing = 0;
    awaited = 0;
    for (int tid : tasks) {
      if (excluded(tid) || in(here, tid)) continue;
      if (ahead && !std::binary_search(waiting.begin(), waiting.end(), tid)) continue;
      if (in(signalled, tid)) {
        missing = tid;
        ++awaited;
      } else if (!wanted.push_back(tid)) {
        return false;
      }
    }
    return true;
  }
  TryResult fail(ExitCode code, int sys_error, int tid, const char* what) {
    TaskFacts facts;
    missing = tid;
    if (tid != 0) read_task_facts(tid, facts);
    error = tid != 0 ? make_error(code, sys_error, "thread {} ({}, state {}) {}", tid,
                                  static_cast<const char*>(facts.name), facts.state, what)
                     : make_error(code, sys_error, "{}", what);
    return TryResult::kFailed;
  }
  TryResult fail_without_memory() {
    return fail(ExitCode::kInternal, ENOMEM, 0, "no memory to stop threads");
  }
  // Those that are wanted. False: fail() was called.
  [[nodiscard]] bool signal_wanted(bool ahead) {
    refused = 0;
    for (int tid : wanted) {
      const long r = sys::call(__NR_tgkill, pid, tid, signal);
      if (r == -ESRCH) continue;  // has exited
      if (r == -EAGAIN) {
        ++refused;
        if (ahead) continue;
      } else if (r != 0) {
        fail(ExitCode::kSystem, static_cast<int>(r), tid, "cannot be signalled");
        return false;
      } else if (!signalled.push_back(tid)) {
        fail_without_memory();
        return false;
      }
      missing = tid;
      ++awaited;
    }
    std::sort(signalled.begin(), signalled.end());
    return true;
  }
};

Result<StopWorld::Stopped> StopWorld::stop(const Call& call, Arena& scratch, int* stuck) {
  const ArenaVector<int> none(scratch);
  // The time that threads take to leave the stop before is not the time that they take to stop.
  (void)await_left(now_ns() + call.timeout_ns);
  Try t{call.own_tids,
        call.waiting,
        call.signal,
        sys::getpid(),
        now_ns() + call.timeout_ns,
        none,
        none,
        none,
        none,
        none,
        none,
        0,
        0,
        0,
        0,
        {},
        0,
        0};
  *stuck = 0;
  for (;;) {
    urgency_.begin();
    TryResult attempt = try_stop(t, call);
    if (setxid_of_process_.load(std::memory_order_relaxed)) take_setxid_of_process();
    return_libc_signal();
    if (attempt == TryResult::kStopped) break;
    if (attempt == TryResult::kFailed) *stuck = t.missing;
    release();
    if (attempt == TryResult::kFailed) return t.error;
    // The thread goes on now that its lock's holder does: wait until it takes one of the signals that stop
    // it, or is gone.
    const uint64_t either = 1ull << (call.signal - 1) | 1ull << (kSetxidSignal - 1);
    SignalMasks masks;
    while (read_signal_masks(t.missing, masks) && (masks.blocked & either) == either &&
           now_ns() < t.deadline) {
      sys::call(__NR_sched_yield);
    }
    t.waiting = {};
  }
  Stopped stopped;
  stopped.first = slots_.load(std::memory_order_acquire);
  for (ThreadSlot* s = stopped.first; s != nullptr; s = s->next) ++stopped.count;
  stopped.leader_exited = contains(t.ignored.span(), t.pid);
  stopped.called_ns = t.called_ns;
  // relaxed: all have arrived.
  const int64_t stood = worker_stood_ns_.load(std::memory_order_relaxed);
  stopped.began_ns = stood == 0 ? t.called_ns : std::min(stood, t.began_ns);
  return stopped;
}

// Nobody has entered the handler for this attempt, and nobody is linked.
void StopWorld::begin_try(Try& t) {
  entered_.store(0, std::memory_order_relaxed);
  arrived_.store(0, std::memory_order_relaxed);
  for (std::atomic<int64_t>* when : {&worker_stood_ns_, &last_worker_left_ns_, &last_left_ns_}) {
    when->store(0, std::memory_order_relaxed);
  }
  signalled_late_.store(0, std::memory_order_relaxed);
  awaited_.store(UINT32_MAX, std::memory_order_relaxed);
  slots_.store(nullptr, std::memory_order_relaxed);
  for (ThreadSlot*& slot : first_arrived_) slot = nullptr;
  // release: handlers that see the new number see the words above as well.
  requested_.store(released_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  t.signalled.clear();
  t.by_libc_signal.clear();
}

StopWorld::TryResult StopWorld::try_stop(Try& t, const Call& call) {
  // A thread that a debugger holds in our handler, or that gets no processor, leaves it late.
  if (!await_left(t.deadline)) {
    t.missing = 0;
    t.error =
        make_error(ExitCode::kTimeout, 0,
                   "a thread that stopped before has not gone on yet; the program goes on, try again or "
                   "raise CKPT_STOP_TIMEOUT");
    return TryResult::kFailed;
  }
  begin_try(t);
  constexpr const char* kQueueIsFull =
      "did not stop in time, as no more signals can be queued for its user; raise its ulimit -i";
  int64_t last_arrival_ns = now_ns();
  t.called_ns = t.began_ns = 0;
  for (bool ahead = !t.waiting.empty();; ahead = false) {
    if (!list_tasks(t.tasks))
      return t.fail(ExitCode::kSystem, 0, 0, "cannot list /proc/self/task; mount /proc");
    if (!contains(t.tasks.span(), sys::gettid()) && !is_task(sys::gettid())) {
      return t.fail(ExitCode::kUnavailable, 0, 0,
                    "/proc belongs to another pid namespace; mount one for this namespace");
    }
    // Which of the listed threads have arrived? A thread that arrives later shows in the next round.
    if (!t.look_who_is_here(slots_.load(std::memory_order_acquire))) return t.fail_without_memory();
    if (!t.look_who_is_missing(ahead)) return t.fail_without_memory();
    int64_t& first = ahead ? t.called_ns : t.began_ns;
    if (first == 0) first = now_ns();
    if (t.called_ns == 0) t.called_ns = first;
    if (!t.signal_wanted(ahead)) return TryResult::kFailed;
    // Bounded: the clock is looked at between two rounds, however steadily threads arrive.
    constexpr uint32_t kAtOnce = 128;
    if (!ahead && t.refused != 0) {
      signal_one_by_one(t.signal, std::min(t.refused, kAtOnce));
      points::at("stop.signalled");
      if (t.refused > kAtOnce && now_ns() > t.deadline)
        return t.fail(ExitCode::kTimeout, 0, t.missing, kQueueIsFull);
    }
    if (ahead) {
      await_waiting(t.awaited);
      // relaxed: a hint.
      if (call.meanwhile != nullptr && worker_stood_ns_.load(std::memory_order_relaxed) == 0)
        call.meanwhile(call.argument);
      continue;
    }
    if (t.missing == 0 && are_all_tasks(t.pid, t.tasks.span())) return TryResult::kStopped;
    if (t.missing == 0) {
      if (now_ns() < t.deadline) continue;
      return t.fail(ExitCode::kTimeout, 0, 0,
                    "threads come and go faster than /proc/self/task lists them; the program goes on, try "
                    "again or raise CKPT_STOP_TIMEOUT");
    }
    // The next look is worth it when all of them are here, or after a while: some may have exited.
    constexpr int64_t kStalledNs = 1'000'000;
    if (await_arrivals(static_cast<uint32_t>(t.here.size()) + t.awaited)) last_arrival_ns = now_ns();
    // acquire: whom the number counts is linked (arrive_in_handler).
    if (t.is_everybody(arrived_.load(std::memory_order_acquire))) return TryResult::kStopped;
    if (now_ns() - last_arrival_ns < kStalledNs) continue;
    last_arrival_ns = now_ns();
    TryResult attempt = look_at_stalled(t);
    if (attempt == TryResult::kBehindLock) return attempt;
    if (attempt == TryResult::kFailed) return t.fail_without_memory();
    if (now_ns() > t.deadline) {
      // A thread that has not run at all waits for a processor, behind too many others.
      const bool ran = t.stalled != t.missing || processor_time_ns(t.missing) != t.stalled_ran_ns;
      return t.fail(ExitCode::kTimeout, 0, t.missing,
                    t.refused != 0 ? kQueueIsFull
                    : ran ? "did not stop in time; the program goes on, try again or raise CKPT_STOP_TIMEOUT"
                          : "did not run at all in the time to stop; the program goes on, try again or raise "
                            "CKPT_STOP_TIMEOUT");
    }
  }
}

void StopWorld::signal_process(int signal) {
  signalled_process_.store(true, std::memory_order_relaxed);
  sys::call(__NR_kill, sys::getpid(), signal);
}

// `threads` of them could not be signalled: see "Where the queue of signals is full". A thread that does not
// arrive blocks the signal.
void StopWorld::signal_one_by_one(int signal, uint32_t threads) {
  for (; threads != 0; --threads) {
    const uint32_t arrived = arrived_.load(std::memory_order_relaxed);
    signal_process(signal);
    if (!await_arrivals(arrived + 1)) return;
  }
}

// Returns when `count` threads have arrived, or none does for a while. False: none has.
bool StopWorld::await_arrivals(uint32_t count) {
  constexpr timespec kWhile{0, 200'000};
  // seq_cst: see arrive_in_handler.
  awaited_.store(count, std::memory_order_seq_cst);
  const uint32_t first = arrived_.load(std::memory_order_seq_cst);
  for (uint32_t arrived = first; arrived < count; arrived = arrived_.load(std::memory_order_seq_cst)) {
    if (futex_wait(arrived_, arrived, &kWhile) == -ETIMEDOUT &&
        arrived_.load(std::memory_order_relaxed) == arrived) {
      return arrived != first;
    }
  }
  return true;
}

// Returns when `count` threads have arrived, when none does for a while, or when a worker has: it should not
// stand for long.
void StopWorld::await_waiting(uint32_t count) {
  // seq_cst in all: see arrive_in_handler.
  ahead_.store(true, std::memory_order_seq_cst);
  awaited_.store(count, std::memory_order_seq_cst);
  for (;;) {
    constexpr timespec kWhile{0, 500'000};
    const uint32_t arrived = arrived_.load(std::memory_order_seq_cst);
    if (arrived >= count || worker_stood_ns_.load(std::memory_order_relaxed) != 0) break;
    if (futex_wait(arrived_, arrived, &kWhile) == -ETIMEDOUT &&
        arrived_.load(std::memory_order_relaxed) == arrived)
      break;
  }
  ahead_.store(false, std::memory_order_relaxed);
}

// No thread arrived for a millisecond. Why not? kStopped here means: keep waiting.
StopWorld::TryResult StopWorld::look_at_stalled(Try& t) {
  const uint64_t ours = 1ull << (t.signal - 1), setxid = 1ull << (kSetxidSignal - 1);
  int behind_lock = 0;
  if (t.stalled != t.missing) {
    t.stalled = t.missing;
    t.stalled_ran_ns = processor_time_ns(t.missing);
  }
  if (!t.look_who_is_here(slots_.load(std::memory_order_acquire))) return TryResult::kFailed;
  // Where a thread has replaced our action, all that were sent the signal may have taken it with that one.
  if (!libc_signal_is_ours()) t.by_libc_signal.clear();
  for (int tid : t.tasks) {
    if (t.excluded(tid) || Try::in(t.here, tid)) continue;
    TaskFacts facts;
    SignalMasks masks;
    if (!read_task_facts(tid, facts) || !read_signal_masks(tid, masks)) continue;
    // The leader of a program whose main thread called pthread_exit, a thread that has ended and of which its
    // tracer was not told yet, and the kernel's io_uring workers never run the program and take no signals.
    if (facts.state == 'Z' || facts.kernel_worker) {
      if (!t.ignored.push_back(tid)) return TryResult::kFailed;
    } else if ((masks.blocked & ours) == 0) {
      continue;  // busy in the kernel; it will come
    } else if (is_in_exec(tid) || tracing::serves(tid)) {
      continue;
    } else if ((masks.blocked & setxid) == 0) {
      // It is put back into its stop, for which our signal is blocked. Its tracer would be told of this one.
      if (traced::has_tracer(tid)) continue;
      // Sent already, and our action took it, or will.
      if (contains(t.by_libc_signal.span(), tid)) continue;
      // A thread has replaced our action since the look above: those that were sent the signal may have taken
      // it with that one. The next look finds ours again, and would never send it to them again.
      if (borrow_libc_signal()) t.by_libc_signal.clear();
      siginfo_t info{};
      info.si_signo = kSetxidSignal;
      info.si_code = SI_QUEUE;
      info.si_pid = t.pid;
      info.si_value.sival_ptr = this;
      const long r = sys::call(__NR_rt_tgsigqueueinfo, t.pid, tid, kSetxidSignal, &info);
      // On EAGAIN the signal goes to the process: one thread takes it, and at the next look another.
      if (r == -EAGAIN) {
        // A thread that executes another program must not take it along: there its action is the default.
        setxid_of_process_.store(true, std::memory_order_seq_cst);
        const bool in_exec = std::any_of(
            std::begin(in_exec_), std::end(in_exec_),
            [](const std::atomic<int>& slot) { return slot.load(std::memory_order_seq_cst) != 0; });
        if (!in_exec) sys::call(__NR_kill, t.pid, kSetxidSignal);
      }
      if (r == 0 && !t.by_libc_signal.push_back(tid)) return TryResult::kFailed;
    } else if (facts.state == 'S') {
      behind_lock = tid;
    }
  }
  if (behind_lock == 0) return TryResult::kStopped;
  // Or the thread has just arrived: a thread that stands in our handler looks the same.
  if (!t.look_who_is_here(slots_.load(std::memory_order_acquire))) return TryResult::kFailed;
  if (Try::in(t.here, behind_lock)) return TryResult::kStopped;
  t.missing = behind_lock;
  return now_ns() > t.deadline ? TryResult::kStopped : TryResult::kBehindLock;
}

void StopWorld::release() {
  // seq_cst: see arrive_in_handler. As a release it also publishes everything done to the program's
  // memory while it stood still.
  released_.store(requested_.load(std::memory_order_relaxed), std::memory_order_seq_cst);
  // The kernel puts a thread that it wakes where there is the least load, and a thread of nice -20 is the
  // load of ninety: a worker would wait behind another for up to a tick, on the processor where both have
  // stood. Meanwhile this processor, whose only thread then sleeps, has nothing to do. Where there are many
  // threads, those that go on first would keep the agent from waking the rest.
  constexpr uint32_t kFew = 8;
  if (arrived_.load(std::memory_order_relaxed) <= kFew) urgency_.end();
  if (workers_.load(std::memory_order_relaxed) != 0) {
    wake_waiting_threads(kWorkers);
    // To wake the others now would keep processors from the workers. For a moment only: nothing depends on
    // it.
    constexpr int64_t kMomentNs = 1'000'000;
    const int64_t until = now_ns() + kMomentNs;
    for (;;) {
      const uint32_t left = workers_.load(std::memory_order_acquire);
      const int64_t rest = until - now_ns();
      if (left == 0 || rest <= 0) break;
      const timespec timeout{0, rest};
      futex_wait(workers_, left, &timeout);
    }
  }
  wake_waiting_threads(~0u);
  urgency_.end();
}

int64_t StopWorld::resumed_ns(int64_t now) const {
  int64_t last = 0;
  if (worker_stood_ns_.load(std::memory_order_relaxed) == 0)
    return all_left(&last) && last != 0 && last < now ? last : now;
  if (workers_.load(std::memory_order_acquire) != 0) return now;
  last = last_worker_left_ns_.load(std::memory_order_relaxed);
  return last < now ? last : now;
}

bool StopWorld::all_left(int64_t* last_ns) const {
  if (inside_.load(std::memory_order_acquire) != 0) return false;
  *last_ns = last_left_ns_.load(std::memory_order_relaxed);
  return true;
}

void StopWorld::reset_after_restart() {
  for (FutexWord* w : {&inside_, &requested_, &arrived_, &released_, &turn_, &done_, &workers_}) {
    w->store(0, std::memory_order_relaxed);
  }
  slots_.store(nullptr, std::memory_order_relaxed);
  urgency_.forget();
  for (std::atomic<bool>* flag : {&ahead_, &signalled_process_, &setxid_of_process_})
    flag->store(false, std::memory_order_relaxed);
  for (ThreadSlot*& slot : first_arrived_) slot = nullptr;
  for (std::atomic<int>& slot : in_exec_) slot.store(0, std::memory_order_relaxed);
}

}  // namespace ckpt
