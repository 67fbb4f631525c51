// Process 1 of a restarted program's own pid namespace.
//
// Owner:     restart. Callers: launch.cc, in the new namespace, once the program's process (of a job: the
//            planter) exists.
// It reaps what is orphaned, tells ckpt-restart when the program stops or ends, and ends with
// ckpt-restart (and then the kernel ends the whole namespace) unless it was told to detach. When
// the program has ended it stays until the program's own children have, as the real init would.
// Never: holds a descriptor of the program's, or the restarting terminal.
#pragma once

#include <sys/types.h>

#include "restart/reports/report.h"

namespace ckpt {

[[noreturn]] void run_init(ReportChannel& report, pid_t program);

}  // namespace ckpt
