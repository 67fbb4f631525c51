// Every interposed call with a timeout, in a thread of its own, while stops rain on all of them: no
// EINTR, and never shorter than asked.
#include <aio.h>
#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/futex.h>
#include <mqueue.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/interpose/blocked_thread.h"
#include "tests/interpose/stop_alone.h"

namespace ckpt::test {
namespace {

int64_t run_seconds() {
  const char* s = getenv("STORM_SECONDS");
  return s != nullptr ? atoi(s) : 2;
}

// ask(ns) waits for ns and returns 0 or the errno with which it ended.
struct Waiter {
  std::string name;
  int expected;
  std::function<int(int64_t)> ask;
  int64_t may_be_short_ns = 0;  // by the kernel's own granularity
};

int error_or_zero(long r) { return r == -1 ? errno : 0; }

std::vector<Waiter> waiters() {
  static int pipes[2];
  EXPECT_EQ(pipe(pipes), 0);
  static int epoll = epoll_create1(0);
  epoll_event want{};
  want.events = EPOLLIN;
  EXPECT_EQ(epoll_ctl(epoll, EPOLL_CTL_ADD, pipes[0], &want), 0);
  static int sockets[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
  static int listener = socket(AF_UNIX, SOCK_STREAM, 0);
  EXPECT_EQ(bind(listener, nullptr, 0) == 0 || true, true);
  static int semaphores = semget(IPC_PRIVATE, 1, 0600);
  static sem_t semaphore;
  sem_init(&semaphore, 0, 0);
  static uint32_t word = 0;
  static sigset_t usr2;
  sigemptyset(&usr2);
  sigaddset(&usr2, SIGUSR2);

  std::vector<Waiter> w;
  w.push_back({"nanosleep", 0, [](int64_t ns) {
                 timespec t = spec(ns);
                 return error_or_zero(nanosleep(&t, nullptr));
               }});
  w.push_back({"nanosleep into itself", 0, [](int64_t ns) {
                 timespec t = spec(ns);
                 return error_or_zero(nanosleep(&t, &t));
               }});
  w.push_back({"clock_nanosleep", 0, [](int64_t ns) {
                 timespec t = spec(ns);
                 return clock_nanosleep(CLOCK_MONOTONIC, 0, &t, nullptr);
               }});
  w.push_back({"clock_nanosleep boottime", 0, [](int64_t ns) {
                 timespec t = spec(ns);
                 return clock_nanosleep(CLOCK_BOOTTIME, 0, &t, nullptr);
               }});
  w.push_back({"clock_nanosleep absolute", 0, [](int64_t ns) {
                 timespec t = spec(now() + ns);
                 return clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, nullptr);
               }});
  w.push_back({"usleep", 0,
               [](int64_t ns) { return error_or_zero(usleep(static_cast<unsigned>((ns + 999) / 1000))); }});
  w.push_back({"thrd_sleep", 0, [](int64_t ns) {
                 timespec t = spec(ns);
                 return thrd_sleep(&t, nullptr) == 0 ? 0 : EINTR;
               }});
  w.push_back({"std::this_thread::sleep_for", 0, [](int64_t ns) {
                 std::this_thread::sleep_for(std::chrono::nanoseconds(ns));
                 return 0;
               }});
  w.push_back({"poll", 0, [](int64_t ns) {
                 pollfd p{pipes[0], POLLIN, 0};
                 return error_or_zero(poll(&p, 1, static_cast<int>((ns + 999'999) / 1'000'000)));
               }});
  w.push_back({"ppoll", 0, [](int64_t ns) {
                 pollfd p{pipes[0], POLLIN, 0};
                 timespec t = spec(ns);
                 return error_or_zero(ppoll(&p, 1, &t, nullptr));
               }});
  w.push_back({"ppoll with a mask", 0, [](int64_t ns) {
                 timespec t = spec(ns);
                 sigset_t all;
                 sigfillset(&all);
                 return error_or_zero(ppoll(nullptr, 0, &t, &all));
               }});
  w.push_back({"select", 0, [](int64_t ns) {
                 fd_set in;
                 FD_ZERO(&in);
                 FD_SET(pipes[0], &in);
                 timeval t{ns / 1'000'000'000, (ns % 1'000'000'000 + 999) / 1000};
                 return error_or_zero(select(pipes[0] + 1, &in, nullptr, nullptr, &t));
               }});
  w.push_back({"pselect", 0, [](int64_t ns) {
                 timespec t = spec(ns);
                 sigset_t all;
                 sigfillset(&all);
                 return error_or_zero(pselect(0, nullptr, nullptr, nullptr, &t, &all));
               }});
  w.push_back({"epoll_wait", 0, [](int64_t ns) {
                 epoll_event e;
                 return error_or_zero(epoll_wait(epoll, &e, 1, static_cast<int>((ns + 999'999) / 1'000'000)));
               }});
  w.push_back({"epoll_pwait", 0, [](int64_t ns) {
                 epoll_event e;
                 sigset_t all;
                 sigfillset(&all);
                 return error_or_zero(
                     epoll_pwait(epoll, &e, 1, static_cast<int>((ns + 999'999) / 1'000'000), &all));
               }});
  w.push_back({"epoll_pwait2", 0, [](int64_t ns) {
                 epoll_event e;
                 timespec t = spec(ns);
                 return error_or_zero(epoll_pwait2(epoll, &e, 1, &t, nullptr));
               }});
  w.push_back({"semtimedop", EAGAIN, [](int64_t ns) {
                 sembuf op{0, -1, 0};
                 timespec t = spec(ns);
                 return error_or_zero(semtimedop(semaphores, &op, 1, &t));
               }});
  w.push_back({"sem_timedwait", ETIMEDOUT, [](int64_t ns) {
                 timespec t = spec(now(CLOCK_REALTIME) + ns);
                 return error_or_zero(sem_timedwait(&semaphore, &t));
               }});
  w.push_back({"sem_clockwait", ETIMEDOUT, [](int64_t ns) {
                 timespec t = spec(now() + ns);
                 return error_or_zero(sem_clockwait(&semaphore, CLOCK_MONOTONIC, &t));
               }});
  w.push_back({"sigtimedwait", EAGAIN, [](int64_t ns) {
                 timespec t = spec(ns);
                 return error_or_zero(sigtimedwait(&usr2, nullptr, &t));
               }});
  w.push_back({"futex", ETIMEDOUT, [](int64_t ns) {
                 timespec t = spec(ns);
                 return error_or_zero(syscall(SYS_futex, &word, FUTEX_WAIT, 0, &t, nullptr, 0));
               }});
  w.push_back({"futex bitset", ETIMEDOUT, [](int64_t ns) {
                 timespec t = spec(now() + ns);
                 return error_or_zero(syscall(SYS_futex, &word, FUTEX_WAIT_BITSET, 0, &t, nullptr, -1));
               }});
  w.push_back({"syscall(nanosleep)", 0, [](int64_t ns) {
                 timespec t = spec(ns);
                 return error_or_zero(syscall(SYS_nanosleep, &t, nullptr));
               }});
  w.push_back({"syscall(select)", 0, [](int64_t ns) {
                 timeval t{ns / 1'000'000'000, (ns % 1'000'000'000 + 999) / 1000};
                 return error_or_zero(syscall(SYS_select, 0, nullptr, nullptr, nullptr, &t));
               }});
  w.push_back({"pthread_cond_timedwait", ETIMEDOUT, [](int64_t ns) {
                 static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
                 static pthread_cond_t never = PTHREAD_COND_INITIALIZER;
                 timespec t = spec(now(CLOCK_REALTIME) + ns);
                 pthread_mutex_lock(&lock);
                 int r;
                 do {
                   r = pthread_cond_timedwait(&never, &lock, &t);
                 } while (r == 0);
                 pthread_mutex_unlock(&lock);
                 return r;
               }});
  w.push_back({"aio_suspend", EAGAIN, [](int64_t ns) {
                 static char c;
                 static aiocb request{};
                 static std::once_flag once;
                 std::call_once(once, [] {
                   request.aio_fildes = pipes[0];
                   request.aio_buf = &c;
                   request.aio_nbytes = 1;
                   EXPECT_EQ(aio_read(&request), 0);
                 });
                 const aiocb* list[] = {&request};
                 timespec t = spec(ns);
                 return error_or_zero(aio_suspend(list, 1, &t));
               }});
  // The kernel measures socket timeouts in ticks, the first of which has begun already.
  constexpr int64_t kTick = 10'000'000;
  w.push_back({"recv with SO_RCVTIMEO", EAGAIN,
               [](int64_t ns) {
                 timeval t{ns / 1'000'000'000, (ns % 1'000'000'000 + 999) / 1000};
                 setsockopt(sockets[0], SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t));
                 char c;
                 return error_or_zero(recv(sockets[0], &c, 1, 0));
               },
               kTick});
  w.push_back({"read with SO_RCVTIMEO", EAGAIN,
               [](int64_t ns) {
                 timeval t{ns / 1'000'000'000, (ns % 1'000'000'000 + 999) / 1000};
                 setsockopt(sockets[1], SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t));
                 char c;
                 return error_or_zero(read(sockets[1], &c, 1));
               },
               kTick});
  return w;
}

void timed_calls_are_neither_interrupted_nor_short(bool ignored_signals) {
  install_stop_handler(100'000);
  // SIGUSR2 is waited for, so it must be blocked in all threads.
  sigset_t usr2;
  sigemptyset(&usr2);
  sigaddset(&usr2, SIGUSR2);
  ASSERT_EQ(pthread_sigmask(SIG_BLOCK, &usr2, nullptr), 0);
  struct Tally {
    std::atomic<uint64_t> calls = 0;
    uint64_t wrong = 0, brief = 0;
    int last_wrong = 0;
    int64_t worst_brief = 0, longest_over = 0;
  };
  std::vector<Waiter> all = waiters();
  std::vector<Tally> tallies(all.size());
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (size_t i = 0; i < all.size(); ++i) {
    threads.emplace_back([&, i] {
      unsigned random = static_cast<unsigned>(i) * 7919 + 1;
      while (!over.load()) {
        int64_t ns = 1'000'000 + rand_r(&random) % 15'000'000;
        int64_t begin = now();
        errno = 77;
        int r = all[i].ask(ns);
        int64_t took = now() - begin;
        Tally& t = tallies[i];
        ++t.calls;
        if (r != all[i].expected) {
          ++t.wrong;
          t.last_wrong = r;
        } else if (all[i].expected == 0 && errno != 77) {
          ++t.wrong;
          t.last_wrong = -errno;
        }
        if (took < ns - all[i].may_be_short_ns) {
          ++t.brief;
          t.worst_brief = std::max(t.worst_brief, ns - took);
        }
        t.longest_over = std::max(t.longest_over, took - ns);
      }
    });
  }
  uint64_t stops_before = stops();
  {
    Storm storm(200'000);
    std::optional<IgnoredSignals> signals;
    if (ignored_signals) signals.emplace();
    // How much happens in a time is the scheduler's affair.
    auto has_shown_something = [&] {
      return stops() - stops_before > 1000 &&
             std::all_of(tallies.begin(), tallies.end(), [](const Tally& t) { return t.calls > 10; });
    };
    do {
      std::this_thread::sleep_for(std::chrono::seconds(run_seconds()));
    } while (!has_shown_something());
    over = true;
    for (auto& t : threads) t.join();
  }
  for (size_t i = 0; i < all.size(); ++i) {
    const Tally& t = tallies[i];
    printf("%-28s %6lu calls, at most %6.2f ms late\n", all[i].name.c_str(), t.calls.load(),
           t.longest_over / 1e6);
    EXPECT_EQ(t.wrong, 0u) << all[i].name << " ended with errno " << t.last_wrong;
    EXPECT_EQ(t.brief, 0u) << all[i].name << " was short by " << t.worst_brief << " ns";
  }
  printf("%lu stops\n", stops() - stops_before);
}

TEST(Storm, TimedCallsAreNeitherInterruptedNorShort) { timed_calls_are_neither_interrupted_nor_short(false); }

// While a thread is in our handler, what is sent to it and ignored wakes others.
TEST(Storm, NorByIgnoredSignals) { timed_calls_are_neither_interrupted_nor_short(true); }

void blocking_calls_end_by_what_they_wait_for(bool ignored_signals) {
  install_stop_handler(50'000);
  int p[2], s[2];
  ASSERT_EQ(pipe(p), 0);
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, s), 0);
  int queue = msgget(IPC_PRIVATE, 0600), sems = semget(IPC_PRIVATE, 1, 0600);
  struct {
    long type;
    int value;
  } message;
  sem_t sem;
  sem_init(&sem, 0, 0);
  std::atomic<int> errors{0};
  const int rounds = 300;
  std::vector<std::thread> threads;
  auto each_round = [&](auto call) {
    threads.emplace_back([&errors, call] {
      for (int i = 0; i < rounds; ++i) {
        if (!call(i)) ++errors;
      }
    });
  };
  auto gap = [] { usleep(700); };
  each_round([&](int i) {
    int v = -1;
    return read(p[0], &v, sizeof v) == sizeof v && v == i;
  });
  each_round([&](int i) { return gap(), write(p[1], &i, sizeof i) == sizeof i; });
  each_round([&](int i) {
    int v = -1;
    return recv(s[0], &v, sizeof v, MSG_WAITALL) == sizeof v && v == i;
  });
  each_round([&](int i) {
    const char* bytes = reinterpret_cast<const char*>(&i);
    return gap(), send(s[1], bytes, 2, 0) == 2 && (gap(), send(s[1], bytes + 2, 2, 0) == 2);
  });
  each_round([&](int i) {
    struct {
      long type;
      int value;
    } m{};
    return msgrcv(queue, &m, sizeof(int), 0, 0) == sizeof(int) && m.value == i;
  });
  each_round([&](int i) {
    message = {1, i};
    return gap(), msgsnd(queue, &message, sizeof(int), 0) == 0;
  });
  each_round([&](int) {
    sembuf op{0, -1, 0};
    return semop(sems, &op, 1) == 0;
  });
  each_round([&](int) {
    sembuf op{0, 1, 0};
    return gap(), semop(sems, &op, 1) == 0;
  });
  each_round([&](int i) {
    if (i % 2 == 0) return sem_wait(&sem) == 0;
    timespec t = spec(now(CLOCK_REALTIME) + 20'000'000'000);
    return sem_timedwait(&sem, &t) == 0;
  });
  each_round([&](int) { return gap(), sem_post(&sem) == 0; });
  {
    Storm storm(100'000);
    std::optional<IgnoredSignals> signals;
    if (ignored_signals) signals.emplace();
    for (auto& t : threads) t.join();
  }
  EXPECT_EQ(errors.load(), 0);
  int left = -1;
  sem_getvalue(&sem, &left);
  EXPECT_EQ(left, 0);
  msgctl(queue, IPC_RMID, nullptr);
  semctl(sems, 0, IPC_RMID);
}

TEST(Storm, BlockingCallsEndByWhatTheyWaitFor) { blocking_calls_end_by_what_they_wait_for(false); }
TEST(Storm, AndNotByIgnoredSignals) { blocking_calls_end_by_what_they_wait_for(true); }

// A restart on a machine whose CLOCK_MONOTONIC is ahead by 30 ms takes nothing off a sleep.
TEST(Storm, SleepGoesOnWhereTheClockWas) {
  install_stop_handler(0);
  static std::atomic<int64_t> paused_at{0};
  for (int64_t time = 60'000'000;; time *= 2) {
    std::atomic<pid_t> tid{0};
    std::atomic<bool> ended{false}, sent{false};
    int64_t begin = 0, took = 0;
    std::thread sleeper([&] {
      tid = this_thread();
      begin = now();
      timespec t = spec(time);
      nanosleep(&t, nullptr);
      took = now() - begin;
      ended = true;
      while (!sent) sched_yield();  // the signal needs a thread, however late it is sent
    });
    while (tid == 0) sched_yield();
    while (!ended && sleeping_in(tid) != SYS_clock_nanosleep) sched_yield();
    paused_at = 0;
    in_pause = [] {
      paused_at = now();
      set_monotonic_shift(30'000'000);
    };
    send_stop(tid);
    sent = true;
    sleeper.join();
    in_pause = nullptr;
    set_monotonic_shift(0);
    // Where the stop came when the sleep was over, it has shown nothing: once more, with more time.
    if (paused_at.load() == 0 || paused_at.load() >= begin + time) continue;
    EXPECT_GE(took, time + 30'000'000);
    break;
  }
}

}  // namespace
}  // namespace ckpt::test
