// wait(2) for the children of the calling thread alone (__WNOTHREAD): a restart makes all children those of
// the first thread, so that a checkpoint has to know of such waits. A tracer is not told of a stop that is
// the checkpoint's. libc does the work.
#include <sys/resource.h>
#include <sys/wait.h>

#include "libckpt_rt/core/hooks.h"
#include "libckpt_rt/interpose/abi.h"
#include "libckpt_rt/interpose/calls.h"
#include "libckpt_rt/interpose/real.h"
#include "libckpt_rt/stop/tracing/tracee_table.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::calls {

void note_wait(int options) {
  if (__builtin_expect((options & __WNOTHREAD) != 0, 0)) hooks::note_wait_of_thread();
}

namespace {

// A stop of a tracee for the checkpoint's signal, which is passed on: the program waits on.
bool is_for_checkpoint(pid_t tid, int status) {
  return (status & 0xff) == 0x7f && tracing::pass_on(tid, status >> 8);
}

bool is_for_checkpoint(const siginfo_t* info) {
  return info->si_code == CLD_TRAPPED && info->si_pid > 0 &&
         is_for_checkpoint(info->si_pid, info->si_status << 8 | 0x7f);
}

pid_t wait_for(pid_t pid, int* status, int options, rusage* usage) {
  note_wait(options);
  auto* const real = real_function(RealFunction::kWait4).as<pid_t(pid_t, int*, int, rusage*)>();
  for (;;) {
    int own = 0;
    const pid_t r = real(pid, status != nullptr ? status : &own, options, usage);
    // The kernel has written it only if it tells of a process.
    if (r <= 0 || __builtin_expect(!is_for_checkpoint(r, status != nullptr ? *status : own), 1)) return r;
  }
}

}  // namespace

long wait4(long pid, int* status, int options, void* usage) {
  note_wait(options);
  for (;;) {
    int own = 0;
    const long r = sys::call(__NR_wait4, pid, status != nullptr ? status : &own, options, usage);
    if (r <= 0 || !is_for_checkpoint(static_cast<pid_t>(r), status != nullptr ? *status : own)) return r;
  }
}

long waitid(long kind, long id, void* info, int options, void* usage) {
  note_wait(options);
  for (siginfo_t own{};;) {
    void* const told = info != nullptr ? info : &own;
    const long r = sys::call(__NR_waitid, kind, id, told, options, usage);
    if (r != 0 || !is_for_checkpoint(static_cast<const siginfo_t*>(told))) return r;
  }
}

}  // namespace ckpt::calls

using namespace ckpt;

CKPT_INTERPOSE(pid_t, waitpid, pid_t pid, int* status, int options) {
  return calls::wait_for(pid, status, options, nullptr);
}
CKPT_INTERPOSE_ALIAS(waitpid, __waitpid);

CKPT_INTERPOSE(pid_t, wait4, pid_t pid, int* status, int options, rusage* usage) {
  return calls::wait_for(pid, status, options, usage);
}

// Libc's own call its wait4 past ours.
CKPT_INTERPOSE(pid_t, wait, int* status) { return calls::wait_for(-1, status, 0, nullptr); }
CKPT_INTERPOSE_ALIAS(wait, __wait);

CKPT_INTERPOSE(pid_t, wait3, int* status, int options, rusage* usage) {
  return calls::wait_for(-1, status, options, usage);
}

CKPT_INTERPOSE(int, waitid, idtype_t kind, id_t id, siginfo_t* info, int options) {
  calls::note_wait(options);
  auto* const real = real_function(RealFunction::kWaitid).as<int(idtype_t, id_t, siginfo_t*, int)>();
  for (siginfo_t own{};;) {
    siginfo_t* const told = info != nullptr ? info : &own;
    const int r = real(kind, id, told, options);
    if (r != 0 || !calls::is_for_checkpoint(told)) return r;
  }
}
