#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "tests/programs/calls/calls.h"

namespace calls {

using namespace victim;

namespace {

// The kernel may end a wait one tick of a coarse clock early; ours are exact, except where the limit
// is in milliseconds or on another clock.
constexpr int64_t kMillisecond = 1'000'000;

struct SilentPipe {
  int ends[2];
  SilentPipe() { require_call(pipe2(ends, O_CLOEXEC) == 0, "pipe2"); }
  ~SilentPipe() {
    close(ends[0]);
    close(ends[1]);
  }
};

}  // namespace

std::string sleeps(uint64_t iterations) {
  run_threads(3, [&](unsigned t) {
    for (uint64_t n = 0; n < iterations; ++n) {
      int64_t ns = wait_length(n + t);
      timespec ts = to_timespec(ns), left{};
      if (t == 0) {
        takes_at_least(ns, "nanosleep", [&] { require_call(nanosleep(&ts, &left) == 0, "nanosleep"); });
      } else if (t == 1) {
        takes_at_least(ns, "clock_nanosleep", [&] {
          require_zero(clock_nanosleep(CLOCK_MONOTONIC, 0, &ts, &left), "clock_nanosleep");
        });
        timespec until = moment_after(CLOCK_MONOTONIC, ns);
        lasts_until(CLOCK_MONOTONIC, until, "clock_nanosleep until", [&] {
          require_zero(clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr),
                       "clock_nanosleep until");
        });
      } else {
        takes_at_least(ns, "usleep",
                       [&] { require_call(usleep(static_cast<useconds_t>(ns / 1000)) == 0, "usleep"); });
      }
      require(left.tv_sec == 0 && left.tv_nsec == 0, "sleeps: {} ns left", left.tv_nsec);
    }
  });
  return fmt::format("{} full sleeps", 4 * iterations);
}

std::string polls(uint64_t iterations) {
  SilentPipe silent;
  run_threads(4, [&](unsigned t) {
    for (uint64_t n = 0; n < iterations; ++n) {
      int64_t ns = wait_length(n + 3 * t);
      pollfd one{silent.ends[0], POLLIN, 0};
      timespec ts = to_timespec(ns);
      timeval tv{ts.tv_sec, ts.tv_nsec / 1000};
      fd_set set;
      FD_ZERO(&set);
      FD_SET(silent.ends[0], &set);
      int got = -1;
      const char* names[] = {"poll", "ppoll", "select", "pselect"};
      takes_at_least(ns, names[t], [&] {
        if (t == 0) got = poll(&one, 1, static_cast<int>(ns / kMillisecond));
        if (t == 1) got = ppoll(&one, 1, &ts, nullptr);
        if (t == 2) got = select(silent.ends[0] + 1, &set, nullptr, nullptr, &tv);
        if (t == 3) got = pselect(silent.ends[0] + 1, &set, nullptr, nullptr, &ts, nullptr);
      });
      require_call(got >= 0, names[t]);
      require(got == 0 && one.revents == 0, "{}: {} events on a silent pipe", names[t], got);
    }
  });
  return fmt::format("{} full waits", 4 * iterations);
}

std::string epolls(uint64_t iterations) {
  SilentPipe silent;
  run_threads(4, [&](unsigned t) {
    int fd = -1;
    if (t < 2) {
      fd = epoll_create1(EPOLL_CLOEXEC);
      epoll_event event{};
      event.events = EPOLLIN;
      require_call(epoll_ctl(fd, EPOLL_CTL_ADD, silent.ends[0], &event) == 0, "epoll_ctl");
    } else if (t == 2) {
      fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
    } else {
      fd = eventfd(0, EFD_CLOEXEC);
    }
    require_call(fd >= 0, "epolls: a descriptor");
    for (uint64_t n = 0; n < iterations; ++n) {
      int64_t ns = wait_length(n + 5 * t);
      epoll_event event{};
      uint64_t value = 0;
      if (t < 2) {
        takes_at_least(ns, "epoll_wait", [&] {
          int limit = static_cast<int>(ns / kMillisecond);
          int got = t == 0 ? epoll_wait(fd, &event, 1, limit) : epoll_pwait(fd, &event, 1, limit, nullptr);
          require_call(got == 0, t == 0 ? "epoll_wait" : "epoll_pwait");
        });
      } else if (t == 2) {
        itimerspec timer{{0, 0}, to_timespec(ns)};
        takes_at_least(ns, "timerfd", [&] {
          require_call(timerfd_settime(fd, 0, &timer, nullptr) == 0, "timerfd_settime");
          require_call(read(fd, &value, sizeof(value)) == sizeof(value), "read of a timerfd");
        });
        require(value == 1, "timerfd: {} ticks", value);
      } else {
        std::thread waker([&] {
          usleep(static_cast<useconds_t>(ns / 1000));
          uint64_t three = 3;
          require_call(write(fd, &three, sizeof(three)) == sizeof(three), "write to an eventfd");
        });
        require_call(read(fd, &value, sizeof(value)) == sizeof(value), "read of an eventfd");
        require(value == 3, "eventfd: {}", value);
        waker.join();
      }
    }
    close(fd);
  });
  return fmt::format("{} full waits", 4 * iterations);
}

std::string timed_locks(uint64_t iterations) {
  sem_t semaphore;
  sem_init(&semaphore, 0, 0);
  pthread_mutex_t held = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_t for_condition = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&held);
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_t condition;
  pthread_cond_init(&condition, &attributes);
  run_threads(4, [&](unsigned t) {
    for (uint64_t n = 0; n < iterations; ++n) {
      int64_t ns = wait_length(n + 7 * t);
      timespec real = moment_after(CLOCK_REALTIME, ns), monotonic = moment_after(CLOCK_MONOTONIC, ns);
      const char* names[] = {"sem_timedwait", "pthread_mutex_timedlock", "pthread_cond_timedwait",
                             "sem_clockwait"};
      int error = 0;
      if (t == 0) error = sem_timedwait(&semaphore, &real) == 0 ? 0 : errno;
      if (t == 1) error = pthread_mutex_timedlock(&held, &real);
      if (t == 2) {
        pthread_mutex_lock(&for_condition);
        do error = pthread_cond_timedwait(&condition, &for_condition, &monotonic);
        while (error == 0);
        pthread_mutex_unlock(&for_condition);
      }
      if (t == 3) error = sem_clockwait(&semaphore, CLOCK_MONOTONIC, &monotonic) == 0 ? 0 : errno;
      require(error == ETIMEDOUT, "{}: {}", names[t], std::strerror(error));
      lasts_until(t < 2 ? CLOCK_REALTIME : CLOCK_MONOTONIC, t < 2 ? real : monotonic, names[t], [] {});
    }
  });
  pthread_mutex_unlock(&held);
  sem_destroy(&semaphore);
  return fmt::format("{} full waits", 4 * iterations);
}

std::string futexes(uint64_t iterations) {
  uint32_t word = 0;
  run_threads(2, [&](unsigned t) {
    for (uint64_t n = 0; n < iterations; ++n) {
      int64_t ns = wait_length(n + 11 * t);
      timespec duration = to_timespec(ns), until = moment_after(CLOCK_MONOTONIC, ns);
      auto wait = [&] {
        long got = t == 0 ? syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &duration, nullptr, 0)
                          : syscall(SYS_futex, &word, FUTEX_WAIT_BITSET_PRIVATE, 0, &until, nullptr, ~0u);
        require(got == -1 && errno == ETIMEDOUT, "futexes: FUTEX_WAIT gives {}, {}", got,
                std::strerror(errno));
      };
      if (t == 0) {
        takes_at_least(ns, "FUTEX_WAIT", wait, 100'000);
      } else {
        lasts_until(CLOCK_MONOTONIC, until, "FUTEX_WAIT_BITSET", wait);
      }
    }
  });
  return fmt::format("{} full waits", 2 * iterations);
}

std::string sigwaits(uint64_t iterations) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGRTMIN + 5);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  for (uint64_t n = 0; n < iterations; ++n) {
    int64_t ns = wait_length(n);
    timespec ts = to_timespec(ns);
    takes_at_least(ns, "sigtimedwait", [&] {
      siginfo_t info;
      int got = sigtimedwait(&set, &info, &ts);
      require(got == -1 && errno == EAGAIN, "sigwaits: signal {}, {}", got, std::strerror(errno));
    });
    sigval value;
    value.sival_int = static_cast<int>(n);
    require_zero(pthread_sigqueue(pthread_self(), SIGRTMIN + 5, value), "pthread_sigqueue");
    siginfo_t info;
    require_call(sigwaitinfo(&set, &info) == SIGRTMIN + 5, "sigwaitinfo");
    require(info.si_value.sival_int == static_cast<int>(n), "sigwaits: value {}", info.si_value.sival_int);
  }
  return fmt::format("{} full waits, {} signals", iterations, iterations);
}

}  // namespace calls
