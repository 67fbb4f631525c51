// A checkpoint that is read is not removed. Removing and reading exclude each other by a lock (flock) of the
// manifest, which is removed first:
//   who removes   locks it alone, or lets it be; removes it, then the rest; then the lock is gone (prune_jobs())
//   who reads     locks it with others, or is too late; looks whether it has its name still, or is too late
//
// Owner:     job. Callers: whoever reads a checkpoint of a job. Raw system calls, no allocation.
#pragma once

#include "base/raii_fd.h"
#include "base/result.h"

namespace ckpt::job {

// path: of the checkpoint's directory. The checkpoint stays, with all that its images are increments to,
// until the lock or the descriptor is gone. kNotFound: it is being removed, or is. On a file system without
// locks nobody holds anything.
Result<ScopedFd> hold_job(const char* path);
void release_job(const ScopedFd& held);  // also where other processes have the descriptor

}  // namespace ckpt::job
