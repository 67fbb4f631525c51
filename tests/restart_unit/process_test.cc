// The process around the memory: ids, namespaces, clocks, signals, the end.
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "made_image.h"

namespace ckpt {
namespace {

class Process : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/restart_unit.XXXXXX";
    directory_ = mkdtemp(name);
    chmod(directory_.c_str(), 0755);
  }
  void TearDown() override {
    if (!HasFailure()) (void)!system(("rm -rf " + directory_).c_str());
  }
  RunResult run(MadeImage& image, std::vector<std::string> options = {}, const std::string& input = {}) {
    image.step(GuestOp::kGo);
    image.step(GuestOp::kEnd, 7);
    options.push_back(image.write(directory_));
    return run_restart(options, input);
  }
  long fact(const RunResult& r, const std::string& name) {
    size_t at = (" " + r.out).find(" " + name + " ");
    return at == std::string::npos ? -999 : std::stol(r.out.substr(at + name.size() + 1));
  }
  std::string directory_;
};

TEST_F(Process, HasItsOldPidHere) {
  if (geteuid() != 0) GTEST_SKIP() << "needs the right to choose ids";
  MadeImage image;
  image.step(GuestOp::kFacts);
  RunResult r = run(image);
  EXPECT_EQ(r.exit_code(), 7) << r.err;
  EXPECT_EQ(fact(r, "pid"), image.process.pid);
  EXPECT_EQ(fact(r, "tid"), image.process.pid);
  EXPECT_EQ(fact(r, "stack_aligned"), 1);
}

TEST_F(Process, HasItsOldPidInANamespaceWhenItIsTaken) {
  MadeImage image;
  image.process.pid = getpid();
  image.step(GuestOp::kFacts);
  image.cat("/proc/self/stat");
  RunResult r = run(image);
  EXPECT_EQ(r.exit_code(), 7) << r.err;
  EXPECT_EQ(fact(r, "pid"), getpid());
  EXPECT_NE(r.out.find("\n" + std::to_string(getpid()) + " (guest) R 1 "), std::string::npos)
      << r.out << r.err;
}

TEST_F(Process, MayBeProcessOne) {
  MadeImage image;
  image.process.pid = 1;
  image.step(GuestOp::kFacts);
  RunResult r = run(image);
  EXPECT_EQ(r.exit_code(), 7) << r.err;
  EXPECT_EQ(fact(r, "pid"), 1);
}

TEST_F(Process, ClocksGoOn) {
  for (const char* namespaces : {"auto", "always"}) {
    MadeImage image;
    constexpr int64_t kSaved = 5'000'000'000'000;
    image.process.monotonic_ns = kSaved;
    image.process.boottime_ns = kSaved + 1'000'000'000;
    image.step(GuestOp::kFacts);
    image.cat("/proc/self/timens_offsets");
    const auto before = std::chrono::steady_clock::now();
    RunResult r = run(image, {"--namespaces", namespaces});
    const std::chrono::nanoseconds took = std::chrono::steady_clock::now() - before;
    EXPECT_EQ(r.exit_code(), 7) << r.err;
    if (r.err.find("CLOCK_MONOTONIC jumps") != std::string::npos)
      GTEST_SKIP() << "no time namespace here: " << r.err;
    EXPECT_GE(fact(r, "monotonic"), kSaved);
    EXPECT_LE(fact(r, "monotonic"), kSaved + took.count()) << "more has passed than the restart took";
    EXPECT_EQ(fact(r, "shift"), 0);
    EXPECT_EQ(r.err, "");
  }
}

TEST_F(Process, ComesBackAsItsOwnUser) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  MadeImage image;
  for (int i = 0; i < 4; ++i) image.process.uid[i] = image.process.gid[i] = 4711;
  image.process.cap_effective = image.process.cap_permitted = 0;
  image.step(GuestOp::kFacts);
  image.cat("/proc/self/status");
  RunResult r = run(image);
  EXPECT_EQ(r.exit_code(), 7) << r.err;
  EXPECT_EQ(fact(r, "uid"), 4711);
  EXPECT_EQ(fact(r, "euid"), 4711);
  EXPECT_NE(r.out.find("\nGroups:\t \n"), std::string::npos) << r.out;
  // All of ours: other threads may have more than the first. The library gives them up, in each thread.
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct ours[2] = {};
  ASSERT_EQ(syscall(SYS_capget, &header, ours), 0);
  const std::string permitted = fmt::format("{:08x}{:08x}\n", ours[1].permitted, ours[0].permitted);
  EXPECT_NE(r.out.find("CapPrm:\t" + permitted), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("CapEff:\t" + permitted), std::string::npos) << r.out;
}

TEST_F(Process, ComesBackWithoutPrivilege) {
  if (geteuid() != 0) GTEST_SKIP() << "the other tests run without privilege already";
  MadeImage image;
  for (int i = 0; i < 4; ++i) image.process.uid[i] = image.process.gid[i] = 65534;
  image.process.cap_effective = image.process.cap_permitted = image.process.cap_bounding = 0;
  image.process.no_new_privs = 0;
  image.step(GuestOp::kFacts);
  image.cat("/proc/self/comm");
  image.step(GuestOp::kGo);
  image.step(GuestOp::kEnd, 7);
  std::string path = image.write(directory_);
  ASSERT_EQ(chown(path.c_str(), 65534, 65534), 0);
  int out[2];
  ASSERT_EQ(pipe(out), 0);
  pid_t child = fork();
  if (child == 0) {
    dup2(out[1], 1);
    dup2(out[1], 2);
    close(out[0]);
    execlp("setpriv", "setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups",
           CKPT_RESTART_PROGRAM, path.c_str(), nullptr);
    _exit(127);
  }
  close(out[1]);
  RunResult r;
  char buffer[4096];
  for (ssize_t n; (n = read(out[0], buffer, sizeof(buffer))) > 0;)
    r.out.append(buffer, static_cast<size_t>(n));
  close(out[0]);
  waitpid(child, &r.status, 0);
  EXPECT_EQ(r.exit_code(), 7) << r.out;
  EXPECT_EQ(fact(r, "pid"), image.process.pid) << r.out;
  EXPECT_EQ(fact(r, "uid"), 65534) << r.out;
  EXPECT_NE(r.out.find("guest\n"), std::string::npos) << r.out;
}

TEST_F(Process, LimitsUmaskAndDirectoryComeBack) {
  MadeImage image;
  image.process.umask = 0137;
  image.cwd = directory_;
  image.limits.soft[RLIMIT_NOFILE] = 77;
  image.limits.soft[RLIMIT_CORE] = 12345;
  image.limits.soft[RLIMIT_STACK] = 3 << 20;
  image.cat("/proc/self/status");
  image.cat("/proc/self/limits");
  image.cat("/proc/self/cmdline");
  RunResult r = run(image);
  EXPECT_EQ(r.exit_code(), 7) << r.err;
  EXPECT_NE(r.out.find("Umask:\t0137"), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("Max open files            77 "), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("Max core file size        12345 "), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("Max stack size            3145728 "), std::string::npos) << r.out;
  EXPECT_NE(r.out.find(std::string("guest\0", 6)), std::string::npos) << r.out;
}

TEST_F(Process, MayUseWhatItWasAllowedNotWhatTheRestarterIs) {
  MadeImage image;
  image.limits.soft[RLIMIT_AS] = image.limits.hard[RLIMIT_AS] = RLIM_INFINITY;
  uint64_t at = 0x20'0000'0000;
  image.add(at, at + (uint64_t{8} << 30), PROT_READ, MappingKind::kAnonymous);
  image.step(GuestOp::kGo);
  image.step(GuestOp::kEnd, 7);
  std::string path = image.write(directory_);
  rlimit before{};
  getrlimit(RLIMIT_AS, &before);
  rlimit small{uint64_t{1} << 30, before.rlim_max};
  setrlimit(RLIMIT_AS, &small);
  RunResult r = run_restart({path});
  setrlimit(RLIMIT_AS, &before);
  EXPECT_EQ(r.exit_code(), 7) << r.err;
}

TEST_F(Process, ASignalThatKillsItKillsCkptRestart) {
  for (const char* namespaces : {"auto", "always"}) {
    MadeImage image;
    image.step(GuestOp::kGo);
    image.step(GuestOp::kKill, SIGKILL);
    image.step(GuestOp::kEnd, 1);
    RunResult r = run_restart({"--namespaces", namespaces, image.write(directory_)});
    EXPECT_TRUE(WIFSIGNALED(r.status) && WTERMSIG(r.status) == SIGKILL) << r.status << r.err;
  }
}

TEST_F(Process, ReadsTheRestartersInput) {
  MadeImage image;
  image.add(0x20'0000'0000, 0x20'0000'1000, PROT_READ | PROT_WRITE, MappingKind::kAnonymous);
  image.step(GuestOp::kWait);
  image.step(GuestOp::kText, 0, image.text("got it"));
  RunResult r = run(image, {}, "x");
  EXPECT_EQ(r.exit_code(), 7) << r.err;
  EXPECT_EQ(r.out, "got it");
}

TEST_F(Process, OpenDescriptorsAreTheProgramsOnly) {
  MadeImage image;
  image.cat("/proc/self/status");
  RunResult r = run(image);
  EXPECT_NE(r.out.find("FDSize:\t"), std::string::npos);
  image = MadeImage();
}

TEST_F(Process, WaitingCostsNothing) {
  for (const char* namespaces : {"auto", "always"}) {
    // Processor time, in ms, of a restart of a program that sleeps for so many ms.
    auto cost_of = [&](uint32_t sleeps) {
      auto cpu_ms = [] {
        rusage u{};
        getrusage(RUSAGE_CHILDREN, &u);
        return (u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000 +
               (u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1000;
      };
      MadeImage image;
      image.step(GuestOp::kGo);
      image.step(GuestOp::kSleep, sleeps);
      const auto before = cpu_ms();
      RunResult r = run(image, {"--namespaces", namespaces});
      EXPECT_EQ(r.exit_code(), 7) << r.err;
      return cpu_ms() - before;
    };
    // By turning each takes a second; time that the host takes away may be counted too, now and then.
    long least = 1000;
    for (int i = 0; i < 5 && least >= 300; ++i) least = std::min(least, cost_of(1000) - cost_of(0));
    EXPECT_LT(least, 300) << "ckpt-restart or its init waits by turning";
  }
}

TEST_F(Process, CostsAsJson) {
  MadeImage image;
  RunResult r = run(image, {"--json"});
  EXPECT_EQ(r.exit_code(), 7) << r.err;
  auto j = nlohmann::json::parse(r.err);
  EXPECT_EQ(j["ok"], true);
  EXPECT_EQ(j["pid"], image.process.pid);
  EXPECT_GT(j["restart_ns"].get<int64_t>(), 0);
  EXPECT_EQ(j["memory_bytes"].get<int64_t>() % 4096, 0);
}

}  // namespace
}  // namespace ckpt
