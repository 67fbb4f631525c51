// What a stop takes the kernel's word for (docs/kernel_notes.md).
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <barrier>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

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

}  // namespace
