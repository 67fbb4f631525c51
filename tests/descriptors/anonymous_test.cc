#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "image/format/object_number.h"
#include "tests/descriptors/harness.h"

namespace ckpt::test {
namespace {

class Anonymous : public testing::TestWithParam<bool> {
 protected:
  Anonymous() { trip.executor = GetParam(); }
  ScratchDirectory dir;
  RoundTrip trip;
};
INSTANTIATE_TEST_SUITE_P(Sampled, Anonymous, testing::Values(true, false), how_sampled);

uint64_t read_counter(int fd) {
  uint64_t n = 0;
  VERIFY(read(fd, &n, sizeof(n)) == sizeof(n));
  return n;
}

TEST_P(Anonymous, EventFds) {
  trip.setup = [] {
    move_to(eventfd(3, 0), 5);
    move_to(eventfd(2, EFD_SEMAPHORE | EFD_NONBLOCK), 6);
    move_to(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), 7);
    dup2(7, 8);
    uint64_t huge = 0xfffffffffffffffe;
    move_to(eventfd(0, 0), 9);
    VERIFY(write(9, &huge, 8) == 8);
  };
  trip.before_stop = [] { eventfd_write(5, 10); };
  trip.verify = [] {
    VERIFY_EQ(read_counter(5), 13u);
    VERIFY_EQ(read_counter(6), 1u);
    VERIFY_EQ(read_counter(6), 1u);
    VERIFY_EQ(read_some(6, 8), fmt::format("errno {}", EAGAIN));
    VERIFY_EQ(read_some(7, 8), fmt::format("errno {}", EAGAIN));
    eventfd_write(8, 4);
    VERIFY_EQ(read_counter(7), 4u);
    VERIFY_EQ(read_counter(9), 0xfffffffffffffffeu);
  };
  trip.run();
  EXPECT_TRUE(trip.notes.empty());
}

// Between the look ahead and the stop, objects go and others come under the same numbers: of the same kind,
// of the same inode number, in the same state. Many of each, so that their order is what is compared.
TEST_P(Anonymous, ManyReplacedByTheirOwnKind) {
  constexpr int kFirst = 40, kCount = 12;
  trip.setup = [] {
    for (int i = 0; i < kCount; ++i) move_to(eventfd(static_cast<unsigned>(i), EFD_NONBLOCK), kFirst + i);
    move_to(epoll_create1(0), 60);
    move_to(epoll_create1(0), 61);
    move_to(timerfd_create(CLOCK_MONOTONIC, 0), 62);
  };
  trip.before_stop = [] {
    // Anew, in another order, so that numbers and addresses are used again.
    for (int i = 0; i < kCount; ++i) close(kFirst + i);
    for (int i = kCount - 1; i >= 0; --i)
      move_to(eventfd(static_cast<unsigned>(100 + i), EFD_NONBLOCK), kFirst + i);
    // Two that were apart are one now, and are no neighbours; epolls as well.
    dup2(kFirst + 2, kFirst + 9);
    dup2(60, 63);
    dup2(61, 60);
  };
  trip.verify = [] {
    for (int i = 0; i < kCount; ++i) {
      if (i != 2 && i != 9) VERIFY_EQ(read_counter(kFirst + i), static_cast<uint64_t>(100 + i));
    }
    VERIFY_EQ(read_counter(kFirst + 9), 102u);
    VERIFY_EQ(read_some(kFirst + 2, 8), fmt::format("errno {}", EAGAIN));
    // 60 and 61 are one epoll, 63 is another.
    epoll_event watch{EPOLLIN, {.u32 = 7}}, seen{};
    eventfd_write(kFirst, 1);
    VERIFY_EQ(epoll_ctl(60, EPOLL_CTL_ADD, kFirst, &watch), 0);
    VERIFY_EQ(epoll_wait(61, &seen, 1, 0), 1);
    VERIFY_EQ(epoll_wait(63, &seen, 1, 0), 0);
  };
  trip.run();
  EXPECT_TRUE(trip.notes.empty());
}

// One timer replaced by a duplicate of another, as many as before. In the order of the kernel, which is
// arbitrary, eventfds lie between them: they are told apart otherwise, and must not be links of the
// comparison. Several times, for each has another order.
TEST_P(Anonymous, OneBecomesAnotherBetweenEventfds) {
  constexpr int kTimers = 40, kEvents = 50, kCount = 8;
  for (int round = 0; round < 12; ++round) {
    RoundTrip again;
    again.executor = trip.executor;
    again.setup = [] {
      for (int i = 0; i < kCount; ++i) move_to(timerfd_create(CLOCK_MONOTONIC, 0), kTimers + i);
      for (int i = 0; i < 4 * kCount; ++i) move_to(eventfd(0, EFD_NONBLOCK), kEvents + i);
    };
    again.before_stop = [] { dup2(kTimers + 1, kTimers); };
    again.verify = [] {
      const itimerspec soon{{0, 0}, {0, 1}};
      VERIFY_EQ(timerfd_settime(kTimers, 0, &soon, nullptr), 0);
      pollfd wait{kTimers + 1, POLLIN, 0};
      VERIFY_EQ(poll(&wait, 1, 5000), 1);
    };
    again.run();
  }
}

TEST_P(Anonymous, ReplacedByAnotherOfTheSameInode) {
  trip.setup = [] { move_to(eventfd(3, 0), 5); };
  trip.before_stop = [] {
    move_to(epoll_create1(0), 5);
    move_to(eventfd(9, 0), 6);
  };
  trip.verify = [] {
    epoll_event e;
    VERIFY_EQ(epoll_wait(5, &e, 1, 0), 0);
    VERIFY_EQ(read_counter(6), 9u);
  };
  trip.run();
}

TEST_P(Anonymous, MemfdsWithContentAndSeals) {
  trip.setup = [] {
    move_to(memfd_create("with seals", MFD_ALLOW_SEALING), 5);
    VERIFY(write(5, "sealed", 6) == 6);
    VERIFY(ftruncate(5, 100000) == 0);
    VERIFY(fcntl(5, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_SEAL) == 0);
    lseek(5, 2, SEEK_SET);
    move_to(memfd_create("plain", 0), 6);
    VERIFY(write(6, "plain", 5) == 5);
    open_at(7, "/proc/self/fd/6", O_RDONLY);
    move_to(memfd_create("read only now", MFD_ALLOW_SEALING), 8);
    VERIFY(fcntl(8, F_ADD_SEALS, F_SEAL_GROW) == 0);
    open_at(8, "/proc/self/fd/8", O_RDONLY);
  };
  trip.verify = [] {
    VERIFY_EQ(fcntl(5, F_GET_SEALS), F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_SEAL);
    VERIFY(write(5, "x", 1) == -1 && errno == EPERM);
    VERIFY_EQ(lseek(5, 0, SEEK_CUR), 2);
    VERIFY_EQ(read_some(5, 4), "aled");
    VERIFY_EQ(lseek(5, 0, SEEK_END), 100000);
    VERIFY_EQ(fcntl(6, F_GET_SEALS), F_SEAL_SEAL);
    VERIFY_EQ(fcntl(8, F_GET_SEALS), F_SEAL_GROW);
    VERIFY_EQ(read_some(7, 10), "plain");
    VERIFY(pwrite(6, "P", 1, 0) == 1);
    lseek(7, 0, SEEK_SET);
    VERIFY_EQ(read_some(7, 10), "Plain");
    char link[100] = {};
    VERIFY(readlink("/proc/self/fd/5", link, 99) > 0);
    VERIFY_EQ(std::string(link), "/memfd:with seals (deleted)");
  };
  trip.run();
}

TEST_P(Anonymous, TimerFds) {
  trip.setup = [] {
    move_to(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK), 5);
    itimerspec spec{{2, 0}, {100'000, 5}};
    timerfd_settime(5, 0, &spec, nullptr);
    move_to(timerfd_create(CLOCK_MONOTONIC, 0), 6);
    spec = {{0, 1000000}, {0, 1}};
    timerfd_settime(6, 0, &spec, nullptr);
    pollfd p{6, POLLIN, 0};
    poll(&p, 1, -1);
    itimerspec off{};
    timerfd_gettime(6, &off);
    move_to(timerfd_create(CLOCK_REALTIME, 0), 7);
  };
  trip.verify = [] {
    itimerspec now;
    VERIFY(timerfd_gettime(5, &now) == 0);
    VERIFY_EQ(now.it_interval.tv_sec, 2);
    VERIFY(now.it_value.tv_sec >= 99'000 && now.it_value.tv_sec <= 100'000);
    VERIFY_EQ(fcntl(5, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
    VERIFY(read_counter(6) >= 1);
    VERIFY(timerfd_gettime(7, &now) == 0 && now.it_value.tv_sec == 0 && now.it_value.tv_nsec == 0);
  };
  trip.run();
  EXPECT_TRUE(trip.notes.empty());
}

TEST_P(Anonymous, SignalFd) {
  trip.setup = [] {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    move_to(signalfd(-1, &set, SFD_NONBLOCK), 5);
  };
  trip.verify = [] {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGUSR2);
    sigprocmask(SIG_BLOCK, &set, nullptr);
    raise(SIGUSR2);
    VERIFY_EQ(read_some(5, 128), fmt::format("errno {}", EAGAIN));
    raise(SIGUSR1);
    VERIFY_EQ(read_some(5, 128).size(), 128u);
  };
  trip.run();
}

TEST_P(Anonymous, Epoll) {
  trip.setup = [] {
    move_to(eventfd(0, 0), 5);
    move_to(epoll_create1(EPOLL_CLOEXEC), 6);
    fcntl(6, F_SETFD, FD_CLOEXEC);
    epoll_event e{EPOLLIN | EPOLLET, {.u64 = 0x123456789abcdef0}};
    VERIFY(epoll_ctl(6, EPOLL_CTL_ADD, 5, &e) == 0);
    move_to(epoll_create1(0), 7);
    e = {EPOLLIN, {.u64 = 66}};
    VERIFY(epoll_ctl(7, EPOLL_CTL_ADD, 6, &e) == 0);
  };
  trip.verify = [] {
    epoll_event e{};
    VERIFY_EQ(epoll_wait(7, &e, 1, 0), 0);
    eventfd_write(5, 1);
    VERIFY_EQ(epoll_wait(7, &e, 1, 0), 1);
    VERIFY_EQ(uint64_t{e.data.u64}, 66u);
    VERIFY_EQ(epoll_wait(6, &e, 1, 0), 1);
    VERIFY_EQ(uint64_t{e.data.u64}, 0x123456789abcdef0u);
    VERIFY_EQ(epoll_wait(6, &e, 1, 0), 0);  // edge-triggered
    VERIFY_EQ(fcntl(6, F_GETFD), FD_CLOEXEC);
  };
  trip.run();
  EXPECT_TRUE(trip.lines.empty());
}

// The number at which a file was registered belongs to another one now, of the same inode: all eventfds have
// one.
TEST_P(Anonymous, EpollWatchesAnEventFdThatAnotherHasTakenTheNumberOf) {
  trip.setup = [] {
    move_to(epoll_create1(0), 20);
    for (uint32_t i = 0; i < 4; ++i) {
      // The last two have two registrations at one number, of which either may come first in the kernel's
      // order.
      const int number = static_cast<int>(5 + i), other = static_cast<int>(30 + i);
      move_to(eventfd(0, 0), number);
      epoll_event e{EPOLLIN, {.u32 = 100 + i}};
      VERIFY(epoll_ctl(20, EPOLL_CTL_ADD, number, &e) == 0);
      dup2(number, other);
      close(number);
      move_to(eventfd(0, 0), number);
      e.data.u32 = 200 + i;
      if (i >= 2) VERIFY(epoll_ctl(20, EPOLL_CTL_ADD, number, &e) == 0);
    }
    // Only another process has the file still: the watch is none of the file that has its number now.
    move_to(eventfd(0, 0), 10);
    epoll_event e{EPOLLIN, {.u32 = 300}};
    VERIFY(epoll_ctl(20, EPOLL_CTL_ADD, 10, &e) == 0);
    const pid_t subject = getpid();
    if (fork() == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != subject) _exit(0);  // it has ended before: nobody would kill us
      pause();
      _exit(0);
    }
    close(10);
    move_to(eventfd(0, 0), 10);
  };
  trip.verify = [] {
    auto reported = [](int fd) {
      uint64_t one = 1;
      VERIFY(write(fd, &one, sizeof(one)) == sizeof(one));
      epoll_event e{};
      const int n = epoll_wait(20, &e, 1, 0);
      VERIFY(read(fd, &one, sizeof(one)) == sizeof(one));
      return n == 1 ? e.data.u32 : 0u;
    };
    for (uint32_t i = 0; i < 4; ++i) {
      VERIFY_EQ(reported(static_cast<int>(30 + i)), 100 + i);
      VERIFY_EQ(reported(static_cast<int>(5 + i)), i < 2 ? 0 : 200 + i);
    }
    VERIFY_EQ(reported(10), 0u);
  };
  trip.run();
  ASSERT_EQ(trip.notes.size(), 1u);
  EXPECT_NE(trip.notes[0].find("registered as descriptor 10"), std::string::npos) << trip.notes[0];
}

}  // namespace
}  // namespace ckpt::test
