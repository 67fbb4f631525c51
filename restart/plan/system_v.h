// System V semaphore sets and message queues: put back once for all processes, before any of them runs.
//
// Owner:     restart. Callers: check_system_v: ckpt-restart, before anything is touched. put_back_system_v:
//            the process of the program, or the planter of a job; one thread.
// Policy:    they are known by number, and programs remember the number: an object comes back with its old
//            number or the restart is refused. One that is still there, with the same key, owner and size,
//            gets values and messages of the checkpoint. Nothing is done to one that belongs to somebody
//            else. One without a key that a running process uses may be another program's: refused.
#pragma once

#include <string>
#include <vector>

#include "image/read/image_meta.h"
#include "restart/reports/report.h"

namespace ckpt {

// Errors: kUnavailable, an object of another is in the way, or no right to choose numbers. Adds a note where
// others use one.
Result<void> check_system_v(const ImageMeta& meta, std::vector<std::string>& notes);

// Of all members of a job: those that several have are put back once.
Result<void> put_back_system_v(const std::vector<const ImageMeta*>& members);

}  // namespace ckpt
