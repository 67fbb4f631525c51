/* A static program without libc that begins as a program of Go does: it takes all signals, but for 32 and 34,
 * sets its own thread pointer, makes threads by clone(2), and makes system calls by instructions of its own.
 * It has Go's build id; with -DWITHOUT_BUILD_ID the head of Go's table for tracebacks instead.
 *
 *   like_go begins         what it finds at its first instruction, a line each
 *   like_go counts FILE    three threads count, each in memory of its own; the sum is printed when FILE is there
 *   like_go executes PROGRAM WORDS...
 *   like_go has NAME       the variables of its environment that begin so
 */
#include <asm/prctl.h>
#include <asm/unistd.h>
#include <elf.h>
#include <stdint.h>

typedef unsigned long word;

#ifdef WITHOUT_BUILD_ID
__asm__(
    ".section .gopclntab, \"a\", @progbits\n"
    ".long 0xfffffff1\n"
    ".byte 0, 0, 1, 8\n"
    ".text\n");
#else
__asm__(
    ".section .note.go.buildid, \"a\", @note\n"
    ".align 4\n"
    ".long 4, 8, 4\n"
    ".asciz \"Go\\0\"\n"
    ".asciz \"like/go\"\n"
    ".text\n");
#endif

static long call(long nr, word a, word b, word c, word d, word e, word f) {
  long result;
  register word r10 __asm__("r10") = d;
  register word r8 __asm__("r8") = e;
  register word r9 __asm__("r9") = f;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                   : "rcx", "r11", "memory");
  return result;
}
#define CALL0(nr) call(nr, 0, 0, 0, 0, 0, 0)
#define CALL1(nr, a) call(nr, (word)(a), 0, 0, 0, 0, 0)
#define CALL2(nr, a, b) call(nr, (word)(a), (word)(b), 0, 0, 0, 0)
#define CALL3(nr, a, b, c) call(nr, (word)(a), (word)(b), (word)(c), 0, 0, 0)
#define CALL4(nr, a, b, c, d) call(nr, (word)(a), (word)(b), (word)(c), (word)(d), 0, 0)

static word length(const char* text) {
  word n = 0;
  while (text[n] != 0) ++n;
  return n;
}
static void say(const char* text) { CALL3(__NR_write, 1, text, length(text)); }
static void say_number(const char* name, word number) {
  char text[20], *at = text + sizeof(text);
  *--at = 0;
  do *--at = "0123456789abcdef"[number & 15];
  while ((number >>= 4) != 0 && at > text);
  say(name);
  say(" ");
  say(at);
  say("\n");
}
static int same(const char* a, const char* b) {
  while (*a != 0 && *a == *b) ++a, ++b;
  return *a == *b;
}

struct action {
  word handler, flags, restorer, mask;
};
static const word kOnStack = 0x08000000, kSiginfo = 4, kRestart = 0x10000000, kRestorer = 0x04000000;

void restorer(void);
__asm__("restorer: mov $15, %eax\n syscall\n");
static volatile int handled;
static void handler(int signal) { handled = signal; }

static void take_signals(void) {
  for (int signal = 1; signal <= 64; ++signal) {
    struct action ours = {(word)&handler, kOnStack | kSiginfo | kRestart | kRestorer, (word)&restorer, ~0ul},
                  old;
    if (signal == 9 || signal == 19) continue;
    if (signal != 32 && signal != 34) {
      CALL4(__NR_rt_sigaction, signal, &ours, 0, 8);
    } else if (CALL4(__NR_rt_sigaction, signal, 0, &old, 8) == 0 && old.handler > 1) {
      old.flags |= kOnStack; /* Go does that where a C library has a handler */
      CALL4(__NR_rt_sigaction, signal, &old, 0, 8);
    }
  }
}

/* Programs without a libc read these of the kernel itself. */
static void begins(word* stack, word flags, word mxcsr) {
  word mask = 0, pending = 0, fs = 1, gs = 1, caught = 0;
  word list = 1, list_length = 1, tid_address = 1;
  static char rseq[32] __attribute__((aligned(32)));
  say_number("argc", stack[0]);
  for (word i = 0; i < stack[0]; ++i) {
    say((char*)stack[1 + i]);
    say("\n");
  }
  word* env = stack + stack[0] + 2;
  word variables = 0;
  while (env[variables] != 0) ++variables;
  say_number("variables", variables);
  for (Elf64_auxv_t* aux = (Elf64_auxv_t*)(env + variables + 1); aux->a_type != AT_NULL; ++aux) {
    const word type = aux->a_type;
    if (type == AT_PHDR || type == AT_PHNUM || type == AT_BASE || type == AT_ENTRY || type == AT_SECURE ||
        type == AT_FLAGS)
      say_number("said", type << 56 | aux->a_un.a_val);
  }
  CALL4(__NR_rt_sigprocmask, 0, 0, &mask, 8);
  CALL2(__NR_rt_sigpending, &pending, 8);
  CALL2(__NR_arch_prctl, ARCH_GET_FS, &fs);
  CALL2(__NR_arch_prctl, ARCH_GET_GS, &gs);
  for (int signal = 1; signal <= 64; ++signal) {
    struct action old = {0, 0, 0, 0};
    if (signal != 34 && CALL4(__NR_rt_sigaction, signal, 0, &old, 8) == 0 && old.handler != 0)
      caught |= 1ul << (signal - 1);
  }
  CALL3(__NR_get_robust_list, 0, &list, &list_length);
  CALL2(__NR_prctl, 40 /* PR_GET_TID_ADDRESS */, &tid_address);
  say_number("aligned", (word)stack & 15);
  say_number("flags", flags);
  say_number("mxcsr", mxcsr);
  say_number("mask", mask);
  say_number("pending", pending);
  say_number("actions", caught);
  say_number("fs", fs);
  say_number("gs", gs);
  say_number("robust", list);
  say_number("tid address", tid_address);
  say_number("rseq", (word)call(__NR_rseq, (word)rseq, sizeof(rseq), 0, 0x53053053, 0, 0));
  say_number("child", (word)CALL4(__NR_wait4, -1, 0, 0x40000001 /* __WALL | WNOHANG */, 0));
  say_number("descriptor", (word)CALL1(__NR_dup, 0));
}

enum { kThreads = 3, kStack = 64 << 10, kCounted = 1 << 12 };
static word memory[kThreads][kCounted];
static char stacks[kThreads][kStack] __attribute__((aligned(64)));
static char signal_stacks[kThreads + 1][kStack] __attribute__((aligned(64)));
static word pointers[kThreads + 1][8];
static volatile int stop, ended;

/* A thread's own: where its thread pointer shows, and the stack of its signals. */
static void be_thread(int number) {
  struct {
    char* at;
    int flags;
    word size;
  } stack = {signal_stacks[number], 0, kStack};
  pointers[number][0] = 0x60 + (word)number;
  CALL2(__NR_arch_prctl, ARCH_SET_FS, &pointers[number][0]);
  CALL2(__NR_sigaltstack, &stack, 0);
}
static word own(void) {
  word value;
  __asm__ volatile("mov %%fs:0, %0" : "=r"(value));
  return value;
}

static void count(long number) {
  be_thread((int)number);
  word rounds = 0;
  do {
    for (int i = 0; i < kCounted; ++i) {
      if (memory[number][i] != rounds) {
        say("lost\n");
        CALL1(__NR_exit_group, 3);
      }
      memory[number][i] = rounds + 1;
    }
    ++rounds;
    if (own() != 0x60 + (word)number) {
      say("another thread's\n");
      CALL1(__NR_exit_group, 4);
    }
  } while (!stop);
  __atomic_add_fetch(&ended, 1, __ATOMIC_SEQ_CST);
  for (;;) CALL1(__NR_exit, 0);
}

long start_thread(word flags, void* stack);
__asm__(
    "start_thread: mov $56, %eax\n syscall\n"
    "test %rax, %rax\n jz 1f\n ret\n"
    "1: xor %ebp, %ebp\n pop %rdi\n pop %rax\n call *%rax\n hlt\n");

static void counts(const char* file) {
  const struct { long s, ns; } moment = {0, 1000000};
  take_signals();
  be_thread(kThreads);
  for (long i = 0; i < kThreads; ++i) {
    word* top = (word*)(stacks[i] + kStack) - 2;
    top[0] = (word)i;
    top[1] = (word)&count;
    start_thread(0x50f00 /* VM, FS, FILES, SIGHAND, THREAD, SYSVSEM */, top);
  }
  say("up\n");
  while (CALL2(__NR_access, file, 0) != 0) CALL2(__NR_nanosleep, &moment, 0);
  stop = 1;
  while (ended != kThreads) CALL2(__NR_nanosleep, &moment, 0);
  word rounds = 0;
  for (int i = 0; i < kThreads; ++i) rounds += memory[i][0] != 0;
  say_number("counted", rounds);
  say_number("own", own());
  /* Its handlers are its own, the checkpoint's signal apart. */
  CALL2(__NR_kill, CALL0(__NR_getpid), 10);
  say_number("handled", (word)handled);
}

void begin(word* stack, word flags, word mxcsr) {
  const char* what = stack[0] > 1 ? (const char*)stack[2] : "";
  if (same(what, "begins")) begins(stack, flags, mxcsr);
  if (same(what, "counts")) counts((const char*)stack[3]);
  if (same(what, "has")) {
    for (char** e = (char**)(stack + stack[0] + 2); *e != 0; ++e) {
      word n = 0;
      while (((const char*)stack[3])[n] != 0 && (*e)[n] == ((const char*)stack[3])[n]) ++n;
      if (((const char*)stack[3])[n] != 0) continue;
      say(*e);
      say("\n");
    }
  }
  if (same(what, "executes")) {
    CALL3(__NR_execve, stack[3], stack + 3, stack + stack[0] + 2);
    say("not executed\n");
  }
  CALL1(__NR_exit_group, 0);
}

__asm__(
    ".global _start\n"
    "_start: mov %rsp, %rdi\n pushfq\n pop %rsi\n"
    "sub $8, %rsp\n stmxcsr (%rsp)\n mov (%rsp), %edx\n"
    "and $-16, %rsp\n call begin\n hlt\n");
