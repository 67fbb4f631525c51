// What parents and children share: memory, locks, descriptors, memory maps; servers with several processes.
#include <netinet/in.h>
#include <pty.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/ptrace.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <sys/user.h>
#include "trees.h"

static int reports[2], stage[4][2];

struct shared {
  pthread_mutex_t m, robust;
  pthread_cond_t c;
  pthread_barrier_t b;
  pthread_rwlock_t rw;
  sem_t s;
  long turn, sum, count[4];
  int word;
};
static struct shared* all;
static void meets(int i) {
  for (int n = 0; n < STEPS; n++) {
    pthread_mutex_lock(&all->m);
    while (all->turn % 3 != i) pthread_cond_wait(&all->c, &all->m);
    all->turn++, all->sum += i;
    pthread_cond_broadcast(&all->c);
    pthread_mutex_unlock(&all->m);
    pthread_rwlock_wrlock(&all->rw);
    all->count[i]++;
    pthread_rwlock_unlock(&all->rw);
    sem_post(&all->s);
    pthread_barrier_wait(&all->b);
  }
}
static void make_shared(void) {
  all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  pthread_mutexattr_t a;
  pthread_mutexattr_init(&a), pthread_mutexattr_setpshared(&a, 1), pthread_mutex_init(&all->m, &a);
  pthread_mutexattr_setrobust(&a, 1), pthread_mutex_init(&all->robust, &a);
  pthread_condattr_t c;
  pthread_condattr_init(&c), pthread_condattr_setpshared(&c, 1), pthread_cond_init(&all->c, &c);
  pthread_barrierattr_t b;
  pthread_barrierattr_init(&b), pthread_barrierattr_setpshared(&b, 1), pthread_barrier_init(&all->b, &b, 4);
  pthread_rwlockattr_t r;
  pthread_rwlockattr_init(&r), pthread_rwlockattr_setpshared(&r, 1), pthread_rwlock_init(&all->rw, &r);
  sem_init(&all->s, 1, 0);
}
static void process_shared(void) {
  make_shared();
  pid_t p[3];
  for (int i = 0; i < 3; i++) p[i] = child_of(meets, i);
  EACH_STEP(n) {
    for (int i = 0; i < 3; i++)
      while (sem_wait(&all->s) != 0) MUST(errno == EINTR);
    MUST(all->turn == 3 * (n + 1) && all->sum == 3 * (n + 1) && all->count[2] == n + 1);
    pthread_barrier_wait(&all->b);
  }
  for (int i = 0; i < 3; i++) ends_with(p[i], 0);
}

static void takes_and_dies(int n) {
  int r = pthread_mutex_lock(&all->robust);
  if (r == EOWNERDEAD) pthread_mutex_consistent(&all->robust);
  _exit(r == (n ? EOWNERDEAD : 0) ? 0 : 1);
}
static void robust_over_processes(void) {
  make_shared();
  EACH_STEP(n) ends_with(child_of(takes_and_dies, n), 0);
  MUST(pthread_mutex_lock(&all->robust) == EOWNERDEAD);
}

static void owner_of_lock(int fd) {
  MUST(pthread_mutex_lock(&all->robust) == 0);
  char c;
  put(reports[1], "r", 1);
  while (read(fd, &c, 1) == 1 && c != 'q') put(reports[1], "x", 1);
  _exit(0);
}
static void robust_held(void) {
  make_shared();
  MUST(pipe(reports) == 0 && pipe(stage[0]) == 0);
  pid_t p = child_of(owner_of_lock, stage[0][0]);
  char c;
  get(reports[0], &c, 1);
  EACH_STEP(n) {
    MUST(pthread_mutex_trylock(&all->robust) == EBUSY);
    put(stage[0][1], "x", 1), get(reports[0], &c, 1);
  }
  put(stage[0][1], "q", 1);
  ends_with(p, 0);
  MUST(pthread_mutex_lock(&all->robust) == EOWNERDEAD);
}

#include <linux/futex.h>
static void file_futex_child(int fd) {
  int* word = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  for (int n = 0; n < STEPS; n++) {
    int v;
    while ((v = __atomic_load_n(word, __ATOMIC_SEQ_CST)) != 2 * n + 1)
      syscall(SYS_futex, word, FUTEX_WAIT, v, NULL);
    __atomic_store_n(word, 2 * n + 2, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, word, FUTEX_WAKE, 10);
  }
}
static void futex_in_file(void) {
  int fd = open("word", O_RDWR | O_CREAT, 0600);
  MUST(ftruncate(fd, 4096) == 0);
  int* word = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  pid_t p = child_of(file_futex_child, fd);
  EACH_STEP(n) {
    int v;
    __atomic_store_n(word, 2 * n + 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, word, FUTEX_WAKE, 10);
    while ((v = __atomic_load_n(word, __ATOMIC_SEQ_CST)) != 2 * n + 2)
      syscall(SYS_futex, word, FUTEX_WAIT, v, NULL);
  }
  ends_with(p, 0);
}

static int ev, tm, sg, ep;
static void shares_descriptors(int unused) {
  (void)unused;
  for (int n = 0; n < STEPS; n++) {
    struct epoll_event e;
    while (epoll_wait(ep, &e, 1, -1) != 1) {
    }
    uint64_t x;
    MUST(e.data.u32 == 5 && read(ev, &x, 8) == 8);
    put(reports[1], &x, 8);
  }
}
static void shared_descriptors(void) {
  sigset_t set;
  sigemptyset(&set), sigaddset(&set, SIGRTMIN + 5), sigprocmask(SIG_BLOCK, &set, NULL);
  ev = eventfd(0, 0), tm = timerfd_create(CLOCK_MONOTONIC, 0), sg = signalfd(-1, &set, 0),
  ep = epoll_create1(0);
  MUST(pipe(reports) == 0);
  struct epoll_event e = {EPOLLIN, {.u32 = 5}};
  epoll_ctl(ep, EPOLL_CTL_ADD, ev, &e);
  pid_t p = child_of(shares_descriptors, 0);
  int pidfd = (int)syscall(SYS_pidfd_open, p, 0);
  struct itimerspec t = {{0, 20000000}, {0, 20000000}};
  timerfd_settime(tm, 0, &t, NULL);
  EACH_STEP(n) {
    uint64_t x = (uint64_t)n + 1, y;
    put(ev, &x, 8), get(reports[0], &y, 8);
    MUST(x == y);
    get(tm, &x, 8);
    MUST(syscall(SYS_pidfd_send_signal, pidfd, 0, NULL, 0) == 0 || n == STEPS - 1);
    sigqueue(getpid(), SIGRTMIN + 5, (union sigval){.sival_int = n});
    struct signalfd_siginfo s;
    get(sg, &s, sizeof s);
    MUST(s.ssi_int == n);
  }
  struct pollfd f = {pidfd, POLLIN, 0};
  MUST(poll(&f, 1, 20000) == 1);
  siginfo_t info;
  MUST(waitid(P_PIDFD, (id_t)pidfd, &info, WEXITED) == 0 && info.si_pid == p);
}

static void accepts(int l) {
  for (;;) {
    int s = accept(l, NULL, NULL), x;
    if (s < 0) continue;
    while (read(s, &x, 4) == 4) x += 1000, put(s, &x, 4);
    close(s);
  }
}
static void prefork_with(int reuse) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t length = sizeof a;
  pid_t p[3];
  int l = -1, one = 1, held = socket(AF_INET, SOCK_STREAM, 0);
  for (int i = 0; i < 3; i++) {
    if (i == 0 || reuse) {
      l = socket(AF_INET, SOCK_STREAM, 0);
      if (reuse) setsockopt(l, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one);
      MUST(bind(l, (void*)&a, sizeof a) == 0 && listen(l, 50) == 0 &&
           getsockname(l, (void*)&a, &length) == 0);
    }
    p[i] = child_of(accepts, l);
    if (reuse) close(l);
  }
  // The child that serves this connection takes no others: with a listener of its own nobody else would take
  // those of its queue.
  if (!reuse) MUST(connect(held, (void*)&a, sizeof a) == 0);
  EACH_STEP(n) {
    int s = socket(AF_INET, SOCK_STREAM, 0), x = n;
    MUST(connect(s, (void*)&a, sizeof a) == 0);
    put(s, &x, 4), get(s, &x, 4);
    MUST(x == n + 1000);
    close(s);
    if (reuse) continue;
    x = -n;
    put(held, &x, 4), get(held, &x, 4);
    MUST(x == 1000 - n);
  }
  for (int i = 0; i < 3; i++) kill(p[i], SIGTERM), ends_with(p[i], SIGTERM);
}
static void prefork(void) { prefork_with(0); }
static void prefork_reuseport(void) { prefork_with(1); }

static void writes_line(int n) {
  char line[20];
  int length = snprintf(line, sizeof line, "%04d\n", n);
  put(40, line, (size_t)length);
  _exit(n & 1);
}
static void shared_offset(void) {
  int fd = open("log", O_RDWR | O_CREAT, 0600);
  dup2(fd, 40);
  EACH_STEP(n) {
    pid_t p = child_of(writes_line, 2 * n);
    ends_with(p, 0);
    ends_with(child_of(writes_line, 2 * n + 1), 1 << 8);
    MUST(lseek(fd, 0, SEEK_CUR) == 10 * (n + 1));
    char line[6] = {0};
    for (int i = 0; i < 2 * n + 2; i++) MUST(pread(fd, line, 5, 5 * i) == 5 && atoi(line) == i);
  }
}

static void lock_holder(int fd) {
  struct flock l = {.l_type = F_WRLCK, .l_start = 5, .l_len = 10};
  MUST(flock(fd, LOCK_EX) == 0 && fcntl(fd, F_SETLK, &l) == 0);
  put(reports[1], "r", 1);
  char* words[] = {"sh", "-c", "while read x; do echo $x >&2; done", NULL};
  dup2(stage[0][0], 0), dup2(reports[1], 2);
  execv("/bin/sh", words);
}
static void locks_over_exec(void) {
  int fd = open("lock", O_RDWR | O_CREAT, 0600), other = open("lock", O_RDWR);
  MUST(pipe(reports) == 0 && pipe(stage[0]) == 0);
  fcntl(stage[0][1], F_SETFD, FD_CLOEXEC);
  pid_t p = child_of(lock_holder, fd);
  char c[2];
  get(reports[0], c, 1);
  EACH_STEP(n) {
    put(stage[0][1], "x\n", 2), get(reports[0], c, 2);
    struct flock l = {.l_type = F_WRLCK, .l_start = 0, .l_len = 0};
    MUST(fcntl(other, F_GETLK, &l) == 0 && l.l_type == F_WRLCK && l.l_pid == p && l.l_start == 5 &&
         l.l_len == 10);
    MUST(flock(other, LOCK_SH | LOCK_NB) < 0 && errno == EWOULDBLOCK);
  }
  close(stage[0][1]);
  ends_with(p, 0);
}

static int clone_result;
static int clone_body(void* fds) {
  int* f = fds;
  char c;
  while (read(f[0], &c, 1) == 1 && c != 'q') clone_result++, (void)!write(f[1], &c, 1);
  syscall(SYS_exit_group, 4);
  return 0;
}
static void cloned(int flags) {
  int down[2], up[2];
  MUST(pipe(down) == 0 && pipe(up) == 0);
  int f[2] = {down[0], up[1]};
  char* stack = mmap(NULL, 262144, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  pid_t p = clone(clone_body, stack + 262144, flags | SIGCHLD, f);
  MUST(p > 0);
  EACH_STEP(n) {
    char c = 'x';
    put(down[1], &c, 1), get(up[0], &c, 1);
    MUST(clone_result == (flags & CLONE_VM ? n + 1 : 0));
    if (n == 30 && (flags & CLONE_FS)) MUST(chdir("/") == 0);
  }
  put(down[1], "q", 1);
  ends_with(p, 4 << 8);
}
static void clone_fs(void) { cloned(CLONE_FS); }
static void clone_vm(void) { cloned(CLONE_VM); }

static void debugged(int unused) {
  (void)unused;
  ptrace(PTRACE_TRACEME, 0, 0, 0);
  raise(SIGSTOP);
  for (volatile long i = 0;; i++) syscall(SYS_getuid);
}
static void debugger(void) {
  pid_t p = child_of(debugged, 0);
  int status;
  MUST(waitpid(p, &status, 0) == p && WIFSTOPPED(status));
  EACH_STEP(n) {
    for (int i = 0; i < 10; i++) {
      MUST(ptrace(PTRACE_SYSCALL, p, 0, 0) == 0 && waitpid(p, &status, 0) == p && WIFSTOPPED(status));
      struct user_regs_struct r;
      MUST(ptrace(PTRACE_GETREGS, p, 0, &r) == 0);
    }
  }
  kill(p, SIGKILL);
  ends_with(p, SIGKILL);
}

static void hands_on(int s) {
  for (;;) {
    char room[CMSG_SPACE(4)], text;
    struct iovec v = {&text, 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    if (recvmsg(s, &m, 0) <= 0) _exit(0);
    int fd;
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), 4);
    pid_t p = fork();
    if (p == 0) put(fd, "hello", 5), _exit(text & 7);
    close(fd);
    int status;
    waitpid(p, &status, 0);
    put(s, &status, 4);
  }
}
static void fork_server(void) {
  int s[2];
  MUST(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, s) == 0);
  pid_t p = fork();
  if (p == 0) close(s[0]), hands_on(s[1]);
  close(s[1]);
  EACH_STEP(n) {
    int q[2], status;
    MUST(pipe(q) == 0);
    char room[CMSG_SPACE(4)] = {0}, text = (char)n, in[5];
    struct iovec v = {&text, 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr* c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(4);
    memcpy(CMSG_DATA(c), &q[1], 4);
    MUST(sendmsg(s[0], &m, 0) == 1);
    close(q[1]);
    get(q[0], in, 5), get(s[0], &status, 4);
    MUST(memcmp(in, "hello", 5) == 0 && status == (n & 7) << 8 && read(q[0], in, 1) == 0);
    close(q[0]);
  }
  close(s[0]);
  ends_with(p, 0);
}

static void client(int i) {
  struct sockaddr_un a = {.sun_family = AF_UNIX, .sun_path = "broker"}, own = {.sun_family = AF_UNIX};
  snprintf(own.sun_path, sizeof own.sun_path, "client-%d", i);
  int s = socket(AF_UNIX, SOCK_DGRAM, 0);
  MUST(bind(s, (void*)&own, sizeof own) == 0);
  int m[2] = {i, 0};
  for (m[1] = 0; m[1] < STEPS; m[1]++) {
    int x;
    MUST(sendto(s, m, 8, 0, (void*)&a, sizeof a) == 8 && recv(s, &x, 4, 0) == 4 && x == m[1] * 10 + i);
  }
}
static void broker(void) {
  struct sockaddr_un a = {.sun_family = AF_UNIX, .sun_path = "broker"}, from;
  int s = socket(AF_UNIX, SOCK_DGRAM, 0);
  MUST(bind(s, (void*)&a, sizeof a) == 0);
  pid_t p[3];
  for (int i = 0; i < 3; i++) p[i] = child_of(client, i);
  int next[3] = {0};  // of each client, which may be ahead of the others
  EACH_STEP(n) {
    for (int i = 0; i < 3; i++) {
      int m[2];
      socklen_t l = sizeof from;
      MUST(recvfrom(s, m, 8, 0, (void*)&from, &l) == 8 && m[1] == next[m[0]]++);
      int x = m[1] * 10 + m[0];
      MUST(sendto(s, &x, 4, 0, (void*)&from, l) == 4);
    }
  }
  for (int i = 0; i < 3; i++) ends_with(p[i], 0);
}

static void terminal_child(int unused) {
  (void)unused;
  char line[100];
  for (;;) {
    ssize_t r = read(0, line, sizeof line);
    if (r <= 0) _exit(0);
    (void)!write(1, line, (size_t)r);
  }
}
static void terminal_jobs(void) {
  int master;
  pid_t leader = forkpty(&master, NULL, NULL, NULL);
  if (leader == 0) {
    struct termios t;
    tcgetattr(0, &t), t.c_lflag &= ~ECHO, t.c_oflag &= ~OPOST, tcsetattr(0, TCSANOW, &t);
    signal(SIGTTOU, SIG_IGN), signal(SIGINT, SIG_DFL);
    pid_t fore = child_of(terminal_child, 0);
    setpgid(fore, fore);
    tcsetpgrp(0, fore);
    (void)!write(1, "ready", 5);
    int status;
    while (waitpid(fore, &status, 0) < 0) {
    }
    _exit(WIFSIGNALED(status) ? WTERMSIG(status) : 99);
  }
  char in[20];
  get(master, in, 5);
  EACH_STEP(n) {
    char line[20];
    int length = snprintf(line, sizeof line, "line %d\n", n);
    put(master, line, (size_t)length), get(master, in, (size_t)length);
    MUST(memcmp(in, line, (size_t)length) == 0);
  }
  put(master, "\003", 1);
  ends_with(leader, SIGINT << 8);
}

PROGRAMS(P(process_shared), P(robust_over_processes), P(robust_held), P(futex_in_file), P(shared_descriptors),
         P(prefork), P(prefork_reuseport), P(shared_offset), P(locks_over_exec), P(clone_fs), P(clone_vm),
         P(debugger), P(fork_server), P(broker), P(terminal_jobs))
