// What becomes of pipes, FIFOs and sockets of which the program has one end.
//
// Owner:     libckpt_rt, descriptors. Callers: the agent, in the stop, when open files are numbered.
// Never:     reads or writes.
#pragma once

#include "libckpt_rt/capture/descriptors/table/access.h"
#include "libckpt_rt/capture/descriptors/table/open_files.h"

namespace ckpt {

// has_partners: the other ends may be in other processes that are saved with it.
void decide_kinds_of_ends(OpenFiles& files, DescriptorAccess& access, bool has_partners);

}  // namespace ckpt
