#include "restart/tree/lost_children.h"

#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "restart/restorer/clone.h"

namespace ckpt {

namespace {

bool has_ended(const ParsedChild& child) {
  return child.record.state == static_cast<uint32_t>(ChildState::kEnded);
}

// The program ignores SIGCHLD, or has SA_NOCLDWAIT: the kernel forgets its children when they end.
bool ignores_children(const ImageMeta& meta) {
  return std::any_of(meta.actions.begin(), meta.actions.end(), [](const SignalActionRecord& a) {
    constexpr uint64_t kIgnore = 1;
    return a.signal == SIGCHLD && (a.handler == kIgnore || (a.flags & SA_NOCLDWAIT) != 0);
  });
}

[[noreturn]] void end_as(const ParsedChild& child, const ProcessRecord& parent) {
  prctl(PR_SET_NAME, std::string(child.name).c_str());
  sys::call(__NR_setresuid, parent.uid[0], parent.uid[1], parent.uid[2]);
  const int status = has_ended(child) ? child.record.status : SIGKILL;
  if (WIFEXITED(status)) _exit(WEXITSTATUS(status));
  // 1, not 0: with 0 the kernel still starts a program that core dumps are piped to.
  const rlimit no_core{1, 1};
  setrlimit(RLIMIT_CORE, &no_core);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  sys::call(__NR_kill, sys::call(__NR_getpid), WTERMSIG(status));
  _exit(1);
}

void make(const ParsedChild& child, const ProcessRecord& parent, ReportChannel& report) {
  const CloneResult made = clone_process(0, child.record.pid, child.record.exit_signal);
  if (made.pid == 0) end_as(child, parent);
  if (sys::failed(made.pid)) {
    report.note(fmt::format("the program does not learn that its child {} ({}) has ended ({})",
                            child.record.pid, child.name, errno_name(static_cast<int>(-made.pid))));
    return;
  }
  if (has_ended(child) && WCOREDUMP(child.record.status))
    report.note(
        fmt::format("the child {} ({}) had ended with a core dump: the program is told of the signal alone",
                    child.record.pid, child.name));
  close(made.pidfd);
  siginfo_t ignored;
  while (waitid(P_PID, static_cast<id_t>(child.record.pid), &ignored, WEXITED | WNOWAIT | __WALL) != 0 &&
         errno == EINTR) {
  }
}

}  // namespace

void make_lost_children(const ImageMeta& meta, ReportChannel& report) {
  if (meta.children.empty() || ignores_children(meta)) return;
  for (const ParsedChild& child : meta.children) {
    if (has_ended(child)) make(child, meta.process.record, report);
  }
  // The program had its signals for these before, or has them among those that are pending.
  uint64_t signals = 0;
  for (const ParsedChild& child : meta.children) {
    if (has_ended(child) && child.record.exit_signal > 0)
      signals |= uint64_t{1} << (child.record.exit_signal - 1);
  }
  const timespec now{0, 0};
  while (sys::call(__NR_rt_sigtimedwait, &signals, 0L, &now, sizeof(signals)) > 0) {
  }
  for (const ParsedChild& child : meta.children) {
    if (!has_ended(child)) make(child, meta.process.record, report);
  }
}

std::vector<int> lost_children(const ImageMeta& meta) {
  std::vector<int> pids;
  for (const ParsedChild& child : meta.children) pids.push_back(child.record.pid);
  return pids;
}

}  // namespace ckpt
