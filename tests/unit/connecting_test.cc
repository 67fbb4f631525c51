// Who waits in connect while a checkpoint holds connections, and how such a wait ends.
#include "job/session/connecting.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "libckpt_rt/core/process/this_process.h"
#include "libckpt_rt/stop/critical_section.h"

namespace ckpt {
namespace {

using job::connecting::await;

class Connecting : public testing::Test {
 protected:
  void SetUp() override {
    this_process.pid = getpid();
    job::connecting::hold();
  }
  void TearDown() override { job::connecting::release(); }

  // What await() says of such a socket once it is let go; -1 if it was not held.
  static int let_go(int domain, int type) {
    const int fd = socket(domain, type, 0);
    std::atomic<int> result{-1};
    std::thread thread([&] { result = await(fd) ? 1 : 0; });
    // As long as it would be held at most.
    const bool waits = !waits_no_more(result, 50);
    job::connecting::release();
    thread.join();
    close(fd);
    return waits ? result.load() : -1;
  }
  static bool waits_no_more(const std::atomic<int>& result, int milliseconds) {
    for (int i = 0; i < milliseconds && result < 0; ++i) usleep(1000);
    return result >= 0;
  }
};

TEST_F(Connecting, IsHeldUntilItIsLetGo) {
  for (const int domain : {AF_UNIX, AF_INET, AF_INET6}) {
    job::connecting::hold();
    EXPECT_EQ(let_go(domain, SOCK_STREAM), 0) << domain;
  }
}

TEST_F(Connecting, OfWhatMakesNoConnectionIsNotHeld) {
  const int datagrams = socket(AF_INET, SOCK_DGRAM, 0), netlink = socket(AF_NETLINK, SOCK_RAW, 0);
  EXPECT_FALSE(await(datagrams));
  EXPECT_FALSE(await(netlink));
  EXPECT_FALSE(await(-1));
  EXPECT_TRUE(job::connecting::is_holding());
  close(datagrams);
  close(netlink);
}

TEST_F(Connecting, WithALimitOfTimeWaitsForAMomentAlone) {
  for (const bool nonblocking : {true, false}) {
    const int fd = socket(AF_INET, SOCK_STREAM | (nonblocking ? SOCK_NONBLOCK : 0), 0);
    const timeval limit{60, 0};
    if (!nonblocking) {
      ASSERT_EQ(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)), 0);
    }
    EXPECT_FALSE(await(fd));
    EXPECT_TRUE(job::connecting::is_holding());
    close(fd);
  }
}

TEST_F(Connecting, InACriticalSectionIsNotHeld) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const int tid = static_cast<int>(syscall(SYS_gettid));
  ASSERT_TRUE(critical_section::enter(tid));
  EXPECT_FALSE(await(fd));
  ASSERT_TRUE(critical_section::leave(tid));
  close(fd);
}

// A handler ends the wait as it would end connect: without SA_RESTART.
TEST_F(Connecting, EndsByAHandlerThatEndsConnect) {
  for (const int flags : {0, SA_RESTART}) {
    struct sigaction action {};
    action.sa_handler = [](int) {};
    action.sa_flags = flags;
    ASSERT_EQ(sigaction(SIGUSR1, &action, nullptr), 0);
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    std::atomic<int> result{-1};
    std::thread thread([&] { result = await(fd) ? 1 : 0; });
    // The signal may come before it waits. With SA_RESTART it waits on after any number of them.
    for (int i = 0; result < 0 && (flags == 0 || i < 100); ++i) {
      pthread_kill(thread.native_handle(), SIGUSR1);
      usleep(1000);
    }
    EXPECT_EQ(result.load(), flags == 0 ? 1 : -1);
    job::connecting::release();
    thread.join();
    job::connecting::hold();
    close(fd);
  }
}

TEST_F(Connecting, IsLetGoWhenItIsLate) {
  while (std::chrono::steady_clock::now().time_since_epoch().count() < job::connecting::holds_until()) {
    EXPECT_TRUE(job::connecting::is_holding());
    job::connecting::release_if_late();
    usleep(1000);
  }
  job::connecting::release_if_late();
  EXPECT_FALSE(job::connecting::is_holding());
}

}  // namespace
}  // namespace ckpt
