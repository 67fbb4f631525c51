// What an interposed call costs over libc's own: best of many short runs of each, taken in turns, in ns.
//
// Run: interpose_overhead
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <x86intrin.h>

#include <algorithm>

#include "tests/interpose/blocked_thread.h"

namespace ckpt::test {
namespace {

void* libc() {
  static void* handle = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
  return handle;
}

template <typename Function>
Function* theirs(const char* name) {
  return reinterpret_cast<Function*>(dlsym(libc(), name));
}

template <typename Call>
double time_of(Call&& call) {
  constexpr int kCalls = 4000;
  int64_t begin = now();
  for (int i = 0; i < kCalls; ++i) call();
  return static_cast<double>(now() - begin) / kCalls;
}

template <typename A, typename B>
void compare(const char* name, A&& ours, B&& real) {
  double best_ours = 1e9, best_real = 1e9;
  for (int i = 0; i < 150; ++i) {
    best_real = std::min(best_real, time_of(real));
    best_ours = std::min(best_ours, time_of(ours));
  }
  printf("  %-34s libc %7.1f   ours %7.1f   over %+6.1f\n", name, best_real, best_ours,
         best_ours - best_real);
}

int pipes[2], sockets[2], null_device, zero_device, epoll;
char byte;
uint32_t word;
volatile int handled;

void run_all() {
  pollfd ready{pipes[0], POLLIN, 0};
  epoll_event event;
  auto real_poll = theirs<decltype(::poll)>("poll");
  auto real_epoll = theirs<decltype(::epoll_wait)>("epoll_wait");
  auto real_select = theirs<decltype(::select)>("select");
  auto real_read = theirs<decltype(::read)>("read");
  auto real_write = theirs<decltype(::write)>("write");
  auto real_send = theirs<decltype(::send)>("send");
  auto real_recv = theirs<decltype(::recv)>("recv");
  auto real_syscall = theirs<decltype(::syscall)>("syscall");
  auto real_mask = theirs<decltype(::pthread_sigmask)>("pthread_sigmask");
  auto real_mprotect = theirs<decltype(::mprotect)>("mprotect");
  auto real_mmap = theirs<decltype(::mmap)>("mmap");
  compare(
      "poll, ready, no time-out", [&] { ::poll(&ready, 1, -1); }, [&] { real_poll(&ready, 1, -1); });
  compare(
      "poll, ready, with time-out", [&] { ::poll(&ready, 1, 100); }, [&] { real_poll(&ready, 1, 100); });
  compare(
      "poll, time-out 0", [&] { ::poll(&ready, 1, 0); }, [&] { real_poll(&ready, 1, 0); });
  compare(
      "epoll_wait, ready, with time-out", [&] { ::epoll_wait(epoll, &event, 1, 100); },
      [&] { real_epoll(epoll, &event, 1, 100); });
  auto select_by = [&](auto* f) {
    fd_set in;
    FD_ZERO(&in);
    FD_SET(pipes[0], &in);
    timeval limit{1, 0};
    f(pipes[0] + 1, &in, nullptr, nullptr, &limit);
  };
  compare(
      "select, ready, with time-out", [&] { select_by(&::select); }, [&] { select_by(real_select); });
  compare(
      "read, 1 byte of /dev/zero", [&] { (void)!::read(zero_device, &byte, 1); },
      [&] { (void)!real_read(zero_device, &byte, 1); });
  compare(
      "write, 1 byte to /dev/null", [&] { (void)!::write(null_device, &byte, 1); },
      [&] { (void)!real_write(null_device, &byte, 1); });
  compare(
      "send and recv, 1 byte",
      [&] {
        ::send(sockets[0], &byte, 1, 0);
        ::recv(sockets[1], &byte, 1, 0);
      },
      [&] {
        real_send(sockets[0], &byte, 1, 0);
        real_recv(sockets[1], &byte, 1, 0);
      });
  compare(
      "syscall(getppid)", [&] { ::syscall(SYS_getppid); }, [&] { real_syscall(SYS_getppid); });
  compare(
      "syscall(futex wake)", [&] { ::syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0); },
      [&] { real_syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0); });
  sigset_t set, before;
  sigemptyset(&set);
  compare(
      "pthread_sigmask", [&] { ::pthread_sigmask(SIG_BLOCK, &set, &before); },
      [&] { real_mask(SIG_BLOCK, &set, &before); });
  auto map_by = [&](auto* f) { f(nullptr, 0, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); };  // EINVAL
  compare(
      "mmap, refused", [&] { map_by(&::mmap); }, [&] { map_by(real_mmap); });
  compare(
      "mprotect, of nothing", [&] { ::mprotect(nullptr, 0, PROT_READ); },
      [&] { real_mprotect(nullptr, 0, PROT_READ); });
  auto count = +[](int) { handled = handled + 1; };
  auto real_sigaction = theirs<decltype(::sigaction)>("sigaction");
  struct sigaction action {};
  action.sa_handler = count;
  ::sigaction(SIGUSR1, &action, nullptr);
  real_sigaction(SIGUSR2, &action, nullptr);
  pid_t tid = this_thread();
  compare(
      "a handler, by tgkill", [&] { real_syscall(SYS_tgkill, getpid(), tid, SIGUSR1); },
      [&] { real_syscall(SYS_tgkill, getpid(), tid, SIGUSR2); });
}

long raw_getppid() {
  long r;
  asm volatile("syscall" : "=a"(r) : "a"(SYS_getppid) : "rcx", "r11", "memory");
  return r;
}
[[gnu::noinline]] long one_return() { return raw_getppid(); }
[[gnu::noinline]] long two_returns() {
  long r = one_return();
  asm volatile("" ::: "memory");
  return r;
}

template <typename Call>
double best_of(Call&& call) {
  double best = 1e9;
  for (int i = 0; i < 150; ++i) best = std::min(best, time_of(call));
  return best;
}

// The costs that decided how the stub is entered and how time is read.
void run_parts() {
  double in_line = best_of([] { raw_getppid(); });
  double once = best_of([] { one_return(); });
  double twice = best_of([] { two_returns(); });
  printf("the first return after a system call %.1f ns, the second %.1f ns\n", once - in_line, twice - once);
  timespec ts;
  volatile uint64_t counter;
  printf("clock %.1f ns, coarse clock %.1f ns, time stamp counter %.1f ns\n",
         best_of([&] { clock_gettime(CLOCK_MONOTONIC, &ts); }),
         best_of([&] { clock_gettime(CLOCK_MONOTONIC_COARSE, &ts); }), best_of([&] { counter = __rdtsc(); }));
  (void)counter;
  int64_t lag = 0;
  for (int i = 0; i < 10'000'000; ++i) {
    int64_t coarse = now(CLOCK_MONOTONIC_COARSE);
    lag = std::max(lag, now() - coarse);
  }
  printf("the coarse clock lagged by up to %.1f ms\n", static_cast<double>(lag) / 1e6);
}

int run() {
  if (pipe(pipes) != 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) return 1;
  (void)!::write(pipes[1], "x", 1);
  null_device = open("/dev/null", O_WRONLY);
  zero_device = open("/dev/zero", O_RDONLY);
  epoll = epoll_create1(0);
  epoll_event event{};
  event.events = EPOLLIN;
  epoll_ctl(epoll, EPOLL_CTL_ADD, pipes[0], &event);
  run_parts();
  printf("one thread, ns a call\n");
  run_all();
  std::thread([] {}).join();
  printf("after a second thread (cancellation points), ns a call\n");
  run_all();
  return 0;
}

}  // namespace
}  // namespace ckpt::test

int main() { return ckpt::test::run(); }
