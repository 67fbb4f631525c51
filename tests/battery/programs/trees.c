// Parents and children: pipes, wait statuses, groups, sessions, orphans.
#include "trees.h"
#include <spawn.h>

extern char** environ;

static int stage[4][2];
static void worker(int i) {
  for (int k = 0; k < 4; k++) {
    if (k != i) close(stage[k][0]);
    if (k != i + 1) close(stage[k][1]);
  }
  uint32_t x;
  while (read(stage[i][0], &x, 4) == 4) x = x * 3 + (uint32_t)i, put(stage[i + 1][1], &x, 4);
}
static void pipeline(void) {
  for (int i = 0; i < 4; i++) MUST(pipe(stage[i]) == 0);
  pid_t p[3];
  for (int i = 0; i < 3; i++) p[i] = child_of(worker, i);
  EACH_STEP(n) {
    uint32_t x = (uint32_t)n;
    put(stage[0][1], &x, 4);
    if (n < 5) continue;  // five are always under way
    get(stage[3][0], &x, 4);
    uint32_t m = (uint32_t)n - 5;
    MUST(x == ((m * 3) * 3 + 1) * 3 + 2);
  }
  for (int i = 0; i < 4; i++) close(stage[i][1]);
  for (int i = 0; i < 3; i++) ends_with(p[i], 0);
}

static void exits(int code) { _exit(code); }
static void dies(int number) { signal(number, SIG_DFL), kill(getpid(), number), pause(); }
static void zombies(void) {
  pid_t z[STEPS], killed[3] = {child_of(dies, SIGTERM), child_of(dies, SIGKILL), child_of(dies, SIGUSR1)};
  for (int i = 0; i < STEPS; i++) z[i] = child_of(exits, i);
  EACH_STEP(n) {
    siginfo_t info = {0};
    MUST(waitid(P_PID, (id_t)z[STEPS - 1], &info, WEXITED | WNOWAIT) == 0 && info.si_status == STEPS - 1 &&
         info.si_code == CLD_EXITED);
    ends_with(z[n], n << 8);
    MUST(waitpid(z[n], NULL, WNOHANG) < 0 && errno == ECHILD);
    z[n] = -1;
    if (n == STEPS - 1) break;
  }
  ends_with(killed[0], SIGTERM), ends_with(killed[1], SIGKILL), ends_with(killed[2], SIGUSR1);
  MUST(wait(NULL) < 0 && errno == ECHILD);
}

static void sleeps(int unused) {
  (void)unused;
  for (;;) pause();
}
static void stopping(void) {
  pid_t p = child_of(sleeps, 0);
  int status;
  EACH_STEP(n) {
    kill(p, SIGSTOP);
    MUST(waitpid(p, &status, WUNTRACED) == p && WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP);
    rest_ms(5);
    kill(p, SIGCONT);
    MUST(waitpid(p, &status, WCONTINUED) == p && WIFCONTINUED(status));
  }
  kill(p, SIGTERM);
  ends_with(p, SIGTERM);
}

static int reports[2];
static void reporter(int how) {
  struct {
    int pid, parent, group, session;
  } r;
  if (how == 1) setpgid(0, 0);
  if (how == 2) setsid();
  for (;;) {
    char c;
    r.pid = getpid(), r.parent = getppid(), r.group = getpgid(0), r.session = getsid(0);
    put(reports[1], &r, sizeof r);
    if (read(stage[how][0], &c, 1) != 1 || c == 'q') _exit(how);
  }
}
static void groups(void) {
  MUST(pipe(reports) == 0);
  pid_t p[3];
  for (int i = 0; i < 3; i++) MUST(pipe(stage[i]) == 0), p[i] = child_of(reporter, i);
  EACH_STEP(n) {
    for (int i = 0; i < 3; i++) {
      int r[4];
      get(reports[0], r, sizeof r);
      int w = r[0] == p[0] ? 0 : r[0] == p[1] ? 1 : 2;
      MUST(r[0] == p[w] && r[1] == getpid() && r[2] == (w ? p[w] : getpgrp()) &&
           r[3] == (w == 2 ? p[w] : getsid(0)));
    }
    for (int i = 0; i < 3; i++) put(stage[i][1], n == STEPS - 1 ? "q" : "x", 1);
  }
  for (int i = 0; i < 3; i++) ends_with(p[i], i << 8);
}

static void orphan(int unused) {
  (void)unused;
  close(stage[0][1]);
  for (;;) {
    char c;
    pid_t parent = getppid();
    put(reports[1], &parent, 4);
    if (read(stage[0][0], &c, 1) != 1) _exit(9);
  }
}
static void between(int unused) { child_of(orphan, unused), _exit(3); }
static void subreaper(void) {
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  MUST(pipe(reports) == 0 && pipe(stage[0]) == 0);
  pid_t p = child_of(between, 0);
  ends_with(p, 3 << 8);
  pid_t first;
  get(reports[0], &first, 4);
  EACH_STEP(n) {
    put(stage[0][1], "x", 1);
    get(reports[0], &first, 4);
    MUST(first == getpid());
  }
  int status;
  close(stage[0][1]);
  MUST(wait(&status) > 0 && status == 9 << 8);
}

// Leads a session in which a child of its child loses its parent; odd ones end, and are not waited for.
static void in_session(int i) {
  close(stage[0][1]);
  pid_t expected[3] = {getppid(), getpid(), getpid()}, middle;
  setsid();
  if ((middle = fork()) == 0) {
    if (fork() != 0) _exit(0);
    while (getppid() != expected[0]) rest_ms(1);
    for (char c;;) {
      pid_t is[3] = {getppid(), getsid(0), getpgrp()};
      int same = memcmp(is, expected, sizeof is) == 0;
      put(reports[1], &same, 4);
      if (read(stage[0][0], &c, 1) != 1) _exit(7);
    }
  }
  ends_with(middle, 0);
  if (i % 2) _exit(i);
  struct pollfd closed = {stage[0][0], 0, 0};
  while (!(closed.revents & POLLHUP)) poll(&closed, 1, -1);
  _exit(i);
}
static void leaders_below(void) {
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  MUST(pipe(reports) == 0 && pipe(stage[0]) == 0);
  pid_t leader[6];
  for (int i = 0; i < 6; i++) leader[i] = child_of(in_session, i);
  siginfo_t info;
  for (int i = 1; i < 6; i += 2) MUST(waitid(P_PID, (id_t)leader[i], &info, WEXITED | WNOWAIT) == 0);
  EACH_STEP(n) {
    for (int i = 0, same; i < 6; i++) get(reports[0], &same, 4), MUST(same);
    put(stage[0][1], "xxxxxx", 6);
  }
  close(stage[0][1]);
  for (int i = 0; i < 6; i++) ends_with(leader[i], i << 8);
  for (int i = 0, status; i < 6; i++) MUST(wait(&status) > 0 && status == 7 << 8);
}

static void daemon_child(int unused) {
  (void)unused;
  setsid();
  close(stage[0][1]);
  if (fork() != 0) _exit(0);
  umask(0);
  MUST(chdir("/") == 0);
  for (int n = 0;; n++) {
    char c;
    if (read(stage[0][0], &c, 1) != 1) _exit(0);
    put(reports[1], &n, 4);
  }
}
static void daemonised(void) {
  MUST(pipe(reports) == 0 && pipe(stage[0]) == 0);
  ends_with(child_of(daemon_child, 0), 0);
  EACH_STEP(n) {
    int x;
    put(stage[0][1], "x", 1);
    get(reports[0], &x, 4);
    MUST(x == n);
  }
  close(stage[0][1]);
}

static void death_signal(int unused) {
  (void)unused;
  prctl(PR_SET_PDEATHSIG, SIGUSR2);
  put(reports[1], "r", 1);
  for (;;) pause();
}
static void middle(int fd) {
  child_of(death_signal, 0);
  char c;
  while (read(fd, &c, 1) == 1 && c != 'q') {
  }
}
static void parents_death(void) {
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  MUST(pipe(reports) == 0 && pipe(stage[0]) == 0);
  pid_t p = child_of(middle, stage[0][0]);
  char c;
  get(reports[0], &c, 1);
  EACH_STEP(n) put(stage[0][1], n == STEPS - 1 ? "q" : "x", 1);
  int status;
  ends_with(p, 0);
  MUST(wait(&status) > 0 && WTERMSIG(status) == SIGUSR2);
}

static void signals_between(void) {
  pid_t parent = getpid();
  sigset_t set;
  sigemptyset(&set), sigaddset(&set, SIGRTMIN), sigaddset(&set, SIGRTMIN + 1), sigaddset(&set, SIGCHLD),
      sigprocmask(SIG_BLOCK, &set, NULL);
  pid_t p = fork();
  siginfo_t info;
  if (p == 0)
    for (int n = 0;; n++) {
      MUST(sigwaitinfo(&set, &info) == SIGRTMIN && info.si_pid == parent && info.si_int == n);
      sigqueue(parent, SIGRTMIN + 1, (union sigval){.sival_int = n * 2});
      if (n == STEPS - 1) _exit(0);
    }
  EACH_STEP(n) {
    sigqueue(p, SIGRTMIN, (union sigval){.sival_int = n});
    sigset_t one;
    sigemptyset(&one), sigaddset(&one, SIGRTMIN + 1);
    MUST(sigwaitinfo(&one, &info) == SIGRTMIN + 1 && info.si_pid == p && info.si_int == 2 * n);
  }
  sigset_t c;
  sigemptyset(&c), sigaddset(&c, SIGCHLD);
  MUST(sigwaitinfo(&c, &info) == SIGCHLD && info.si_pid == p);
  ends_with(p, 0);
}

static void spawned(void) {
  EACH_STEP(n) {
    char text[20];
    snprintf(text, sizeof text, "exit %d", n);
    char* words[] = {"sh", "-c", text, NULL};
    pid_t p;
    MUST(posix_spawn(&p, "/bin/sh", NULL, NULL, words, environ) == 0);
    ends_with(p, n << 8);
    MUST(WEXITSTATUS(system("exit 7")) == 7);
    FILE* f = popen("echo 123; sleep 0.01", "r");
    int x;
    MUST(fscanf(f, "%d", &x) == 1 && x == 123 && pclose(f) == 0);
  }
}

static volatile int children;
static void reaps(int unused) {
  (void)unused;
  int e = errno;
  while (waitpid(-1, NULL, WNOHANG) > 0) children++;
  errno = e;
}
static void reaped_by_signal(void) {
  struct sigaction a = {.sa_handler = reaps, .sa_flags = SA_RESTART | SA_NOCLDSTOP};
  sigaction(SIGCHLD, &a, NULL);
  EACH_STEP(n) {
    for (int i = 0; i < 3; i++) child_of(exits, i);
    for (int i = 0; i < 5000 && children != 3 * (n + 1); i++) usleep(1000);
    MUST(children == 3 * (n + 1));
  }
  signal(SIGCHLD, SIG_IGN);
  child_of(exits, 1);
  MUST(wait(NULL) < 0 && errno == ECHILD);
}

static void deep(int level) {
  if (level > 0) {
    int status;
    pid_t p = child_of(deep, level - 1);
    while (waitpid(p, &status, 0) < 0) MUST(errno == EINTR);
    _exit(WEXITSTATUS(status) + 1);
  }
  EACH_STEP(n) MUST(getppid() > 1);
  _exit(0);
}
static void chain(void) { ends_with(child_of(deep, 9), 9 << 8); }

static void* all;
static void cow(int i) {
  uint32_t* p = (uint32_t*)(void*)all;
  for (int n = 0; n < STEPS; n++) {
    p[n * 2000] += (uint32_t)i;
    char c;
    put(reports[1], "x", 1), get(stage[i][0], &c, 1);
    for (int k = 0; k <= n; k++) MUST(p[k * 2000] == (uint32_t)(k + i));
  }
}
static void copy_on_write(void) {
  MUST(pipe(reports) == 0);
  all = mmap(NULL, STEPS * 8000, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  uint32_t* p = (uint32_t*)(void*)all;
  for (int k = 0; k < STEPS; k++) p[k * 2000] = (uint32_t)k;
  pid_t c[3];
  for (int i = 0; i < 3; i++) MUST(pipe(stage[i]) == 0), c[i] = child_of(cow, i);
  EACH_STEP(n) {
    char x[3];
    get(reports[0], x, 3);
    for (int i = 0; i < 3; i++) put(stage[i][1], "x", 1);
    MUST(p[n * 2000] == (uint32_t)n);
  }
  for (int i = 0; i < 3; i++) ends_with(c[i], 0);
}

PROGRAMS(P(pipeline), P(zombies), P(stopping), P(groups), P(subreaper), P(leaders_below), P(daemonised),
         P(parents_death), P(signals_between), P(spawned), P(reaped_by_signal), P(chain), P(copy_on_write))
