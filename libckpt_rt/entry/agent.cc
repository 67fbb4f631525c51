#include "libckpt_rt/entry/agent.h"

#include <errno.h>
#include <signal.h>
#include <sys/stat.h>

#include <cstring>
#include <iterator>
#include <string_view>

#include "base/fork_path.h"
#include "base/protocol/control_protocol.h"
#include "job/capture/take.h"
#include "libckpt_rt/checkpoint/preparation.h"
#include "libckpt_rt/checkpoint/progress.h"
#include "libckpt_rt/core/kernel/proc_text.h"
#include "libckpt_rt/core/kernel/task_list.h"
#include "libckpt_rt/core/process/statistics.h"
#include "libckpt_rt/core/process/this_process.h"
#include "libckpt_rt/core/request/interval.h"
#include "libckpt_rt/core/request/own_signal.h"
#include "libckpt_rt/core/threads/late_signals.h"
#include "libckpt_rt/core/threads/own_threads.h"
#include "libckpt_rt/entry/control.h"
#include "libckpt_rt/entry/moved_signal.h"
#include "libckpt_rt/protect/watch.h"
#include "libckpt_rt/stop/stop_state.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::agent {

namespace {

constexpr uint32_t kRing = 16;

FutexLock lock;  // held for a few instructions, with all signals blocked
Request ring[kRing];
uint32_t head = 0;
CKPT_FORK_DATA uint32_t count = 0;
CKPT_FORK_DATA bool running = false;
bool waiting = false;                  // the agent has nothing to do but to keep a watch
CKPT_FORK_DATA uint32_t absences = 0;  // not 0: an agent that is there leaves, none is started
OwnRequest* answering = nullptr;       // the request being served; in an image: the one it was taken for
FutexWord orders{0};                   // changes when an agent that waits has to look

class SignalsBlocked {
 public:
  SignalsBlocked() {
    const uint64_t all = ~0ull;
    sys::call(__NR_rt_sigprocmask, SIG_SETMASK, &all, &before_, 8L);
  }
  ~SignalsBlocked() { sys::call(__NR_rt_sigprocmask, SIG_SETMASK, &before_, 0L, 8L); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  uint64_t before_ = 0;
};

void give_orders() {
  orders.fetch_add(1, std::memory_order_release);
  futex_wake(orders);
}

// The agent and the thread that serves faults must not keep a process alive whose own threads are gone.
// (exit_group ends ours as well; this is about programs whose threads end one by one, without libc.) Its
// status is that of the first thread, which is the last to end in most such programs; the status of other
// threads can be read nowhere.
void end_with_the_program() {
  struct stat tasks {};
  if (sys::call(__NR_stat, "/proc/self/task", &tasks) != 0) return;
  constexpr uint64_t kDotAndDotDot = 2;
  if (tasks.st_nlink > RunningOwnThreads().ids().size() + kDotAndDotDot + 1) return;
  TaskFacts leader;
  if (read_task_facts(this_process.pid, leader) && leader.state == 'Z')
    sys::call(__NR_exit_group, leader.wait_status >> 8);
}

// An agent that has waited has the rights of the moment when it was started. The program may have given some
// up since: user, groups, capabilities, the root of its files.
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

void main_loop(void*) {
  for (;;) {
    Request r;
    const uint32_t seen = orders.load(std::memory_order_acquire);
    bool leave = false;
    {
      ScopedLock guard(lock);
      leave = absences != 0;
      if (!Watch::is_kept() && (leave || (count == 0 && !late_signals::any()))) {
        // Under the lock: a request that comes after this starts a new agent.
        running = waiting = false;
        return;
      }
      waiting = leave || count == 0;
    }
    if (leave) {
      Watch::end_kept();
      continue;
    }
    if (late_signals::any()) late_signals::send();
    if (waiting && late_signals::any()) {
      constexpr timespec kLookAgain{0, 20'000'000};
      if (futex_wait(orders, seen, &kLookAgain) == -ETIMEDOUT) end_with_the_program();
      continue;
    }
    if (waiting) {
      if (Watch::is_kept()) wait_for_orders(seen);
      continue;
    }
    if (Watch::is_kept() && !has_rights_of_the_program()) {
      Watch::end_kept();
      {
        ScopedLock guard(lock);
        running = false;
      }
      start_successor();
      return;
    }
    {
      // Only the agent takes requests out: there still is one.
      ScopedLock guard(lock);
      r = ring[head];
      head = (head + 1) % kRing;
      --count;
    }
    if (r.own != nullptr && r.moves_signal != 0) {
      answering = r.own;
      r.own->ok = r.moves_signal != own_signal.number || moved_signal::move();
      answering = nullptr;
      r.own->done.store(1, std::memory_order_release);
      futex_wake(r.own->done);
    } else if (r.own != nullptr) {
      answering = r.own;
      job::Report report;
      auto result = job::take({}, report, &serve_joins);
      answering = nullptr;
      r.own->ok = result.ok();
      if (result.ok())
        r.own->cost = *result;
      else
        r.own->error = result.error();
      r.own->done.store(1, std::memory_order_release);
      futex_wake(r.own->done);
    } else if (r.cookie != 0) {
      (void)serve_asker(r.cookie);
    } else {
      const bool asked = r.without_cookie && serve_askers_without_cookie();
      job::Report report;
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
    --count;
    statistics::count_failure(
        make_error(ExitCode::kUnavailable, static_cast<int>(error),
                   "a request was refused: cannot start a thread ({}); raise the limit on processes",
                   errno_name(static_cast<int>(error))));
    return false;
  }
  running = true;
  return true;
}

}  // namespace

bool request(Request r) {
  ScopedLock guard(lock);
  if (r.cookie == kStartAgent) return running || absences != 0 || count == 0 || start_locked();
  // The interval never queues up behind itself.
  if (r.cookie == 0 && r.own == nullptr && running && !waiting) {
    if (!r.without_cookie) return true;
    r.checkpoint = false;
  }
  for (uint32_t i = 0; r.without_cookie && i < count; ++i) {
    Request& queued = ring[(head + i) % kRing];
    if (!queued.without_cookie) continue;
    queued.checkpoint = queued.checkpoint || r.checkpoint;
    return running || absences != 0 || start_locked();
  }
  if (count == kRing) {
    statistics::count_failure(make_error(
        ExitCode::kUnavailable, 0, "a request was refused: {} are waiting already; ask less often", kRing));
    return false;
  }
  ring[(head + count) % kRing] = r;
  ++count;
  if (running) give_orders();
  return running || absences != 0 || start_locked();
}

bool serve_joins() {
  for (;;) {
    uint64_t cookie = 0;
    {
      ScopedLock guard(lock);
      for (uint32_t i = 0; i < count && cookie == 0; ++i) {
        const uint64_t queued = ring[(head + i) % kRing].cookie;
        if ((queued & kJoinCookie) == 0 && (queued & kBackCookie) != 0) return false;
        if ((queued & kJoinCookie) == 0) continue;
        cookie = ring[(head + i) % kRing].cookie;
        for (uint32_t j = i; j + 1 < count; ++j) ring[(head + j) % kRing] = ring[(head + j + 1) % kRing];
        --count;
      }
    }
    if (cookie == 0) return true;
    (void)serve_asker(cookie);
  }
}

void begin_absence() {
  {
    SignalsBlocked blocked;
    ScopedLock guard(lock);
    ++absences;
    if (running) give_orders();
  }
  // Signals are open again: it may be in the middle of a checkpoint, and stop this thread.
  for (RawThread* t : kOwnThreads) {
    t->join();
    t->await_gone();
  }
}

void end_absence() {
  SignalsBlocked blocked;
  ScopedLock guard(lock);
  if (absences != 0) --absences;  // after a restart there is none
  if (absences == 0 && count != 0 && !running) start_locked();
}

CKPT_FORK_PATH bool is_idle() { return !running && count == 0 && absences == 0; }

namespace {

void tell_restarted(OwnRequest* own, uint32_t generation) {
  if (own == nullptr) return;
  own->ok = true;
  own->restarted = generation;
  own->done.store(1, std::memory_order_release);
}

}  // namespace

void reset(uint32_t generation) {
  new (&lock) FutexLock;
  statistics::reset_after_restart();
  if (generation != 0) {
    // Also threads whose request waited in the queue: the agent that would serve it is not in the image.
    tell_restarted(answering, generation);
    for (uint32_t i = 0; i < count; ++i) tell_restarted(ring[(head + i) % kRing].own, generation);
  }
  head = count = absences = 0;
  running = waiting = false;
  late_signals::forget();
  checkpoint_progress::tell(-1);  // the socket was the agent's
  answering = nullptr;
  preparation::reset(generation);
}

void save_requests(WaitingRequests& saved) {
  static_assert(sizeof(WaitingRequests::ring) == kRing * sizeof(Request));
  std::memcpy(static_cast<void*>(saved.ring), ring, sizeof(ring));
  saved.head = head;
  saved.count = count;
}

void put_back_requests(const WaitingRequests& saved, uint32_t generation) {
  reset(generation);
  for (uint32_t i = 0; i < saved.count; ++i) {
    const Request& request = saved.ring[(saved.head + i) % kRing];
    // A thread of the program that asked does not wait any more: it has gone back.
    if (request.own == nullptr) ring[count++] = request;
  }
  running = true;
}

}  // namespace ckpt::agent
