// Traces a child, brings it into a state, and compares all that ptrace(2) and wait(2) tell of it before and
// after whatever happens between "ready" and "go". tracer KIND [ROUNDS]
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int pipe_fds[2];
static int is(const char* kind, const char* what) { return strstr(kind, what) != NULL; }
static void must(long r, const char* what) {
  if (r != -1) return;
  printf("%s: %s\n", what, strerror(errno));
  fflush(stdout);
  _exit(9);
}

struct seen {
  struct user_regs_struct registers;
  siginfo_t info;
  unsigned long mask, debug[8], options;
  char call[88];  // of PTRACE_GET_SYSCALL_INFO
  char extended[4096];
  size_t extended_size;
};

static void look(pid_t pid, struct seen* s) {
  memset(s, 0, sizeof(*s));
  must(ptrace(PTRACE_GETREGS, pid, 0, &s->registers), "GETREGS");
  must(ptrace(PTRACE_GETSIGINFO, pid, 0, &s->info), "GETSIGINFO");
  must(ptrace(PTRACE_GETSIGMASK, pid, 8, &s->mask), "GETSIGMASK");
  struct iovec v = {s->extended, sizeof(s->extended)};
  must(ptrace(PTRACE_GETREGSET, pid, NT_X86_XSTATE, &v), "GETREGSET");
  s->extended_size = v.iov_len;
  must(ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof(s->call), s->call), "GET_SYSCALL_INFO");
  for (int i = 0; i < 8; i++) {
    if (i != 4 && i != 5)
      s->debug[i] = ptrace(PTRACE_PEEKUSER, pid, offsetof(struct user, u_debugreg) + 8 * i, 0);
  }
}

static int same(const struct seen* a, const struct seen* b, int registers) {
  int r = 1;
#define SAME(part)                                   \
  if (memcmp(&a->part, &b->part, sizeof(a->part))) { \
    printf(#part " differ\n");                       \
    r = 0;                                           \
  }
  if (registers) {
    const unsigned long *x = (void*)&a->registers, *y = (void*)&b->registers;
    for (unsigned i = 0; i < sizeof(a->registers) / 8; i++) {
      if (x[i] != y[i]) printf("register %u: %lx %lx\n", i, x[i], y[i]), r = 0;
    }
  }
  SAME(info)
  SAME(mask)
  SAME(debug)
  SAME(extended_size)
  if (registers) {
    SAME(call)
  }
  // x87 and SSE registers, without what the kernel adds behind them.
  if (memcmp(a->extended + 32, b->extended + 32, 16 * 8 + 16 * 16)) {
    printf("x87 or SSE registers differ\n");
    r = 0;
  }
  return r;
}

static void* second(void* a) {
  for (volatile unsigned long n = 0;; n++) {
  }
  return a;
}

static void on_usr1(int s) { (void)s; }

static void child(const char* kind, int rounds) {
  if (!is(kind, "seize")) must(ptrace(PTRACE_TRACEME, 0, 0, 0), "TRACEME");
  struct sigaction a = {.sa_handler = on_usr1, .sa_flags = SA_RESTART};
  sigaction(SIGUSR1, &a, 0);
  sigset_t some;
  sigemptyset(&some);
  sigaddset(&some, SIGHUP);
  sigprocmask(SIG_BLOCK, &some, 0);
  if (is(kind, "seize")) {
    char c;
    if (read(pipe_fds[0], &c, 1) != 1) _exit(8);
  } else {
    raise(SIGSTOP);
  }
  if (is(kind, "syscall")) syscall(SYS_getppid);
  if (is(kind, "fork") && fork() == 0) _exit(0);
  if (is(kind, "threads")) {
    pthread_t t;
    pthread_create(&t, 0, second, 0);
  }
  if (is(kind, "read")) {
    char c = 0;
    long r = syscall(SYS_read, pipe_fds[0], &c, 1);
    _exit(r == 1 && c == 'x' ? 7 : 6);
  }
  if (is(kind, "sleep")) {
    struct timespec t = {1000, 0}, left = {0, 0};
    const int r = nanosleep(&t, &left);
    _exit(r == -1 && errno == EINTR && left.tv_sec > 0 && left.tv_sec < 1000 ? 7 : 6);
  }
  if (is(kind, "run")) {
    while (access("on", F_OK)) usleep(1000);
    _exit(7);
  }
  unsigned long sum = 0;
  for (int i = 0; i < rounds; i++) {
    unsigned long in = i, out;
    __asm__ volatile(
        "movq %1, %%xmm7\n mov %1, %%rbx\n mov $0x1234567, %%r12\n int3\n lea (%%rbx,%%r12), %0\n"
        : "=r"(out)
        : "r"(in)
        : "rbx", "r12", "xmm7");
    sum += out;
  }
  _exit(sum == (unsigned long)rounds * (rounds - 1) / 2 + rounds * 0x1234567ul ? 7 : 6);
}

static pid_t wait_one(pid_t pid, int* status) {
  pid_t r;
  while ((r = waitpid(pid, status, __WALL)) == -1 && errno == EINTR) {
  }
  return r;
}

// Is it in that call, or in its kin?
static int is_in_call(pid_t pid, const char* kind) {
  char path[64], text[64] = "";
  const char* const calls[] = {"0 0x", "35 ", "230 ", "219 "};  // read; nanosleep, clock_, restart_syscall
  snprintf(path, sizeof(path), "/proc/%d/syscall", pid);
  FILE* f = fopen(path, "r");
  if (!f) return 0;
  if (!fgets(text, sizeof(text), f)) text[0] = 0;
  fclose(f);
  for (int i = is(kind, "read") ? 0 : 1; i < (is(kind, "read") ? 1 : 4); i++) {
    if (!strncmp(text, calls[i], strlen(calls[i]))) return 1;
  }
  return 0;
}

static void meet(void) {
  FILE* f = fopen("ready.tmp", "w");
  fclose(f);
  rename("ready.tmp", "ready");
  while (access("go", F_OK)) usleep(2000);
}

// A debugger's stack for signals is no larger than it has to be, and lies among its other memory: here behind
// a page that nobody may touch.
static void take_small_signal_stack(void) {
  const size_t page = 4096, size = (size_t)sysconf(_SC_SIGSTKSZ);
  char* block = mmap(NULL, page + size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (block == MAP_FAILED) exit(9);
  must(mprotect(block, page, PROT_NONE), "mprotect");
  const stack_t stack = {.ss_sp = block + page, .ss_size = size};
  must(sigaltstack(&stack, NULL), "sigaltstack");
}

int main(int argc, char** argv) {
  const char* kind = argv[1];
  int rounds = argc > 2 ? atoi(argv[2]) : 5, status = 0, bad = 0;
  if (pipe(pipe_fds)) return 9;
  pid_t pid = fork();
  if (pid == 0) child(kind, rounds);
  take_small_signal_stack();
  if (is(kind, "seize")) {
    must(ptrace(PTRACE_SEIZE, pid, 0, PTRACE_O_EXITKILL | PTRACE_O_TRACECLONE), "SEIZE");
    must(write(pipe_fds[1], "s", 1), "write");
  } else {
    wait_one(pid, &status);
    must(ptrace(PTRACE_SETOPTIONS, pid, 0,
                PTRACE_O_EXITKILL | (is(kind, "sysgood") ? PTRACE_O_TRACESYSGOOD : 0) |
                    (is(kind, "fork") ? PTRACE_O_TRACEFORK : 0)),
         "SETOPTIONS");
    if (is(kind, "debug")) {
      must(ptrace(PTRACE_POKEUSER, pid, offsetof(struct user, u_debugreg[0]), &on_usr1), "DR0");
      must(ptrace(PTRACE_POKEUSER, pid, offsetof(struct user, u_debugreg[7]), 1), "DR7");
    }
    must(ptrace(is(kind, "syscall") ? PTRACE_SYSCALL : PTRACE_CONT, pid, 0, 0), "CONT");
  }
  static struct seen before, after;
  if (is(kind, "run")) {
    meet();
    FILE* f = fopen("on", "w");
    fclose(f);
    wait_one(pid, &status);
    printf("%s %d\n", WIFEXITED(status) ? "exited" : "stopped",
           WIFEXITED(status) ? WEXITSTATUS(status) : WSTOPSIG(status));
    return 0;
  }
  if (is(kind, "read") || is(kind, "sleep")) {
    while (!is_in_call(pid, kind)) usleep(1000);
    if (is(kind, "sleep")) usleep(50000);
    kill(pid, SIGUSR1);
  }
  if (is(kind, "exit")) {
    wait_one(pid, &status);
    must(ptrace(PTRACE_SYSCALL, pid, 0, 0), "SYSCALL");
  }
  int number = is(kind, "read") || is(kind, "sleep") ? SIGUSR1 : SIGTRAP;
  if (is(kind, "untold")) {
    siginfo_t i;
    must(waitid(P_PID, pid, &i, WSTOPPED | WNOWAIT), "waitid");
  } else {
    wait_one(pid, &status);
    if (!WIFSTOPPED(status) || (WSTOPSIG(status) & 0x7f) != number) printf("status %x\n", status), bad = 1;
  }
  look(pid, &before);
  meet();
  if (is(kind, "untold")) {
    wait_one(pid, &status);
    if ((status >> 8 & 0x7f) != SIGTRAP) printf("told %x\n", status), bad = 1;
  }
  int none = waitpid(pid, &status, WNOHANG | __WALL);
  if (none != 0) printf("a stop more: %x\n", status), bad = 1;
  look(pid, &after);
  if (!same(&before, &after, !is(kind, "sleep"))) bad = 1;
  if (is(kind, "sleep")) {
    // It sleeps on, until it is given the signal.
    must(ptrace(PTRACE_CONT, pid, 0, 0), "CONT");
    while (!is_in_call(pid, kind)) usleep(1000);
    kill(pid, SIGUSR1);
    wait_one(pid, &status);
    if (!WIFSTOPPED(status) || WSTOPSIG(status) != SIGUSR1) printf("slept %x\n", status), bad = 1;
  }
  int count = 0;
  for (;;) {
    ptrace(PTRACE_CONT, pid, 0, is(kind, "sleep") ? SIGUSR1 : 0);
    if (is(kind, "read") && count == 0) must(write(pipe_fds[1], "x", 1), "write");
    if (wait_one(pid, &status) != pid) return 9;
    if (!WIFSTOPPED(status)) break;
    if (status >> 8 != SIGTRAP) printf("stop %x\n", status), bad = 1;
    count++;
  }
  printf("%s %d stops %d\n", bad ? "bad" : "same",
         WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), count);
  return 0;
}
