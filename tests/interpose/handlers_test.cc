// Handlers of the program that come at the same time as a stop: every one of them runs, ends the call
// that it would have ended, and no other.
#include <errno.h>
#include <gtest/gtest.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/interpose/blocked_thread.h"

namespace ckpt::test {
namespace {

constexpr int64_t kLong = 20'000'000'000;

std::atomic<int> handled{0};
void count_signal(int) { ++handled; }

void handle(int signal, int flags) {
  struct sigaction action {};
  action.sa_handler = count_signal;
  action.sa_flags = flags;
  ASSERT_EQ(sigaction(signal, &action, nullptr), 0);
}

struct Call {
  std::string name;
  long nr;                     // that the kernel shows
  bool restarts;               // with SA_RESTART
  std::function<long()> make;  // 0 or errno
};

long error_of(long r) { return r == -1 ? errno : 0; }

std::vector<Call> calls() {
  static int pipes[2], sockets[2], silent[2], epoll = epoll_create1(0);
  EXPECT_EQ(pipe(pipes), 0);
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, silent), 0);
  timeval limit{20, 0};
  setsockopt(sockets[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  static int semaphores = semget(IPC_PRIVATE, 1, 0600), queue = msgget(IPC_PRIVATE, 0600);
  static sem_t sem;
  sem_init(&sem, 0, 0);
  static uint32_t word = 0;
  static timespec limit_spec = spec(kLong);
  static sigset_t other;
  sigemptyset(&other);
  sigaddset(&other, SIGRTMIN + 3);
  static char path[] = "/tmp/interpose_lock_XXXXXX";
  static int locked = mkstemp(path), second = open(path, O_RDWR);
  EXPECT_EQ(flock(locked, LOCK_EX), 0);
  static pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) pause();
  }
  return {
      {"nanosleep", SYS_clock_nanosleep, false, [] { return error_of(nanosleep(&limit_spec, nullptr)); }},
      {"poll", SYS_poll, false, [] { return error_of(poll(nullptr, 0, 20'000)); }},
      {"ppoll", SYS_ppoll, false, [] { return error_of(ppoll(nullptr, 0, &limit_spec, nullptr)); }},
      {"select", SYS_pselect6, false,
       [] {
         timeval t{20, 0};
         return error_of(select(0, nullptr, nullptr, nullptr, &t));
       }},
      {"epoll_wait", SYS_epoll_wait, false,
       [] {
         epoll_event e;
         return error_of(epoll_wait(epoll, &e, 1, 20'000));
       }},
      {"semop", SYS_semtimedop, false,
       [] {
         sembuf op{0, -1, 0};
         return error_of(semop(semaphores, &op, 1));
       }},
      {"msgrcv", SYS_msgrcv, false,
       [] {
         long m[2];
         return error_of(msgrcv(queue, m, 8, 0, 0));
       }},
      {"pause", SYS_pause, false, [] { return error_of(pause()); }},
      {"sigtimedwait", SYS_rt_sigtimedwait, false,
       [] { return error_of(sigtimedwait(&other, nullptr, &limit_spec)); }},
      {"sem_clockwait", SYS_futex, false,
       [] {
         timespec t = spec(now() + kLong);
         return error_of(sem_clockwait(&sem, CLOCK_MONOTONIC, &t));
       }},
      {"futex", SYS_futex, false,
       [] { return error_of(syscall(SYS_futex, &word, FUTEX_WAIT, 0, &limit_spec, nullptr, 0)); }},
      {"recv with a timeout", SYS_recvfrom, false,
       [] {
         char c;
         return error_of(recv(sockets[0], &c, 1, 0));
       }},
      {"recv", SYS_recvfrom, true,
       [] {
         char c;
         return error_of(recv(silent[0], &c, 1, 0));
       }},
      {"read", SYS_read, true,
       [] {
         char c;
         return error_of(read(pipes[0], &c, 1));
       }},
      // Not interposed: inside libc.
      {"sem_wait", SYS_futex, true, [] { return error_of(sem_wait(&sem)); }},
      {"waitpid", SYS_wait4, true, [] { return error_of(waitpid(child, nullptr, 0)); }},
      {"flock", SYS_flock, true, [] { return error_of(flock(second, LOCK_EX)); }},
  };
}

enum class Order { kStopFirst, kSignalFirst, kDuringStop, kTwoStops };

// A thread in the call gets a stop and a signal with a handler; true if the call ended with EINTR within
// a second.
bool interrupted(const Call& call, int signal, bool to_process, Order order, int64_t delay_ns) {
  std::atomic<pid_t> tid{0};
  std::atomic<long> result{-1};
  handled = 0;
  std::thread blocked([&] {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, signal);
    pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
    tid = this_thread();
    result = call.make();
  });
  while (tid == 0) sched_yield();
  wait_until_sleeping_in(tid, call.nr);
  auto send_signal = [&] {
    if (to_process) {
      kill(getpid(), signal);
    } else {
      syscall(SYS_tgkill, getpid(), tid.load(), signal);
    }
  };
  switch (order) {
    case Order::kStopFirst:
      send_stop(tid);
      send_signal();
      break;
    case Order::kSignalFirst:
      send_signal();
      send_stop(tid);
      break;
    case Order::kDuringStop:
      send_stop(tid);
      spin(delay_ns);
      send_signal();
      break;
    case Order::kTwoStops:
      send_stop(tid);
      spin(delay_ns);
      send_stop(tid);
      send_signal();
      send_stop(tid);
      break;
  }
  int64_t until =
      now() + 15'000'000'000;  // the machine may stand still for seconds; a call's own limit is longer
  while (result.load() == -1 && now() < until) usleep(50);
  bool ended = result.load() != -1;
  while (result.load() == -1) {
    syscall(SYS_tgkill, getpid(), tid.load(), signal);
    usleep(1000);
  }
  blocked.join();
  EXPECT_EQ(result.load(), EINTR) << call.name;
  if (ended) {
    EXPECT_EQ(handled.load(), 1) << call.name;
  }
  return ended;
}

class Handlers : public ::testing::Test {
 protected:
  void SetUp() override {
    // Only the blocked thread takes the signals sent to the process.
    sigset_t set;
    sigemptyset(&set);
    for (int s : {SIGUSR1, SIGUSR2, SIGRTMIN + 3, 62}) sigaddset(&set, s);
    pthread_sigmask(SIG_BLOCK, &set, nullptr);
  }
};

TEST_F(Handlers, EndTheCallThatAStopLetGoOn) {
  install_stop_handler(150'000);
  unsigned random = 99;
  for (const Call& call : calls()) {
    int lost = 0, tried = 0;
    for (int signal : {SIGUSR1, 62}) {
      for (bool to_process : {false, true}) {
        for (Order order : {Order::kStopFirst, Order::kSignalFirst, Order::kDuringStop, Order::kTwoStops}) {
          for (int i = 0; i < 12; ++i) {
            // A call that SA_RESTART restarts is ended only by a handler without.
            handle(signal, !call.restarts && i % 2 == 0 ? SA_RESTART : 0);
            ++tried;
            if (!interrupted(call, signal, to_process, order, rand_r(&random) % 400'000)) ++lost;
          }
        }
      }
    }
    EXPECT_EQ(lost, 0) << call.name << ": of " << tried;
  }
}

TEST_F(Handlers, WithRestartDoNotEndARestartableCall) {
  install_stop_handler(150'000);
  handled = 0;
  handle(SIGUSR1, SA_RESTART);
  int p[2];
  ASSERT_EQ(pipe(p), 0);
  for (int i = 0; i < 200; ++i) {
    std::atomic<pid_t> tid{0};
    long got = 0;
    std::thread reader([&] {
      sigset_t set;
      sigemptyset(&set);
      sigaddset(&set, SIGUSR1);
      pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
      tid = this_thread();
      char c;
      got = read(p[0], &c, 1);
    });
    while (tid == 0) sched_yield();
    wait_until_sleeping_in(tid, SYS_read);
    send_stop(tid);
    spin(i * 1000);
    syscall(SYS_tgkill, getpid(), tid.load(), SIGUSR1);
    // The handler has run, and the call goes on.
    while (handled.load() != i + 1) sched_yield();
    wait_until_sleeping_in(tid, SYS_read);
    ASSERT_EQ(write(p[1], "x", 1), 1);
    reader.join();
    ASSERT_EQ(got, 1);
  }
}

// Signal S is unblocked in the thread and blocked during ppoll (and the like): it may run, it may not
// end the call.
struct MaskedWait {
  bool interrupted = false;  // seen asleep in the call, then stopped and signalled
  long result = -1;
  int64_t took_ns = 0;
};
MaskedWait wait_with_signal_masked(int kind, int epoll, int64_t limit_ns, int64_t delay_ns) {
  MaskedWait wait;
  std::atomic<pid_t> tid{0};
  std::atomic<bool> ended{false}, sent{false};
  std::thread waiter([&] {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
    timespec t = spec(limit_ns);
    epoll_event e;
    tid = this_thread();
    int64_t begin = now();
    wait.result = kind == 0   ? ppoll(nullptr, 0, &t, &set)
                  : kind == 1 ? pselect(0, nullptr, nullptr, nullptr, &t, &set)
                              : epoll_pwait(epoll, &e, 1, static_cast<int>(limit_ns / 1'000'000), &set);
    wait.took_ns = now() - begin;
    ended = true;
    // The thread that the signal is sent to must exist, however late the sender runs.
    while (!sent) sched_yield();
    sched_yield();
  });
  while (tid == 0) sched_yield();
  const long nr = kind == 0 ? SYS_ppoll : kind == 1 ? SYS_pselect6 : SYS_epoll_pwait;
  while (!wait.interrupted && !ended) {
    wait.interrupted = sleeping_in(tid) == nr;
    sched_yield();
  }
  send_stop(tid);
  spin(delay_ns);
  syscall(SYS_tgkill, getpid(), tid.load(), SIGUSR1);
  sent = true;
  waiter.join();
  return wait;
}

TEST_F(Handlers, BlockedByTheCallsMaskDoNotEndIt) {
  install_stop_handler(300'000);
  handle(SIGUSR1, 0);
  int epoll = epoll_create1(0);
  int64_t limit = 8'000'000;
  for (int kind = 0; kind < 3; ++kind) {
    for (int i = 0; i < 60; ++i) {
      MaskedWait wait;
      for (;;) {
        handled = 0;
        wait = wait_with_signal_masked(kind, epoll, limit, i * 8000);
        EXPECT_EQ(wait.result, 0) << kind;
        EXPECT_GE(wait.took_ns, limit);
        EXPECT_EQ(handled.load(), 1);
        // On a busy machine the call's time may pass before this thread runs once: then the call was
        // not interrupted, and is made again with more time.
        if (wait.interrupted) break;
        limit *= 2;
      }
    }
  }
  close(epoll);
}

// Signal S is blocked in the thread and unblocked only during the call: under a storm of stops every S
// ends exactly one call.
TEST_F(Handlers, UnblockedByTheCallsMaskEndExactlyOne) {
  install_stop_handler(20'000);
  handle(SIGUSR1, SA_RESTART);
  int epoll = epoll_create1(0);
  for (int kind = 0; kind < 4; ++kind) {
    std::atomic<int> answered{0};
    std::atomic<int> strange{0};
    const int rounds = 1500;
    handled = 0;
    std::thread waiter([&] {
      sigset_t without;
      pthread_sigmask(SIG_SETMASK, nullptr, &without);
      sigdelset(&without, SIGUSR1);
      for (int i = 0; i < rounds; ++i) {
        epoll_event e;
        long r = kind == 0   ? sigsuspend(&without)
                 : kind == 1 ? ppoll(nullptr, 0, nullptr, &without)
                 : kind == 2 ? pselect(0, nullptr, nullptr, nullptr, nullptr, &without)
                             : epoll_pwait(epoll, &e, 1, -1, &without);
        if (r != -1 || errno != EINTR || handled != i + 1) ++strange;
        sigset_t after;
        pthread_sigmask(SIG_SETMASK, nullptr, &after);
        if (sigismember(&after, SIGUSR1) != 1) ++strange;
        ++answered;
      }
    });
    {
      Storm storm(60'000);
      for (int i = 0; i < rounds; ++i) {
        pthread_kill(waiter.native_handle(), SIGUSR1);
        int64_t until = now() + 100'000'000'000;  // the thread may have no processor for a while
        while (answered.load() == i && now() < until) usleep(20);
        ASSERT_EQ(answered.load(), i + 1) << "signal lost, kind " << kind;
      }
      waiter.join();
    }
    EXPECT_EQ(strange.load(), 0) << kind;
    EXPECT_EQ(handled.load(), rounds);
  }
}

TEST_F(Handlers, RemainingTimeIsRight) {
  install_stop_handler(2'000'000);
  handle(SIGUSR1, 0);
  for (int i = 0; i < 40; ++i) {
    std::atomic<pid_t> tid{0};
    timespec remaining{};
    long r = 0;
    int64_t took = 0;
    std::thread sleeper([&] {
      sigset_t set;
      sigemptyset(&set);
      sigaddset(&set, SIGUSR1);
      pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
      timespec t = spec(kLong);
      tid = this_thread();
      int64_t begin = now();
      r = nanosleep(&t, &remaining);
      took = now() - begin;
    });
    while (tid == 0) sched_yield();
    wait_until_sleeping_in(tid, SYS_clock_nanosleep);
    send_stop(tid);
    spin(i * 100'000);
    syscall(SYS_tgkill, getpid(), tid.load(), SIGUSR1);
    sleeper.join();
    ASSERT_EQ(r, -1);
    int64_t left = int64_t{remaining.tv_sec} * 1'000'000'000 + remaining.tv_nsec;
    EXPECT_GE(left, kLong - took);
    EXPECT_LE(left, kLong + 50'000);  // the kernel counts its own slack in
  }
}

// The same handler function for two signals, SA_SIGINFO, reading back, one-shot.
TEST_F(Handlers, AreReadBackAsInstalled) {
  struct sigaction a {
  }, old{};
  a.sa_handler = count_signal;
  a.sa_flags = SA_RESTART | SA_NODEFER;
  sigfillset(&a.sa_mask);
  ASSERT_EQ(sigaction(SIGUSR1, &a, nullptr), 0);
  ASSERT_EQ(sigaction(SIGUSR1, nullptr, &old), 0);
  EXPECT_EQ(old.sa_handler, count_signal);
  EXPECT_EQ(old.sa_flags & (SA_RESTART | SA_NODEFER), SA_RESTART | SA_NODEFER);
  for (int s = 1; s <= 64; ++s) {
    if (s == SIGKILL || s == SIGSTOP) continue;
    EXPECT_EQ(sigismember(&old.sa_mask, s), sigismember(&a.sa_mask, s)) << s;
  }
  EXPECT_EQ(signal(SIGUSR2, count_signal), SIG_DFL);
  EXPECT_EQ(signal(SIGUSR2, SIG_IGN), count_signal);
  EXPECT_EQ(signal(SIGUSR2, SIG_DFL), SIG_IGN);
  a.sa_flags = SA_RESETHAND;
  ASSERT_EQ(sigaction(62, &a, nullptr), 0);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, 62);
  handled = 0;
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  raise(62);
  EXPECT_EQ(handled.load(), 1);
  ASSERT_EQ(sigaction(62, nullptr, &old), 0);
  EXPECT_EQ(old.sa_handler, SIG_DFL);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

// An exception passes the frame that our restorer returns through.
[[gnu::noinline]] int read_nowhere() {
  int* volatile nowhere = nullptr;
  return *nowhere;
}
TEST_F(Handlers, CanBeLeftByAnException) {
  struct sigaction a {};
  a.sa_handler = [](int) { throw 42; };
  a.sa_flags = SA_NODEFER;
  ASSERT_EQ(sigaction(SIGSEGV, &a, nullptr), 0);
  int caught = 0;
  try {
    caught = read_nowhere();
  } catch (int e) {
    caught = e;
  }
  EXPECT_EQ(caught, 42);
  signal(SIGSEGV, SIG_DFL);
}

// More functions than slots: all work, all are read back.
template <int N>
void numbered(int) {
  handled = N;
}
template <int... N>
void try_all(std::integer_sequence<int, N...>) {
  auto one = [](void (*f)(int), int n) {
    ASSERT_NE(signal(SIGUSR2, f), SIG_ERR);
    pthread_kill(pthread_self(), SIGUSR2);
    EXPECT_EQ(handled.load(), n);
    EXPECT_EQ(signal(SIGUSR2, f), f);
  };
  void (*const handlers[])(int) = {numbered<N>...};
  for (int n = 0; n < static_cast<int>(sizeof...(N)); ++n) one(handlers[n], n);
}
TEST_F(Handlers, MoreThanSlotsStillRun) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR2);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  try_all(std::make_integer_sequence<int, 300>());
  signal(SIGUSR2, SIG_DFL);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

}  // namespace
}  // namespace ckpt::test
