// A tracer that asks for what is seldom asked for: calls that it emulates, options that it gave ahead of
// another program (exec) or to a process that it has let go. wishes_tracer KIND; between "ready" and "go" the
// tracee is held; what follows is printed.
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef PTRACE_SYSEMU
#define PTRACE_SYSEMU 31
#define PTRACE_SYSEMU_SINGLESTEP 32
#endif

static const char* kind;
static volatile int handled;
static int is(const char* what) { return strcmp(kind, what) == 0; }
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
static void handler(int signal) {
  (void)signal;
  handled++;
}
static int status_of(pid_t pid) {
  int status = 0;
  while (waitpid(pid, &status, __WALL) == -1 && errno == EINTR) {
  }
  return status;
}
static int ends_in_child(int code) {
  int status = 0;
  const pid_t pid = fork();
  if (pid == 0) _exit(0);
  while (waitpid(pid, &status, 0) == -1 && errno == EINTR) {
  }
  return code;
}

static void child(void) {
  if (is("stops")) {
    while (access("seized", F_OK)) usleep(1000);
    raise(SIGSTOP);
    _exit(7);
  }
  ptrace(PTRACE_TRACEME, 0, 0, 0);
  const int real_time = SIGRTMIN + 3;
  const struct sigaction action = {.sa_handler = handler};
  sigaction(real_time, &action, 0);
  raise(SIGSTOP);
  char text[32];
  if (is("queued")) {
    raise(real_time);
    snprintf(text, sizeof(text), "%d", handled);
    make("got", text);
    _exit(7);
  }
  if (strstr(kind, "exec")) {
    raise(SIGWINCH);
    _exit(ends_in_child(7));
  }
  if (is("lets_go")) {
    const pid_t pid = fork();
    if (pid == 0) {
      raise(SIGWINCH);
      _exit(ends_in_child(7));
    }
    waitpid(pid, 0, 0);
    _exit(5);
  }
  if (is("orphan")) {
    if (fork() != 0)
      for (;;) pause();
    if (fork() != 0) _exit(0);
    raise(SIGWINCH);
    _exit(ends_in_child(7));
  }
  long r = SYS_getppid;
  __asm__ volatile("int3\n mov $110, %%eax\n syscall" : "=a"(r) : : "rcx", "r11", "memory");
  snprintf(text, sizeof(text), "%ld", r);
  make("got", text);
  _exit(7);
}

// The tracee goes on. Of its child, which the kernel has attached, no more is wanted than that it was told.
static void follow(pid_t pid) {
  for (;;) {
    unsigned long made = 0;
    ptrace(is("exec_calls") ? PTRACE_SYSCALL : PTRACE_CONT, pid, 0, 0);
    const int status = status_of(pid);
    if (status >> 8 == (SIGTRAP | PTRACE_EVENT_FORK << 8)) {
      ptrace(PTRACE_GETEVENTMSG, pid, 0, &made);
      status_of((pid_t)made);
      ptrace(PTRACE_DETACH, (pid_t)made, 0, 0);
      printf("fork told, ");
    } else if (!WIFSTOPPED(status)) {
      printf("%x\n", status);
      return;
    }
  }
}

// The one that a tracee has made goes on, and is waited for at its first stop.
static pid_t made_by(pid_t pid) {
  unsigned long made = 0;
  ptrace(PTRACE_CONT, pid, 0, 0);
  status_of(pid);
  ptrace(PTRACE_GETEVENTMSG, pid, 0, &made);
  status_of((pid_t)made);
  return (pid_t)made;
}

// Its maker is gone before anything is asked of it. Other tracees, with other options, were there before.
static void trace_orphan(pid_t pid) {
  pid_t before[2];
  for (int i = 0; i < 2; i++) {
    before[i] = fork();
    if (before[i] == 0) {
      ptrace(PTRACE_TRACEME, 0, 0, 0);
      raise(SIGSTOP);
      _exit(0);
    }
    status_of(before[i]);
    ptrace(PTRACE_SETOPTIONS, before[i], 0, PTRACE_O_TRACEEXEC);
  }
  for (int i = 0; i < 2; i++) {
    ptrace(PTRACE_CONT, before[i], 0, 0);
    status_of(before[i]);
  }
  const pid_t maker = made_by(pid), made = made_by(maker);
  ptrace(PTRACE_CONT, maker, 0, 0);
  status_of(maker);
  ptrace(PTRACE_CONT, pid, 0, 0);
  status_of(pid);  // SIGCHLD
  ptrace(PTRACE_CONT, pid, 0, 0);
  ptrace(PTRACE_CONT, made, 0, 0);
  status_of(made);
  meet();
  follow(made);
  kill(pid, SIGKILL);
}

static void emulate(pid_t pid) {
  struct user_regs_struct before, after;
  ptrace(PTRACE_CONT, pid, 0, 0);
  status_of(pid);  // the breakpoint
  do {
    ptrace(is("emulates") || is("emulates_later") ? PTRACE_SYSEMU
           : is("steps")                          ? PTRACE_SYSEMU_SINGLESTEP
                                                  : PTRACE_SYSCALL,
           pid, 0, 0);
    status_of(pid);
    ptrace(PTRACE_GETREGS, pid, 0, &before);
  } while (before.orig_rax != SYS_getppid);
  if (is("skips")) before.orig_rax = -1;
  before.rax = 1234;
  if (!is("emulates_later")) ptrace(PTRACE_SETREGS, pid, 0, &before);
  ptrace(PTRACE_GETREGS, pid, 0, &before);
  meet();
  ptrace(PTRACE_GETREGS, pid, 0, &after);
  printf("%s, ", memcmp(&before, &after, sizeof(after)) ? "registers differ" : "same registers");
  after.rax = 1234;
  if (is("emulates_later")) ptrace(PTRACE_SETREGS, pid, 0, &after);
  ptrace(PTRACE_CONT, pid, 0, 0);
  printf("%x\n", status_of(pid));
}

int main(int argc, char** argv) {
  kind = argc > 1 ? argv[1] : "";
  if (argc > 2) {  // behind the exec
    const pid_t pid = atoi(argv[2]);
    if (is("exec_sets")) ptrace(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEFORK);
    ptrace(PTRACE_CONT, pid, 0, 0);
    status_of(pid);
    meet();
    follow(pid);
    return 0;
  }
  const pid_t pid = fork();
  if (pid == 0) child();
  char number[16];
  snprintf(number, sizeof(number), "%d", pid);
  make("tracee", number);
  if (is("stops")) {
    ptrace(PTRACE_SEIZE, pid, 0, 0);
    make("seized", "");
    status_of(pid);
    meet();
    ptrace(PTRACE_CONT, pid, 0, SIGSTOP);
    printf("%x, ", status_of(pid));
    kill(pid, SIGCONT);
    for (int status; ptrace(PTRACE_CONT, pid, 0, 0), WIFSTOPPED(status = status_of(pid));) {
    }
    printf("ended\n");
    return 0;
  }
  status_of(pid);
  if (is("queued")) {
    siginfo_t info;
    ptrace(PTRACE_CONT, pid, 0, 0);
    waitid(P_PID, pid, &info, WSTOPPED | WNOWAIT);
    meet();
    return 0;
  }
  const int follows = is("lets_go") || is("orphan") || strstr(kind, "exec") ? PTRACE_O_TRACEFORK : 0;
  ptrace(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACESYSGOOD | follows);
  if (strstr(kind, "exec")) {
    execl(argv[0], argv[0], kind, number, (char*)0);
    return 9;
  }
  if (is("lets_go")) {
    unsigned long made = 0;
    ptrace(PTRACE_CONT, pid, 0, 0);
    status_of(pid);
    ptrace(PTRACE_GETEVENTMSG, pid, 0, &made);
    ptrace(PTRACE_DETACH, pid, 0, 0);
    status_of((pid_t)made);
    ptrace(PTRACE_CONT, (pid_t)made, 0, 0);
    status_of((pid_t)made);
    meet();
    follow((pid_t)made);
    return 0;
  }
  if (is("orphan")) return trace_orphan(pid), 0;
  emulate(pid);
  return 0;
}
