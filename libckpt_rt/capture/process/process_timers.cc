#include "libckpt_rt/capture/process/process_timers.h"

#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/time.h>
#include <time.h>

#include <algorithm>

#include "libckpt_rt/core/kernel/proc_text.h"
#include "libckpt_rt/core/kernel/signal_limit.h"
#include "libckpt_rt/core/preload_rules.h"

// linux/prctl.h of 6.15 and later: timer_create takes the id to use from *timerid.
#ifndef PR_TIMER_CREATE_RESTORE_IDS
#define PR_TIMER_CREATE_RESTORE_IDS 77
#endif

namespace ckpt {

Result<void> list_timers(std::string_view all, ProcessTimers& timers) {
  timers.count = 0;
  // ID: 1 / signal: 60/00007ffd / notify: signal/pid.2634 / ClockID: 1
  for (size_t at = 0; (at = all.find("ID: ", at)) != std::string_view::npos;) {
    if (at > 0 && all[at - 1] != '\n') {
      at += 4;
      continue;
    }
    size_t next = all.find("\nID: ", at);
    std::string_view one = all.substr(at, next == std::string_view::npos ? next : next + 1 - at);
    at += 4;
    if (timers.count == ProcessTimers::kMost) {
      return make_error(ExitCode::kUnsupported, 0,
                        "the program has more than {} POSIX timers; try again when it has deleted some",
                        ProcessTimers::kMost);
    }
    PosixTimerRecord& t = timers.list[timers.count];
    t = {};
    uint64_t v[2] = {};
    numbers(line_of(one, "ID: "), 10, v, 1);
    t.id = static_cast<int32_t>(v[0]);
    std::string_view signal = line_of(one, "signal: ");
    numbers(signal, 10, v, 1);
    t.signal = static_cast<int32_t>(v[0]);
    size_t slash = signal.find('/');
    if (slash != std::string_view::npos) {
      numbers(signal.substr(slash + 1), 16, v, 1);
      t.value = v[0];
    }
    std::string_view notify = line_of(one, "notify: ");
    if (notify.substr(0, 6) == "signal")
      t.notify = SIGEV_SIGNAL;
    else if (notify.substr(0, 4) == "none")
      t.notify = SIGEV_NONE;
    else
      t.notify = SIGEV_THREAD;
    size_t tid = notify.find("/tid.");
    if (tid != std::string_view::npos) {
      t.notify |= SIGEV_THREAD_ID;
      numbers(notify.substr(tid + 5), 10, v, 1);
      t.notify_tid = static_cast<int32_t>(v[0]);
    }
    numbers(line_of(one, "ClockID: "), 10, v, 1);
    t.clock = static_cast<int32_t>(v[0]);
    ++timers.count;
  }
  // Kernels before 6.15 list the newest first. A restart without the newer prctl makes them as the ids count
  // up.
  std::sort(timers.list, timers.list + timers.count,
            [](const PosixTimerRecord& a, const PosixTimerRecord& b) { return a.id < b.id; });
  return {};
}

bool has_some_timer() {
  constexpr int kNumbers = 1024;  // the kernel counts them up from 0, of each process
  for (int id = 0; id < kNumbers; ++id) {
    if (sys::call(__NR_timer_getoverrun, long{id}) >= 0) return true;
  }
  return false;
}

void read_timers(ProcessTimers& timers) {
  timers.interval_unknown = false;
  for (int which = 0; which < 3; ++which) {
    itimerval t{};
    if (sys::call(__NR_getitimer, which, &t) != 0) timers.interval_unknown = true;
    timers.interval.remaining_ns[which] = (t.it_value.tv_sec * 1'000'000L + t.it_value.tv_usec) * 1000;
    timers.interval.interval_ns[which] = (t.it_interval.tv_sec * 1'000'000L + t.it_interval.tv_usec) * 1000;
  }
  for (uint32_t i = 0; i < timers.count; ++i) {
    itimerspec t{};
    if (sys::call(__NR_timer_gettime, timers.list[i].id, &t) != 0) {
      timers.list[i].id = -1;  // it is not there any more
      continue;
    }
    timers.list[i].remaining_ns = t.it_value.tv_sec * 1'000'000'000L + t.it_value.tv_nsec;
    timers.list[i].interval_ns = t.it_interval.tv_sec * 1'000'000'000L + t.it_interval.tv_nsec;
  }
}

void note_left(const ProcessTimers& timers, TimersLeft& left) {
  for (int which = 0; which < 3; ++which) left.interval[which] = timers.interval.remaining_ns[which];
  for (uint32_t i = 0; i < timers.count; ++i) left.list[i] = timers.list[i].remaining_ns;
}

bool timers_name_thread(const ProcessTimers& timers, int tid) {
  for (uint32_t i = 0; i < timers.count; ++i) {
    if ((timers.list[i].notify & SIGEV_THREAD_ID) != 0 && timers.list[i].notify_tid == tid) return true;
  }
  return false;
}

namespace {

// The time left only falls, except when the timer expires.
bool expired_between(int64_t before_ns, int64_t after_ns) {
  return before_ns != 0 && (after_ns == 0 || after_ns > before_ns);
}

// Does the timer count the processor time of one thread? posix-timers.c: CPUCLOCK_PERTHREAD_MASK.
bool of_thread(const PosixTimerRecord& timer) { return timer.clock < 0 && (timer.clock & 4) != 0; }

void add(PendingSignals& pending, int tid, const siginfo_t& info) {
  if (pending.count == PendingSignals::kMost) {
    pending.overflow = true;
    return;
  }
  pending.list[pending.count++] = {tid, info.si_signo, info};
}

}  // namespace

void add_expired(const ProcessTimers& timers, const TimersLeft& before, int except, PendingSignals& pending) {
  constexpr int kSignal[3] = {SIGALRM, SIGVTALRM, SIGPROF};
  auto has = [&pending](auto&& is_it) {
    for (uint32_t i = 0; i < pending.count; ++i) {
      if (is_it(pending.list[i])) return true;
    }
    return false;
  };
  for (int which = 0; which < 3; ++which) {
    if (!expired_between(before.interval[which], timers.interval.remaining_ns[which])) continue;
    // Of these there is never more than one.
    if (has([&](const PendingSignal& p) { return p.tid == 0 && p.signal == kSignal[which]; })) continue;
    siginfo_t info{};
    info.si_signo = kSignal[which];
    info.si_code = SI_KERNEL;
    add(pending, 0, info);
  }
  for (uint32_t i = 0; i < timers.count; ++i) {
    const PosixTimerRecord& t = timers.list[i];
    if (t.id < 0 || t.notify == SIGEV_NONE || t.signal == except) continue;
    if (!expired_between(before.list[i], t.remaining_ns)) continue;
    if (has([&](const PendingSignal& p) { return p.info.si_code == SI_TIMER && p.info.si_timerid == t.id; }))
      continue;
    siginfo_t info{};
    info.si_signo = t.signal;
    info.si_code = SI_TIMER;
    info.si_timerid = t.id;
    info.si_value.sival_ptr = reinterpret_cast<void*>(t.value);
    add(pending, (t.notify & SIGEV_THREAD_ID) != 0 ? t.notify_tid : 0, info);
  }
}

long restore_timers(const ProcessTimers& timers) {
  for (int which = 0; which < 3; ++which) {
    itimerval t{};
    int64_t us = timers.interval.remaining_ns[which] / 1000, step = timers.interval.interval_ns[which] / 1000;
    if (us == 0 && step == 0) continue;
    // An interval timer whose signal is still pending shows nothing remaining; it is not disarmed.
    if (us == 0) us = 1;
    t.it_value = {us / 1'000'000, us % 1'000'000};
    t.it_interval = {step / 1'000'000, step % 1'000'000};
    long r = sys::call(__NR_setitimer, which, &t, 0L);
    if (r != 0) return r;
  }
  SignalLimitRaised raised;  // a timer counts as a signal
  const bool by_id = sys::call(__NR_prctl, PR_TIMER_CREATE_RESTORE_IDS, 1, 0, 0, 0) == 0;
  for (uint32_t i = 0; i < timers.count; ++i) {
    const PosixTimerRecord& t = timers.list[i];
    if (t.id < 0) continue;
    sigevent event{};
    event.sigev_notify = t.notify;
    event.sigev_signo = t.signal;
    event.sigev_value.sival_ptr = reinterpret_cast<void*>(t.value);
    event._sigev_un._tid = t.notify_tid;
    int id = t.id, clock = t.clock;
    long r = 0;
    // Without the newer prctl the kernel counts ids up: make timers until it reaches the one that the
    // program knows.
    for (;;) {
      r = sys::call(__NR_timer_create, clock, &event, &id);
      if (r == -EINVAL && clock == t.clock && of_thread(t)) {
        clock = CLOCK_MONOTONIC;  // the thread had ended: the timer never expires, but its number is the
                                  // program's
        continue;
      }
      if (r != 0 || id == t.id || by_id) break;
      sys::call(__NR_timer_delete, id);
      if (id > t.id) return -EEXIST;
    }
    if (r != 0) return r;
    itimerspec when{};
    const int64_t remaining = t.remaining_ns == 0 && t.interval_ns != 0 ? 1 : t.remaining_ns;
    when.it_value = {remaining / 1'000'000'000, remaining % 1'000'000'000};
    when.it_interval = {t.interval_ns / 1'000'000'000, t.interval_ns % 1'000'000'000};
    r = sys::call(__NR_timer_settime, id, 0, &when, 0L);
    if (r != 0) return r;
  }
  if (by_id) sys::call(__NR_prctl, PR_TIMER_CREATE_RESTORE_IDS, 0, 0, 0, 0);
  return 0;
}

}  // namespace ckpt
