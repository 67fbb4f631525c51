#include "libckpt_rt/entry/agent.h"

#include <errno.h>
#include <signal.h>
#include <sys/stat.h>

#include <iterator>
#include <string_view>

#include "base/protocol/control_protocol.h"
#include "job/capture/take.h"
#include "libckpt_rt/core/kernel/proc_text.h"
#include "libckpt_rt/core/kernel/task_list.h"
#include "libckpt_rt/core/process/statistics.h"
#include "libckpt_rt/core/process/this_process.h"
#include "libckpt_rt/core/request/interval.h"
#include "libckpt_rt/core/request/own_signal.h"
#include "libckpt_rt/core/threads/late_signals.h"
#include "libckpt_rt/core/threads/of_ours/own_threads.h"
#include "libckpt_rt/core/threads/signals_blocked.h"
#include "libckpt_rt/entry/control.h"
#include "libckpt_rt/entry/moved_signal.h"
#include "libckpt_rt/protect/watch.h"
#include "libckpt_rt/stop/stop_state.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::agent {

namespace {

constinit FutexWord orders{0};  // changes when an agent that waits has to look

void give_orders() {
  orders.fetch_add(1, std::memory_order_release);
  futex_wake(orders);
}

// The agent and the thread that serves faults must not keep a process alive whose own threads are gone.
// (exit_group ends ours as well; this is about programs whose threads end one by one, without libc.) Its
// status is that of the first thread. In most such programs that thread is the last to end; the status of
// other threads can be read nowhere.
void end_with_the_program() {
  struct stat tasks {};
  if (sys::call(__NR_stat, "/proc/self/task", &tasks) != 0) return;
  constexpr uint64_t kDotAndDotDot = 2;
  if (tasks.st_nlink > RunningOwnThreads().ids().size() + kDotAndDotDot + 1) return;
  TaskFacts leader;
  if (read_task_facts(this_process.pid, leader) && leader.state == 'Z')
    sys::call(__NR_exit_group, leader.wait_status >> 8);
}

// An agent that has waited, or has served somebody, has the rights of the moment when it was started. The
// program may have given some up since: user, groups, capabilities, the root of its files.
bool has_rights_of_the_program() {
  constexpr std::string_view kRights[] = {
      "Uid:", "Gid:", "Groups:", "CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"};
  char path[64];
  *fmt::format_to_n(path, sizeof(path) - 1, "/proc/self/task/{}/status", this_process.pid).out = '\0';
  const uint64_t ours = digest_status("/proc/thread-self/status", kRights);
  if (ours == 0 || ours != digest_status(path, kRights)) return false;
  struct stat root {
  }, our_root{};
  *fmt::format_to_n(path, sizeof(path) - 1, "/proc/self/task/{}/root/.", this_process.pid).out = '\0';
  // A first thread that has exited has no root any more.
  if (sys::call(__NR_stat, path, &root) != 0 || sys::call(__NR_stat, "/", &our_root) != 0) return true;
  return root.st_dev == our_root.st_dev && root.st_ino == our_root.st_ino;
}

// The new agent must be started by a thread of the program, which has the program's rights of now: our signal
// makes one of them call request().
void start_successor() {
  siginfo_t info{};
  info.si_signo = own_signal.number;
  info.si_code = SI_QUEUE;
  info.si_pid = this_process.pid;
  info.si_value.sival_ptr = reinterpret_cast<void*>(kStartAgent);
  if (sys::call(__NR_rt_sigqueueinfo, this_process.pid, own_signal.number, &info) == -EAGAIN)
    stop_state.world.signal_process(own_signal.number);
}

void wait_for_orders(uint32_t seen) {
  constexpr timespec kLongest{1, 0};
  if (futex_wait(orders, seen, &kLongest) != -ETIMEDOUT) return;
  Watch::release_spare();
  end_with_the_program();
}

// A job's checkpoint is as good as the image of each of its members.
void answer_durable(OwnRequest& own, const CheckpointCost& cost, const job::TakeReport& report) {
  own.cost = cost;
  if (report.members != 0 && report.why_not_restartable[0] != '\0')
    own.error = not_restartable(report.path, report.why_not_restartable);
  else if (!cost.restartable())
    own.error = not_restartable(cost.image, cost.why_not_restartable);
}

void main_loop(void*) {
  bool has_served = false;
  for (;;) {
    Request r;
    const uint32_t seen = orders.load(std::memory_order_acquire);
    bool leave = false;
    {
      ScopedLock guard(queue.lock);
      leave = words.absences != 0;
      if (!Watch::is_kept() && (leave || (words.count == 0 && !late_signals::any()))) {
        // Under the lock: a request that comes after this starts a new agent.
        words.running = queue.waiting = false;
        return;
      }
      queue.waiting = leave || words.count == 0;
    }
    if (leave) {
      Watch::end_kept();
      continue;
    }
    if (late_signals::any()) late_signals::send();
    if (queue.waiting && late_signals::any()) {
      constexpr timespec kLookAgain{0, 20'000'000};
      if (futex_wait(orders, seen, &kLookAgain) == -ETIMEDOUT) end_with_the_program();
      continue;
    }
    if (queue.waiting) {
      Watch::clean_spare();
      if (Watch::is_kept()) wait_for_orders(seen);
      continue;
    }
    if ((has_served || Watch::is_kept()) && !has_rights_of_the_program()) {
      if (Watch::is_kept()) Watch::end_kept();
      {
        ScopedLock guard(queue.lock);
        words.running = false;
      }
      start_successor();
      return;
    }
    {
      // Only the agent takes requests out: there still is one.
      ScopedLock guard(queue.lock);
      r = queue.ring[queue.head];
      queue.head = (queue.head + 1) % kRing;
      --words.count;
    }
    has_served = true;
    if (r.own != nullptr && r.moves_signal != 0) {
      queue.answering = r.own;
      r.own->ok = r.moves_signal != own_signal.number || moved_signal::move();
      queue.answering = nullptr;
      r.own->done.store(1, std::memory_order_release);
      futex_wake(r.own->done);
    } else if (r.own != nullptr) {
      queue.answering = r.own;
      job::TakeReport report;
      auto result = job::take({}, report, &serve_joins);
      queue.answering = nullptr;
      r.own->ok = result.ok();
      if (result.ok())
        answer_durable(*r.own, *result, report);
      else
        r.own->error = result.error();
      r.own->done.store(1, std::memory_order_release);
      futex_wake(r.own->done);
    } else if (r.cookie != 0) {
      (void)serve_asker(r.cookie);
    } else {
      const bool asked = r.without_cookie && serve_askers_without_cookie();
      job::TakeReport report;
      const bool due = r.without_cookie || interval::is_due();
      if (!asked && r.checkpoint && due)
        (void)job::take({}, report, &serve_joins);  // the log and `ckpt stat` tell of a failure
    }
  }
}

// False: it could not be started, and the request that came last is refused.
bool start_locked() {
  // The last agent has left its loop; its stack is free when the kernel says so.
  own_threads.agent.join();
  if (long error = own_threads.agent.spawn(&main_loop, nullptr, DescriptorTable::kOwnTable); error != 0) {
    --words.count;
    statistics::count_failure(
        make_error(ExitCode::kUnavailable, static_cast<int>(error),
                   "a request was refused: cannot start a thread ({}); raise the limit on processes",
                   errno_name(static_cast<int>(error))));
    return false;
  }
  words.running = true;
  return true;
}

}  // namespace

bool request(Request r) {
  ScopedLock guard(queue.lock);
  if (r.cookie == kStartAgent)
    return words.running || words.absences != 0 || words.count == 0 || start_locked();
  // The interval never queues up behind itself.
  if (r.cookie == 0 && r.own == nullptr && words.running && !queue.waiting) {
    if (!r.without_cookie) return true;
    r.checkpoint = false;
  }
  for (uint32_t i = 0; r.without_cookie && i < words.count; ++i) {
    Request& queued = queue.ring[(queue.head + i) % kRing];
    if (!queued.without_cookie) continue;
    queued.checkpoint = queued.checkpoint || r.checkpoint;
    return words.running || words.absences != 0 || start_locked();
  }
  if (words.count == kRing) {
    statistics::count_failure(make_error(
        ExitCode::kUnavailable, 0, "a request was refused: {} are waiting already; ask less often", kRing));
    return false;
  }
  queue.ring[(queue.head + words.count) % kRing] = r;
  ++words.count;
  if (words.running) give_orders();
  return words.running || words.absences != 0 || start_locked();
}

bool serve_joins() {
  for (;;) {
    uint64_t cookie = 0;
    {
      ScopedLock guard(queue.lock);
      for (uint32_t i = 0; i < words.count && cookie == 0; ++i) {
        const uint64_t queued = queue.ring[(queue.head + i) % kRing].cookie;
        if ((queued & kJoinCookie) == 0 && (queued & kBackCookie) != 0) return false;
        if ((queued & kJoinCookie) == 0) continue;
        cookie = queue.ring[(queue.head + i) % kRing].cookie;
        for (uint32_t j = i; j + 1 < words.count; ++j)
          queue.ring[(queue.head + j) % kRing] = queue.ring[(queue.head + j + 1) % kRing];
        --words.count;
      }
    }
    if (cookie == 0) return true;
    (void)serve_asker(cookie);
  }
}

void begin_absence() {
  {
    SignalsBlocked blocked(SignalsBlocked::kAll);
    ScopedLock guard(queue.lock);
    ++words.absences;
    if (words.running) give_orders();
  }
  // Signals are open again: it may be in the middle of a checkpoint, and stop this thread.
  for (RawThread* t : kOwnThreads) {
    t->join();
    t->await_gone();
  }
}

void end_absence() {
  SignalsBlocked blocked(SignalsBlocked::kAll);
  ScopedLock guard(queue.lock);
  if (words.absences != 0) --words.absences;  // after a restart there is none
  if (words.absences == 0 && words.count != 0 && !words.running) start_locked();
}

}  // namespace ckpt::agent
