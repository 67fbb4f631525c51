// clone3(2) as a fork with a chosen pid and namespaces.
//
// Owner:     restart. Callers: ckpt-restart, its init, the loader, the planter and new processes, while they
//            have one thread.
// Never:     runs libc's fork handlers: the child has the caller's libc state, as after a fork of a
//            single-threaded process, except that libc's cached tid is stale.
#pragma once

#include <linux/sched.h>
#include <signal.h>

#include <cstdint>

#include "base/sys.h"

namespace ckpt {

struct CloneResult {
  long pid = 0;    // 0 in the child; negative: -errno
  int pidfd = -1;  // in the parent
};

// set_tid 0: whatever is next. flags: CLONE_NEW*, CLONE_FILES.
inline CloneResult clone_process(uint64_t flags, int set_tid, int exit_signal = SIGCHLD) {
  CloneResult result;
  clone_args args{};
  args.flags = flags | CLONE_PIDFD;
  args.pidfd = reinterpret_cast<uint64_t>(&result.pidfd);
  args.exit_signal = static_cast<uint64_t>(exit_signal);
  if (set_tid != 0) {
    args.set_tid = reinterpret_cast<uint64_t>(&set_tid);
    args.set_tid_size = 1;
  }
  result.pid = sys::call(__NR_clone3, &args, sizeof(args));
  return result;
}

}  // namespace ckpt
