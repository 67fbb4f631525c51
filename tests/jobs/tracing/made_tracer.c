// A tracer and its tracee: what the program has done or made when a checkpoint comes. One state for each KIND
// between "ready" and "go"; what follows is printed. made_tracer KIND; the tracee's number is in "tracee".
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

static const char* kind;
static int pipe_fds[2];
static char* memory;
enum { kPage = 4096, kWritten = 300000, kMemory = 32 << 20 };
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
static int status_of(pid_t pid) {
  int status = 0;
  while (waitpid(pid, &status, __WALL) == -1 && errno == EINTR) {
  }
  return status;
}
static void* ends(void* a) { return a; }
static int says(const char* path, const char* what, int at_its_beginning) {
  char text[256] = "";
  FILE* f = fopen(path, "r");
  if (!f) return 0;
  if (!fgets(text, sizeof(text), f)) text[0] = 0;
  fclose(f);
  return at_its_beginning ? strncmp(text, what, strlen(what)) == 0 : strstr(text, what) != 0;
}
static void sleeps_in_call(pid_t pid, const char* number) {
  char path[64];
  snprintf(path, sizeof(path), "/proc/%d/syscall", pid);
  while (!says(path, number, 1)) usleep(1000);
}
static char letter(long i) { return (char)('a' + i % 23); }

static void child(void) {
  if (is("begins")) {
    until("end");
    _exit(7);
  }
  ptrace(PTRACE_TRACEME, 0, 0, 0);
  if (is("large")) memset(memory, 'x', kMemory);
  raise(SIGSTOP);
  if (is("writes")) {
    char* const text = malloc(kWritten);
    for (long i = 0; i < kWritten; i++) text[i] = letter(i);
    _exit(write(pipe_fds[1], text, kWritten) == kWritten ? 7 : 6);
  }
  if (is("executes")) {
    execl("there is none", "none", (char*)0);
    _exit(7);
  }
  if (is("thread_ends")) {
    pthread_t t;
    pthread_create(&t, 0, ends, 0);
    until("on");
    _exit(7);
  }
  if (is("ends") || is("forks") || is("vforks")) {
    if ((is("vforks") ? vfork() : fork()) == 0) _exit(0);
    until("on");
    _exit(7);
  }
  if (is("narrow")) {
    char* const pages = mmap(0, 3 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(pages, kPage, PROT_NONE);
    __asm__ volatile("mov %%rsp, %%rbx\n mov %0, %%rsp\n int3\n mov %%rbx, %%rsp"
                     :
                     : "r"(pages + kPage + 512)
                     : "rbx", "memory");
    _exit(7);
  }
  if (is("steps")) {
    char c = 0;
    long r = SYS_read;
    __asm__ volatile("int3\n syscall"
                     : "+a"(r)
                     : "D"((long)pipe_fds[0]), "S"(&c), "d"(1l)
                     : "rcx", "r11", "memory");
    _exit(r == 1 && c == 'x' ? 7 : 6);
  }
  __asm__ volatile("int3");
  _exit(7);
}

static void goes_on(pid_t pid) {
  int status;
  do {
    ptrace(PTRACE_CONT, pid, 0, 0);
    status = status_of(pid);
  } while (WIFSTOPPED(status));
  printf("%x\n", status);
}

// The tracee has made one, which has ended, or of which nobody has asked yet.
static void made(pid_t pid) {
  unsigned long number = 0;
  char path[64];
  ptrace(PTRACE_CONT, pid, 0, 0);
  status_of(pid);
  ptrace(PTRACE_GETEVENTMSG, pid, 0, &number);
  ptrace(PTRACE_CONT, pid, 0, 0);
  if (!is("forks")) status_of((pid_t)number);
  if (!is("forks") && !is("vforks")) {
    ptrace(PTRACE_CONT, (pid_t)number, 0, 0);
    snprintf(path, sizeof(path), "/proc/%d/task/%lu/stat", is("ends") ? (int)number : pid, number);
    while (!says(path, ") Z", 0)) usleep(1000);
  }
  meet();
  if (is("forks")) printf("%x, ", status_of((pid_t)number));
  if (is("forks") || is("vforks")) ptrace(PTRACE_CONT, (pid_t)number, 0, 0);
  printf("%x, ", status_of((pid_t)number));
  make("on", "");
  int status;
  while (status = status_of(pid), WIFSTOPPED(status)) ptrace(PTRACE_CONT, pid, 0, 0);
  printf("%x\n", status);
}

// It is about to execute a program, in a call of the library's own.
static void executes(pid_t pid) {
  struct user_regs_struct registers;
  for (int stops = 0; stops < 2;) {
    ptrace(PTRACE_SYSCALL, pid, 0, 0);
    status_of(pid);
    ptrace(PTRACE_GETREGS, pid, 0, &registers);
    if (registers.orig_rax == SYS_gettid) stops++;
  }
  meet();
  goes_on(pid);
}

// It writes more than the pipe takes, and each of its calls is stopped.
static void writes(pid_t pid) {
  struct user_regs_struct registers;
  int status = 0;
  long bytes = 0, bad = 0;
  do {
    ptrace(PTRACE_SYSCALL, pid, 0, 0);
    status_of(pid);
    ptrace(PTRACE_GETREGS, pid, 0, &registers);
  } while (registers.orig_rax != SYS_write || registers.rdx != kWritten);
  ptrace(PTRACE_SYSCALL, pid, 0, 0);
  sleeps_in_call(pid, "1 ");
  meet();
  fcntl(pipe_fds[0], F_SETFL, O_NONBLOCK);
  for (;;) {
    char text[4096];
    const pid_t r = waitpid(pid, &status, WNOHANG | __WALL);
    const long n = read(pipe_fds[0], text, sizeof(text));
    for (long i = 0; i < n; i++) bad += text[i] != letter(bytes + i);
    bytes += n > 0 ? n : 0;
    if (r == pid && WIFSTOPPED(status)) ptrace(PTRACE_SYSCALL, pid, 0, 0);
    if (r == pid && !WIFSTOPPED(status) && n <= 0) break;
    if (r == pid && !WIFSTOPPED(status)) continue;
    if (r == -1 && n <= 0) break;
    if (r == 0 && n <= 0) usleep(1000);
  }
  printf("%ld bytes, %ld bad, %x\n", bytes, bad, status);
}

// What is below its stack pointer, as when a function of it is to be called.
static long below(pid_t pid, int writes) {
  struct user_regs_struct registers;
  long differ = 0;
  ptrace(PTRACE_GETREGS, pid, 0, &registers);
  for (long at = 136; at < 7700; at += 56) {
    const unsigned long address = (registers.rsp - (unsigned long)at) & ~7ul;
    if (writes)
      ptrace(PTRACE_POKEDATA, pid, address, at);
    else
      differ += ptrace(PTRACE_PEEKDATA, pid, address, 0) != at;
  }
  return differ;
}

int main(int argc, char** argv) {
  kind = argc > 1 ? argv[1] : "";
  if (pipe(pipe_fds)) return 9;
  if (is("large")) memory = mmap(0, kMemory, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const pid_t pid = fork();
  if (pid == 0) child();
  char number[16];
  snprintf(number, sizeof(number), "%d", pid);
  make("tracee", number);
  if (is("begins")) {
    make("ready", "");
    until("attach");
    ptrace(PTRACE_SEIZE, pid, 0, 0);
    make("attached", "");
    until("go");
    ptrace(PTRACE_INTERRUPT, pid, 0, 0);
    printf("%x, ", status_of(pid));
    make("end", "");
    goes_on(pid);
    return 0;
  }
  status_of(pid);
  const int follows = is("thread_ends")           ? PTRACE_O_TRACECLONE
                      : is("ends") || is("forks") ? PTRACE_O_TRACEFORK
                      : is("vforks")              ? PTRACE_O_TRACEVFORK
                                                  : 0;
  ptrace(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACESYSGOOD | follows);
  if (follows != 0) return made(pid), 0;
  if (is("writes")) return writes(pid), 0;
  if (is("executes")) return executes(pid), 0;
  ptrace(PTRACE_CONT, pid, 0, 0);
  printf("%x, ", status_of(pid));
  if (is("steps")) {
    struct user_regs_struct registers;
    ptrace(PTRACE_SINGLESTEP, pid, 0, 0);
    sleeps_in_call(pid, "0 ");
    meet();
    if (write(pipe_fds[1], "x", 1) != 1) return 9;
    printf("%x, ", status_of(pid));
    ptrace(PTRACE_GETREGS, pid, 0, &registers);
    printf("%lld, ", (long long)registers.rax);
  } else if (is("below")) {
    below(pid, 1);
    meet();
    printf("%ld differ, ", below(pid, 0));
  } else if (is("large")) {
    // As it is copied, or loaded.
    long bad = 0;
    meet();
    for (long at = kMemory - kPage; at >= 0; at -= kPage) {
      errno = 0;
      const long word = ptrace(PTRACE_PEEKDATA, pid, memory + at, 0);
      bad += word != 0x7878787878787878 || ptrace(PTRACE_POKEDATA, pid, memory + at, word) != 0;
    }
    printf("%ld bad, ", bad);
    make("written", "");
    until("end");
  } else {
    meet();
  }
  goes_on(pid);
  return 0;
}
