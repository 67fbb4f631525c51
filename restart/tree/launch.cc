#include "restart/tree/launch.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "restart/restorer/clone.h"
#include "restart/tree/init.h"

namespace ckpt {

Error clone_error(long error, int pid) {
  int e = static_cast<int>(-error);
  if (e == EAGAIN) {
    return make_error(ExitCode::kUnavailable, e,
                      "no more processes allowed (EAGAIN): raise ulimit -u or end some");
  }
  return make_error(ExitCode::kUnavailable, e, "no process with the old id {} can be made ({})", pid,
                    errno_name(e));
}

namespace {

constexpr int kExitSystem = static_cast<int>(ExitCode::kSystem);

// The new process must not outlive its parent before the program runs. The first process of a new pid
// namespace does not call this: it sees its parent as 0, alive or gone. The end of the report channel tells
// it instead.
void die_with_parent(pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(kExitSystem);
}

[[noreturn]] void first_process(const LaunchSpec& spec, ReportChannel& theirs) {
  if (spec.namespaces.new_user) {
    auto go = theirs.receive(nullptr, false);
    if (!go || go->kind != ReportKind::kProceed) _exit(kExitSystem);
  }
  if (!mount_proc()) {
    theirs.note(
        "/proc cannot be mounted for the new pid namespace: the program sees the outer /proc there, and "
        "checkpoints of it will not work (a container that hides parts of /proc forbids this)");
  }
  theirs.send(ReportKind::kStage, static_cast<int32_t>(RestartStage::kNamespaces));
  if (spec.pid == 1) {
    spec.program(theirs, spec.namespaces.new_user);
    _exit(kExitSystem);
  }
  CloneResult program = clone_process(0, spec.pid);
  if (program.pid == 0) {
    die_with_parent(1);
    spec.program(theirs, spec.namespaces.new_user);
    _exit(kExitSystem);
  }
  if (sys::failed(program.pid)) {
    theirs.error(clone_error(program.pid, spec.pid));
    _exit(kExitSystem);
  }
  theirs.send(ReportKind::kProgram, spec.pid, program.pidfd);
  run_init(theirs, spec.watched != 0 ? spec.watched : static_cast<pid_t>(program.pid));
}

}  // namespace

Result<Launched> launch(const LaunchSpec& spec, ReportChannel& ours, ReportChannel& theirs) {
  Launched result;
  result.namespaces = spec.namespaces;
  pid_t self = getpid();
  if (!spec.namespaces.new_pid) {
    CloneResult program = clone_process(0, spec.pid);
    if (program.pid == 0) {
      die_with_parent(self);
      ours.close();
      spec.program(theirs, false);
      _exit(kExitSystem);
    }
    if (sys::failed(program.pid)) return clone_error(program.pid, spec.pid);
    result.child = static_cast<pid_t>(program.pid);
    result.pidfd = ScopedFd(program.pidfd);
    theirs.close();
    return result;
  }

  uint64_t flags = CLONE_NEWPID | CLONE_NEWNS | (spec.namespaces.new_user ? CLONE_NEWUSER : 0);
  CloneResult first = clone_process(flags, 0);
  if (first.pid == 0) {
    ours.close();
    first_process(spec, theirs);
  }
  if (sys::failed(first.pid)) {
    return make_error(ExitCode::kUnavailable, static_cast<int>(-first.pid),
                      "no new pid namespace ({}): restart as root, or allow user namespaces",
                      errno_name(static_cast<int>(-first.pid)));
  }
  theirs.close();
  result.child = static_cast<pid_t>(first.pid);
  result.through_init = spec.pid != 1;
  if (spec.pid == 1) {
    result.pidfd = ScopedFd(first.pidfd);
  } else {
    ScopedFd(first.pidfd).reset();
  }
  if (spec.namespaces.new_user) {
    if (auto maps = write_id_maps(result.child, spec.uid, spec.gid); !maps.ok()) {
      kill(result.child, SIGKILL);
      waitpid(result.child, nullptr, 0);
      return maps.error();
    }
    ours.send(ReportKind::kProceed, 0);
  }
  return result;
}

}  // namespace ckpt
