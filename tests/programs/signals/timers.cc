#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

#include "tests/programs/signals/signals.h"

namespace signals {

using namespace victim;

namespace {

std::atomic<uint64_t> ticks[3];
void count_alarm(int signal, siginfo_t*, void*) {
  ticks[signal == SIGALRM ? ITIMER_REAL : signal == SIGVTALRM ? ITIMER_VIRTUAL : ITIMER_PROF].fetch_add(1);
}

}  // namespace

// The three interval timers tick until each has done so often enough; a timer that a restart forgets
// never ends.
std::string interval_timers(uint64_t iterations) {
  set_handler(SIGALRM, count_alarm, SA_RESTART);
  set_handler(SIGVTALRM, count_alarm, SA_RESTART);
  set_handler(SIGPROF, count_alarm, SA_RESTART);
  for (int s : {SIGALRM, SIGVTALRM, SIGPROF}) set_blocked(s, false);
  itimerval every{{0, 10'000}, {0, 10'000}};
  for (int which : {ITIMER_REAL, ITIMER_VIRTUAL, ITIMER_PROF}) {
    require_call(setitimer(static_cast<__itimer_which_t>(which), &every, nullptr) == 0, "setitimer");
  }
  auto slowest = [] { return std::min({ticks[0].load(), ticks[1].load(), ticks[2].load()}); };
  volatile uint64_t spin = 0;
  for (int64_t looked = now_ns(); slowest() < iterations;) {
    for (int i = 0; i < 10'000; ++i) spin = spin + 1;
    itimerval now;
    require_call(getitimer(ITIMER_REAL, &now) == 0, "getitimer");
    require(now.it_interval.tv_usec == 10'000, "itimers: the interval became {} us", now.it_interval.tv_usec);
    int64_t moment = now_ns();
    require(moment >= looked, "itimers: CLOCK_MONOTONIC went back by {} ns", looked - moment);
    looked = moment;
  }
  itimerval off{};
  for (int which : {ITIMER_REAL, ITIMER_VIRTUAL, ITIMER_PROF}) {
    setitimer(static_cast<__itimer_which_t>(which), &off, nullptr);
  }
  for (int s : {SIGALRM, SIGVTALRM, SIGPROF}) set_blocked(s, true);
  return fmt::format("{} ticks of each", iterations);
}

namespace {

// Expirations seen, by the kind of notification.
std::atomic<uint64_t> expired_signal{0}, expired_thread_id{0}, expired_thread{0}, expired_wrong{0};
std::atomic<uint64_t> current_round{0};
std::atomic<int> timer_thread_id{0};

void on_timer(int, siginfo_t* info, void*) {
  if (info->si_code != SI_TIMER || static_cast<uint64_t>(info->si_value.sival_int) != current_round.load()) {
    expired_wrong.fetch_add(1);
  }
  expired_signal.fetch_add(1);
}
void on_timer_thread_id(int, siginfo_t* info, void*) {
  if (info->si_code != SI_TIMER || gettid() != timer_thread_id.load()) expired_wrong.fetch_add(1);
  expired_thread_id.fetch_add(1);
}
void on_timer_thread(sigval value) {
  if (static_cast<uint64_t>(value.sival_int) != 4711) expired_wrong.fetch_add(1);
  expired_thread.fetch_add(1);
}

timer_t make_timer(int notify, int signal, int value) {
  sigevent event{};
  event.sigev_notify = notify;
  event.sigev_value.sival_int = value;
  if (notify == SIGEV_THREAD) {
    event.sigev_notify_function = on_timer_thread;
  } else {
    event.sigev_signo = signal;
    if (notify == SIGEV_THREAD_ID) event._sigev_un._tid = gettid();
  }
  timer_t timer{};
  require_call(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0, "timer_create");
  return timer;
}

void arm(timer_t timer, int64_t first_ns, int64_t interval_ns) {
  itimerspec spec{{interval_ns / 1'000'000'000, interval_ns % 1'000'000'000}, {0, first_ns}};
  require_call(timer_settime(timer, 0, &spec, nullptr) == 0, "timer_settime");
}

}  // namespace

// Rounds of one-shot timers, each of which expires exactly once; a periodic one ticks beside them, and
// one armed for a distant day must still be armed at the end.
std::string posix_timers(uint64_t iterations) {
  const int own = SIGRTMIN + 3, own_thread = SIGRTMIN + 4;
  set_handler(own, on_timer, SA_RESTART);
  set_handler(own_thread, on_timer_thread_id, SA_RESTART);
  timer_thread_id.store(gettid());
  timer_t periodic = make_timer(SIGEV_NONE, 0, 0);
  arm(periodic, 1'000'000, 7'000'000);
  timer_t distant = make_timer(SIGEV_SIGNAL, SIGURG, 1);
  itimerspec day{{0, 0}, {86'400, 0}};
  require_call(timer_settime(distant, 0, &day, nullptr) == 0, "timer_settime");
  set_blocked(own, false);
  set_blocked(own_thread, false);
  timer_t by_thread_id = make_timer(SIGEV_THREAD_ID, own_thread, 0);
  timer_t by_thread = make_timer(SIGEV_THREAD, 0, 4711);
  for (uint64_t n = 1; n <= iterations; ++n) {
    current_round.store(n);
    timer_t by_signal = make_timer(SIGEV_SIGNAL, own, static_cast<int>(n));
    int64_t after = 2'000'000 + static_cast<int64_t>(n * 7 % 20) * 1'000'000;
    int64_t start = now_ns();
    arm(by_signal, after, 0);
    arm(by_thread_id, after, 0);
    arm(by_thread, after, 0);
    while (expired_signal.load() < n || expired_thread_id.load() < n || expired_thread.load() < n) {
      timespec nap{0, 500'000};
      clock_nanosleep(CLOCK_MONOTONIC, 0, &nap, nullptr);
    }
    require(now_ns() - start >= after, "ptimers: a timer of {} ns expired after {} ns", after,
            now_ns() - start);
    require(expired_signal.load() == n && expired_thread_id.load() == n && expired_thread.load() == n &&
                expired_wrong.load() == 0,
            "ptimers: round {}: {} {} {} expirations, {} wrong", n, expired_signal.load(),
            expired_thread_id.load(), expired_thread.load(), expired_wrong.load());
    require_call(timer_delete(by_signal) == 0, "timer_delete");
    itimerspec left;
    require_call(timer_gettime(periodic, &left) == 0, "timer_gettime");
    require(left.it_interval.tv_nsec == 7'000'000 && left.it_value.tv_sec == 0 &&
                left.it_value.tv_nsec <= 7'000'000 && left.it_value.tv_nsec > 0,
            "ptimers: the periodic timer has {} ns left of {}", left.it_value.tv_nsec,
            left.it_interval.tv_nsec);
    require_call(timer_gettime(distant, &left) == 0, "timer_gettime");
    require(left.it_value.tv_sec > 80'000 && left.it_value.tv_sec <= 86'400,
            "ptimers: the distant timer has {} s left", left.it_value.tv_sec);
  }
  for (timer_t timer : {periodic, distant, by_thread_id, by_thread}) {
    require_call(timer_delete(timer) == 0, "timer_delete");
  }
  set_blocked(own, true);
  set_blocked(own_thread, true);
  return fmt::format("{} expirations of three kinds", 3 * iterations);
}

}  // namespace signals
