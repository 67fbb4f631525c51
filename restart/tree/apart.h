// Parts of a job that come to one host keep what each had on a host of its own: numbers and keys of System V,
// message queues, names in /dev/shm.
//
// Owner:     restart. Callers: restart_job(), before it checks the job, with one thread.
#pragma once

#include "base/result.h"

namespace ckpt {

// From now on this process, and those that it makes, have namespaces of IPC and mounts of their own, with an
// empty /dev/shm. Without the right to that, a user namespace as well. Errors: kUnavailable.
Result<void> live_apart();
// That user namespace was needed: new pid namespaces come with one too.
bool lives_in_own_user_namespace();

}  // namespace ckpt
