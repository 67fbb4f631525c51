// What a process is: rights, limits, settings of prctl, filters, namespaces, libraries, contexts, registers,
// programs in its place.
#include <dlfcn.h>
#include <fenv.h>
#include <grp.h>
#include <iconv.h>
#include <immintrin.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <locale.h>
#include <math.h>
#include <pty.h>
#include <sched.h>
#include <stddef.h>
#include <sys/file.h>
#include <sys/fsuid.h>
#include <sys/ioctl.h>
#include <sys/personality.h>
#include <sys/resource.h>
#include <sys/times.h>
#include <sys/utsname.h>
#include <termios.h>
#include <ucontext.h>
#include <wchar.h>
#include "battery.h"

extern char** environ;

static void settings(void) {
  prctl(PR_SET_NAME, "renamed-prog"), prctl(PR_SET_PDEATHSIG, SIGUSR1), prctl(PR_SET_TIMERSLACK, 4321),
      prctl(PR_SET_CHILD_SUBREAPER, 1);
  int thp = prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0,
      kill_policy = prctl(PR_MCE_KILL, PR_MCE_KILL_SET, PR_MCE_KILL_EARLY, 0, 0) == 0;
  MUST(personality(ADDR_NO_RANDOMIZE | 0x0800000) >= 0);
  signal(SIGUSR1, SIG_IGN);
  umask(027);
  MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  EACH_STEP(n) {
    char name[16];
    int v = 0;
    prctl(PR_GET_NAME, name);
    MUST(strcmp(name, "renamed-prog") == 0 && prctl(PR_GET_TIMERSLACK) == 4321 &&
         prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1);
    MUST(prctl(PR_GET_PDEATHSIG, &v) == 0 && v == SIGUSR1 && prctl(PR_GET_CHILD_SUBREAPER, &v) == 0 &&
         v == 1);
    MUST(prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) == thp);
    if (kill_policy) MUST(prctl(PR_MCE_KILL_GET, 0, 0, 0, 0) == PR_MCE_KILL_EARLY);
    MUST((personality(0xffffffff) & (ADDR_NO_RANDOMIZE | 0x0800000)) == (ADDR_NO_RANDOMIZE | 0x0800000));
    mode_t mask = umask(0);
    MUST(mask == 027);
    umask(mask);
  }
}

static void undumpable(void) {
  MUST(prctl(PR_SET_DUMPABLE, 0) == 0);
  EACH_STEP(n) MUST(prctl(PR_GET_DUMPABLE) == 0);
}

static void limits(void) {
  const int kinds[] = {RLIMIT_NOFILE, RLIMIT_CORE,       RLIMIT_STACK, RLIMIT_FSIZE,
                       RLIMIT_NPROC,  RLIMIT_SIGPENDING, RLIMIT_NICE};
  struct rlimit want[7];
  for (int i = 0; i < 7; i++) {
    getrlimit(kinds[i], &want[i]);
    if (i == 0) want[i].rlim_cur = 200, want[i].rlim_max = 300;
    if (i == 1) want[i].rlim_cur = want[i].rlim_max = 0;
    if (i == 2) want[i].rlim_cur = 3 << 20;
    if (i == 3) want[i].rlim_cur = 1 << 30;
    MUST(setrlimit(kinds[i], &want[i]) == 0);
  }
  EACH_STEP(n)
  for (int i = 0; i < 7; i++) {
    struct rlimit is;
    getrlimit(kinds[i], &is);
    MUST(is.rlim_cur == want[i].rlim_cur && is.rlim_max == want[i].rlim_max);
  }
}

static void scheduling(void) {
  MUST(nice(5) == 5);
  struct sched_param p = {0};
  MUST(sched_setscheduler(0, SCHED_BATCH | SCHED_RESET_ON_FORK, &p) == 0);
  MUST(syscall(SYS_ioprio_set, 1, 0, 2 << 13 | 6) == 0);
  cpu_set_t one, is;
  CPU_ZERO(&one);
  CPU_SET(1, &one);
  int bound = sched_setaffinity(0, sizeof one, &one) == 0;
  EACH_STEP(n) {
    MUST(getpriority(PRIO_PROCESS, 0) == 5 && sched_getscheduler(0) == (SCHED_BATCH | SCHED_RESET_ON_FORK));
    MUST(syscall(SYS_ioprio_get, 1, 0) == (2 << 13 | 6));
    sched_getaffinity(0, sizeof is, &is);
    if (bound) MUST(CPU_EQUAL(&is, &one) && sched_getcpu() == 1);
  }
}

static void filter(void) {
  struct sock_filter code[] = {{BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, nr)},
                               {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, SYS_getppid},
                               {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | 77},
                               {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW}};
  struct sock_fprog p = {4, code};
  MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &p) == 0);
  EACH_STEP(n) {
    errno = 0;
    MUST(syscall(SYS_getppid) == -1 && errno == 77);
  }
}

static void capabilities(void) {
  struct __user_cap_header_struct h = {_LINUX_CAPABILITY_VERSION_3, 0};
  struct __user_cap_data_struct d[2], is[2];
  MUST(syscall(SYS_capget, &h, d) == 0);
  d[0].effective &= ~(1u << CAP_NET_RAW | 1u << CAP_CHOWN),
      d[0].inheritable = d[0].permitted & (1u << CAP_KILL), d[0].permitted &= ~(1u << CAP_NET_RAW);
  MUST(syscall(SYS_capset, &h, d) == 0);
  int bound = prctl(PR_CAPBSET_DROP, CAP_SYS_TIME) == 0,
      ambient = prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_KILL, 0, 0) == 0;
  prctl(PR_SET_KEEPCAPS, 1);
  EACH_STEP(n) {
    MUST(syscall(SYS_capget, &h, is) == 0 && memcmp(d, is, sizeof d) == 0);
    MUST(prctl(PR_CAPBSET_READ, CAP_SYS_TIME) == !bound &&
         prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, CAP_KILL, 0, 0) == ambient);
    MUST(prctl(PR_GET_KEEPCAPS) == 1);
  }
}

static void users(void) {
  if (getuid() == 0) {
    gid_t groups[] = {5, 77, 4000};
    MUST(setgroups(3, groups) == 0 && setresgid(12, 13, 14) == 0 && setresuid(1000, 1001, 0) == 0 &&
         setfsuid(1001) == 1001);
  }
  uid_t r, e, s, r0, e0, s0;
  gid_t gr, ge, gs, gr0, ge0, gs0, list[10];
  getresuid(&r0, &e0, &s0), getresgid(&gr0, &ge0, &gs0);
  int count = getgroups(10, list);
  EACH_STEP(n) {
    getresuid(&r, &e, &s), getresgid(&gr, &ge, &gs);
    MUST(r == r0 && e == e0 && s == s0 && gr == gr0 && ge == ge0 && gs == gs0 &&
         getgroups(10, list) == count);
    if (count == 3) MUST(list[0] == 5 && list[1] == 77 && list[2] == 4000);
  }
}

static void namespaces(void) {
  int host = unshare(getuid() == 0 ? CLONE_NEWUTS : CLONE_NEWUSER | CLONE_NEWUTS) == 0;
  if (host) MUST(sethostname("battery-host", 12) == 0);
  EACH_STEP(n) {
    struct utsname u;
    uname(&u);
    MUST(!host || strcmp(u.nodename, "battery-host") == 0);
  }
}

static void locales(void) {
  MUST(setlocale(LC_ALL, "C.UTF-8") != NULL);
  locale_t l = newlocale(LC_NUMERIC_MASK, "C", duplocale(LC_GLOBAL_LOCALE));
  uselocale(l);
  iconv_t c = iconv_open("UTF-16LE", "UTF-8");
  char words[2000] = "", *rest = NULL;
  for (int i = 0; i < STEPS; i++) sprintf(words + strlen(words), "w%d ", i);
  char* word = strtok_r(words, " ", &rest);
  srand(5), srandom(6), srand48(7);
  setenv("BATTERY_STATE", "0", 1);
  time_t zero = 0;
  setenv("TZ", "America/New_York", 1), tzset();
  struct tm* local = localtime(&zero);
  EACH_STEP(n) {
    char in[] = "\xc3\xa9\xe2\x82\xac", out[16], *pi = in, *po = out, number[16];
    size_t li = 5, lo = 16;
    MUST(iconv(c, &pi, &li, &po, &lo) == 0 && po - out == 4 && mbstowcs(NULL, in, 0) == 2);
    say("%s %d %ld %.4f", word, rand() % 1000, random() % 1000, drand48());
    word = strtok_r(NULL, " ", &rest);
    snprintf(number, sizeof number, "%d", n);
    MUST(atoi(getenv("BATTERY_STATE")) == (n ? n - 1 : 0) && setenv("BATTERY_STATE", number, 1) == 0);
    MUST(localtime(&zero) == local && local->tm_hour == 19);
  }
}

static void libraries(void) {
  void* early = dlopen("libutil.so.1", RTLD_NOW);
  void* m = dlopen("libm.so.6", RTLD_NOW | RTLD_LOCAL);
  MUST(m != NULL && early != NULL);
  double (*f)(double) = (double (*)(double))(uintptr_t)dlsym(m, "cbrt");
  void* apart = dlmopen(LM_ID_NEWLM, "libz.so.1", RTLD_NOW);
  unsigned long (*sum)(unsigned long, const char*, unsigned) =
      apart ? (unsigned long (*)(unsigned long, const char*, unsigned))(uintptr_t)dlsym(apart, "crc32")
            : NULL;
  unsigned long first = sum ? sum(0, "abc", 3) : 0;
  EACH_STEP(n) {
    MUST(fabs(f(27) - 3) < 1e-9);
    if (sum) MUST(sum(0, "abc", 3) == first);
    void* z = dlopen("liblzma.so.5", RTLD_LAZY);
    if (z) MUST(((unsigned (*)(void))(uintptr_t)dlsym(z, "lzma_version_number"))() > 5000000);
    if (n % 2) rest_ms(4);
    if (z) dlclose(z);
    Dl_info i;
    MUST(dladdr((void*)(uintptr_t)f, &i) != 0 && strstr(i.dli_fname, "libm") != NULL);
  }
}

static ucontext_t main_context, routine[3];
static int at[3];
static void coroutine(int which) {
  double half = which + 0.5;
  for (;;) {
    at[which]++;
    MUST(half == which + at[which] - 0.5);
    swapcontext(&routine[which], which == 2 ? &main_context : &routine[which + 1]);
    rest_ms(3);
    half += 1;
  }
}

static void coroutines(void) {
  for (int i = 0; i < 3; i++) {
    getcontext(&routine[i]);
    routine[i].uc_stack.ss_sp =
        mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    routine[i].uc_stack.ss_size = 65536;
    makecontext(&routine[i], (void (*)(void))coroutine, 1, i);
  }
  EACH_STEP(n) {
    swapcontext(&main_context, &routine[0]);
    MUST(at[0] == n + 1 && at[1] == n + 1 && at[2] == n + 1);
  }
}

static void registers(void) {
  fesetround(FE_UPWARD);
  _mm_setcsr(_mm_getcsr() | 0x8040);
  unsigned short control = 0x027f | 0x0800, is;
  __asm__ volatile("fldcw %0" : : "m"(control));
  __asm__ volatile("fldpi; fldl2e");
  for (int n = 0; n < STEPS; n++) {
    say("%d", n);
    double began = now_of(CLOCK_MONOTONIC);
    uint64_t pattern[4] = {mixed(n), mixed(n + 1), 3, ~0ull}, seen[4];
    while (now_of(CLOCK_MONOTONIC) < began + 0.03) {
      for (int i = 0; i < 100; i++) {
        if (__builtin_cpu_supports("avx")) {
          __asm__ volatile(
              "vmovdqu %1, %%ymm9\n mov $20000, %%ecx\n 1: dec %%ecx\n jnz 1b\n vmovdqu %%ymm9, %0\n "
              "vzeroupper"
              : "=m"(seen)
              : "m"(pattern)
              : "ecx", "xmm9", "memory");
          MUST(memcmp(seen, pattern, 32) == 0);
        }
      }
    }
    __asm__ volatile("fnstcw %0" : "=m"(is));
    MUST(is == control && (_mm_getcsr() & 0x8040) == 0x8040 && fegetround() != FE_DOWNWARD);
  }
  double a, b;
  __asm__ volatile("fstpl %0; fstpl %1" : "=m"(a), "=m"(b));
  MUST(fabs(a - 1.4426950408889634) < 1e-12 && fabs(b - 3.141592653589793) < 1e-12);
}

static void in_its_place(void) {
  const char* state = getenv("BATTERY_STEP");
  volatile int n = state ? atoi(state) : 0;
  const char* first = getenv("BATTERY_PID");
  char text[32];
  if (first) MUST(atoi(first) == getpid());
  snprintf(text, sizeof text, "%d", getpid());
  setenv("BATTERY_PID", text, 1);
  int fd = n ? 50 : open("kept", O_RDWR | O_CREAT, 0600);
  if (!n) MUST(dup2(fd, 50) == 50 && flock(50, LOCK_EX) == 0);
  for (int k = 0; k < 7; k++, n++) {
    if (n >= STEPS) return;
    say("%d", n);
    rest_ms(30);
    MUST(write(50, "x", 1) == 1 && lseek(50, 0, SEEK_CUR) == n + 1);
    pid_t child = vfork();
    if (child == 0) execl("/bin/true", "true", NULL), _exit(127);
    int status;
    MUST(waitpid(child, &status, 0) == child && status == 0);
  }
  snprintf(text, sizeof text, "%d", n);
  setenv("BATTERY_STEP", text, 1);
  execl("/proc/self/exe", "battery", "in_its_place", NULL);
  MUST(0);
}

static void clocks(void) {
  struct timespec t;
  double mono = now_of(CLOCK_MONOTONIC), cpu = 0, thread = 0;
  clock_t ticks = times(&(struct tms){0});
  (void)t;
  for (int n = 0; step_of(n); n++) {
    double m = now_of(CLOCK_MONOTONIC), c = now_of(CLOCK_PROCESS_CPUTIME_ID),
           h = now_of(CLOCK_THREAD_CPUTIME_ID);
    MUST(m >= mono + 0.029 && m < mono + 10 && c >= cpu && h >= thread);
    mono = m, cpu = c, thread = h;
    for (volatile int i = 0; i < 300000; i++) {
    }
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    clock_t now = times(&(struct tms){0});
    MUST(now >= ticks &&
         r.ru_utime.tv_sec + r.ru_utime.tv_usec / 1e6 <= now_of(CLOCK_PROCESS_CPUTIME_ID) + 0.1);
    ticks = now;
    MUST(now_of(CLOCK_REALTIME) > 1.7e9 && now_of(CLOCK_MONOTONIC_RAW) > 0);
  }
}

static void terminal_pair(void) {
  int master, slave;
  struct termios t;
  struct winsize w = {33, 77, 0, 0}, is;
  MUST(openpty(&master, &slave, NULL, NULL, &w) == 0);
  tcgetattr(slave, &t);
  t.c_lflag &= ~(ICANON | ECHO), t.c_cc[VMIN] = 3, t.c_oflag &= ~OPOST;
  MUST(tcsetattr(slave, TCSANOW, &t) == 0);
  char name[100];
  MUST(ptsname_r(master, name, sizeof name) == 0);
  EACH_STEP(n) {
    char in[10];
    struct termios u;
    MUST(write(master, "abc", 3) == 3 && read(slave, in, 3) == 3 && memcmp(in, "abc", 3) == 0);
    MUST(write(slave, "de\n", 3) == 3 && read(master, in, 10) == 3 && memcmp(in, "de\n", 3) == 0);
    tcgetattr(slave, &u);
    MUST(u.c_lflag == t.c_lflag && u.c_cc[VMIN] == 3 && u.c_oflag == t.c_oflag);
    MUST(ioctl(master, TIOCGWINSZ, &is) == 0 && is.ws_row == 33 && is.ws_col == 77);
    MUST(isatty(slave) && strcmp(ttyname(slave), name) == 0);
  }
}

static void title(void) {
  char** words = environ;
  (void)words;
  FILE* f = fopen("/proc/self/cmdline", "r");
  char line[4096];
  size_t length = fread(line, 1, sizeof line, f);
  fclose(f);
  char* start = getenv("BATTERY_NOT_THERE");
  MUST(start == NULL && length > 0);
  unsigned long begin;
  f = fopen("/proc/self/stat", "r");
  MUST(fgets(line, sizeof line, f) != NULL);
  fclose(f);
  char* p = strrchr(line, ')') + 2;
  for (int i = 3; i < 48; i++) p = strchr(p, ' ') + 1;
  begin = strtoul(p, NULL, 10);
  EACH_STEP(n) {
    memset((char*)begin, 0, length);
    snprintf((char*)begin, length, "my title %d", n);
    rest_ms(3);
    f = fopen("/proc/self/cmdline", "r");
    size_t is = fread(line, 1, sizeof line, f);
    fclose(f);
    char want[50];
    snprintf(want, sizeof want, "my title %d", n);
    MUST(is > 0 && strncmp(line, want, strlen(want)) == 0);
  }
}

PROGRAMS(P(settings), P(undumpable), P(limits), P(scheduling), P(filter), P(capabilities), P(users),
         P(namespaces), P(locales), P(libraries), P(coroutines), P(registers), P(in_its_place), P(clocks),
         P(terminal_pair), P(title))
