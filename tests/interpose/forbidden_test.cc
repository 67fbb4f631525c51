// Programs that forbid themselves to read the time stamp counter, or nearly all system calls: an interposed
// call does nothing besides that they have forbidden. Each test is in a child, which would be killed.
#include <gtest/gtest.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/interpose/stop_alone.h"

namespace ckpt::test {
namespace {

// Its status, as wait(2) gives it. exit(2) itself is allowed to all of them.
template <typename Work>
int in_child(Work work) {
  const pid_t child = fork();
  if (child == 0) {
    const int code = work();
    syscall(SYS_exit, code);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

int calls_with_time_limits(int in, int out) {
  pollfd p{in, POLLIN, 0};
  if (poll(&p, 1, 20) != 0) return 2;
  timespec limit{0, 10'000'000};
  if (ppoll(&p, 1, &limit, nullptr) != 0) return 3;
  if (nanosleep(&limit, nullptr) != 0) return 4;
  char byte = 'x';
  if (write(out, &byte, 1) != 1 || poll(&p, 1, 1000) != 1 || read(in, &byte, 1) != 1) return 5;
  return byte == 'x' ? 0 : 6;
}

TEST(Forbidden, Counter) {
  int p[2];
  ASSERT_EQ(pipe(p), 0);
  EXPECT_EQ(in_child([&] {
              if (prctl(PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0) != 0) return 1;
              return calls_with_time_limits(p[0], p[1]);
            }),
            0);
  EXPECT_EQ(in_child([&] {
              if (syscall(SYS_prctl, PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0) != 0) return 1;
              return calls_with_time_limits(p[0], p[1]);
            }),
            0);
}

// The call goes on as long as it would have.
TEST(Forbidden, CounterAndStops) {
  int p[2];
  ASSERT_EQ(pipe(p), 0);
  EXPECT_EQ(in_child([&] {
              install_stop_handler(1'000'000);
              const Storm storm(5'000'000);  // of a thread that may read the counter
              if (prctl(PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0) != 0) return 1;
              pollfd fd{p[0], POLLIN, 0};
              timespec begin, end;
              syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &begin);
              // A call that each stop begins anew never ends.
              long calls = 0;
              do {  // the thread of the storm may get no processor for as long as a call takes
                if (poll(&fd, 1, 300) != 0) return 2;
                ++calls;
              } while (stops() == 0);
              syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &end);
              const long took_ms =
                  (end.tv_sec - begin.tv_sec) * 1000 + (end.tv_nsec - begin.tv_nsec) / 1'000'000;
              return took_ms >= 299 * calls ? 0 : 3;
            }),
            0);
}

// What strict seccomp allows, on a socket with a time limit too: that is what an interposed read looks at the
// clock for.
int what_is_left(int in, int out) {
  char bytes[4] = "abc";
  if (write(out, bytes, 3) != 3 || read(in, bytes, 3) != 3) return 2;
  return bytes[0] == 'a' ? 0 : 3;
}

void limit(int fd) {
  timeval t{5, 0};
  ASSERT_EQ(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t)), 0);
  ASSERT_EQ(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof(t)), 0);
}

TEST(Forbidden, Strict) {
  int p[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, p), 0);
  for (int fd : p) limit(fd);
  EXPECT_EQ(in_child([&] {
              if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT, 0, 0, 0) != 0) return 1;
              return what_is_left(p[0], p[1]);
            }),
            0);
  EXPECT_EQ(in_child([&] {
              if (syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 0, nullptr) != 0) return 1;
              return what_is_left(p[0], p[1]);
            }),
            0);
}

// The program's own handlers run.
TEST(Forbidden, StrictAndSignals) {
  int p[2];
  ASSERT_EQ(pipe(p), 0);
  static int out;
  out = p[1];
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGUSR1, [](int) { [[maybe_unused]] ssize_t n = write(out, "s", 1); });
    int in[2];
    if (pipe(in) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT, 0, 0, 0) != 0) syscall(SYS_exit, 1);
    char byte = 'r';
    [[maybe_unused]] ssize_t n = write(out, &byte, 1);
    n = read(in[0], &byte, 1);
    syscall(SYS_exit, 2);
  }
  char byte = 0;
  EXPECT_EQ(read(p[0], &byte, 1), 1);
  EXPECT_EQ(byte, 'r');
  EXPECT_EQ(kill(child, SIGUSR1), 0);
  EXPECT_EQ(read(p[0], &byte, 1), 1);
  EXPECT_EQ(byte, 's');
  EXPECT_EQ(kill(child, SIGTERM), 0);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, SIGTERM);
}

}  // namespace
}  // namespace ckpt::test
