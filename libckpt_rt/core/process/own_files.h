// Files of the process itself in /proc that only their owner may open: mem and pagemap.
//
// While the process is not dumpable, as after setuid(2) or PR_SET_DUMPABLE, root owns them. The asker may
// have handed them over, open (base/protocol/control_protocol.h). Else the library makes the process dumpable
// for the instant in which it opens them.
//
// Owner:     libckpt_rt. Callers: the agent, and the child that writes an image in mode fork.
// Never:     allocates.
#pragma once

#include "base/raii_fd.h"

namespace ckpt::own_files {

enum class OwnFile { kMemory, kPagemap };

// For reading. A descriptor, or -errno.
long open(OwnFile which);
// Can open() open both without the asker's help? By the agent, before a checkpoint.
bool may_open();

// From the asker, for the checkpoint that follows; not valid: none. The descriptors show this process's
// memory, not a child's.
void hand_over(ScopedFd memory, ScopedFd pagemap);
// Restart, forked child, going back: the numbers in memory are of a table that is not there.
void forget();

}  // namespace ckpt::own_files
