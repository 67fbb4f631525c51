/* A thread that catches its own system calls, and is in the middle of code that may make none: as Wine runs a
 * program. Another
   thread lets it go on when the file `go` is there. Both tell what they have seen as odd_objects.py wants it.
     nested  a timer's signal waits in a stop: its handler is called on the way back, and is in such code itself at the next stop
     shared  two threads name one selector */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <ucontext.h>
#include <unistd.h>

enum { kSetDispatch = 59, kOn = 1, kAnswer = 4711 };

static volatile char selector, goes_on;
static volatile int caught, loops, met_on_way_back;

static void catch_call(int signal, siginfo_t* info, void* context) {
  (void)signal;
  selector = 0;
  ++caught;
  ((ucontext_t*)context)->uc_mcontext.gregs[REG_RAX] = info->si_syscall == SYS_getppid ? kAnswer : -1;
}

static long bare_getppid(void) {
  long r = SYS_getppid;
  __asm__ volatile("syscall" : "+a"(r) : : "rcx", "r11", "memory");
  return r;
}

static void tell(const char* name, const char* what) {
  FILE* file = fopen("told.tmp", "w");
  fputs(what, file);
  fclose(file);
  rename("told.tmp", name);
}

static void* let_go_on(void* unused) {
  (void)unused;
  tell("before", "{}");
  while (access("go", F_OK) != 0) usleep(5000);
  tell("after", "{}");
  goes_on = 1;
  return NULL;
}

/* Registers that a handler might change: each is what it was, from one round to the next. */
static int registers_change(void) {
  unsigned long changed = 0;
  __asm__ volatile(
      "movq $0x1234567, %%rax\n\t"
      "movq $0x89abcde, %%rbx\n\t"
      "1: cmpq $0x1234567, %%rax\n\t"
      "jne 2f\n\t"
      "cmpq $0x89abcde, %%rbx\n\t"
      "jne 2f\n\t"
      "cmpb $0, %1\n\t"
      "je 1b\n\t"
      "jmp 3f\n\t"
      "2: movq $1, %0\n\t"
      "3:"
      : "+r"(changed)
      : "m"(goes_on)
      : "rax", "rbx", "cc", "memory");
  return changed != 0;
}

extern char __executable_start, etext;

/* The interrupted code is not the program's: the thread is on its way back from a stop. */
static void on_timer(int signal, siginfo_t* info, void* context) {
  (void)signal;
  (void)info;
  const unsigned long at = (unsigned long)((ucontext_t*)context)->uc_mcontext.gregs[REG_RIP];
  const int is_outside = at < (unsigned long)&__executable_start || at >= (unsigned long)&etext;
  if (!is_outside) loops = 1;
  const int on_way_back = loops && is_outside && selector == 0;
  if (on_way_back && !met_on_way_back) {
    met_on_way_back = 1;
    close(open("waits", O_CREAT | O_WRONLY, 0600));
    selector = 1;
    while (!goes_on) continue;
  }
  selector = 0;
}

static int is_met_on_way_back(void) {
  struct sigaction action;
  memset(&action, 0, sizeof(action));
  action.sa_sigaction = on_timer;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGALRM, &action, NULL);
  const struct itimerval often = {{0, 200}, {0, 200}}, never = {{0, 0}, {0, 0}};
  setitimer(ITIMER_REAL, &often, NULL);
  __asm__ volatile(
      "1: movb $1, %0\n\t"
      "cmpb $0, %1\n\t"
      "je 1b\n\t"
      "movb $0, %0"
      : "+m"(selector)
      : "m"(goes_on)
      : "cc", "memory");
  setitimer(ITIMER_REAL, &never, NULL);
  return met_on_way_back;
}

static void* names_selector(void* unused) {
  prctl(kSetDispatch, kOn, 0L, 0L, &selector);
  tell("before", "{}");
  for (;;) pause();
  return unused;
}

int main(int argc, char** argv) {
  struct sigaction action;
  memset(&action, 0, sizeof(action));
  action.sa_sigaction = catch_call;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSYS, &action, NULL);
  char said[200] = "{\"kernel\": \"has no such call\"}";
  pthread_t other;
  const int knows = prctl(kSetDispatch, kOn, 0L, 0L, &selector) == 0;
  if (argc > 1 && strcmp(argv[1], "shared") == 0) {
    if (!knows) tell("unknown", "");
    pthread_create(&other, NULL, names_selector, NULL);
    for (;;) pause();
  }
  if (argc > 1 && knows) {
    sigset_t alarm;
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &alarm, NULL);
    pthread_create(&other, NULL, let_go_on, NULL);
    pthread_sigmask(SIG_UNBLOCK, &alarm, NULL);
    snprintf(said, sizeof(said), "{\"met\": %d}", is_met_on_way_back());
  } else if (knows) {
    pthread_create(&other, NULL, let_go_on, NULL);
    selector = 1;
    const int changed = registers_change();
    const long first = bare_getppid();
    const long second = bare_getppid(); /* the handler allows them from then on */
    selector = 1;
    const long third = bare_getppid();
    snprintf(said, sizeof(said), "{\"answers\": [%ld, %d, %ld], \"caught\": %d, \"changed\": %d}", first,
             second == getppid(), third, caught, changed);
  } else {
    pthread_create(&other, NULL, let_go_on, NULL);
  }
  pthread_join(other, NULL);
  tell("last", said);
  return 0;
}
