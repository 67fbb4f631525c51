// Does what it is told, line by line: after it has gone back, or was restarted, it can be asked what it is.
#define _GNU_SOURCE
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static unsigned char* page;
static int pair[2] = {-1, -1};
static void* mapped;
static char* shared;

static int is(const char* line, const char* word) { return strncmp(line, word, strlen(word)) == 0; }

int main(void) {
  char line[100];
  while (fgets(line, sizeof(line), stdin) != NULL) {
    if (is(line, "pid")) {
      printf("%d", getpid());
    } else if (is(line, "map")) {
      page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      memset(page, 0x5a, 4096);
      printf("mapped");
    } else if (is(line, "fill")) {
      memset(page, line[5], 4096);
      printf("filled");
    } else if (is(line, "sum")) {
      unsigned sum = 0;
      for (int i = 0; i < 4096; ++i) sum += page[i];
      printf("%u", sum);
    } else if (is(line, "stack")) {
      const stack_t stack = {mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 0,
                             65536};
      printf("%d", sigaltstack(&stack, NULL));
    } else if (is(line, "alternate")) {
      stack_t stack;
      sigaltstack(NULL, &stack);
      printf("%d %zu", stack.ss_flags, stack.ss_size);
    } else if (is(line, "child")) {  // lives on; what it is sent by the pair it sends back
      if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) return 1;
      const pid_t child = fork();
      if (child == 0) {
        close(pair[0]);
        for (ssize_t n; (n = read(pair[1], line, sizeof(line))) > 0;)
          if (write(pair[1], line, (size_t)n) != n) break;
        _exit(0);
      }
      close(pair[1]);
      printf("%d", child);
    } else if (is(line, "send")) {
      if (write(pair[0], "x", 1) != 1) return 1;
      printf("sent");
    } else if (is(line, "hear")) {
      char c = '?';
      const ssize_t n = read(pair[0], &c, 1);
      printf("%zd %c", n, c);
    } else if (is(line, "queue")) {  // 150 numbered messages, which nobody receives yet
      if (socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) != 0) return 1;
      int sent = 0;
      while (sent < 150 && send(pair[0], &sent, sizeof(sent), MSG_DONTWAIT) == sizeof(sent)) ++sent;
      printf("%d", sent);
    } else if (is(line, "sharer")) {  // a child that has all that we have
      const pid_t child = fork();
      if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) pause();
      }
      printf("%d", child);
    } else if (is(line, "options")) {
      int offset = 0, credentials = 0;
      socklen_t length = sizeof(int);
      getsockopt(pair[1], SOL_SOCKET, SO_PEEK_OFF, &offset, &length);
      getsockopt(pair[1], SOL_SOCKET, SO_PASSCRED, &credentials, &length);
      printf("%d %d", offset, credentials);
    } else if (is(line, "receive")) {
      int received = 0, number = 0;
      while (recv(pair[1], &number, sizeof(number), MSG_DONTWAIT) == sizeof(number) && number == received)
        ++received;
      printf("%d", received);
    } else if (is(line, "narrow")) {  // a TCP connection whose receiving end gets a small room later
      const int listener = socket(AF_INET, SOCK_STREAM, 0), room = 4096;
      struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
      socklen_t length = sizeof(name);
      char c = 0;
      pair[0] = socket(AF_INET, SOCK_STREAM, 0);
      if (bind(listener, (struct sockaddr*)&name, length) != 0 || listen(listener, 1) != 0 ||
          getsockname(listener, (struct sockaddr*)&name, &length) != 0 ||
          connect(pair[0], (struct sockaddr*)&name, length) != 0)
        return 1;
      pair[1] = accept(listener, NULL, NULL);
      if (write(pair[0], &c, 1) != 1 || read(pair[1], &c, 1) != 1) return 1;
      printf("%d", close(listener) | setsockopt(pair[1], SOL_SOCKET, SO_RCVBUF, &room, sizeof(room)));
    } else if (is(line, "flood")) {  // as much as both ends hold
      static const char bytes[4096];
      const int window = 3000;
      struct tcp_info info = {0};
      long sent = 0;
      for (ssize_t n; (n = send(pair[0], bytes, sizeof(bytes), MSG_DONTWAIT)) > 0;) sent += n;
      // The sender has found no room a few times, and looks again in half a second at the earliest.
      for (socklen_t length = sizeof(info); info.tcpi_backoff < 2; usleep(1000))
        if (getsockopt(pair[0], IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return 1;
      if (setsockopt(pair[1], IPPROTO_TCP, TCP_WINDOW_CLAMP, &window, sizeof(window)) != 0) return 1;
      printf("%d", sent > 0);
    } else if (is(line, "room")) {  // of the end that receives: size, is it chosen, SO_RCVLOWAT, window
      const int names[][2] = {{SOL_SOCKET, SO_RCVBUF},
                              {SOL_SOCKET, 72},
                              {SOL_SOCKET, SO_RCVLOWAT},
                              {IPPROTO_TCP, TCP_WINDOW_CLAMP}};
      for (int i = 0; i < 4; ++i) {
        int value = -1;
        socklen_t length = sizeof(value);
        getsockopt(pair[1], names[i][0], names[i][1], &value, &length);
        printf("%d ", value);
      }
    } else if (is(line, "double")) {
      printf("%d", dup2(2, 100));
    } else if (is(line, "limit")) {  // soft or hard
      struct rlimit limit;
      getrlimit(RLIMIT_NOFILE, &limit);
      limit.rlim_cur = 50;
      if (is(line, "limit hard")) limit.rlim_max = 60;
      printf("%d %d", close(100), setrlimit(RLIMIT_NOFILE, &limit));
    } else if (is(line, "number")) {  // is that descriptor open?
      printf("%d", fcntl(100, F_GETFD));
    } else if (is(line, "library")) {  // the file is mapped
      line[strcspn(line, "\n")] = 0;
      const int fd = open(line + 8, O_RDONLY);
      mapped = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0);
      printf("%d", mapped == MAP_FAILED ? -1 : close(fd));
    } else if (is(line, "open")) {  // a file that it will close
      line[strcspn(line, "\n")] = 0;
      printf("%d", open(line + 5, O_RDONLY));
    } else if (is(line, "close")) {
      printf("%d", close(atoi(line + 6)));
    } else if (is(line, "forget")) {
      printf("%d", munmap(mapped, 4096));
    } else if (is(line, "timers")) {  // 600 that never expire, deleted numbers left out
      struct sigevent none = {.sigev_notify = SIGEV_NONE};
      timer_t timer;
      int made = 0;
      while (made < 600 && timer_create(CLOCK_MONOTONIC, &none, &timer) == 0) ++made;
      printf("%d", made);
    } else if (is(line, "flight")) {  // 40 files that are nowhere but in messages, more than the limit leaves
                                      // room for
      struct rlimit limit = {45, 1024};
      if (setrlimit(RLIMIT_NOFILE, &limit) != 0 || socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) != 0) return 1;
      int sent = 0;
      for (; sent < 40; ++sent) {
        const int file = memfd_create("sent", MFD_CLOEXEC);
        union {
          char bytes[CMSG_SPACE(sizeof(int))];
          struct cmsghdr header;
        } control = {{0}};
        struct iovec part = {&sent, sizeof(sent)};
        struct msghdr message = {
            .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(&control.header), &file, sizeof(file));
        if (sendmsg(pair[0], &message, MSG_DONTWAIT) < 0 || close(file) != 0) break;
      }
      printf("%d", sent);
    } else if (is(line, "land")) {  // what was sent is received: how many files?
      struct rlimit limit = {1024, 1024};
      if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return 1;
      int files = 0;
      for (;;) {
        union {
          char bytes[CMSG_SPACE(sizeof(int))];
          struct cmsghdr header;
        } control = {{0}};
        int number;
        struct iovec part = {&number, sizeof(number)};
        struct msghdr message = {
            .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
        if (recvmsg(pair[1], &message, MSG_DONTWAIT) < 0) break;
        files += message.msg_controllen != 0 && control.header.cmsg_type == SCM_RIGHTS;
      }
      printf("%d", files);
    } else if (is(line, "shared")) {  // which it may only read, afterwards
      shared = mmap(NULL, 16 * 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
      memset(shared, 'A', 4096);
      printf("%d", mprotect(shared, 16 * 4096, PROT_READ));
    } else if (is(line, "views")) {  // one by which it may never be written, one by which it may
      char path[64];
      const int file = pair[0] = memfd_create("two", 0);
      snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
      const int reading = open(path, O_RDONLY);
      shared = ftruncate(file, 4096) == 0 ? mmap(NULL, 4096, PROT_READ, MAP_SHARED, reading, 0) : MAP_FAILED;
      page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
      if (shared == MAP_FAILED || page == MAP_FAILED || close(reading) != 0) return 1;
      memset(page, 'A', 4096);
      printf("%d", shared[0]);
    } else if (is(line, "hide")) {
      printf("%d", close(pair[0]));
    } else if (is(line, "stamp")) {  // by the descriptor, seen in the mapping
      const ssize_t n = write(pair[0], "Z", 1);
      printf("%zd %c", n, shared[0]);
    } else if (is(line, "change")) {
      const int writable = mprotect(shared, 16 * 4096, PROT_READ | PROT_WRITE);
      memset(shared, 'B', 4096);
      shared[8 * 4096] = 'B';
      printf("%d %d", writable, mprotect(shared, 16 * 4096, PROT_READ));
    } else if (is(line, "read")) {
      printf("%d %d", shared[0], shared[8 * 4096]);
    } else if (is(line, "pipe")) {  // full, and larger than usual
      static char bytes[256 << 10];
      if (pipe(pair) != 0 || fcntl(pair[1], F_SETPIPE_SZ, sizeof(bytes)) < 0) return 1;
      printf("%zd", write(pair[1], bytes, sizeof(bytes)));
    } else if (is(line, "empty")) {
      static char bytes[256 << 10];
      size_t had = 0;
      for (int waiting = 0; ioctl(pair[0], FIONREAD, &waiting) == 0 && waiting > 0;)
        had += (size_t)read(pair[0], bytes, sizeof(bytes));
      printf("%zu", had);
    } else if (is(line, "shrink")) {
      printf("%d", fcntl(pair[1], F_SETPIPE_SZ, 4096));
    } else if (is(line, "tcp")) {  // both ends are ours
      struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
      socklen_t length = sizeof(at);
      const int listener = socket(AF_INET, SOCK_STREAM, 0);
      pair[0] = socket(AF_INET, SOCK_STREAM, 0);
      if (bind(listener, (struct sockaddr*)&at, length) != 0 || listen(listener, 1) != 0 ||
          getsockname(listener, (struct sockaddr*)&at, &length) != 0 ||
          connect(pair[0], (struct sockaddr*)&at, length) != 0)
        return 1;
      pair[1] = accept(listener, NULL, NULL);
      printf("%d", close(listener));
    } else if (is(line, "take")) {
      char c = '?';
      const ssize_t n = read(pair[1], &c, 1);
      printf("%zd %c", n, c);
    } else if (is(line, "nobody")) {
      if (setgid(65534) != 0 || setuid(65534) != 0) return 1;
      printf("%d", (int)getuid());
    } else if (is(line, "fork")) {
      const pid_t child = fork();
      if (child == 0) _exit(7);
      int status = 0;
      waitpid(child, &status, 0);
      printf("%d", WEXITSTATUS(status));
    } else {
      break;
    }
    printf("\n");
    fflush(stdout);
  }
  return 0;
}
