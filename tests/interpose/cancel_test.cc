// pthread_cancel: interposed calls are cancellation points, stops or not.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/random.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <threads.h>

#include <functional>
#include <vector>

#include "tests/interpose/blocked_thread.h"

namespace ckpt::test {
namespace {

struct Point {
  const char* name;
  long nr;  // 0: does not block
  std::function<void()> call;
};

std::vector<Point> points() {
  static int pipes[2], sockets[2], full[2], epoll = epoll_create1(0), queue = msgget(IPC_PRIVATE, 0600);
  EXPECT_EQ(pipe(pipes), 0);
  EXPECT_EQ(pipe(full), 0);
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
  static sem_t sem;
  sem_init(&sem, 0, 0);
  static char block[70'000];
  static sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR2);
  static timespec t = spec(20'000'000'000);
  return {
      {"nanosleep", SYS_clock_nanosleep, [] { nanosleep(&t, nullptr); }},
      {"clock_nanosleep", SYS_clock_nanosleep, [] { clock_nanosleep(CLOCK_MONOTONIC, 0, &t, nullptr); }},
      {"sleep", SYS_clock_nanosleep, [] { sleep(20); }},
      {"usleep", SYS_clock_nanosleep, [] { usleep(20'000'000); }},
      {"poll", SYS_poll, [] { poll(nullptr, 0, -1); }},
      {"ppoll", SYS_ppoll, [] { ppoll(nullptr, 0, nullptr, nullptr); }},
      {"select", SYS_pselect6, [] { select(0, nullptr, nullptr, nullptr, nullptr); }},
      {"pselect", SYS_pselect6, [] { pselect(0, nullptr, nullptr, nullptr, nullptr, nullptr); }},
      {"epoll_wait", SYS_epoll_wait,
       [] {
         epoll_event e;
         epoll_wait(epoll, &e, 1, -1);
       }},
      {"read", SYS_read,
       [] {
         char c;
         (void)!read(pipes[0], &c, 1);
       }},
      {"write", SYS_write, [] { (void)!write(full[1], block, sizeof(block)); }},
      {"recv", SYS_recvfrom,
       [] {
         char c;
         recv(sockets[0], &c, 1, 0);
       }},
      {"msgrcv", SYS_msgrcv,
       [] {
         long m[2];
         msgrcv(queue, m, 8, 0, 0);
       }},
      {"pause", SYS_pause, [] { pause(); }},
      {"sigwaitinfo", SYS_rt_sigtimedwait, [] { sigwaitinfo(&set, nullptr); }},
      {"sigwait", SYS_rt_sigtimedwait,
       [] {
         int s;
         sigwait(&set, &s);
       }},
      {"sem_timedwait", SYS_futex,
       [] {
         timespec until = spec(now(CLOCK_REALTIME) + 20'000'000'000);
         sem_timedwait(&sem, &until);
       }},
  };
}

struct Run {
  const Point* point;
  std::atomic<pid_t> tid{0};
  std::atomic<int> cleaned{0};
  std::atomic<bool> go{true};
  bool returned = false;
};

void* run_point(void* argument) {
  auto& run = *static_cast<Run*>(argument);
  pthread_cleanup_push([](void* r) { ++static_cast<Run*>(r)->cleaned; }, argument);
  run.tid = this_thread();
  while (!run.go.load()) sched_yield();
  run.point->call();
  run.returned = true;
  pthread_cleanup_pop(0);
  return nullptr;
}

void cancel_each(bool blocked) {
  for (const Point& point : points()) {
    for (int i = 0; i < 25; ++i) {
      Run run;
      run.point = &point;
      run.go = blocked;
      pthread_t thread;
      ASSERT_EQ(pthread_create(&thread, nullptr, run_point, &run), 0);
      while (run.tid == 0) sched_yield();
      if (blocked) wait_until_sleeping_in(run.tid, point.nr);
      ASSERT_EQ(pthread_cancel(thread), 0);
      run.go = true;
      void* result = nullptr;
      timespec until = spec(now(CLOCK_REALTIME) + 60'000'000'000);
      ASSERT_EQ(pthread_timedjoin_np(thread, &result, &until), 0) << point.name;
      EXPECT_EQ(result, PTHREAD_CANCELED) << point.name;
      EXPECT_EQ(run.cleaned.load(), 1) << point.name;
      EXPECT_FALSE(run.returned) << point.name;
    }
  }
}

TEST(Cancel, BlockedCallsEnd) { cancel_each(true); }

TEST(Cancel, PendingRequestsAreActedOnAtEntry) { cancel_each(false); }

TEST(Cancel, UnderAStorm) {
  install_stop_handler(10'000);
  Storm storm(50'000);
  cancel_each(false);
  cancel_each(true);
}

TEST(Cancel, DisabledMeansDisabled) {
  install_stop_handler(10'000);
  Storm storm(50'000);
  std::atomic<pid_t> tid{0};
  std::atomic<long> result{-2};
  std::thread thread([&] {
    int before = 0;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    tid = this_thread();
    timespec t = spec(30'000'000);
    result = nanosleep(&t, nullptr);
    int type = -1;
    pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &type);
    EXPECT_EQ(type, PTHREAD_CANCEL_DEFERRED);
  });
  while (tid == 0) sched_yield();
  pthread_cancel(thread.native_handle());
  thread.join();
  EXPECT_EQ(result.load(), 0);
}

// A process with one thread that cancels itself.
TEST(Cancel, TheOnlyThread) {
  pid_t child = fork();
  if (child == 0) {
    pthread_cleanup_push([](void*) { _exit(42); }, nullptr);
    pthread_cancel(pthread_self());
    usleep(1);
    _exit(7);
    pthread_cleanup_pop(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 42);
}

TEST(Cancel, AsynchronousStaysAsynchronous) {
  std::thread thread([] {
    int before;
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &before);
    usleep(1);
    pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &before);
    EXPECT_EQ(before, PTHREAD_CANCEL_ASYNCHRONOUS);
    usleep(1);
    pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &before);
    EXPECT_EQ(before, PTHREAD_CANCEL_DEFERRED);
  });
  thread.join();
}

}  // namespace
}  // namespace ckpt::test
