// What a stop takes the kernel's word for (docs/kernel_notes.md).
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "libckpt_rt/stop/stop_world.h"

namespace {

long links_of_task_directory() {
  struct stat st;
  return stat("/proc/self/task", &st) == 0 ? static_cast<long>(st.st_nlink) : -1;
}

TEST(StopTest, TheTaskDirectoryHasALinkForEachThreadAndTwoMore) {
  const long alone = links_of_task_directory();
  EXPECT_EQ(alone, 2 + 1);
  constexpr int kThreads = 7;
  std::barrier all_there(kThreads + 1), counted(kThreads + 1);
  std::vector<std::jthread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      all_there.arrive_and_wait();
      counted.arrive_and_wait();
    });
  }
  all_there.arrive_and_wait();
  EXPECT_EQ(links_of_task_directory(), alone + kThreads);
  counted.arrive_and_wait();
}

std::string eventfd_number(int fd) {
  std::ifstream info("/proc/self/fdinfo/" + std::to_string(fd));
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("eventfd-id:")) return line;
  }
  return "";
}

TEST(StopTest, AnEventfdHasANumberThatNoOtherHas) {
  std::set<std::string> numbers;
  std::vector<int> fds;
  for (int i = 0; i < 20; ++i) {
    fds.push_back(eventfd(0, EFD_CLOEXEC));
    ASSERT_GE(fds.back(), 0);
    std::string number = eventfd_number(fds.back());
    if (number.empty()) GTEST_SKIP() << "this kernel does not say (before 5.2)";
    EXPECT_TRUE(numbers.insert(number).second) << number;
  }
  const int twin = dup(fds[3]);
  EXPECT_EQ(eventfd_number(twin), eventfd_number(fds[3]));
  close(twin);
  for (int fd : fds) close(fd);
}

// With FRED the processor need not leave the address behind the instruction in rcx.
bool call_leaves_address() {
  unsigned long address = 0, result = SYS_getpid, behind;
  asm volatile("syscall\n1: lea 1b(%%rip), %2"
               : "+c"(address), "+a"(result), "=r"(behind)
               :
               : "r11", "memory");
  return address == behind;
}

std::atomic<int> seen_waiting;
std::atomic<bool> goes_on;
int ends[2];

// What the frame says of a thread that gets a signal in `work`, or in the system call named there. finish()
// ends it.
int waiting_in(void (*work)(), long call, void (*finish)()) {
  struct sigaction action {
  }, before;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  action.sa_sigaction = [](int, siginfo_t*, void* frame) {
    seen_waiting = ckpt::StopWorld::was_waiting(*static_cast<ucontext_t*>(frame)) ? 1 : 0;
  };
  sigaction(SIGUSR1, &action, &before);
  seen_waiting = -1;
  goes_on = true;
  std::atomic<int> tid{0};
  std::thread thread([&] {
    tid = static_cast<int>(syscall(SYS_gettid));
    work();
  });
  while (tid == 0) std::this_thread::yield();
  for (std::string now; call >= 0 && now != std::to_string(call); std::this_thread::yield()) {
    std::ifstream("/proc/self/task/" + std::to_string(tid) + "/syscall") >> now;
  }
  syscall(SYS_tgkill, getpid(), tid.load(), SIGUSR1);
  while (seen_waiting < 0) std::this_thread::yield();
  finish();
  thread.join();
  sigaction(SIGUSR1, &before, nullptr);
  return seen_waiting;
}

TEST(StopTest, ASignalFrameTellsWhetherItsThreadWaited) {
  auto works = [] {
    while (goes_on) {
    }
  };
  EXPECT_EQ(waiting_in(works, -1, [] { goes_on = false; }), 0);
  if (!call_leaves_address()) GTEST_SKIP() << "this processor keeps rcx in a system call (FRED)";
  EXPECT_EQ(waiting_in([] { syscall(SYS_pause); }, SYS_pause, [] {}), 1);  // ends with EINTR
  ASSERT_EQ(pipe(ends), 0);
  auto reads = [] {
    char byte;
    EXPECT_EQ(read(ends[0], &byte, 1), 0);
  };
  EXPECT_EQ(waiting_in(reads, SYS_read, [] { close(ends[1]); }), 1);  // is made again
  close(ends[0]);
}

}  // namespace
