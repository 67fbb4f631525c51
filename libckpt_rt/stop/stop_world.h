// Stopping every thread of the program, and letting them go.
//
// Owner:     libckpt_rt. One StopWorld, in the library's own data, so that it is part of the image.
// Callers:   the agent (stop, release); the program's threads in the signal handler (arrive_in_handler), and
//            where they execute another program (begin_exec, end_exec).
// Never:     anything of libc between stop() and release(): a stopped thread may hold any of its locks.
//
//                 stop()                         all arrived
//   kRunning ───────────────► kStopping ───────────────────────► kStopped
//      ▲                          │ deadline passed                   │
//      │ inside == 0              ▼ release()                         ▼ release()
//      └──────────────────── kReleasing ◄─────────────────────────────┘
//
// None of these is a variable. kRunning: requested == released and inside == 0. kStopping: requested is ahead
// of released, and not all have arrived. kStopped: all have. kReleasing: released has caught up, inside > 0.
//
// Words, one for each phase, never shared between two:
//   inside     threads between the first and the last instruction of arrive_in_handler. A new stop
//              may begin only at 0: until then slots of the last one are on threads' stacks, and a
//              thread may be about to act on the number of a stop that was aborted.
//   requested  number of the stop that threads must join. A thread that finds requested == released
//              came late (after an aborted stop): it returns at once.
//   entered    numbers the threads as they come in: the first few can be called one by one (run_on).
//   arrived    threads that saved themselves. Incremented after the slot is complete and linked.
//   awaited    how many arrivals are worth waking the agent for.
//   released   number of the last stop that ended. Threads wait for released >= their stop's number.
//   turn       what waiting threads sleep on: changes with every release and every order to a slot,
//              and a thread reads it before it looks for either, so that no wake-up is lost.
//   done       orders carried out.
//   workers    threads inside that the signal found at work, not waiting in the kernel.
//   ahead      only threads that wait have been signalled: a worker that comes now is worth waking the agent
//              for.
//
// Threads that do not take the signal:
//   - Threads inside libc that block every signal for a moment (creation, exit, posix_spawn) take it
//     when they are through. Such a thread may wait for a lock of libc that a thread which we have already
//     stopped holds: it would never be through. Then all are released, the one that waited is awaited, and
//     the stop begins again.
//   - libc's own helper threads (SIGEV_THREAD timers) block every signal but SIGCANCEL and SIGSETXID,
//     which no program can block. They are stopped by SIGSETXID, whose action is ours meanwhile.
//
// stop() signals every thread of /proc/self/task that it has not signalled yet, and lists again until
// a list shows no thread that has not arrived. Such a list need not be complete, since a thread that exits
// while it is listed cuts it short (task_list.h), and may have made another before. So the kernel's count
// decides. If it equals the length of the list, and all listed threads are alive after the count, there is no
// other thread. None will be made either: every thread that could make one stands. If the count equals the
// number of arrivals and of our own threads, it proves that alone, more cheaply: all of these are alive.
//
// Those that wait go first
// ------------------------
// A thread that sleeps in the kernel loses nothing by standing in our handler instead, and there may be a
// thousand of them, at 10 us each to come and 7 to go. So those that were seen waiting are signalled ahead,
// while the others work on, and the pause begins when the others are signalled. It begins earlier if a thread
// was taken for waiting and was at work. A thread sees in its signal frame whether the signal interrupted a
// call (was_waiting). A worker counts itself when it arrives (workers), and the agent then signals the rest
// at once. On the way back the workers are woken first, and the others when the workers are gone. A thread
// that waits and gets work just then stands from Stopped::called_ns on, longer than if all were stopped at
// once: workers keep processors from the others. A wrong guess costs time only: all threads are counted at
// the end.
//
// Where the queue of signals is full
// ----------------------------------
// RLIMIT_SIGPENDING counts what is queued for all processes of a user, and each of their POSIX timers. At the
// limit no real-time signal can be sent to a thread (EAGAIN). That of kill(2) to the process can: the kernel
// only marks it as pending, and forgets who sent it. Any thread that does not block it takes it, so one such
// signal stops one thread, and the next another, those that stand having it blocked. Two that are pending at
// once become one. So a signal of kill(2) that comes in a stop is taken for the stop's and for a request
// (signal_handler.cc); a signal that comes later may be left of a stop (may_be_ours).
//
// Signals to threads. A thread that has not arrived yet may send a signal to one that has (pthread_kill): it
// is pending there, and the image must have it. Only the kernel's text about each thread shows that (SigPnd),
// which is too dear for many. So each thread notes what is pending when it arrives, and looks again when it
// leaves. If nothing is new, nothing was missed. A new signal may have come after the stop, but nobody can
// tell: the checkpoint is taken again, and from then on the stop looks at every thread. Signals that are
// pending on the process are always looked at when all have arrived.
#pragma once

#include <errno.h>
#include <signal.h>
#include <ucontext.h>

#include "base/memory/arena.h"
#include "base/result.h"
#include "libckpt_rt/capture/process/process_timers.h"
#include "libckpt_rt/core/kernel/kernel_sigaction.h"
#include "libckpt_rt/core/threads/of_ours/urgency.h"
#include "libckpt_rt/core/threads/thread_context.h"

namespace ckpt {

class StopWorld {
 public:
  struct Stopped {
    ThreadSlot* first = nullptr;  // linked list through ThreadSlot::next
    uint32_t count = 0;
    bool leader_exited = false;
    int64_t called_ns = 0;  // when the first thread was signalled
    int64_t began_ns = 0;   // when the first worker was signalled, or stood; called_ns without workers
  };
  struct Call {
    std::span<const int> own_tids;  // not stopped (our own, or 0); they must not exit meanwhile
    std::span<const int> waiting;   // to be stopped ahead of the others: sorted, a mere hint
    int signal;
    int64_t timeout_ns;
    // Called when the waiting threads stand and the others still run, for work that should come as late as
    // possible. May be nullptr.
    void (*meanwhile)(void*) = nullptr;
    void* argument = nullptr;
  };
  // Stops all threads. On failure everything runs again and the error names the thread; *stuck is its tid, or
  // 0 when the reason is another.
  Result<Stopped> stop(const Call& call, Arena& scratch, int* stuck);
  void release();
  // By a child that the agent has forked meanwhile, for itself; or by the agent, when nobody waits for it
  // yet.
  void end_urgency() { urgency_.end(); }
  // When the workers could go on: the moment at which the last of them left, or `now` if one is still inside.
  // (After release() the agent itself may have waited for a processor.) Without workers: the same of all
  // threads.
  int64_t resumed_ns(int64_t now) const;
  // Whether all threads have left, and when the last did.
  bool all_left(int64_t* last_ns) const;

  // In the handler of the checkpoint signal. True: the thread stood still and may go on. waited:
  // was_waiting(), taken before anything is changed in the frame. traced: its tracer's word
  // (tracing/traced_thread.h).
  // serves: it traces others, which stand with it (stop/tracing/service.h).
  bool arrive_in_handler(ucontext_t* frame, bool waited, int traced = 0, bool serves = false);
  // Did the signal find the thread in a system call that it cut short? The kernel leaves the address behind
  // the instruction in rcx; it goes back to the instruction to make the call again, or gives EINTR. A
  // processor with FRED need not leave it there: then all threads count as workers if one comes ahead, and
  // the pause as the whole.
  static bool was_waiting(const ucontext_t& frame) {
    const greg_t* r = frame.uc_mcontext.gregs;
    constexpr greg_t kInstruction = 2;  // bytes
    return r[REG_RCX] == r[REG_RIP] + kInstruction || (r[REG_RCX] == r[REG_RIP] && r[REG_RAX] == -EINTR);
  }
  // Is this signal of ours to stop its thread?
  bool is_stop(const siginfo_t& info) const {
    return info.si_code == SI_TKILL || (info.si_code == SI_USER && requested());
  }
  // A signal of kill(2) that the library itself may have sent.
  bool may_be_ours(const siginfo_t& info) const {
    // relaxed: set before the first such signal is sent.
    return info.si_code == SI_USER && (info.si_pid == 0 || info.si_pid == sys::getpid()) &&
           signalled_process_.load(std::memory_order_relaxed);
  }
  // By kill(2), where signals cannot be queued: some thread takes it, for a stop or as a request.
  void signal_process(int signal);
  // Signals that are pending when the program begins were sent to what it was before.
  void expect_signal_of_process(bool expected) {
    signalled_process_.store(expected, std::memory_order_relaxed);
  }
  bool requested() const {
    return requested_.load(std::memory_order_acquire) != released_.load(std::memory_order_acquire);
  }

  // The stopped thread of `slot` calls work(argument) in its handler; returns when it is done. For what only
  // a thread with the program's descriptor table or signal queue can do.
  void run_on(ThreadSlot& slot, void (*work)(void*), void* argument) {
    start_on(slot, work, argument);
    await(slot);
  }
  // In two steps: several threads can work at the same time. Each start_on must be followed by its await:
  // before the next order to that thread, before its memory is looked at for the image, and before release().
  void start_on(ThreadSlot& slot, void (*work)(void*), void* argument);
  void await(ThreadSlot& slot);
  // The threads that arrived first: each can be woken without waking others. nullptr: there are fewer.
  static constexpr uint32_t kFirstArrived = 8;
  ThreadSlot* first_arrived(uint32_t i) const { return first_arrived_[i]; }

  // Pending signals of the stopped threads and of the process are listed, and stay pending.
  struct Look {
    uint64_t except;              // signals that are ours
    const ProcessTimers& timers;  // threads that one of these names are looked at
    bool at_all;                  // at every thread: 11 µs each; see "Signals to threads" above
  };
  void collect_pending(ThreadSlot* stopped, const Look& look, PendingSignals& pending);
  // After release(): a thread that was sent a signal between its arrival and its leaving. 0: there is none;
  // -1: not all have left in time. For one stop without at_all.
  int signalled_late(int64_t deadline_ns);
  // Until no thread is in the handler of the stop before. False: not in time.
  bool await_left(int64_t deadline_ns);

  // At restart: the stop in the image is over; no thread is in a handler's waiting part.
  void reset_after_restart();
  // In a forked child: only the caller exists.
  void reset_in_child() { reset_after_restart(); }

  // A thread inside exec takes no signal of ours: it comes back, or exec takes all threads with it.
  void begin_exec(int tid);
  void end_exec(int tid);

  // Is the signal's action ours, for now or for good?
  bool has_borrowed(int signal) const;

  // In the handler of SIGSETXID. True: it was the stop; false: libc's own business.
  bool is_stop_by_libc_signal(const siginfo_t& info) const;
  // Before the first stop: the handler of SIGSETXID while it is borrowed, and what libc's own action is then.
  void serve_libc_signal_by(void (*handler)(int, void*, void*)) { on_libc_signal_ = handler; }
  const KernelSigaction& libc_action() const { return libc_action_; }

 private:
  enum class TryResult { kStopped, kBehindLock, kFailed };
  struct Try;
  void begin_try(Try& t);
  TryResult try_stop(Try& t, const Call& call);
  bool await_arrivals(uint32_t count);
  void await_waiting(uint32_t count);
  TryResult look_at_stalled(Try& t);
  void signal_one_by_one(int signal, uint32_t threads);
  bool is_in_exec(int tid) const;
  bool libc_signal_is_ours() const;
  bool borrow_libc_signal();
  void return_libc_signal();
  void take_setxid_of_process();

  void wait_for_release(ThreadSlot& slot, uint32_t stop, uint32_t groups, bool serves);
  static constexpr uint32_t kWorkers = 1u << 31;  // a group besides the thread's own
  static uint32_t group_of(uint32_t number);
  void wake_waiting_threads(uint32_t groups);

  FutexWord inside_{0};
  FutexWord requested_{0};
  FutexWord entered_{0};
  FutexWord arrived_{0};
  FutexWord awaited_{0};
  FutexWord released_{0};
  FutexWord turn_{0};
  FutexWord done_{0};
  FutexWord workers_{0};
  std::atomic<bool> ahead_{false};
  std::atomic<ThreadSlot*> slots_{nullptr};
  ThreadSlot* first_arrived_[kFirstArrived] =
      {};  // each written by its thread before it is counted in arrived_
  // Of this stop, or 0: when the first worker stood, when the last worker left, when the last thread left.
  std::atomic<int64_t> worker_stood_ns_{0}, last_worker_left_ns_{0}, last_left_ns_{0};
  std::atomic<int> signalled_late_{0};
  std::atomic<bool> signalled_process_{false};
  std::atomic<bool> setxid_of_process_{
      false};                             // SIGSETXID may be pending on the process: nobody may begin an exec
  static constexpr int kMostInExec = 16;  // more wait for a place, and make a stop wait for them
  std::atomic<int> in_exec_[kMostInExec] = {};
  Urgency urgency_;  // of the agent, from stop() to release()
  void (*on_libc_signal_)(int, void*, void*) = nullptr;
  KernelSigaction libc_action_{};
  bool borrowed_ = false;
};

inline constexpr int kSetxidSignal = 33;  // glibc's SIGSETXID

inline bool StopWorld::has_borrowed(int signal) const { return borrowed_ && signal == kSetxidSignal; }

}  // namespace ckpt
