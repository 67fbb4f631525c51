#include "cli/program/machine.h"

#include <errno.h>
#include <fmt/core.h>
#include <linux/userfaultfd.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "base/result.h"
#include "cli/text/human.h"

namespace ckpt::cli {

namespace {

constexpr int kCapSysPtrace = 19;  // linux/capability.h

std::string first_line(const char* path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

bool have_capability(int bit) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with("CapEff:")) continue;
    unsigned long long mask = 0;
    std::istringstream(line.substr(7)) >> std::hex >> mask;
    return (mask >> bit & 1) != 0;
  }
  return false;
}

std::string why(int error) { return fmt::format("{} ({})", strerror(error), errno_name(error)); }

std::string feature_list(uint64_t features) {
  struct Named {
    uint64_t bit;
    const char* name;
  };
  constexpr Named kNames[] = {{UFFD_FEATURE_PAGEFAULT_FLAG_WP, "write-protect"},
                              {UFFD_FEATURE_WP_HUGETLBFS_SHMEM, "shared memory"},
                              {kUffdFeatureWpUnpopulated, "holes"},
                              {UFFD_FEATURE_EVENT_REMAP, "remap events"},
                              {UFFD_FEATURE_EVENT_REMOVE, "remove events"},
                              {UFFD_FEATURE_THREAD_ID, "thread ids"},
                              {UFFD_FEATURE_SIGBUS, "sigbus"},
                              {kUffdFeatureWpAsync, "async"}};
  std::string text;
  for (const Named& n : kNames) {
    if ((features & n.bit) != 0) text += (text.empty() ? "" : ", ") + std::string(n.name);
  }
  return text;
}

Finding userfaultfd_finding(const UserfaultfdProbe& p) {
  Finding f{"userfaultfd", "userfaultfd", Level::kGood, "", "", ""};
  std::string sysctl = first_line("/proc/sys/vm/unprivileged_userfaultfd");
  switch (p.access) {
    case UserfaultfdAccess::kFull:
      f.detail = p.grant == UserfaultfdGrant::kDevice ? "full, through /dev/userfaultfd"
                 : have_capability(kCapSysPtrace)     ? "full, by CAP_SYS_PTRACE"
                                                      : "full, by vm.unprivileged_userfaultfd=1";
      f.detail += ": " + feature_list(p.features);
      if (!p.allows_realtime()) {
        f.level = Level::kLimited;
        f.detail += "; lacking: " + feature_list(kUffdFeaturesOfRealtime & ~p.features);
        f.effect = "checkpoints take mode fork";
        f.remedy = "use Linux 5.19 or later";
      }
      return f;
    case UserfaultfdAccess::kUserModeOnly:
      f.level = Level::kLimited;
      f.detail = fmt::format(
          "user mode only: no CAP_SYS_PTRACE, vm.unprivileged_userfaultfd={}, /dev/userfaultfd: {}",
          sysctl.empty() ? "absent" : sysctl, why(p.device_error));
      f.effect = "checkpoints take mode fork";
      f.remedy =
          "as root: sysctl vm.unprivileged_userfaultfd=1, or give a group access: chgrp GROUP "
          "/dev/userfaultfd && "
          "chmod 660 /dev/userfaultfd; without root: ckpt run --faults in-thread takes mode realtime";
      return f;
    case UserfaultfdAccess::kNone:
      f.level = Level::kLimited;
      f.detail = "none: " + why(p.user_mode_error);
      f.effect = "checkpoints take mode fork";
      f.remedy = p.user_mode_error == ENOSYS ? "use a kernel with CONFIG_USERFAULTFD"
                                             : "allow userfaultfd in the container's seccomp profile";
      return f;
  }
  return f;
}

Finding simple(const char* id, const char* title, ProbeResult r, Level level, const char* effect,
               const char* remedy) {
  if (r.ok()) return {id, title, Level::kGood, "works", "", ""};
  return {id, title, level, why(r.error), effect, remedy};
}

// Old thread ids need either the right to choose ids here, or namespaces of one's own.
Finding tid_finding(const KernelCaps& caps) {
  Finding f{"set_tid", "old thread ids (clone3 set_tid)", Level::kGood, "", "", ""};
  if (caps.set_tid.ok()) {
    f.detail = "in this pid namespace";
  } else if (caps.set_tid_in_namespace.ok()) {
    f.level = Level::kLimited;
    f.detail = fmt::format("only in a new user and pid namespace (here: {})", why(caps.set_tid.error));
    f.effect = "a restarted program lives in a pid namespace of its own";
    f.remedy = "as root, or with CAP_CHECKPOINT_RESTORE: setcap cap_checkpoint_restore+ep ckpt-restart";
  } else {
    f.level = Level::kMissing;
    f.detail = fmt::format("no: here {}, in a new namespace {}", why(caps.set_tid.error),
                           why(caps.set_tid_in_namespace.error));
    f.effect = "images cannot be restarted here";
    f.remedy =
        "allow user namespaces (kernel.unprivileged_userns_clone=1, user.max_user_namespaces), or restart as "
        "root";
  }
  return f;
}

Finding mm_finding(const KernelCaps& caps) {
  Finding f{"mm_map", "the mm description (PR_SET_MM_MAP)", Level::kGood, "works, exe link too", "", ""};
  if (!caps.set_mm_map.ok()) {
    f.level = Level::kMissing;
    f.detail = why(caps.set_mm_map.error);
    f.effect = "images cannot be restarted here";
    f.remedy = "use a kernel with CONFIG_CHECKPOINT_RESTORE";
  } else if (!caps.set_exe.ok() && !caps.user_namespace.ok()) {
    f.level = Level::kLimited;
    f.detail = "works, without the exe link: " + why(caps.set_exe.error);
    f.effect = "/proc/PID/exe of a restarted program names ckpt-restart";
    f.remedy = "allow user namespaces, or restart as root";
  } else if (!caps.set_exe.ok()) {
    f.detail = "works, exe link in a new user namespace";
  }
  return f;
}

Finding ptrace_finding(const KernelCaps& caps) {
  std::string scope = first_line("/proc/sys/kernel/yama/ptrace_scope");
  Finding f = simple("ptrace", "backtraces (ptrace)", caps.ptrace_child, Level::kLimited,
                     "a thread that does not stop is named without its backtrace",
                     "allow ptrace in the container's seccomp profile, or sysctl kernel.yama.ptrace_scope=1");
  if (!scope.empty()) f.detail += fmt::format(", kernel.yama.ptrace_scope={}", scope);
  return f;
}

// Which of CKPT_FAULTS can be had here.
Finding back_ends_finding(const KernelCaps& caps) {
  Finding f{"fault_back_ends", "fault back ends (CKPT_FAULTS)", Level::kGood, "", "", ""};
  if (caps.userfaultfd.allows_realtime()) f.detail = "handler (auto)";
  if (caps.syscall_dispatch.ok()) {
    if (caps.userfaultfd.allows_in_thread()) f.detail += f.detail.empty() ? "in-thread" : ", in-thread";
    f.detail += f.detail.empty() ? "mprotect" : ", mprotect";
  } else {
    f.level = Level::kLimited;
    f.detail += fmt::format("{}not in-thread, mprotect: {}", f.detail.empty() ? "" : "; ",
                            why(caps.syscall_dispatch.error));
    f.effect = "faults are handled by a thread of the library only";
    f.remedy = "use Linux 5.11 or later with Syscall User Dispatch";
  }
  return f;
}

}  // namespace

const char* automatic_mode(const KernelCaps& caps) {
  return caps.userfaultfd.allows_realtime() ? "realtime" : "fork";
}

std::vector<Finding> describe_machine(const KernelCaps& caps) {
  utsname system{};
  uname(&system);
  std::vector<Finding> all;
  bool x86 = strcmp(system.machine, "x86_64") == 0;
  all.push_back({"kernel", "kernel", x86 ? Level::kGood : Level::kMissing,
                 fmt::format("{} {} {}", system.sysname, system.release, system.machine),
                 x86 ? "" : "images cannot be taken or restarted here", x86 ? "" : "use 64-bit x86 Linux"});
  all.push_back(userfaultfd_finding(caps.userfaultfd));
  all.push_back(back_ends_finding(caps));
  all.push_back(simple("pagemap_scan", "PAGEMAP_SCAN", caps.pagemap_scan, Level::kLimited,
                       "memory is searched for written pages more slowly", "use Linux 6.7 or later"));
  all.push_back(simple("io_uring", "io_uring", caps.io_uring, Level::kLimited, "images are written by pwrite",
                       "sysctl kernel.io_uring_disabled=0, or allow it in the container's seccomp profile"));
  all.push_back(tid_finding(caps));
  all.push_back(simple("user_namespace", "user namespaces", caps.user_namespace, Level::kLimited,
                       "without privilege images cannot be restarted",
                       "sysctl user.max_user_namespaces=10000, or restart as root"));
  all.push_back(simple("pid_namespace", "pid namespaces", caps.pid_namespace, Level::kLimited,
                       "a restart needs its old thread ids to be free",
                       "sysctl user.max_pid_namespaces=10000, or restart as root"));
  all.push_back(simple("time_namespace", "time namespaces", caps.time_namespace, Level::kLimited,
                       "CLOCK_MONOTONIC jumps at a restart",
                       "use a kernel with CONFIG_TIME_NS, or restart as root"));
  all.push_back(mm_finding(caps));
  all.push_back(simple("pidfd_getfd", "pidfd_getfd", caps.pidfd_getfd, Level::kLimited,
                       "descriptors shared with other processes cannot be told apart",
                       "allow it in the container's seccomp profile"));
  all.push_back(simple("kcmp", "kcmp", caps.kcmp, Level::kLimited,
                       "descriptors that share an offset cannot be told apart",
                       "use a kernel with CONFIG_KCMP, or allow it in the container's seccomp profile"));
  all.push_back(ptrace_finding(caps));
  return all;
}

std::vector<Finding> describe_directory(const std::string& directory) {
  std::vector<Finding> all;
  if (access(directory.c_str(), W_OK | X_OK) != 0) {
    all.push_back({"directory", "image directory", Level::kMissing,
                   fmt::format("{}: {}", directory, why(errno)), "images cannot be written there",
                   "name a directory you may write"});
    return all;
  }
  struct statvfs fs {};
  if (statvfs(directory.c_str(), &fs) == 0) {
    all.push_back({"directory", "image directory", Level::kGood,
                   fmt::format("{}: {} free", directory, human_bytes(uint64_t{fs.f_bavail} * fs.f_frsize)),
                   "", ""});
  }
  ProbeResult direct = probe_direct_io(directory.c_str());
  all.push_back(simple("direct_io", "O_DIRECT there", direct, Level::kLimited,
                       "images go through the page cache, more slowly", "use ext4, xfs or btrfs for images"));
  rlimit size{};
  if (getrlimit(RLIMIT_FSIZE, &size) == 0 && size.rlim_cur != RLIM_INFINITY) {
    all.push_back({"file_size_limit", "file size limit", Level::kLimited, human_bytes(size.rlim_cur),
                   "larger images fail", "ulimit -f unlimited"});
  }
  return all;
}

}  // namespace ckpt::cli
