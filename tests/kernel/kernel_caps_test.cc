// Every probe of base/machine/kernel_caps.h, run here. A machine may refuse; then the reason must be one that
// `ckpt check` explains, and what the probe promises must still hold: nothing is left behind.
#include "base/machine/kernel_caps.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/userfaultfd.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <initializer_list>
#include <string>

#include "base/raii_fd.h"
#include "base/result.h"

namespace ckpt {

namespace {

size_t open_descriptors() {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                                           std::filesystem::directory_iterator()));
}

class KernelCapsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    descriptors_ = open_descriptors();
    namespaces_ = std::filesystem::read_symlink("/proc/self/ns/user");
  }
  void TearDown() override {
    EXPECT_EQ(open_descriptors(), descriptors_);
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
    EXPECT_EQ(errno, ECHILD);
    EXPECT_EQ(std::filesystem::read_symlink("/proc/self/ns/user"), namespaces_);
  }
  // Works, or is refused for one of these reasons, which the output names.
  static void expect(ProbeResult r, std::initializer_list<int> refusals) {
    if (r.ok()) return;
    std::string allowed;
    for (int e : refusals) {
      if (e == r.error) {
        printf("refused here: %s\n", errno_name(e));
        return;
      }
      allowed += std::string(" ") + errno_name(e);
    }
    ADD_FAILURE() << "unexplained " << errno_name(r.error) << " (" << r.error << "), known:" << allowed;
  }

  size_t descriptors_ = 0;
  std::filesystem::path namespaces_;
};

TEST_F(KernelCapsTest, PagemapScan) { expect(probe_pagemap_scan(), {ENOTTY, EPERM}); }
TEST_F(KernelCapsTest, IoUring) { expect(probe_io_uring(), {ENOSYS, EPERM}); }
TEST_F(KernelCapsTest, UserNamespace) {
  expect(probe_user_namespace(), {EPERM, ENOSPC, EUSERS, EINVAL, EACCES});
}
TEST_F(KernelCapsTest, PidNamespace) {
  expect(probe_pid_namespace(), {EPERM, ENOSPC, EUSERS, EINVAL, EACCES});
}
TEST_F(KernelCapsTest, TimeNamespace) {
  expect(probe_time_namespace(), {EPERM, ENOSPC, EUSERS, EINVAL, EACCES});
}
TEST_F(KernelCapsTest, SetTid) { expect(probe_set_tid(), {EPERM, ENOSYS}); }
TEST_F(KernelCapsTest, SetTidInNamespace) {
  expect(probe_set_tid_in_namespace(), {EPERM, ENOSPC, EUSERS, EINVAL, EACCES, ENOSYS});
}
TEST_F(KernelCapsTest, PidfdGetfd) { expect(probe_pidfd_getfd(), {EPERM, ENOSYS}); }
TEST_F(KernelCapsTest, Kcmp) { expect(probe_kcmp(), {EPERM, ENOSYS}); }
TEST_F(KernelCapsTest, SyscallDispatch) { expect(probe_syscall_dispatch(), {EINVAL, EPERM}); }
TEST_F(KernelCapsTest, SetMmMap) { expect(probe_set_mm_map(), {EINVAL, EPERM}); }
TEST_F(KernelCapsTest, SetExe) { expect(probe_set_exe(), {EINVAL, EPERM}); }
TEST_F(KernelCapsTest, PtraceChild) { expect(probe_ptrace_child(), {EPERM, ENOSYS}); }

TEST_F(KernelCapsTest, RootOfTheFirstNamespaceMayDoAll) {
  if (geteuid() != 0) return;
  KernelCaps caps = probe_kernel_caps();
  // A container's root may lack any of these; then user mode at least must say why.
  if (caps.set_tid.ok()) {
    EXPECT_TRUE(caps.set_mm_map.ok());
  }
  EXPECT_TRUE(caps.userfaultfd.access != UserfaultfdAccess::kNone || caps.userfaultfd.user_mode_error != 0);
}

TEST_F(KernelCapsTest, DirectIo) {
  std::string directory = (std::filesystem::temp_directory_path() / "ckpt-kernel-XXXXXX").string();
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  expect(probe_direct_io(directory.c_str()), {EINVAL, EOPNOTSUPP});
  EXPECT_TRUE(std::filesystem::is_empty(directory));
  EXPECT_EQ(probe_direct_io((directory + "/none").c_str()).error, ENOENT);
  std::filesystem::remove(directory);
}

TEST_F(KernelCapsTest, UserfaultfdSaysWhatGaveIt) {
  UserfaultfdProbe p = probe_userfaultfd();
  switch (p.access) {
    case UserfaultfdAccess::kFull:
      EXPECT_NE(p.grant, UserfaultfdGrant::kNothing);
      EXPECT_EQ(p.syscall_error == 0, p.grant == UserfaultfdGrant::kCapabilityOrSysctl);
      break;
    case UserfaultfdAccess::kUserModeOnly:
      EXPECT_NE(p.syscall_error, 0);
      EXPECT_NE(p.device_error, 0);
      break;
    case UserfaultfdAccess::kNone:
      EXPECT_NE(p.user_mode_error, 0);
      break;
  }
  if (p.access != UserfaultfdAccess::kNone) {
    EXPECT_NE(p.features & UFFD_FEATURE_PAGEFAULT_FLAG_WP, 0u);
  }
}

// What mode auto and `ckpt check` go by is what the kernel says to the very features that the library asks
// for.
TEST_F(KernelCapsTest, RealtimeNeedsAllOfItsFeatures) {
  UserfaultfdProbe p = probe_userfaultfd();
  ScopedFd fd(open_userfaultfd(O_CLOEXEC, nullptr));
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = kUffdFeaturesOfRealtime;
  const bool granted = fd.valid() && ioctl(fd.get(), UFFDIO_API, &api) == 0;
  EXPECT_EQ(p.allows_realtime(), granted && p.access == UserfaultfdAccess::kFull);
  p.access = UserfaultfdAccess::kFull;
  p.features = ~uint64_t{0};
  EXPECT_TRUE(p.allows_realtime());
  for (uint64_t bit = 1; bit != 0; bit <<= 1) {
    p.features = ~bit;
    EXPECT_EQ(p.allows_realtime(), (kUffdFeaturesOfRealtime & bit) == 0) << bit;
  }
  p.features = ~uint64_t{0};
  p.access = UserfaultfdAccess::kUserModeOnly;
  EXPECT_FALSE(p.allows_realtime());
}

// The same process, with its rights given up: the answers of someone who is not root.
TEST_F(KernelCapsTest, WithoutRights) {
  pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) _exit(1);
    UserfaultfdProbe p = probe_userfaultfd();
    if (p.access == UserfaultfdAccess::kUserModeOnly && (p.syscall_error != EPERM || p.device_error == 0))
      _exit(2);
    if (probe_set_tid().ok()) _exit(3);  // needs CAP_CHECKPOINT_RESTORE
    ProbeResult r = probe_set_tid_in_namespace();
    ProbeResult user = probe_user_namespace();
    if (user.ok() && !r.ok()) _exit(4);  // whoever may make the namespace may choose ids in it
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace

}  // namespace ckpt
