// Children of a program that comes back alone: they were not saved, so they have been killed, and their
// parent learns that as of any child: SIGCHLD, wait(2) with "killed by SIGKILL". One that had ended before
// and was not waited for has ended as it did.
//
// Owner:     restart. Callers: the program's process, single-threaded, all signals blocked, before its
//            descriptors are made.
// Never:     fails the restart: a child that cannot be made is named.
#pragma once

#include <vector>

#include "image/read/image_meta.h"
#include "restart/reports/report.h"

namespace ckpt {

void make_lost_children(const ImageMeta& meta, ReportChannel& report);

// Their pids, which must be free.
std::vector<int> lost_children(const ImageMeta& meta);

}  // namespace ckpt
