// Making the process that becomes the saved program: with its old pid, in the namespaces chosen.
//
// Owner:     restart. Callers: ckpt-restart, on its only thread.
//
//   here:            ckpt-restart ── program (old pid)
//   new namespaces:  ckpt-restart ── init (pid 1) ── program (old pid)
//   pid 1 saved:     ckpt-restart ── program (pid 1 of the new namespace)
#pragma once

#include <functional>

#include "restart/reports/report.h"
#include "restart/tree/namespaces.h"

namespace ckpt {

struct LaunchSpec {
  NamespaceChoice namespaces;
  int pid = 0;                // the program's, as saved
  int watched = 0;            // whose end an init tells of; 0: the program's
  uint32_t uid = 0, gid = 0;  // effective, as saved: what we become in a new user namespace
  // Runs in the new process and does not return. in_new_user: ids other than uid and gid do not exist.
  std::function<void(ReportChannel&, bool in_new_user)> program;
};

struct Launched {
  pid_t child = 0;  // ours to wait for: the program or init
  bool through_init = false;
  ScopedFd pidfd;  // of the program; through init it comes as ReportKind::kProgram
  NamespaceChoice namespaces;
};

// What clone_process() says: `error` is -errno.
Error clone_error(long error, int pid);

// On EEXIST (somebody took the pid since we looked) the error's sys_errno is EEXIST and nothing exists.
Result<Launched> launch(const LaunchSpec& spec, ReportChannel& ours, ReportChannel& theirs);

}  // namespace ckpt
