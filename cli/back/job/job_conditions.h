// What has to hold before a job goes back: who wrote its checkpoint, that no other is taken meanwhile, and
// who asks.
//
// Owner: cli. Ordinary code, one thread. Callers: job_back.cc.
#pragma once

#include <cstdint>
#include <string>

#include "base/raii_fd.h"
#include "base/result.h"
#include "image/read/manifest.h"
#include "job/directory/directory_lock.h"

namespace ckpt::cli {

// A manifest says what is killed and what is put back: it is the reader's own.
Result<void> check_writer(const std::string& path);
// Keeps checkpoints of the job from beginning, as long as the descriptor is open. A coordinator that waits
// for the lock gives up.
struct LockedDirectory {
  ScopedFd directory;
  job::DirectoryLock lock;
};
Result<LockedDirectory> lock_directory(const std::string& checkpoint, int64_t patience_ns);
// In the job itself `ckpt back` would be ended half way.
Result<void> check_outside(const Manifest& manifest);
// Refuses a job in which one process traces another (ptrace): what a debugger knows of its program does not
// go back, and a tracee that it holds would not answer.
Result<void> check_untraced(const Manifest& manifest);
// Refuses the part of one host of a job over several: processes on the other hosts have received what the
// processes here have sent since.
Result<void> check_one_host(const std::string& directory);

}  // namespace ckpt::cli
