// Files: offsets, flags, locks, mappings, files without a name, directories that are being read, buffers of
// stdio.
#include <dirent.h>
#include <sys/fanotify.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include "battery.h"

static void append(void) {
  int fd = open("log", O_RDWR | O_CREAT | O_APPEND, 0600), again = dup(fd), other = open("log", O_RDONLY);
  for (int n = 0; step_of(n); n++) {
    char line[32], seen[32];
    int length = snprintf(line, sizeof line, "entry %05d\n", n);
    MUST(write(n % 2 ? fd : again, line, length) == length);
    MUST(lseek(fd, 0, SEEK_CUR) == 12 * (n + 1) && lseek(again, 0, SEEK_END) == 12 * (n + 1));
    MUST(read(other, seen, sizeof seen) == 12 && memcmp(line, seen, 12) == 0);
    for (int i = 0; i <= n; i++) {
      MUST(pread(other, seen, 12, 12 * i) == 12);
      MUST(atoi(seen + 6) == i);
    }
  }
}

static void direct(void) {
  int fd = open("direct", O_RDWR | O_CREAT | O_DIRECT | O_DSYNC, 0600);
  if (fd < 0) fd = open("direct", O_RDWR | O_CREAT | O_DSYNC, 0600);
  uint32_t* block = aligned_alloc(4096, 8192);
  uint32_t* in = aligned_alloc(4096, 8192);
  EACH_STEP(n) {
    for (int i = 0; i < 2048; i++) block[i] = mixed(n * 5000 + i);
    MUST(write(fd, block, 8192) == 8192);
    int at = (int)(mixed(n) % (n + 1));
    MUST(pread(fd, in, 8192, at * 8192L) == 8192);
    for (int i = 0; i < 2048; i++) MUST(in[i] == mixed(at * 5000 + i));
    MUST(fcntl(fd, F_GETFL) & O_DSYNC);
  }
}

static void mapped(void) {
  int fd = open("map", O_RDWR | O_CREAT, 0600);
  MUST(ftruncate(fd, 20 * 4096 + 100) == 0);
  uint32_t* shared = mmap(NULL, 21 * 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  uint32_t* private = mmap(NULL, 21 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
  uint32_t* second = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 8192);
  private[0] = 1;
  EACH_STEP(n) {
    for (int i = 0; i < 20; i++) shared[i * 1024 + 1] = mixed(n + i);
    private[2] = n;
    MUST(second[1] == mixed(n + 2));
    uint32_t x;
    MUST(pread(fd, &x, 4, 5 * 4096 + 4) == 4 && x == mixed(n + 5));
    MUST(private[0] == 1 && private[2] == (uint32_t)n && shared[0] == 0 &&
         private[4 * 1024 + 1] == mixed(n + 4));
    if (n % 9 == 0) msync(shared, 21 * 4096, MS_SYNC);
  }
}

static void sparse(void) {
  int fd = open("sparse", O_RDWR | O_CREAT, 0600);
  const off_t gap = 1L << 30;
  EACH_STEP(n) {
    char block[4096], in[4096];
    memset(block, n + 1, sizeof block);
    MUST(pwrite(fd, block, 4096, n * gap) == 4096);
    MUST(lseek(fd, n * gap + 4096, SEEK_DATA) < 0 && errno == ENXIO);
    for (int i = n - 2; i <= n; i++)
      if (i >= 0) MUST(pread(fd, in, 4096, i * gap) == 4096 && in[5] == (char)(i + 1));
    if (n >= 3) MUST(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (n - 3) * gap, 4096) == 0);
    if (n >= 3) MUST(pread(fd, in, 4096, (n - 3) * gap) == 4096 && in[5] == 0);
    struct stat s;
    fstat(fd, &s);
    MUST(s.st_size == n * gap + 4096 && s.st_blocks < 4000);
    MUST(fallocate(fd, FALLOC_FL_KEEP_SIZE, n * gap, 8192) == 0);
  }
}

static void leases(void) {
  int r = open("r", O_RDWR | O_CREAT, 0600), w = open("w", O_RDWR | O_CREAT, 0600);
  close(r), r = open("r", O_RDONLY);
  MUST(fcntl(r, F_SETLEASE, F_RDLCK) == 0 && fcntl(w, F_SETLEASE, F_WRLCK) == 0);
  EACH_STEP(n) {
    MUST(fcntl(r, F_GETLEASE) == F_RDLCK && fcntl(w, F_GETLEASE) == F_WRLCK);
    MUST(pwrite(w, &n, 4, 0) == 4);
  }
}

static int locked(int fd, int command, int type, off_t at, off_t length) {
  struct flock l = {.l_type = type, .l_start = at, .l_len = length};
  MUST(fcntl(fd, command, &l) == 0);
  return l.l_type;
}

static void locks(void) {
  int a = open("f", O_RDWR | O_CREAT, 0600), b = open("f", O_RDWR), c = open("g", O_RDWR | O_CREAT, 0600),
      d = open("g", O_RDWR);
  MUST(ftruncate(a, 1000) == 0);
  MUST(flock(c, LOCK_EX) == 0);
  struct flock own = {.l_type = F_WRLCK, .l_start = 900, .l_len = 0};
  MUST(fcntl(c, F_SETLK, &own) == 0);
  EACH_STEP(n) {
    off_t at = n * 10;
    struct flock l = {.l_type = F_WRLCK, .l_start = at, .l_len = 5};
    MUST(fcntl(a, F_OFD_SETLK, &l) == 0);
    l.l_type = F_RDLCK, l.l_start = at + 5;
    MUST(fcntl(a, F_OFD_SETLK, &l) == 0);
    for (off_t i = n > 3 ? at - 30 : 0; i <= at; i += 10) {
      MUST(locked(b, F_OFD_GETLK, F_WRLCK, i, 5) == F_WRLCK);
      MUST(locked(b, F_OFD_GETLK, F_RDLCK, i + 5, 5) == F_UNLCK);
      MUST(locked(b, F_OFD_GETLK, F_WRLCK, i + 5, 5) == F_RDLCK);
    }
    MUST(flock(d, LOCK_SH | LOCK_NB) < 0 && errno == EWOULDBLOCK);
    MUST(locked(d, F_OFD_GETLK, F_RDLCK, 950, 1) == F_WRLCK);
  }
}

static void renamed(void) {
  int a = open("first", O_RDWR | O_CREAT, 0600), b = open("gone", O_RDWR | O_CREAT, 0600),
      c = open("kept", O_RDWR | O_CREAT, 0600);
  MUST(rename("first", "second") == 0 && unlink("gone") == 0 && link("kept", "alias") == 0 &&
       unlink("kept") == 0);
  int gone2 = open("/proc/self/fd/4", O_RDONLY);
  MUST(b == 4 && gone2 >= 0);
  EACH_STEP(n) {
    char in[8];
    MUST(write(a, "abcdefg", 7) == 7 && write(b, "hijklmn", 7) == 7 && write(c, "opqrstu", 7) == 7);
    MUST(read(gone2, in, 7) == 7 && memcmp(in, "hijklmn", 7) == 0);
    struct stat s, t;
    fstat(a, &s);
    MUST(stat("second", &t) == 0 && s.st_ino == t.st_ino && s.st_size == 7 * (n + 1));
    fstat(b, &s);
    MUST(s.st_nlink == 0 && s.st_size == 7 * (n + 1));
    fstat(c, &s);
    MUST(stat("alias", &t) == 0 && s.st_ino == t.st_ino && s.st_size == 7 * (n + 1));
  }
}

static void unnamed(void) {
  int fd = open(".", O_TMPFILE | O_RDWR, 0640), twin = dup(fd);
  FILE* temporary = tmpfile();
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  EACH_STEP(n) {
    char in[16];
    MUST(write(n % 2 ? fd : twin, "0123456789", 10) == 10);
    MUST(pread(twin, in, 10, n * 10) == 10 && memcmp(in, "0123456789", 10) == 0);
    fprintf(temporary, "%d\n", n);
    struct stat s;
    fstat(fd, &s);
    MUST(s.st_nlink == 0 && (s.st_mode & 0777) == 0640 && s.st_size == 10 * (n + 1));
  }
  MUST(linkat(AT_FDCWD, path, AT_FDCWD, "named", AT_SYMLINK_FOLLOW) == 0);
  rewind(temporary);
  int x;
  for (int i = 0; i < STEPS; i++) MUST(fscanf(temporary, "%d", &x) == 1 && x == i);
}

static void directory(void) {
  MUST(mkdir("d", 0700) == 0 && mkdir("d/sub", 0700) == 0);
  char name[32];
  for (int i = 0; i < 4 * STEPS - 3; i++) {
    snprintf(name, sizeof name, "d/some-file-%05d", i);
    close(open(name, O_WRONLY | O_CREAT, 0600));
  }
  DIR* d = opendir("d");
  int raw = open("d", O_RDONLY | O_DIRECTORY), path = open("d/sub", O_PATH);
  MUST(chdir("d/sub") == 0);
  long sum = 0;
  EACH_STEP(n) {
    for (int i = 0; i < 4; i++) {
      struct dirent* e = readdir(d);
      MUST(e != NULL);
      sum += e->d_type == DT_REG ? atoi(e->d_name + 10) : 1000000;
    }
    char here[4096];
    MUST(getcwd(here, sizeof here) != NULL && strstr(here, "/d/sub") != NULL);
    MUST(faccessat(path, "../some-file-00001", F_OK, 0) == 0 &&
         faccessat(raw, "some-file-00002", F_OK, 0) == 0);
    if (n % 20 == 10) {
      long at = telldir(d);
      struct dirent* one = readdir(d);
      char first[256];
      strcpy(first, one->d_name);
      seekdir(d, at);
      MUST(strcmp(readdir(d)->d_name, first) == 0);
      seekdir(d, at);
    }
  }
  MUST(readdir(d) == NULL);
  long count = 4 * STEPS - 3;
  MUST(sum == count * (count - 1) / 2 + 3 * 1000000L);
}

static void watched(void) {
  mkdir("w", 0700);
  int fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
  int d = inotify_add_watch(fd, "w", IN_CREATE | IN_DELETE | IN_MOVE);
  close(open("f", O_WRONLY | O_CREAT, 0600));
  int f = inotify_add_watch(fd, "f", IN_MODIFY);
  EACH_STEP(n) {
    char name[32], buffer[4096] __attribute__((aligned(8)));
    snprintf(name, sizeof name, "w/%d", n);
    int made = open(name, O_WRONLY | O_CREAT, 0600);
    close(made);
    made = open("f", O_WRONLY);
    MUST(write(made, "x", 1) == 1);
    close(made);
    unlink(name);
    long length = read(fd, buffer, sizeof buffer);
    int seen = 0;
    for (long at = 0; at < length;) {
      struct inotify_event* e = (void*)(buffer + at);
      if (e->wd == d && e->mask == IN_CREATE) MUST(strcmp(e->name, name + 2) == 0 && seen == 0);
      if (e->wd == f) MUST(e->mask == IN_MODIFY && seen == 1);
      if (e->wd == d && e->mask == IN_DELETE) MUST(seen == 2);
      seen++;
      at += sizeof *e + e->len;
    }
    MUST(seen == 3);
  }
}

static void filesystem_watched(void) {
  int fd = fanotify_init(FAN_CLASS_NOTIF | FAN_NONBLOCK | FAN_REPORT_DFID_NAME, O_RDONLY);
  mkdir("w", 0700);
  if (fd < 0 || fanotify_mark(fd, FAN_MARK_ADD, FAN_CREATE | FAN_DELETE | FAN_ONDIR | FAN_EVENT_ON_CHILD,
                              AT_FDCWD, "w") != 0) {
    say("not allowed");
    fd = -1;
  }
  EACH_STEP(n) {
    char name[32], buffer[4096] __attribute__((aligned(8)));
    snprintf(name, sizeof name, "w/%d", n);
    mkdir(name, 0700), rmdir(name);
    if (fd < 0) continue;
    long length = read(fd, buffer, sizeof buffer);
    MUST(length > 0);
    int seen = 0;
    for (struct fanotify_event_metadata* e = (void*)buffer; FAN_EVENT_OK(e, length);
         e = FAN_EVENT_NEXT(e, length))
      seen |= (int)e->mask;
    MUST((seen & (FAN_CREATE | FAN_DELETE)) == (FAN_CREATE | FAN_DELETE));
  }
}

static volatile int told;
static void tells(int number) { (void)number, told++; }
static void directory_notices(void) {
  mkdir("n", 0700);
  signal(SIGRTMIN + 1, tells);
  int fd = open("n", O_RDONLY | O_DIRECTORY);
  fcntl(fd, F_SETSIG, SIGRTMIN + 1);
  MUST(fcntl(fd, F_NOTIFY, DN_CREATE | DN_MULTISHOT) == 0);
  EACH_STEP(n) {
    close(openat(fd, "x", O_CREAT | O_WRONLY, 0600));
    unlinkat(fd, "x", 0);
    MUST(told == n + 1);
    MUST(fcntl(fd, F_GETSIG) == SIGRTMIN + 1);
  }
}

static void streams(void) {
  FILE* f = fopen("out", "w+");
  static char buffer[100000];
  setvbuf(f, buffer, _IOFBF, sizeof buffer);
  char* text = NULL;
  size_t size = 0;
  FILE* m = open_memstream(&text, &size);
  FILE* i = fopen("/etc/services", "r");
  FILE* r = fmemopen("several words in memory", 23, "r");
  char word[32];
  MUST(fscanf(r, "%31s", word) == 1 && ungetc('Q', r) == 'Q');
  long at = 0;
  EACH_STEP(n) {
    fprintf(f, "%d ", n), fprintf(m, "%d,", n);
    fflush(m);
    MUST(text[size - 1] == ',' && size == strlen(text));
    char line[256];
    MUST(ftell(i) == at && fgets(line, sizeof line, i) != NULL);
    at += (long)strlen(line);
    struct stat s;
    fstat(fileno(f), &s);
    MUST(s.st_size == 0);
  }
  MUST(fgetc(r) == 'Q' && fscanf(r, "%31s", word) == 1 && strcmp(word, "words") == 0);
  rewind(f);
  for (int k = 0, x; k < STEPS; k++) MUST(fscanf(f, "%d", &x) == 1 && x == k);
}

static void flags(void) {
  int p[2], a = open("a", O_RDWR | O_CREAT, 0600), path = open("/etc", O_PATH | O_DIRECTORY),
            zero = open("/dev/zero", O_RDONLY);
  MUST(pipe2(p, O_NONBLOCK) == 0);
  MUST(dup2(a, 900) == 900 && dup3(p[0], 901, O_CLOEXEC) == 901 && fcntl(a, F_DUPFD, 500) == 500);
  fcntl(p[0], F_SETOWN, -getpgrp()), fcntl(p[0], F_SETSIG, SIGRTMIN + 2);
  signal(SIGRTMIN + 2, SIG_IGN);
  fcntl(p[0], F_SETFL, O_NONBLOCK | O_ASYNC);
  struct f_owner_ex owner = {F_OWNER_TID, gettid()}, is;
  fcntl(p[1], F_SETOWN_EX, &owner);
  fcntl(p[1], F_SETPIPE_SZ, 16384);
  int random = open("/dev/urandom", O_RDONLY), self = open("/proc/self/status", O_RDONLY),
      full = open("/dev/full", O_WRONLY);
  EACH_STEP(n) {
    MUST(fcntl(900, F_GETFD) == 0 && fcntl(901, F_GETFD) == FD_CLOEXEC && fcntl(500, F_GETFD) == 0);
    MUST((fcntl(p[0], F_GETFL) & (O_NONBLOCK | O_ASYNC)) == (O_NONBLOCK | O_ASYNC) &&
         (fcntl(p[1], F_GETFL) & O_ASYNC) == 0);
    MUST(fcntl(p[0], F_GETOWN) == -getpgrp() && fcntl(901, F_GETSIG) == SIGRTMIN + 2);
    fcntl(p[1], F_GETOWN_EX, &is);
    MUST(is.type == F_OWNER_TID && is.pid == gettid() && fcntl(p[0], F_GETPIPE_SZ) == 16384);
    MUST(lseek(a, 10, SEEK_CUR) == 10 * (n + 1) && lseek(900, 0, SEEK_CUR) == 10 * (n + 1) &&
         lseek(500, 0, SEEK_CUR) == 10 * (n + 1));
    char c = 1, line[64];
    MUST(read(zero, &c, 1) == 1 && c == 0 && read(p[0], &c, 1) < 0 && errno == EAGAIN &&
         faccessat(path, "passwd", F_OK, 0) == 0);
    MUST(read(random, &c, 1) == 1 && write(full, &c, 1) < 0 && errno == ENOSPC);
    MUST(pread(self, line, 10, 0) == 10 && memcmp(line, "Name:\tbatt", 10) == 0);
  }
}

static void rewritten(void) {
  int fd = open("table", O_RDWR | O_CREAT, 0600), copy = open("copy", O_RDWR | O_CREAT, 0600);
  uint32_t rows[1024] = {0}, in[1024];
  MUST(write(fd, rows, sizeof rows) == sizeof rows);
  EACH_STEP(n) {
    rows[mixed(n) % 1024]++;
    MUST(pwrite(fd, rows, sizeof rows, 0) == sizeof rows);
    if (n % 5 == 0) MUST(ftruncate(fd, 2048) == 0 && pwrite(fd, rows + 512, 2048, 2048) == 2048);
    MUST(pread(fd, in, sizeof in, 0) == sizeof in && memcmp(in, rows, sizeof in) == 0);
    off_t from = 0, to = 0;
    MUST(copy_file_range(fd, &from, copy, &to, sizeof rows, 0) == sizeof rows);
    MUST(pread(copy, in, sizeof in, 0) == sizeof in && memcmp(in, rows, sizeof in) == 0);
    long total = 0;
    for (int i = 0; i < 1024; i++) total += in[i];
    MUST(total == n + 1);
  }
}

PROGRAMS(P(append), P(direct), P(mapped), P(sparse), P(leases), P(locks), P(renamed), P(unnamed),
         P(directory), P(watched), P(filesystem_watched), P(directory_notices), P(streams), P(flags),
         P(rewritten))
