// Threads: locks of each kind, condition variables, cancellation, what belongs to a thread.
#include <linux/futex.h>
#include <sched.h>
#include "battery.h"

static volatile int over;

static pthread_mutex_t locks[6];
static long under[6], done_by[2][6];

static void* locker(void* which) {
  while (!over)
    for (int i = 0; i < 6; i++) {
      MUST(pthread_mutex_lock(&locks[i]) == 0);
      under[i]++, done_by[(long)which][i]++;
      MUST(pthread_mutex_unlock(&locks[i]) == 0);
      if (i == 5) usleep(200);
    }
  return NULL;
}

static void* tries(void* lock) { return (void*)(long)pthread_mutex_trylock(lock); }

static void mutex_types(void) {
  pthread_mutexattr_t a;
  const int types[] = {PTHREAD_MUTEX_NORMAL,      PTHREAD_MUTEX_ERRORCHECK, PTHREAD_MUTEX_RECURSIVE,
                       PTHREAD_MUTEX_ADAPTIVE_NP, PTHREAD_MUTEX_NORMAL,     PTHREAD_MUTEX_RECURSIVE};
  for (int i = 0; i < 6; i++) {
    pthread_mutexattr_init(&a);
    pthread_mutexattr_settype(&a, types[i]);
    if (i >= 4) pthread_mutexattr_setprotocol(&a, PTHREAD_PRIO_INHERIT);
    if (i == 5) pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
    MUST(pthread_mutex_init(&locks[i], &a) == 0);
  }
  pthread_t t[2], u;
  for (long i = 0; i < 2; i++) pthread_create(&t[i], NULL, locker, (void*)i);
  long ours[6] = {0};
  EACH_STEP(n) {
    for (int i = 0; i < 6; i++) {
      MUST(pthread_mutex_lock(&locks[i]) == 0);
      if (types[i] == PTHREAD_MUTEX_RECURSIVE) MUST(pthread_mutex_lock(&locks[i]) == 0);
      if (types[i] == PTHREAD_MUTEX_ERRORCHECK) MUST(pthread_mutex_lock(&locks[i]) == EDEADLK);
      void* result;
      pthread_create(&u, NULL, tries, &locks[i]);
      usleep(2000);
      pthread_join(u, &result);
      MUST((long)result == EBUSY);
      under[i]++, ours[i]++;
      if (types[i] == PTHREAD_MUTEX_RECURSIVE) MUST(pthread_mutex_unlock(&locks[i]) == 0);
      MUST(pthread_mutex_unlock(&locks[i]) == 0);
    }
  }
  over = 1;
  for (int i = 0; i < 2; i++) pthread_join(t[i], NULL);
  for (int i = 0; i < 6; i++) MUST(under[i] == ours[i] + done_by[0][i] + done_by[1][i]);
}

static pthread_mutex_t left_behind[3];
static void* dies_with(void* lock) { return (void*)(long)pthread_mutex_lock(lock); }

static void robust_dead(void) {
  pthread_mutexattr_t a;
  pthread_t t;
  void* r;
  for (int i = 0; i < 3; i++) {
    pthread_mutexattr_init(&a);
    pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
    if (i == 1) pthread_mutexattr_setprotocol(&a, PTHREAD_PRIO_INHERIT);
    pthread_mutex_init(&left_behind[i], &a);
    if (i < 2) pthread_create(&t, NULL, dies_with, &left_behind[i]), pthread_join(t, &r);
  }
  MUST(pthread_mutex_lock(&left_behind[2]) == 0);
  EACH_STEP(n) {
    pthread_mutex_t* m = &left_behind[2];
    MUST(pthread_mutex_unlock(m) == 0);
    pthread_create(&t, NULL, dies_with, m), pthread_join(t, &r);
    MUST(r == NULL);
    MUST(pthread_mutex_lock(m) == EOWNERDEAD);
    MUST(pthread_mutex_consistent(m) == 0);
  }
  for (int i = 0; i < 2; i++) MUST(pthread_mutex_lock(&left_behind[i]) == EOWNERDEAD);
}

static pthread_rwlock_t rw = PTHREAD_RWLOCK_INITIALIZER;
static pthread_barrier_t barrier;
static long written[2];

static void* reader(void* unused) {
  (void)unused;
  for (int n = 0; n < STEPS; n++) {
    pthread_rwlock_rdlock(&rw);
    MUST(written[0] == written[1]);
    pthread_rwlock_unlock(&rw);
    pthread_barrier_wait(&barrier);
    MUST(written[0] == n + 1);
    pthread_barrier_wait(&barrier);
  }
  return NULL;
}

static void rwlock_barrier(void) {
  pthread_t t[4];
  pthread_barrier_init(&barrier, NULL, 5);
  for (int i = 0; i < 4; i++) pthread_create(&t[i], NULL, reader, NULL);
  EACH_STEP(n) {
    pthread_rwlock_wrlock(&rw);
    written[0]++, usleep(1000), written[1]++;
    pthread_rwlock_unlock(&rw);
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
  }
  for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
}

static pthread_mutex_t cm = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turn_changed, never;
static int turn;

static void* other_side(void* unused) {
  (void)unused;
  for (int n = 0; n < STEPS; n++) {
    pthread_mutex_lock(&cm);
    while (turn != 2 * n + 1) pthread_cond_wait(&turn_changed, &cm);
    turn++;
    pthread_cond_broadcast(&turn_changed);
    pthread_mutex_unlock(&cm);
  }
  return NULL;
}

static void conditions(void) {
  pthread_condattr_t a;
  pthread_condattr_init(&a);
  pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
  pthread_cond_init(&turn_changed, &a);
  pthread_cond_init(&never, NULL);
  pthread_t t;
  pthread_create(&t, NULL, other_side, NULL);
  for (int n = 0; n < STEPS; n++) {
    say("%d", n);
    clockid_t clock = n % 2 ? CLOCK_MONOTONIC : CLOCK_REALTIME;
    struct timespec until;
    clock_gettime(clock, &until);
    until.tv_nsec += 30000000;
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    double began = now_of(CLOCK_MONOTONIC);
    pthread_mutex_lock(&cm);
    int r = n % 2 ? pthread_cond_clockwait(&never, &cm, CLOCK_MONOTONIC, &until)
                  : pthread_cond_timedwait(&never, &cm, &until);
    MUST(r == ETIMEDOUT);
    double took = now_of(CLOCK_MONOTONIC) - began;
    MUST(clock == CLOCK_REALTIME || took > 0.0299);
    MUST(took < 10);
    turn = 2 * n + 1;
    pthread_cond_signal(&turn_changed);
    while (turn != 2 * n + 2) pthread_cond_wait(&turn_changed, &cm);
    pthread_mutex_unlock(&cm);
  }
  pthread_join(t, NULL);
}

static pthread_key_t keys[3];
static __thread long own = 7;
static __thread char big[5000];
static int destroyed, once_done;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static void destroy(void* value) { __atomic_add_fetch(&destroyed, (int)(long)value, __ATOMIC_RELAXED); }
static void once_only(void) { once_done++; }

static void* with_keys(void* n) {
  pthread_once(&once, once_only);
  MUST(own == 7 && big[4999] == 0);
  own = (long)n, big[4999] = 1;
  for (int i = 0; i < 3; i++) pthread_setspecific(keys[i], (void*)(long)(i + 1));
  usleep(20000);
  MUST(own == (long)n && pthread_getspecific(keys[2]) == (void*)3);
  return n;
}

static void tls_keys(void) {
  for (int i = 0; i < 3; i++) pthread_key_create(&keys[i], destroy);
  own = 11;
  pthread_setspecific(keys[0], "main");
  EACH_STEP(n) {
    pthread_t t[2];
    for (int i = 0; i < 2; i++) pthread_create(&t[i], NULL, with_keys, (void*)(long)n);
    for (int i = 0; i < 2; i++) pthread_join(t[i], NULL);
    MUST(destroyed == (n + 1) * 12 && once_done == 1 && own == 11);
    MUST(strcmp(pthread_getspecific(keys[0]), "main") == 0);
  }
}

static int quiet[2], cleaned;
static sem_t inside;
static void clean(void* unused) { (void)unused, cleaned++; }
static void* reads_for_ever(void* kind) {
  char c;
  int old;
  pthread_cleanup_push(clean, NULL);
  if (kind) pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &old);
  sem_post(&inside);
  if (kind)
    for (volatile long i = 0;; i++) {
    }
  (void)!read(quiet[0], &c, 1);
  pthread_cleanup_pop(0);
  return NULL;
}
static void* not_to_be_cancelled(void* unused) {
  int old;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
  *(volatile int*)unused = 1;
  while (!over) usleep(1000);
  pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &old);
  pthread_testcancel();
  return NULL;
}

static void cancellation(void) {
  pthread_t t, u, v;
  volatile int ready = 0;
  void* r;
  MUST(pipe(quiet) == 0 && sem_init(&inside, 0, 0) == 0);
  pthread_create(&v, NULL, not_to_be_cancelled, (void*)&ready);
  while (!ready) usleep(1000);
  pthread_cancel(v);
  pthread_create(&t, NULL, reads_for_ever, NULL);
  EACH_STEP(n) {
    pthread_create(&u, NULL, reads_for_ever, (void*)1);
    for (int i = 0; i < 2; i++) {
      while (sem_wait(&inside) != 0) MUST(errno == EINTR);
    }
    pthread_cancel(t), pthread_join(t, &r);
    MUST(r == PTHREAD_CANCELED);
    pthread_cancel(u), pthread_join(u, &r);
    MUST(r == PTHREAD_CANCELED);
    MUST(cleaned == 2 * (n + 1));
    pthread_create(&t, NULL, reads_for_ever, NULL);
  }
  over = 1;
  pthread_join(v, &r);
  MUST(r == PTHREAD_CANCELED);
}

static sem_t go[3];
static void* attributes_thread(void* which) {
  long w = (long)which;
  char name[16], is[16];
  snprintf(name, sizeof name, "worker-%ld", w);
  pthread_setname_np(pthread_self(), name);
  cpu_set_t cpus, seen;
  CPU_ZERO(&cpus);
  CPU_SET(0, &cpus);
  if (w == 1) pthread_setaffinity_np(pthread_self(), sizeof cpus, &cpus);
  if (w == 2) {
    struct sched_param p = {0};
    MUST(pthread_setschedparam(pthread_self(), SCHED_BATCH, &p) == 0);
    MUST(syscall(SYS_setpriority, 0, syscall(SYS_gettid), 7) == 0);
  }
  prctl(PR_SET_TIMERSLACK, 1234 + w);
  for (int n = 0; n < STEPS; n++) {
    while (sem_wait(&go[w]) != 0) MUST(errno == EINTR);
    pthread_getname_np(pthread_self(), is, sizeof is);
    MUST(strcmp(is, name) == 0);
    if (w == 1) {
      pthread_getaffinity_np(pthread_self(), sizeof seen, &seen);
      MUST(CPU_EQUAL(&seen, &cpus));
    }
    if (w == 2) MUST(sched_getscheduler(0) == SCHED_BATCH && syscall(SYS_getpriority, 0, 0) == 20 - 7);
    MUST(prctl(PR_GET_TIMERSLACK) == 1234 + w);
    pthread_attr_t a;
    void* stack;
    size_t size;
    pthread_getattr_np(pthread_self(), &a);
    pthread_attr_getstack(&a, &stack, &size);
    MUST((char*)&a > (char*)stack && (char*)&a < (char*)stack + size);
    pthread_attr_destroy(&a);
  }
  sem_post(&go[0]);
  return NULL;
}

static void attributes(void) {
  pthread_attr_t a;
  pthread_t t;
  for (int i = 0; i < 3; i++) sem_init(&go[i], 0, 0);
  pthread_attr_init(&a);
  pthread_attr_setguardsize(&a, 65536);
  pthread_attr_setstacksize(&a, 1 << 20);
  pthread_attr_setdetachstate(&a, PTHREAD_CREATE_DETACHED);
  pthread_create(&t, &a, attributes_thread, (void*)1);
  pthread_attr_init(&a);
  void* stack = mmap(NULL, 1 << 18, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  pthread_attr_setstack(&a, stack, 1 << 18);
  pthread_create(&t, &a, attributes_thread, (void*)2);
  EACH_STEP(n) sem_post(&go[1]), sem_post(&go[2]);
  sem_wait(&go[0]), sem_wait(&go[0]);
}

static int word, word2;
static void* waits_on_word(void* kind) {
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_sec += 60;
  long r;
  do {
    if (kind) {
      struct futex_waitv v[2] = {{0, (uintptr_t)&word, FUTEX_32 | FUTEX_PRIVATE_FLAG, 0},
                                 {0, (uintptr_t)&word2, FUTEX_32 | FUTEX_PRIVATE_FLAG, 0}};
      r = syscall(449, v, 2, 0, &until, CLOCK_MONOTONIC);
    } else {
      r = syscall(SYS_futex, &word, FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG, 0, &until, NULL, 1);
    }
  } while (r < 0 && errno == EINTR);
  return (void*)(r < 0 ? errno : 1000 + r);
}

static void raw_futexes(void) {
  pthread_t t[2];
  void* r;
  for (long i = 0; i < 2; i++) pthread_create(&t[i], NULL, waits_on_word, (void*)i);
  EACH_STEP(n) {
    long woken = 0;
    for (int tries = 0; woken == 0 && tries < 5000; tries++)
      (woken = syscall(SYS_futex, &word2, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, 1)), usleep(100);
    MUST(woken == 1);
    pthread_join(t[1], &r);
    MUST((long)r == 1001);
    for (woken = 0; woken == 0;)
      woken = syscall(SYS_futex, &word, FUTEX_CMP_REQUEUE | FUTEX_PRIVATE_FLAG, 0, 1, &word2, 0), usleep(100);
    MUST(syscall(SYS_futex, &word2, FUTEX_WAKE_BITSET | FUTEX_PRIVATE_FLAG, 1, NULL, NULL, 2) == 0);
    MUST(syscall(SYS_futex, &word2, FUTEX_WAKE_BITSET | FUTEX_PRIVATE_FLAG, 1, NULL, NULL, 3) == 1);
    pthread_join(t[0], &r);
    MUST((long)r == 1000);
    for (long i = 0; i < 2; i++) pthread_create(&t[i], NULL, waits_on_word, (void*)i);
  }
}

static void* short_life(void* n) { return (void*)((long)n * 3); }

static void churn(void) {
  EACH_STEP(n) {
    pthread_t t[30];
    void* r;
    for (long i = 0; i < 30; i++) MUST(pthread_create(&t[i], NULL, short_life, (void*)i) == 0);
    for (long i = 0; i < 30; i++) pthread_join(t[i], &r), MUST((long)r == 3 * i);
  }
}

static void* goes_on(void* unused) {
  (void)unused;
  pthread_setname_np(pthread_self(), "the-other");
  EACH_STEP(n) MUST(kill(getpid(), 0) == 0);
  say("ok");
  exit(0);
}

static void leader_ends(void) {
  pthread_t t;
  pthread_create(&t, NULL, goes_on, NULL);
  pthread_exit(NULL);
}

PROGRAMS(P(mutex_types), P(robust_dead), P(rwlock_barrier), P(conditions), P(tls_keys), P(cancellation),
         P(attributes), P(raw_futexes), P(churn), P(leader_ends))
