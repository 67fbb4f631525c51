// Files of the process itself in /proc that only their owner may open: mem and pagemap.
//
// The kernel gives them to root while the process is not dumpable, as after setuid(2) or PR_SET_DUMPABLE. Who
// asked may have handed them over, open (base/protocol/control_protocol.h). Else the process is dumpable for the
// instant in which they are opened.
//
// Owner:     libckpt_rt. Callers: the agent, and the child that writes an image in mode fork.
// Never:     allocates.
#pragma once

#include "base/raii_fd.h"

namespace ckpt::own_files {

enum class OwnFile { kMemory, kPagemap };

// For reading. A descriptor, or -errno.
long open(OwnFile which);
// What opens without anybody's help? The agent, before a checkpoint.
bool may_open();

// Handed over by who asked, for the checkpoint that follows; not valid: none. They are this process's, and no
// child's.
void hand_over(ScopedFd memory, ScopedFd pagemap);
// Restart, forked child, going back: the numbers in memory are of a table that is not there.
void forget();

}  // namespace ckpt::own_files
