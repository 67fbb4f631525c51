#include "cli/back/job/enter_part.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/nsfs.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vector>

#include "base/raii_fd.h"
#include "cli/text/failure.h"

namespace ckpt::cli {

namespace {

Error cannot_enter(pid_t first, int error) {
  return failure(ExitCode::kUnsupported, fmt::format("process {}", first),
                 fmt::format("its namespaces cannot be entered: {}", errno_name(error)),
                 "nothing was changed; end the job, and bring it back with ckpt-restart --hosts");
}

ScopedFd namespace_of_process(const std::string& process, const char* kind) {
  return ScopedFd(open(fmt::format("/proc/{}/ns/{}", process, kind).c_str(), O_RDONLY | O_CLOEXEC));
}

bool is_same(const ScopedFd& one, const ScopedFd& other) {
  struct stat a, b;
  return fstat(one.get(), &a) == 0 && fstat(other.get(), &b) == 0 && a.st_ino == b.st_ino &&
         a.st_dev == b.st_dev;
}

// A right in a user namespace is one in those below it, so each is entered from the one above. Outermost
// first; without our own. The list ends early above a namespace that may not be looked at.
std::vector<ScopedFd> user_namespaces_down_to(ScopedFd innermost) {
  const ScopedFd own = namespace_of_process("self", "user");
  std::vector<ScopedFd> all;
  while (innermost.valid() && !is_same(innermost, own)) {
    ScopedFd parent(ioctl(innermost.get(), NS_GET_PARENT));
    all.insert(all.begin(), std::move(innermost));
    innermost = std::move(parent);
  }
  return all;
}

// Each namespace belongs to a user namespace, in which it may be entered: that of the part, or one above.
Result<void> enter_namespaces(pid_t first) {
  const std::string process = fmt::format("{}", first);
  std::vector<ScopedFd> wanted;
  for (const char* kind : {"ipc", "pid", "mnt"}) {
    ScopedFd theirs = namespace_of_process(process, kind);
    if (!theirs.valid()) return cannot_enter(first, errno);
    if (!is_same(theirs, namespace_of_process("self", kind))) wanted.push_back(std::move(theirs));
  }
  ScopedFd user = namespace_of_process(process, "user");
  if (!user.valid()) return cannot_enter(first, errno);
  const auto users = user_namespaces_down_to(std::move(user));
  for (size_t level = 0;; ++level) {
    int error = 0;
    std::erase_if(wanted, [&](const ScopedFd& ns) {
      if (setns(ns.get(), 0) == 0) return true;
      error = errno;
      return false;
    });
    if (level == users.size()) return wanted.empty() ? Result<void>() : cannot_enter(first, error);
    if (setns(users[level].get(), CLONE_NEWUSER) != 0) return cannot_enter(first, errno);
  }
}

// Only a child is in the pid namespace that was entered.
int wait_for_inside(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace

Result<std::optional<int>> enter_part(pid_t first) {
  const ScopedFd theirs = namespace_of_process(fmt::format("{}", first), "pid");
  // Outside, the numbers of its images are others'.
  if (!theirs.valid() && errno != ENOENT) return cannot_enter(first, errno);
  // Of a part whose first process has ended the images tell who else has.
  if (!theirs.valid() || is_same(theirs, namespace_of_process("self", "pid"))) return std::optional<int>();
  CKPT_TRY(enter_namespaces(first));
  // From inside, the number of the parent says nothing.
  const ScopedFd outside(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
  const pid_t child = fork();
  if (child < 0) return cannot_enter(first, errno);
  if (child > 0) return std::optional<int>(wait_for_inside(child));
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  pollfd ended{outside.get(), POLLIN, 0};
  if (poll(&ended, 1, 0) != 0) _exit(128 + SIGKILL);
  return std::optional<int>();
}

}  // namespace ckpt::cli
