// Memory: what mmap, mremap, mprotect and madvise can do, and what refers to addresses.
#include <alloca.h>
#include <linux/userfaultfd.h>
#include <malloc.h>
#include <pthread.h>
#include <setjmp.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include "battery.h"

static char* map_of(size_t size, int protection, int more) {
  char* p = mmap(NULL, size, protection, MAP_PRIVATE | MAP_ANONYMOUS | more, -1, 0);
  MUST(p != MAP_FAILED);
  return p;
}
#define RW (PROT_READ | PROT_WRITE)

static void moved(void) {
  size_t pages = 1;
  uint32_t* p = (void*)map_of(4096, RW, 0);
  p[0] = mixed(0);
  EACH_STEP(n) {
    size_t more = pages + 1 + mixed(n) % 40;
    p = mremap(p, pages * 4096, more * 4096, MREMAP_MAYMOVE);
    MUST(p != MAP_FAILED);
    for (size_t i = pages; i < more; i++) MUST(p[i * 1024] == 0), p[i * 1024] = mixed((uint32_t)i);
    pages = more;
    for (size_t i = 0; i < pages; i++) MUST(p[i * 1024] == mixed((uint32_t)i));
    char* other = map_of(pages * 4096, PROT_NONE, MAP_NORESERVE);
    p = mremap(p, pages * 4096, pages * 4096, MREMAP_MAYMOVE | MREMAP_FIXED, other);
    MUST((char*)p == other);
    if (pages > 200) p = mremap(p, pages * 4096, 100 * 4096, 0), pages = 100;
  }
}

static int protection_at(void* where) {
  FILE* f = fopen("/proc/self/maps", "r");
  char line[512];
  while (fgets(line, sizeof line, f)) {
    unsigned long low, high;
    char how[8];
    if (sscanf(line, "%lx-%lx %7s", &low, &high, how) == 3 && (unsigned long)where >= low &&
        (unsigned long)where < high) {
      fclose(f);
      return (how[0] == 'r' ? PROT_READ : 0) | (how[1] == 'w' ? PROT_WRITE : 0) |
             (how[2] == 'x' ? PROT_EXEC : 0);
    }
  }
  fclose(f);
  return -1;
}

static void protections(void) {
  const int kinds[] = {PROT_NONE, PROT_READ, RW, PROT_READ | PROT_EXEC};
  char* p = map_of(400 * 4096, RW, 0);
  for (int i = 0; i < 400; i++) p[i * 4096] = (char)i;
  int is[400];
  for (int i = 0; i < 400; i++) is[i] = kinds[i % 4], mprotect(p + i * 4096, 4096, is[i]);
  EACH_STEP(n) {
    int at = (int)(mixed(n) % 400);
    is[at] = kinds[mixed(n + 1000) % 4];
    MUST(mprotect(p + at * 4096, 4096, is[at]) == 0);
    for (int i = n % 20; i < 400; i += 20) {
      MUST(protection_at(p + i * 4096) == is[i]);
      if (is[i] & PROT_READ) MUST(p[i * 4096] == (char)i);
    }
  }
}

static int flag_at(void* where, const char* flag) {
  FILE* f = fopen("/proc/self/smaps", "r");
  char line[1024], *found = NULL;
  int inside = 0;
  while (fgets(line, sizeof line, f)) {
    unsigned long low, high;
    if (sscanf(line, "%lx-%lx ", &low, &high) == 2)
      inside = (unsigned long)where >= low && (unsigned long)where < high;
    if (inside && strncmp(line, "VmFlags:", 8) == 0) {
      found = strstr(line, flag);
      break;
    }
  }
  fclose(f);
  return found != NULL;
}

static void advice(void) {
  const int kinds[] = {MADV_DONTFORK, MADV_DONTDUMP,   MADV_WIPEONFORK, MADV_MERGEABLE,
                       MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_RANDOM,     MADV_SEQUENTIAL};
  const char* flags[] = {" dc", " dd", " wf", " mg", " hg", " nh", " rr", " sr"};
  char* p[8];
  for (int i = 0; i < 8; i++)
    p[i] = map_of(1 << 20, RW, 0), MUST(madvise(p[i], 1 << 20, kinds[i]) == 0 || errno == EINVAL);
  int had[8];
  for (int i = 0; i < 8; i++) had[i] = flag_at(p[i], flags[i]);
  char* dropped = map_of(64 * 4096, RW, 0);
  EACH_STEP(n) {
    for (int i = 0; i < 8; i++) MUST(flag_at(p[i], flags[i]) == had[i]), p[i][n * 4096] = (char)n;
    memset(dropped, 9, 64 * 4096);
    MUST(madvise(dropped + 4096, 8 * 4096, MADV_DONTNEED) == 0);
    MUST(dropped[0] == 9 && dropped[4096] == 0 && dropped[8 * 4096] == 0 && dropped[9 * 4096] == 9);
    MUST(madvise(dropped + 20 * 4096, 4 * 4096, MADV_FREE) == 0);
    MUST(dropped[20 * 4096] == 9 || dropped[20 * 4096] == 0);
  }
}

static void huge(void) {
  char* h = mmap(NULL, 2 << 20, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
  char* t = map_of(16 << 20, RW, 0);
  t = (char*)(((uintptr_t)t + (2 << 20) - 1) & ~((2ul << 20) - 1));
  madvise(t, 8 << 20, MADV_HUGEPAGE);
  EACH_STEP(n) {
    for (int i = 0; i < 8 << 20; i += 65536) t[i + n] = (char)(i / 65536 + n);
    for (int i = 0; i < 8 << 20; i += 65536) MUST(t[i + n / 2] == (char)(i / 65536 + n / 2));
    if (h != MAP_FAILED) h[n * 4096] = (char)n, MUST(h[n / 2 * 4096] == (char)(n / 2));
  }
}

static void sealed(void) {
  int a = memfd_create("a", MFD_ALLOW_SEALING | MFD_CLOEXEC), b = memfd_create("b", MFD_ALLOW_SEALING),
      c = memfd_create("c", 0);
  MUST(ftruncate(a, 8192) == 0 && ftruncate(b, 8192) == 0 && pwrite(a, "sealed", 6, 4096) == 6);
  char* writes = mmap(NULL, 8192, RW, MAP_SHARED, b, 0);
  MUST(fcntl(a, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
  MUST(fcntl(b, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK) == 0);
  char* reads = mmap(NULL, 8192, PROT_READ, MAP_SHARED, a, 0);
  EACH_STEP(n) {
    MUST(fcntl(a, F_GET_SEALS) == (F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL));
    MUST(fcntl(b, F_GET_SEALS) == (F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK) &&
         fcntl(c, F_GET_SEALS) == F_SEAL_SEAL);
    MUST(pwrite(a, "x", 1, 0) < 0 && errno == EPERM && pwrite(b, "x", 1, 0) < 0 && errno == EPERM &&
         ftruncate(a, 100) < 0);
    writes[n] = (char)n;
    char in;
    MUST(pread(b, &in, 1, n) == 1 && in == (char)n && memcmp(reads + 4096, "sealed", 6) == 0);
    MUST(ftruncate(b, 8192 + 4096 * (n + 1)) == 0 && write(c, &n, 4) == 4);
    MUST(lseek(c, 0, SEEK_CUR) == 4 * (n + 1));
  }
}

static int uffd;
static void* serves(void* unused) {
  static char page[4096] __attribute__((aligned(4096)));
  for (;;) {
    struct pollfd p = {uffd, POLLIN, 0};
    poll(&p, 1, -1);
    struct uffd_msg m;
    if (read(uffd, &m, sizeof m) != sizeof m) continue;
    if (m.event != UFFD_EVENT_PAGEFAULT) continue;
    memset(page, 'u', sizeof page);
    struct uffdio_copy copy = {.dst = m.arg.pagefault.address & ~4095ul, .src = (uintptr_t)page, .len = 4096};
    ioctl(uffd, UFFDIO_COPY, &copy);
  }
  return unused;
}

static void own_faults(void) {
  uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
  MUST(uffd >= 0);
  struct uffdio_api api = {.api = UFFD_API};
  MUST(ioctl(uffd, UFFDIO_API, &api) == 0);
  char* p = map_of(STEPS * 4096, RW, 0);
  struct uffdio_register r = {.range = {(uintptr_t)p, STEPS * 4096}, .mode = UFFDIO_REGISTER_MODE_MISSING};
  MUST(ioctl(uffd, UFFDIO_REGISTER, &r) == 0);
  pthread_t t;
  pthread_create(&t, NULL, serves, NULL);
  EACH_STEP(n) {
    MUST(p[n * 4096 + 5] == 'u');
    p[n * 4096] = (char)n;
    for (int i = 0; i <= n; i++) MUST(p[i * 4096] == (char)i);
  }
}

static long __attribute__((noinline)) deep(int n) {
  volatile char room[3000];
  room[0] = (char)n;
  room[2999] = 1;
  return n == 0 ? 0 : deep(n - 1) + room[2999] + (room[0] == (char)n);
}

static void stacks_grow(void) {
  // A hole that is smaller than the gap below a stack: nobody is given it.
  char* far = map_of(64 << 20, PROT_NONE, MAP_NORESERVE);
  munmap(far + (32 << 20) - 100 * 4096, 102 * 4096);
  char* p = mmap(far + (32 << 20), 8192, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN | MAP_FIXED, -1, 0);
  MUST(p != MAP_FAILED);
  EACH_STEP(n) {
    MUST(deep(20 + n * 20) == 2L * (20 + n * 20));
    volatile char* low = p - n * 4096;
    *low = (char)n;
    for (int i = 0; i <= n; i++) MUST(p[-i * 4096] == (char)i);
    char* a = alloca(10000);
    memset(a, n, 10000);
    MUST(a[9999] == (char)n);
  }
}

static sigjmp_buf caught;
static void catches(int number) { siglongjmp(caught, number); }

// Protection keys: what a key forbids stays forbidden, and keys stay taken.
static void keys_of(int forbids) {
  struct sigaction a = {.sa_handler = catches};
  sigaction(SIGSEGV, &a, NULL);
  int key = pkey_alloc(0, 0), second = pkey_alloc(0, forbids);
  if (key < 0 || second < 0) say("no keys");
  char* p = map_of(3 * 4096, RW, 0);
  memset(p, 'k', 3 * 4096);
  if (key >= 0) MUST(pkey_mprotect(p, 4096, RW, key) == 0);
  if (second >= 0) MUST(pkey_mprotect(p + 4096, 4096, RW, second) == 0);
  volatile int n = 0;
  for (; step_of(n); n++) {
    p[0] = (char)n, p[2 * 4096] = (char)n;
    if (second < 0) continue;
    MUST(pkey_get(second) == forbids && pkey_get(key) == 0);
    // The handler has the rights of a new thread until it jumps out of itself.
    volatile int reached = 0;
    if (sigsetjmp(caught, 1) == 0) p[4096] = 1, reached = 1;
    pkey_set(second, forbids), pkey_set(key, 0);
    MUST(!reached);
    MUST(pkey_mprotect(p + 2 * 4096, 4096, RW, key) == 0 && p[2 * 4096] == (char)n &&
         p[2 * 4096 + 1] == 'k' && p[1] == 'k');
  }
  if (second < 0) return;
  pkey_set(second, 0);
  for (int i = 0; i < 4096; i++) MUST(p[4096 + i] == 'k');
  int last = pkey_alloc(0, 0);
  say("%d %d %d", key, second, last);
}
static void keys_of_writing(void) { keys_of(PKEY_DISABLE_WRITE); }
static void keys_of_access(void) { keys_of(PKEY_DISABLE_ACCESS); }

// Each thread has rights of its own; beside memory for which the kernel takes a key by itself.
struct keyed {
  char* memory[3];
  int key, questions[2], answers[2];
};
static void* may_not_write(void* of) {
  struct keyed* k = of;
  pkey_set(k->key, PKEY_DISABLE_WRITE);
  for (char n; read(k->questions[0], &n, 1) == 1;) {
    for (int i = 0; i < 3; i++) {
      MUST(k->memory[i][0] == n);
      MUST(syscall(SYS_getrandom, k->memory[i] + 8, 1, 0) == -1 && errno == EFAULT);
    }
    MUST(pkey_get(k->key) == PKEY_DISABLE_WRITE);
    MUST(write(k->answers[1], &n, 1) == 1);
  }
  return NULL;
}
static void keys_of_threads(void) {
  struct keyed k;
  MUST(pipe(k.questions) == 0 && pipe(k.answers) == 0);
  map_of(4096, PROT_EXEC, 0);
  if ((k.key = pkey_alloc(0, 0)) < 0) return (void)say("no keys");
  int file = memfd_create("keyed", 0);
  MUST(ftruncate(file, 4096) == 0);
  k.memory[0] = map_of(4096, RW, 0);
  k.memory[1] = mmap(NULL, 4096, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  k.memory[2] = mmap(NULL, 4096, RW, MAP_SHARED, file, 0);
  for (int i = 0; i < 3; i++) MUST(pkey_mprotect(k.memory[i], 4096, i == 1 ? PROT_WRITE : RW, k.key) == 0);
  pthread_t other;
  MUST(pthread_create(&other, NULL, may_not_write, &k) == 0);
  EACH_STEP(n) {
    char is = (char)n, answer;
    for (int i = 0; i < 3; i++) k.memory[i][0] = is;
    MUST(syscall(SYS_getrandom, k.memory[2] + 16, 1, 0) == 1);
    MUST(write(k.questions[1], &is, 1) == 1 && read(k.answers[0], &answer, 1) == 1 && answer == is);
  }
  close(k.questions[1]);
  MUST(pthread_join(other, NULL) == 0);
  say("%d", k.key);
}

static void guards(void) {
  struct sigaction a = {.sa_handler = catches};
  sigaction(SIGSEGV, &a, NULL);
  char* p = map_of(16 * 4096, RW, 0);
  int guard = madvise(p + 4096, 8192, 102) == 0, seal;
  char* s = map_of(4096, PROT_READ, 0);
  seal = syscall(462, s, 4096, 0) == 0;
  say("guard %d seal %d", guard, seal);
  volatile int n = 0;
  for (; step_of(n); n++) {
    p[0] = p[3 * 4096] = (char)n;
    if (guard && sigsetjmp(caught, 1) == 0) p[4096 + n] = 1, MUST(0);
    if (guard && sigsetjmp(caught, 1) == 0) p[2 * 4096 + n] = 1, MUST(0);
    if (seal) MUST(mprotect(s, 4096, RW) < 0 && errno == EPERM);
    MUST(p[0] == (char)n && p[3 * 4096] == (char)n);
  }
}

static void* allocates(void* which) {
  uint32_t* blocks[200] = {0};
  uint32_t sizes[200] = {0};
  EACH_STEP(n) {
    for (int i = 0; i < 300; i++) {
      uint32_t r = mixed(n * 300 + i + 77 * (uint32_t)(long)which), at = r % 200;
      for (uint32_t k = 0; k < sizes[at]; k++) MUST(blocks[at][k] == mixed(at + k));
      sizes[at] = mixed(r) % (r % 30 ? 300 : 60000);
      blocks[at] = r % 3 ? realloc(blocks[at], sizes[at] * 4) : (free(blocks[at]), malloc(sizes[at] * 4));
      for (uint32_t k = 0; k < sizes[at]; k++) blocks[at][k] = mixed(at + k);
    }
    if (n % 20 == 0) malloc_trim(0);
  }
  return NULL;
}
static void heap(void) { allocates(NULL); }

static void locked_memory(void) {
  char* p = map_of(16 * 4096, RW, 0);
  char* q = map_of(16 * 4096, RW, 0);
  int ok = mlock(p, 8 * 4096) == 0, on_fault = mlock2(q, 8 * 4096, MLOCK_ONFAULT) == 0;
  say("%d %d", ok, on_fault);
  EACH_STEP(n) {
    p[n * 100] = q[n * 100] = 1;
    MUST(flag_at(p, " lo") == ok && flag_at(p + 9 * 4096, " lo") == 0 && flag_at(q, " lo") == on_fault);
  }
}

static void program_break(void) {
  long start = (long)sbrk(0);
  MUST((long)sbrk(4096) == start);
  EACH_STEP(n) {
    long at = (long)sbrk(5000);
    *(int*)at = n;
    if (n % 3 == 2) sbrk(-10000), MUST((long)sbrk(0) == start + 4096 + 5000L * (n / 3 + 1));
  }
}

static void reserved(void) {
  size_t space = 64ul << 30;
  char* p = map_of(space, PROT_NONE, MAP_NORESERVE);
  char* low = mmap(NULL, 4096, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
  MUST(low != MAP_FAILED && (uintptr_t)low < 1ul << 32);
  EACH_STEP(n) {
    char* part = p + n * (space / STEPS / 4096 * 4096);
    MUST(mprotect(part, 65536, RW) == 0);
    part[60000] = (char)n, low[n] = (char)n;
    for (int i = 0; i <= n; i++)
      MUST(p[i * (space / STEPS / 4096 * 4096) + 60000] == (char)i && low[i] == (char)i);
    MUST(mmap(part, 4096, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED &&
         errno == EEXIST);
  }
}

static void made_code(void) {
  int fd = memfd_create("code", MFD_CLOEXEC);
  MUST(ftruncate(fd, 4096) == 0);
  unsigned char* w = mmap(NULL, 4096, RW, MAP_SHARED, fd, 0);
  int (*x)(void) = (int (*)(void))(uintptr_t)mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_SHARED, fd, 0);
  unsigned char* both = (unsigned char*)map_of(4096, RW | PROT_EXEC, 0);
  EACH_STEP(n) {
    unsigned char code[] = {0xb8, (unsigned char)n, 1, 0, 0, 0xc3};
    memcpy(w, code, sizeof code);
    memcpy(both + n * 16, code, sizeof code);
    MUST(x() == 256 + n);
    for (int i = 0; i <= n; i++) MUST(((int (*)(void))(uintptr_t)(both + i * 16))() == 256 + i);
  }
}

static void secret(void) {
  int fd = (int)syscall(447, 0);
  char* p = NULL;
  if (fd >= 0 && ftruncate(fd, 4096) == 0) p = mmap(NULL, 4096, RW, MAP_SHARED, fd, 0);
  if (p == NULL || p == MAP_FAILED) say("none"), p = map_of(4096, RW, 0);
  EACH_STEP(n) {
    p[n] = (char)n;
    for (int i = 0; i <= n; i++) MUST(p[i] == (char)i);
  }
}

static void twice_mapped(void) {
  int fd = memfd_create("ring", 0);
  MUST(ftruncate(fd, 65536) == 0);
  char* p = map_of(131072, PROT_NONE, 0);
  MUST(mmap(p, 65536, RW, MAP_SHARED | MAP_FIXED, fd, 0) == p &&
       mmap(p + 65536, 65536, RW, MAP_SHARED | MAP_FIXED, fd, 0) == p + 65536);
  char* anonymous = mmap(NULL, 65536, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  char* shadow = mremap(anonymous, 0, 65536, MREMAP_MAYMOVE);
  MUST(shadow != MAP_FAILED && shadow != anonymous);
  EACH_STEP(n) {
    memset(p + 65536 - 200 + n, n, 100);
    if (n > 100) MUST(p[0] == (char)n);
    MUST(memcmp(p, p + 65536, 65536) == 0);
    shadow[n * 10] = (char)(n + 1);
    MUST(memcmp(anonymous, shadow, 65536) == 0 && anonymous[n * 10] == (char)(n + 1));
  }
}

PROGRAMS(P(moved), P(protections), P(advice), P(huge), P(sealed), P(own_faults), P(keys_of_writing),
         P(keys_of_access), P(keys_of_threads), P(stacks_grow), P(guards), P(heap), P(locked_memory),
         P(program_break), P(reserved), P(made_code), P(secret), P(twice_mapped))
