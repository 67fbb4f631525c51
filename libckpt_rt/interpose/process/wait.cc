// wait(2) for the children of the calling thread alone (__WNOTHREAD): a restart makes all children those of
// the first thread, so that a checkpoint has to know of such waits. libc does the work.
#include <sys/resource.h>
#include <sys/wait.h>

#include "libckpt_rt/core/hooks.h"
#include "libckpt_rt/interpose/abi.h"
#include "libckpt_rt/interpose/calls.h"
#include "libckpt_rt/interpose/real.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::calls {

void note_wait(int options) {
  if (__builtin_expect((options & __WNOTHREAD) != 0, 0)) hooks::note_wait_of_thread();
}

}  // namespace ckpt::calls

using namespace ckpt;

CKPT_INTERPOSE(pid_t, waitpid, pid_t pid, int* status, int options) {
  calls::note_wait(options);
  return real_function(RealFunction::kWaitpid).as<pid_t(pid_t, int*, int)>()(pid, status, options);
}
CKPT_INTERPOSE_ALIAS(waitpid, __waitpid);

CKPT_INTERPOSE(pid_t, wait4, pid_t pid, int* status, int options, rusage* usage) {
  calls::note_wait(options);
  return real_function(RealFunction::kWait4)
      .as<pid_t(pid_t, int*, int, rusage*)>()(pid, status, options, usage);
}

// Libc's own calls its wait4 past ours.
CKPT_INTERPOSE(pid_t, wait3, int* status, int options, rusage* usage) {
  calls::note_wait(options);
  return real_function(RealFunction::kWait4)
      .as<pid_t(pid_t, int*, int, rusage*)>()(-1, status, options, usage);
}

CKPT_INTERPOSE(int, waitid, idtype_t kind, id_t id, siginfo_t* info, int options) {
  calls::note_wait(options);
  return real_function(RealFunction::kWaitid)
      .as<int(idtype_t, id_t, siginfo_t*, int)>()(kind, id, info, options);
}
