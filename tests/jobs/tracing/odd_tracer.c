// Tracers and tracees that are seldom so, each in one state between "ready" and "go": what is found behind
// "go" is what was there before. odd_tracer KIND; the tracee's number is in the file "tracee".
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char* kind;
static int is(const char* what) { return strcmp(kind, what) == 0; }
static void must(long r, const char* what) {
  if (r != -1) return;
  printf("%s: %s\n", what, strerror(errno));
  fflush(stdout);
  _exit(9);
}
static void make(const char* name, const char* text) {
  FILE* f = fopen("new", "w");
  fputs(text, f);
  fclose(f);
  rename("new", name);
}
static void meet(void) {
  make("ready", "");
  while (access("go", F_OK)) usleep(2000);
}
static unsigned long mask_of(pid_t pid) {
  unsigned long mask = 0;
  must(ptrace(PTRACE_GETSIGMASK, pid, 8, &mask), "GETSIGMASK");
  return mask;
}
// In no function of libc, which would keep the checkpoint's signal open.
static long raw(long nr, long a, long b, long c, long d) {
  long r = nr;
  register long r10 __asm__("r10") = d;
  __asm__ volatile("syscall" : "+a"(r) : "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
  return r;
}
static void* spins(void* a) {
  for (volatile unsigned long n = 0;; n++) {
  }
  return a;
}
// Takes no signal for a while, as a thread that waits for a lock of libc.
static void* is_deaf(void* a) {
  for (;;) {
    unsigned long all = ~0ul, none = 0;
    struct timespec t = {0, 60000000}, moment = {0, 3000000};
    raw(SYS_rt_sigprocmask, SIG_SETMASK, (long)&all, 0, 8);
    raw(SYS_nanosleep, (long)&t, 0, 0, 0);
    raw(SYS_rt_sigprocmask, SIG_SETMASK, (long)&none, 0, 8);
    raw(SYS_nanosleep, (long)&moment, 0, 0, 0);
  }
  return a;
}
static volatile int waiter;
static void* waits(void* a) {
  int status;
  waiter = gettid();
  waitpid(-1, &status, 0);
  return a;
}

static void child(void) {
  must(ptrace(PTRACE_TRACEME, 0, 0, 0), "TRACEME");
  sigset_t some, pending;
  sigemptyset(&some);
  sigaddset(&some, SIGHUP);
  if (is("pending")) sigaddset(&some, SIGTRAP);
  sigprocmask(SIG_BLOCK, &some, 0);
  if (is("pending")) raise(SIGTRAP);
  if (is("full")) {
    const struct rlimit limit = {64, 64};
    setrlimit(RLIMIT_NOFILE, &limit);
    while (dup(0) >= 0) {
    }
  }
  if (is("thread")) {
    pthread_t t;
    pthread_create(&t, 0, spins, 0);
  }
  raise(SIGSTOP);
  if (is("stop_untold")) {
    raise(SIGSTOP);
    for (;;) pause();
  }
  if (is("runs") || is("waits_by_wait") || is("waits_by_syscall")) {
    while (access("on", F_OK)) usleep(1000);
    _exit(7);
  }
  volatile long passed = 0;
  // With SIGTRAP blocked the processor's trap would open it.
  if (is("pending"))
    passed = raise(SIGUSR1) == 0;
  else
    __asm__ volatile("int3\n incq %0" : "+m"(passed));
  sigpending(&pending);
  _exit(passed == 1 && sigismember(&pending, SIGTRAP) == is("pending") ? 7 : 6);
}

static int wait_for(pid_t pid) {
  int status = 0;
  while (waitpid(pid, &status, __WALL) == -1 && errno == EINTR) {
  }
  return status;
}

int main(int argc, char** argv) {
  kind = argc > 1 ? argv[1] : "";
  int status = 0, bad = 0;
  if (is("bad_pointer")) {
    if (fork() == 0) _exit(0);
    long r = waitpid(-1, (int*)8, WNOHANG);
    r = r == 0 ? 0 : r == -1 ? errno : r;
    printf("%s\n", r == 0 || r == EFAULT ? "no signal" : "odd");
    while (wait(0) > 0) {
    }
    return 0;
  }
  if (is("third") && fork() == 0) execlp("sleep", "sleep", "1000", NULL);
  pid_t pid = fork();
  if (pid == 0) child();
  char number[16];
  snprintf(number, sizeof(number), "%d", pid);
  make("tracee", number);
  wait_for(pid);
  must(ptrace(PTRACE_SETOPTIONS, pid, 0, is("seccomp") ? PTRACE_O_TRACESECCOMP : PTRACE_O_TRACESYSGOOD),
       "SETOPTIONS");
  struct user_regs_struct before, after;
  memset(&before, 0, sizeof(before));
  if (is("watches")) {
    // What a handler's functions write over, behind its frame.
    must(ptrace(PTRACE_GETREGS, pid, 0, &before), "GETREGS");
    const long writes_of_8 = 0x99990055;
    for (long i = 0; i < 4; i++)
      must(ptrace(PTRACE_POKEUSER, pid, offsetof(struct user, u_debugreg[0]) + 8 * i,
                  (before.rsp - 4200 - 200 * i) & ~7ul),
           "DR0");
    must(ptrace(PTRACE_POKEUSER, pid, offsetof(struct user, u_debugreg[7]), writes_of_8), "DR7");
  }
  must(ptrace(PTRACE_CONT, pid, 0, 0), "CONT");
  pthread_t t;
  if (is("deaf")) pthread_create(&t, 0, is_deaf, 0);
  if (is("runs") || is("waits_by_wait") || is("waits_by_syscall")) {
    make("ready", "");
    if (is("runs")) {
      // It is killed, and comes back without us.
      status = wait_for(pid);
      make("ended", "");
      while (access("end", F_OK)) usleep(2000);
      return WIFSIGNALED(status) ? 0 : 1;
    }
    const pid_t r = is("waits_by_wait") ? wait(&status) : syscall(SYS_wait4, -1, &status, __WALL, 0);
    printf("%d %x\n", r == pid, status);
    return 0;
  }
  siginfo_t told;
  if (is("stop_untold")) {
    must(waitid(P_PID, pid, &told, WSTOPPED | WNOWAIT), "waitid");
  } else {
    while (status = wait_for(pid),
           is("watches") && WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP &&
               (ptrace(PTRACE_GETSIGINFO, pid, 0, &told), told.si_code == TRAP_HWBKPT))
      ptrace(PTRACE_CONT, pid, 0, 0);
    if (!WIFSTOPPED(status) || WSTOPSIG(status) != (is("pending") ? SIGUSR1 : SIGTRAP))
      printf("status %x\n", status), bad = 1;
    must(ptrace(PTRACE_GETREGS, pid, 0, &before), "GETREGS");
  }
  const unsigned long mask = mask_of(pid);
  if (is("waiter")) {
    char path[64], text[8] = "";
    pthread_create(&t, 0, waits, 0);
    while (strncmp(text, "61 ", 3)) {  // until it is in wait4(2)
      usleep(1000);
      snprintf(path, sizeof(path), "/proc/self/task/%d/syscall", waiter);
      FILE* f = fopen(path, "r");
      if (!f) continue;
      if (!fgets(text, sizeof(text), f)) text[0] = 0;
      fclose(f);
    }
  }
  meet();
  if (is("stop_untold")) {
    status = wait_for(pid);
    if (!WIFSTOPPED(status) || WSTOPSIG(status) != SIGSTOP) printf("told %x\n", status), bad = 1;
  }
  if (waitpid(pid, &status, WNOHANG | __WALL) != 0) printf("a stop more: %x\n", status), bad = 1;
  if (mask_of(pid) != mask) printf("mask %lx %lx\n", mask, mask_of(pid)), bad = 1;
  if (!is("stop_untold")) {
    must(ptrace(PTRACE_GETREGS, pid, 0, &after), "GETREGS");
    if (memcmp(&before, &after, sizeof(after)))
      printf("registers: rip %llx %llx\n", before.rip, after.rip), bad = 1;
  }
  if (is("watches")) must(ptrace(PTRACE_POKEUSER, pid, offsetof(struct user, u_debugreg[7]), 0), "DR7");
  must(ptrace(PTRACE_CONT, pid, 0, 0) == -1 && errno != ESRCH ? -1 : 0, "CONT");
  if (is("stop_untold")) {
    // It takes signals.
    kill(pid, SIGUSR1);
    status = wait_for(pid);
    if (!WIFSTOPPED(status) || WSTOPSIG(status) != SIGUSR1) printf("then %x\n", status), bad = 1;
    kill(pid, SIGKILL);
  }
  if (is("waiter"))
    status = 0;  // the other thread may be told
  else
    status = wait_for(pid);
  printf("%s %d\n", bad ? "bad" : "same",
         WIFEXITED(status) ? WEXITSTATUS(status)
                           : -(WIFSTOPPED(status) ? 1000 + WSTOPSIG(status) : WTERMSIG(status)));
  fflush(stdout);
  _exit(0);
}
