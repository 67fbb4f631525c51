// Which pages an image has: not what the program excluded, nor what its heap knows to be free.
//
// Owner:     one attempt. Callers: the agent, in the stop (log_heap: when all is copied).
#pragma once

#include "base/settings/settings.h"
#include "copier/segment_table.h"
#include "libckpt_rt/checkpoint/stages/memory/eager_copies.h"
#include "libckpt_rt/checkpoint/stages/process_capture.h"
#include "libckpt_rt/checkpoint/stages/workspace.h"

namespace ckpt {

// Cuts excluded memory out of runs[first...].
Result<void> leave_out_excluded(ArenaVector<AddrRange>& runs, size_t first);

// All pages of capture.map, into a table that is empty. Pages of Handling::kEager go into `eager` instead;
// nullptr: into the table like the others.
Result<void> list_pages(ProcessCapture& capture, uint64_t segment_bytes, Workspace& space,
                        SegmentTable& table, EagerCopies* eager);

void log_heap(const Settings& settings, int log, std::span<const AddrRange> free_heap);

}  // namespace ckpt
