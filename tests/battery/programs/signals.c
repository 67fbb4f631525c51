// Signals and timers.
#include <setjmp.h>
#include <sys/signalfd.h>
#include <sys/time.h>
#include <ucontext.h>
#include "battery.h"

static volatile int taken[65];
static volatile void* stack_seen;
static void takes(int number) { taken[number]++; }

static void queued(void) {
  sigset_t set, pending;
  sigemptyset(&set);
  for (int i = 1; i < 6; i++) sigaddset(&set, SIGRTMIN + i);
  sigaddset(&set, SIGUSR2);
  sigprocmask(SIG_BLOCK, &set, NULL);
  for (int i = 0; i < 20; i++)
    MUST(sigqueue(getpid(), SIGRTMIN + 1 + i % 5, (union sigval){.sival_int = i}) == 0);
  for (int i = 0; i < 5; i++)
    MUST(pthread_sigqueue(pthread_self(), SIGRTMIN + 1 + i, (union sigval){.sival_int = 100 + i}) == 0);
  raise(SIGUSR2);
  sigset_t first;
  sigemptyset(&first), sigaddset(&first, SIGRTMIN + 1);
  siginfo_t info;
  EACH_STEP(n) {
    sigpending(&pending);
    for (int i = 1; i < 6; i++) MUST(sigismember(&pending, SIGRTMIN + i));
    MUST(sigismember(&pending, SIGUSR2));
    MUST(sigqueue(getpid(), SIGRTMIN + 1, (union sigval){.sival_int = 1000 + n}) == 0);
    MUST(sigwaitinfo(&first, &info) == SIGRTMIN + 1);
    say("value %d code %d", info.si_value.sival_int, info.si_code);
    MUST(info.si_pid == getpid() && info.si_uid == getuid());
  }
  struct timespec none = {0, 0};
  while (sigtimedwait(&set, &info, &none) > 0)
    say("%d value %d", info.si_signo - (info.si_signo < 32 ? 0 : SIGRTMIN),
        info.si_code == SI_QUEUE ? info.si_value.sival_int : -1);
}

static void on_alternate(int number, siginfo_t* info, void* context) {
  (void)context, (void)info;
  taken[number]++;
  stack_seen = &number;
  stack_t s;
  sigaltstack(NULL, &s);
  if (number == SIGUSR1) MUST(s.ss_flags & SS_ONSTACK);
  if (number == SIGUSR1) raise(SIGUSR2);
  usleep(15000);
}

static void alternate(void) {
  static char stack[65536];
  stack_t s = {.ss_sp = stack, .ss_size = sizeof stack}, is;
  MUST(sigaltstack(&s, NULL) == 0);
  struct sigaction a = {.sa_sigaction = on_alternate, .sa_flags = SA_SIGINFO | SA_ONSTACK};
  sigaction(SIGUSR1, &a, NULL), sigaction(SIGUSR2, &a, NULL);
  EACH_STEP(n) {
    raise(SIGUSR1);
    MUST((char*)stack_seen > stack && (char*)stack_seen < stack + sizeof stack);
    MUST(taken[SIGUSR1] == n + 1 && taken[SIGUSR2] == n + 1);
    sigaltstack(NULL, &is);
    MUST(is.ss_sp == stack && is.ss_size == sizeof stack && is.ss_flags == 0);
  }
}

static void by_descriptor(void) {
  sigset_t set;
  sigemptyset(&set), sigaddset(&set, SIGUSR1), sigaddset(&set, SIGRTMIN + 3);
  sigprocmask(SIG_BLOCK, &set, NULL);
  int fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
  for (int n = 0, sent = 0; step_of(n); n++) {
    MUST(sigqueue(getpid(), SIGRTMIN + 3, (union sigval){.sival_int = sent++}) == 0);
    raise(SIGUSR1);
    if (n % 7 != 6) continue;
    struct signalfd_siginfo info[20];
    MUST(read(fd, info, sizeof info) == 8 * sizeof *info);
    MUST(info[0].ssi_signo == SIGUSR1);
    for (int i = 1; i < 8; i++)
      MUST(info[i].ssi_int == sent - 8 + i && info[i].ssi_pid == (uint32_t)getpid());
    MUST(read(fd, info, sizeof info) < 0 && errno == EAGAIN);
  }
}

static void posix_timers(void) {
  const clockid_t clocks[] = {CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_BOOTTIME, CLOCK_TAI};
  timer_t t[4], none, dead;
  sigset_t set;
  sigemptyset(&set);
  for (int i = 0; i < 4; i++) {
    sigaddset(&set, SIGRTMIN + i);
    struct sigevent e = {
        .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN + i, .sigev_value.sival_int = 500 + i};
    MUST(timer_create(clocks[i], &e, &t[i]) == 0);
  }
  sigprocmask(SIG_BLOCK, &set, NULL);
  struct sigevent e = {.sigev_notify = SIGEV_NONE};
  MUST(timer_create(CLOCK_MONOTONIC, &e, &dead) == 0 && timer_create(CLOCK_MONOTONIC, &e, &none) == 0);
  timer_delete(dead);
  struct itimerspec s = {{0, 20000000}, {0, 20000000}}, far = {{5, 0}, {1000, 0}}, is;
  for (int i = 0; i < 4; i++) MUST(timer_settime(t[i], 0, &s, NULL) == 0);
  // Between two looks at a clock anything may take long.
  const double before_armed = now_of(CLOCK_MONOTONIC);
  timer_settime(none, 0, &far, NULL);
  const double armed = now_of(CLOCK_MONOTONIC);
  EACH_STEP(n) {
    for (int i = 0; i < 4; i++) {
      sigset_t one;
      siginfo_t info;
      struct timespec patience = {5, 0};
      sigemptyset(&one), sigaddset(&one, SIGRTMIN + i);
      MUST(sigtimedwait(&one, &info, &patience) == SIGRTMIN + i);
      MUST(info.si_code == SI_TIMER && info.si_value.sival_int == 500 + i && info.si_overrun >= 0);
      timer_gettime(t[i], &is);
      MUST(is.it_interval.tv_nsec == 20000000 && is.it_value.tv_nsec > 0 && is.it_value.tv_nsec <= 20000000);
    }
    const double before = now_of(CLOCK_MONOTONIC);
    timer_gettime(none, &is);
    const double after = now_of(CLOCK_MONOTONIC);
    const double left = is.it_value.tv_sec + is.it_value.tv_nsec / 1e9;
    MUST(left > 1000 - (after - before_armed) - 0.01 && left < 1000 - (before - armed) + 0.1 &&
         is.it_interval.tv_sec == 5);
  }
}

static int notified;
static void notify(union sigval v) { __sync_fetch_and_add(&notified, v.sival_int); }

static void thread_timers(void) {
  timer_t t, cpu, pcpu;
  struct sigevent e = {
      .sigev_notify = SIGEV_THREAD, .sigev_notify_function = notify, .sigev_value.sival_int = 1};
  MUST(timer_create(CLOCK_MONOTONIC, &e, &t) == 0);
  signal(SIGRTMIN + 1, takes), signal(SIGRTMIN + 2, takes);
  struct sigevent c = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGRTMIN + 1};
  c._sigev_un._tid = gettid();
  MUST(timer_create(CLOCK_THREAD_CPUTIME_ID, &c, &cpu) == 0);
  struct sigevent p = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN + 2};
  MUST(timer_create(CLOCK_PROCESS_CPUTIME_ID, &p, &pcpu) == 0);
  struct itimerspec s = {{0, 10000000}, {0, 10000000}};
  timer_settime(t, 0, &s, NULL), timer_settime(cpu, 0, &s, NULL), timer_settime(pcpu, 0, &s, NULL);
  for (int n = 0; n < STEPS; n++) {
    say("%d", n);
    int before = notified, c1 = taken[SIGRTMIN + 1], c2 = taken[SIGRTMIN + 2];
    double began = now_of(CLOCK_MONOTONIC);
    while (now_of(CLOCK_MONOTONIC) < began + 30 &&
           (notified == before || taken[SIGRTMIN + 1] == c1 || taken[SIGRTMIN + 2] == c2)) {
    }
    MUST(notified > before && taken[SIGRTMIN + 1] > c1 && taken[SIGRTMIN + 2] > c2);
    rest_ms(15);
  }
}

static void interval_timers(void) {
  signal(SIGALRM, takes), signal(SIGVTALRM, takes), signal(SIGPROF, takes);
  struct itimerval s = {{0, 7000}, {0, 7000}}, is;
  setitimer(ITIMER_REAL, &s, NULL), setitimer(ITIMER_VIRTUAL, &s, NULL), setitimer(ITIMER_PROF, &s, NULL);
  const int numbers[] = {SIGALRM, SIGVTALRM, SIGPROF};
  for (int n = 0; n < STEPS; n++) {
    say("%d", n);
    for (int i = 0; i < 3; i++) {
      int before = taken[numbers[i]];
      double began = now_of(CLOCK_MONOTONIC);
      while (taken[numbers[i]] == before && now_of(CLOCK_MONOTONIC) < began + 30) {
      }
      MUST(taken[numbers[i]] > before);
      getitimer(i, &is);
      MUST(is.it_interval.tv_usec == 7000);
    }
  }
}

static void alarms(void) {
  struct sigaction a = {.sa_handler = takes};
  sigaction(SIGALRM, &a, NULL);
  sigset_t block, old;
  sigemptyset(&block), sigaddset(&block, SIGALRM);
  sigprocmask(SIG_BLOCK, &block, &old);
  struct itimerval s = {{0, 0}, {0, 30000}};
  for (int n = 0; n < STEPS; n++) {
    say("%d", n);
    setitimer(ITIMER_REAL, &s, NULL);
    while (taken[SIGALRM] == n) MUST(sigsuspend(&old) < 0 && errno == EINTR);
    MUST(taken[SIGALRM] == n + 1);
    errno = 0;
    MUST(usleep(5000) == 0);
  }
  alarm(1000);
  MUST(alarm(0) > 990);
}

static sigjmp_buf back;
static void jumps(int number) { taken[number]++, siglongjmp(back, number); }

static void dispositions(void) {
  struct sigaction a = {.sa_handler = jumps, .sa_flags = SA_NODEFER | SA_RESTART}, is;
  sigaddset(&a.sa_mask, SIGHUP), sigaddset(&a.sa_mask, SIGRTMAX);
  sigaction(SIGUSR1, &a, NULL);
  signal(SIGUSR2, SIG_IGN), signal(SIGPIPE, SIG_IGN), signal(SIGTERM, takes);
  sigset_t mask, seen;
  sigemptyset(&mask), sigaddset(&mask, SIGINT), sigaddset(&mask, SIGRTMIN + 9), sigaddset(&mask, SIGCHLD);
  sigprocmask(SIG_SETMASK, &mask, NULL);
  volatile int n = 0;
  for (; step_of(n); n++) {
    if (sigsetjmp(back, 1) == 0) raise(SIGUSR1), abort();
    MUST(taken[SIGUSR1] == n + 1);
    MUST(sigaction(SIGUSR1, NULL, &is) == 0 && is.sa_handler == jumps &&
         (is.sa_flags & (SA_NODEFER | SA_RESTART)) == (SA_NODEFER | SA_RESTART));
    MUST(sigismember(&is.sa_mask, SIGHUP) && sigismember(&is.sa_mask, SIGRTMAX) &&
         !sigismember(&is.sa_mask, SIGTERM));
    MUST(sigaction(SIGUSR2, NULL, &is) == 0 && is.sa_handler == SIG_IGN);
    sigprocmask(0, NULL, &seen);
    for (int s = 1; s < 32; s++) MUST(sigismember(&seen, s) == (s == SIGINT || s == SIGCHLD));
    MUST(sigismember(&seen, SIGRTMIN + 9));
    raise(SIGUSR2), raise(SIGTERM);
    MUST(taken[SIGTERM] == n + 1);
  }
}

static void absolute_sleeps(void) {
  struct timespec next;
  clock_gettime(CLOCK_MONOTONIC, &next);
  double boot = now_of(CLOCK_BOOTTIME), mono = now_of(CLOCK_MONOTONIC);
  for (int n = 0; n < STEPS; n++) {
    say("%d", n);
    next.tv_nsec += 30000000;
    if (next.tv_nsec >= 1000000000) next.tv_sec++, next.tv_nsec -= 1000000000;
    int r;
    while ((r = clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, NULL)) == EINTR) {
    }
    MUST(r == 0);
    double late = now_of(CLOCK_MONOTONIC) - (next.tv_sec + next.tv_nsec / 1e9);
    MUST(late >= 0 && late < 5);
    double drift = now_of(CLOCK_BOOTTIME) - boot - (now_of(CLOCK_MONOTONIC) - mono);
    MUST(drift > -0.05 && drift < 0.05);
  }
}

static char* page;
static void* fault_at;
static void on_fault(int number, siginfo_t* info, void* context) {
  taken[number]++;
  fault_at = info->si_addr;
  ucontext_t* u = context;
  if (number == SIGSEGV)
    MUST(info->si_code == SEGV_ACCERR && mprotect(page, 4096, PROT_READ | PROT_WRITE) == 0);
  if (number == SIGILL) u->uc_mcontext.gregs[REG_RIP] += 2;
  if (number == SIGFPE) u->uc_mcontext.gregs[REG_RCX] = 1;
}

static void faults(void) {
  struct sigaction a = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
  sigaction(SIGSEGV, &a, NULL), sigaction(SIGTRAP, &a, NULL), sigaction(SIGILL, &a, NULL),
      sigaction(SIGFPE, &a, NULL);
  page = mmap(NULL, 8 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EACH_STEP(n) {
    MUST(mprotect(page, 4096, n % 2 ? PROT_READ : PROT_NONE) == 0);
    page[100] = (char)n;
    MUST(fault_at == page + 100 && taken[SIGSEGV] == n + 1 && page[100] == (char)n);
    __asm__ volatile("int3");
    __asm__ volatile("ud2");
    long q = 10, r = 0;
    __asm__ volatile("xor %%ecx, %%ecx; idiv %%ecx" : "+a"(q), "+d"(r) : : "rcx");
    MUST(taken[SIGTRAP] == n + 1 && taken[SIGILL] == n + 1 && taken[SIGFPE] == n + 1 && (int)q == 10);
  }
}

PROGRAMS(P(queued), P(alternate), P(by_descriptor), P(posix_timers), P(thread_timers), P(interval_timers),
         P(alarms), P(dispositions), P(absolute_sleeps), P(faults))
