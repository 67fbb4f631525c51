#include "restart/tree/namespaces.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <memory>

#include "base/machine/kernel_caps.h"

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x00000080
#endif

namespace ckpt {
namespace {

using File = std::unique_ptr<FILE, int (*)(FILE*)>;

int read_pid_max() {
  File f(std::fopen("/proc/sys/kernel/pid_max", "re"), std::fclose);
  int value = 0;
  if (f && std::fscanf(f.get(), "%d", &value) == 1) return value;
  return 4 << 20;
}

Result<void> write_proc(pid_t child, const char* file, const std::string& text) {
  std::string path = fmt::format("/proc/{}/{}", child, file);
  ScopedFd fd(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!fd.valid() || write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    return make_error(ExitCode::kUnavailable, errno,
                      "user namespace: {} cannot be written ({}); restart as root", path, errno_name(errno));
  }
  return {};
}

bool in_use(int tid) {
  // A number stays taken while a thread, or a process group whose leader is gone, has it.
  return kill(tid, 0) == 0 || errno == EPERM || kill(-tid, 0) == 0 || errno == EPERM;
}

}  // namespace

int first_tid_in_use(const std::vector<int>& tids) {
  for (int tid : tids) {
    if (in_use(tid)) return tid;
  }
  return 0;
}

Result<NamespaceChoice> choose_namespaces(const std::vector<int>& tids, NamespacePolicy policy) {
  int highest = 0;
  for (int tid : tids) highest = tid > highest ? tid : highest;
  if (int pid_max = read_pid_max(); highest >= pid_max) {
    return make_error(ExitCode::kUnavailable, 0,
                      "thread id {} is above this machine's limit {}: raise it (sysctl kernel.pid_max={})",
                      highest, pid_max, 4 << 20);
  }
  int taken = first_tid_in_use(tids);
  ProbeResult here = probe_set_tid();
  NamespaceChoice choice;
  if (policy != NamespacePolicy::kAlways && taken == 0 && here.ok()) return choice;
  choice.reason = policy == NamespacePolicy::kAlways ? "asked for"
                  : taken != 0                       ? fmt::format("thread id {} is in use here", taken)
                                                     : "no right to choose process ids here";
  if (policy == NamespacePolicy::kNever) {
    return make_error(ExitCode::kUnavailable, here.error,
                      "{}, and namespaces are switched off: end the process that has it, restart with "
                      "CAP_CHECKPOINT_RESTORE, or allow namespaces (--namespaces=auto)",
                      choice.reason);
  }
  choice.new_pid = true;
  // A pid namespace alone needs CAP_SYS_ADMIN; with a user namespace nothing.
  long alone = 0;
  {
    pid_t child = fork();
    if (child == 0) _exit(unshare(CLONE_NEWPID | CLONE_NEWNS) == 0 ? 0 : 1);
    int status = 1;
    if (child > 0) {
      while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
      }
    }
    alone = status;
  }
  if (alone == 0) return choice;
  choice.new_user = true;
  if (ProbeResult probe = probe_set_tid_in_namespace(); !probe.ok()) {
    return make_error(
        ExitCode::kUnavailable, probe.error,
        "{}, and this machine allows no user and pid namespaces ({}): restart as root, or allow "
        "them (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone)",
        choice.reason, errno_name(probe.error));
  }
  return choice;
}

Result<void> write_id_maps(pid_t child, uint32_t uid, uint32_t gid) {
  // Without CAP_SETGID outside, a gid map may be written only once setgroups is given up.
  CKPT_TRY(write_proc(child, "setgroups", "deny"));
  CKPT_TRY(write_proc(child, "gid_map", fmt::format("{} {} 1\n", gid, getegid())));
  return write_proc(child, "uid_map", fmt::format("{} {} 1\n", uid, geteuid()));
}

bool mount_proc() {
  // Our mount must not spread to where we came from; mounts made there later still reach us.
  if (mount(nullptr, "/", nullptr, MS_REC | MS_SLAVE, nullptr) != 0) return false;
  return mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) == 0;
}

TimeNamespace prepare_time_namespace() {
  TimeNamespace ns;
  File own(std::fopen("/proc/self/timens_offsets", "re"), std::fclose);
  if (!own) return ns;
  char clock[32];
  int64_t seconds, nanoseconds;
  while (std::fscanf(own.get(), "%31s %" SCNd64 " %" SCNd64, clock, &seconds, &nanoseconds) == 3) {
    int64_t offset = seconds * 1'000'000'000 + nanoseconds;
    (clock[0] == 'm' ? ns.outer_monotonic_ns : ns.outer_boottime_ns) = offset;
  }
  if (unshare(CLONE_NEWTIME) != 0) return ns;
  ScopedFd offsets(open("/proc/self/timens_offsets", O_WRONLY | O_CLOEXEC));
  ScopedFd entry(open("/proc/self/ns/time_for_children", O_RDONLY | O_CLOEXEC));
  if (!offsets.valid() || !entry.valid()) return ns;
  ns.offsets = std::move(offsets);
  ns.entry = std::move(entry);
  return ns;
}

}  // namespace ckpt
