// How much memory a keeper may take: of the machine, and of the control groups of both versions.
#include "cluster/keeper/memory_left.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

namespace ckpt::keeper {

namespace {

class MemoryLeftTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(mkdtemp(root_.data()), nullptr);
    put("/proc/meminfo", "MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 800 kB\n");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void put(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  void expect(uint64_t all_kib, uint64_t left_kib) {
    const MemoryLeft memory = memory_left(root_);
    EXPECT_EQ(memory.all, all_kib << 10);
    EXPECT_EQ(memory.left, left_kib << 10);
  }

  std::string root_ = "/tmp/ckpt-memory-left-XXXXXX";
};

TEST_F(MemoryLeftTest, WithoutGroupsItIsTheMachines) {
  expect(1000, 800);
  put("/proc/self/cgroup", "0::/\n");
  expect(1000, 800);
}

TEST_F(MemoryLeftTest, TheGroupThatAllowsTheLeast) {
  put("/proc/self/cgroup", "0::/job/step\n");
  put("/sys/fs/cgroup/job/step/memory.max", "max\n");
  put("/sys/fs/cgroup/job/step/memory.current", "1\n");
  put("/sys/fs/cgroup/job/memory.max", std::to_string(600 << 10) + "\n");
  put("/sys/fs/cgroup/job/memory.current", std::to_string(500 << 10) + "\n");
  expect(600, 100);
  // Pages of files are given back when memory is wanted.
  put("/sys/fs/cgroup/job/memory.stat",
      "anon 1\ninactive_file " + std::to_string(50 << 10) + "\nactive_file 7\n");
  expect(600, 150);
  put("/sys/fs/cgroup/job/memory.current", std::to_string(700 << 10) + "\n");
  expect(600, 0);
}

TEST_F(MemoryLeftTest, VersionOne) {
  put("/proc/self/cgroup", "5:cpu,cpuacct:/\n4:memory:/job\n0::/\n");
  put("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", std::to_string(300 << 10) + "\n");
  put("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", std::to_string(100 << 10) + "\n");
  // What stands for "no limit".
  put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  put("/sys/fs/cgroup/memory/memory.usage_in_bytes", std::to_string(100 << 10) + "\n");
  expect(300, 200);
}

}  // namespace

}  // namespace ckpt::keeper
