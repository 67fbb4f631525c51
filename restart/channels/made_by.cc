#include "restart/channels/made_by.h"

#include <errno.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/raii_fd.h"
#include "base/sys.h"
#include "restart/restorer/clone.h"

namespace ckpt {
namespace {

constexpr uint32_t kStay = ~0u;

CallAs call_here(const std::function<long(std::array<int, 2>&)>& call) {
  CallAs made;
  made.result = call(made.values);
  made.error = made.result < 0 ? errno : 0;
  return made;
}

// In the new process: as that user, or, where the user may not (a directory that has been shut since), as the
// caller's.
CallAs call_in_child(const ucred& who, const std::function<long(std::array<int, 2>&)>& call) {
  const auto user = geteuid();
  const auto group = getegid();
  // The kernel's own calls: libc's would look for the threads of the caller.
  sys::call(__NR_setresgid, kStay, who.gid, kStay);
  sys::call(__NR_setresuid, kStay, who.uid, kStay);
  CallAs made = call_here(call);
  if (made.result < 0 && (made.error == EACCES || made.error == EPERM)) {
    sys::call(__NR_setresuid, kStay, user, kStay);
    sys::call(__NR_setresgid, kStay, group, kStay);
    made = call_here(call);
  }
  return made;
}

}  // namespace

CallAs call_as(const ucred& who, const std::function<long(std::array<int, 2>&)>& call) {
  if (who.pid <= 0 || (who.pid == getpid() && who.uid == geteuid() && who.gid == getegid()))
    return call_here(call);
  void* const page = mmap(nullptr, sizeof(CallAs), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto with_reason = [&](int error) {
    CallAs made = call_here(call);
    made.no_process = error;
    return made;
  };
  if (page == MAP_FAILED) return with_reason(errno);
  auto* answer = new (page) CallAs;
  // No signal when it ends: the caller may be about to become the program.
  const CloneResult child = clone_process(CLONE_FILES, who.pid, 0);
  if (child.pid == 0) {
    *answer = call_in_child(who, call);
    _exit(0);
  }
  CallAs made;
  if (sys::failed(child.pid)) {
    made = with_reason(static_cast<int>(-child.pid));
  } else {
    ScopedFd(child.pidfd).reset();
    while (waitpid(static_cast<pid_t>(child.pid), nullptr, __WALL) < 0 && errno == EINTR) {
    }
    made = *answer;
  }
  munmap(page, sizeof(CallAs));
  return made;
}

}  // namespace ckpt
