// A tracer and its tracee where a checkpoint is seldom asked: one state for each KIND between "ready" and
// "go", what follows is printed. rare_tracer KIND; the tracee's number is in the file "tracee".
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

static const char* kind;
static volatile int handled;
static volatile int told, polls;
static int is(const char* what) { return strcmp(kind, what) == 0; }
static void make(const char* name, const char* text) {
  FILE* f = fopen("new", "w");
  fputs(text, f);
  fclose(f);
  rename("new", name);
}
static void until(const char* name) {
  while (access(name, F_OK)) usleep(2000);
}
static void meet(void) {
  make("ready", "");
  until("go");
}
static void handler(int signal) {
  (void)signal;
  handled++;
}
static void forbid(int nr) {
  struct sock_filter filter[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
                                 BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 1),
                                 BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
                                 BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const struct sock_fprog program = {4, filter};
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) _exit(20);
}
static void* runs_on(void* a) {
  make("waiting", "");
  until("on");
  _exit(7);
  return a;
}
static void* polls_all(void* a) {
  for (;; polls++) {
    int status;
    if (waitpid(-1, &status, WNOHANG | __WALL) > 0) told++;
    usleep(200);
  }
  return a;
}
static int status_of(pid_t pid) {
  int status = 0;
  while (waitpid(pid, &status, __WALL) == -1 && errno == EINTR) {
  }
  return status;
}
static void sleeps_in_call(pid_t pid, const char* number) {
  char path[64], text[16] = "";
  snprintf(path, sizeof(path), "/proc/%d/syscall", pid);
  while (strncmp(text, number, strlen(number))) {
    usleep(1000);
    FILE* f = fopen(path, "r");
    if (!f) continue;
    if (!fgets(text, sizeof(text), f)) text[0] = 0;
    fclose(f);
  }
}

// What a tracee has when its tracer is gone: the result of a call, its signal mask, signals that were
// handled.
static int ends_by_itself(void) {
  return is("entry") || is("exit") || is("signal") || is("untold") || is("calls") || is("entry_plain") ||
         is("exit_plain");
}
static void say_what_it_has(void) {
  long r;
  do {
    r = __NR_getppid;
    __asm__ volatile("syscall" : "+a"(r) : : "rcx", "r11", "memory");
    if (is("signal") || is("untold")) raise(SIGUSR1);
  } while (r > 0 && is("calls") && access("on", F_OK));
  char text[64];
  unsigned long mask = 0;
  syscall(SYS_rt_sigprocmask, SIG_BLOCK, 0, &mask, 8);
  snprintf(text, sizeof(text), "%s %ld, mask %lx, handled %d", r > 0 ? "number" : "error", r > 0 ? 0 : r,
           mask, handled);
  make("got", text);
  _exit(7);
}

static void child(void) {
  if (is("moved")) {
    const struct sigaction own = {.sa_handler = handler};
    sigaction(60, &own, 0);
  }
  if (is("seizes")) {
    until("on");
    _exit(7);
  }
  ptrace(PTRACE_TRACEME, 0, 0, 0);
  if (is("filter") || is("entry_filter")) forbid(__NR_rt_tgsigqueueinfo);
  const struct sigaction action = {.sa_handler = handler};
  sigaction(SIGUSR1, &action, 0);
  sigset_t hangup;
  sigemptyset(&hangup);
  sigaddset(&hangup, SIGHUP);
  if (ends_by_itself()) sigprocmask(SIG_BLOCK, &hangup, 0);
  raise(SIGSTOP);
  if (ends_by_itself() || is("entry_filter")) say_what_it_has();
  if (is("leader")) {
    pthread_t t;
    pthread_create(&t, 0, runs_on, 0);
    pthread_exit(0);
  }
  if (is("suspend") || is("epoll")) {
    sigset_t some, old;
    sigemptyset(&some);
    sigaddset(&some, SIGUSR1);
    sigprocmask(SIG_BLOCK, &some, &old);
    struct epoll_event event;
    const int e = epoll_create1(0);
    make("waiting", "");
    const int r = is("suspend") ? sigsuspend(&old) : epoll_pwait(e, &event, 1, -1, &old);
    _exit(r == -1 && errno == EINTR && handled == 1 ? 7 : 10 + handled);
  }
  if (is("failed")) {
    char c;
    make("waiting", "");
    if (read(0, &c, 1) != 1) _exit(9);
    usleep(1000);
    _exit(7);
  }
  if (is("runs") || is("null") || is("continued")) {
    make("waiting", "");
    until("on");
    _exit(7);
  }
  volatile long passed = 0;
  __asm__ volatile("int3\n incq %0" : "+m"(passed));
  make("passed", "");
  _exit(passed == 1 ? 7 : 6);
}

// At the entry of getppid.
static void entry(pid_t pid) {
  struct user_regs_struct registers;
  do {
    ptrace(PTRACE_SYSCALL, pid, 0, 0);
    status_of(pid);
    ptrace(PTRACE_GETREGS, pid, 0, &registers);
  } while (registers.orig_rax != __NR_getppid);
  if (is("exit") || is("exit_plain")) {
    ptrace(PTRACE_SYSCALL, pid, 0, 0);
    status_of(pid);
  }
  meet();
  usleep(50000);
  printf("%s", access("got", F_OK) ? "" : "ran away; ");
  ptrace(PTRACE_CONT, pid, 0, 0);
  printf("%x\n", status_of(pid));
}

// A request to go on fails, as the tracee runs already.
static void failed(pid_t pid, int in) {
  int status, stops = 0;
  ptrace(PTRACE_CONT, pid, 0, 0);
  sleeps_in_call(pid, "0 ");
  kill(pid, SIGSTOP);
  status_of(pid);
  ptrace(PTRACE_SYSCALL, pid, 0, 0);
  status_of(pid);  // the entry of read(2), which is made again
  ptrace(PTRACE_SYSCALL, pid, 0, 0);
  sleeps_in_call(pid, "0 ");
  const long r = ptrace(PTRACE_CONT, pid, 0, 0);
  printf("%ld %d ", r, errno == ESRCH);
  meet();
  if (write(in, "x", 1) != 1) return;
  for (;;) {
    status = status_of(pid);
    if (!WIFSTOPPED(status)) break;
    stops++;
    ptrace(PTRACE_SYSCALL, pid, 0, 0);
  }
  printf("%s %x\n", stops >= 3 ? "stops" : "no stops", status);
}

int main(int argc, char** argv) {
  kind = argc > 1 ? argv[1] : "";
  int in[2], status;
  if (pipe(in)) return 9;
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(in[0], 0);
    close(in[1]);
    child();
  }
  char number[16];
  snprintf(number, sizeof(number), "%d", pid);
  make("tracee", number);
  if (is("seizes")) {
    make("ready", "");
    ptrace(PTRACE_SEIZE, pid, 0, PTRACE_O_TRACESYSGOOD);
    ptrace(PTRACE_INTERRUPT, pid, 0, 0);
    printf("%x, ", status_of(pid));
    ptrace(PTRACE_SYSCALL, pid, 0, 0);
    printf("%x, ", status_of(pid));
    ptrace(PTRACE_CONT, pid, 0, 0);
    make("on", "");
    printf("%x\n", status_of(pid));
    return 0;
  }
  status_of(pid);
  if (!strstr(kind, "plain")) ptrace(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACESYSGOOD);
  if (is("entry") || is("entry_filter") || is("entry_plain") || is("exit") || is("exit_plain"))
    return entry(pid), 0;
  if (is("calls")) {
    make("ready", "");
    do {
      ptrace(PTRACE_SYSCALL, pid, 0, 0);
      status = status_of(pid);
    } while (WIFSTOPPED(status));
    printf("%x\n", status);
    return 0;
  }
  if (is("failed")) return failed(pid, in[1]), 0;
  ptrace(PTRACE_CONT, pid, 0, 0);
  if (is("leader")) {
    until("waiting");
    char path[64], text[256] = "";
    snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    while (!strstr(text, ") Z")) {
      FILE* f = fopen(path, "r");
      if (!fgets(text, sizeof(text), f)) text[0] = 0;
      fclose(f);
    }
    meet();
    make("on", "");
    printf("%x\n", status_of(pid));
    return 0;
  }
  if (is("runs")) {
    until("waiting");
    make("ready", "");
    printf("%x\n", status_of(pid));
    return 0;
  }
  if (is("continued")) {
    until("waiting");
    make("ready", "");
    do {
      status = status_of(pid);
      printf("%x\n", status);
      if (WIFSTOPPED(status)) ptrace(PTRACE_CONT, pid, 0, WSTOPSIG(status));
    } while (WIFSTOPPED(status));
    return 0;
  }
  if (is("null")) {
    siginfo_t info;
    until("waiting");
    make("ready", "");
    const int r = waitid(P_PID, pid, 0, WSTOPPED | WEXITED | WNOWAIT);
    memset(&info, 0, sizeof(info));
    waitid(P_PID, pid, &info, WSTOPPED | WEXITED | WNOHANG);
    printf("%d %d %d\n", r, info.si_pid == pid, info.si_status);
    return 0;
  }
  if (is("suspend") || is("epoll")) {
    until("waiting");
    sleeps_in_call(pid, is("suspend") ? "130 " : "281 ");
    kill(pid, SIGUSR1);
  }
  if (is("untold")) {
    siginfo_t info;
    waitid(P_PID, pid, &info, WSTOPPED | WNOWAIT);
    meet();
    printf("%x, ", status_of(pid));
    ptrace(PTRACE_CONT, pid, 0, SIGUSR1);
    printf("%x\n", status_of(pid));
    return 0;
  }
  printf("%x, ", status_of(pid));
  pthread_t t;
  if (is("poller")) pthread_create(&t, 0, polls_all, 0);
  while (is("poller") && polls == 0) usleep(1000);
  meet();
  printf("%s%d, ", access("passed", F_OK) ? "" : "ran away; ", told);
  while (!is("poller") && waitpid(pid, &status, WNOHANG | __WALL) > 0) {
    printf("more %x, ", status);
    if (!WIFSTOPPED(status)) break;
  }
  ptrace(PTRACE_CONT, pid, 0, is("suspend") || is("epoll") ? SIGUSR1 : 0);
  if (is("poller")) {
    while (told == 0) usleep(1000);
    printf("%d\n", told);
    return 0;
  }
  do {
    status = status_of(pid);
    printf("%x\n", status);
    if (WIFSTOPPED(status)) ptrace(PTRACE_CONT, pid, 0, WSTOPSIG(status));
  } while (WIFSTOPPED(status));
  return 0;
}
