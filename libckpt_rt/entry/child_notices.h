// What a restarted process hears of its children while the tree is made, and what it is to hear of them: that
// one was continued, of which it had not been told.
//
// Owner:     libckpt_rt/entry. Callers: the leader at restart, alone, with all signals blocked, while its
//            children wait until all of the job stand ready.
// Never:     leaves the program a notice that the making of the tree has sent.
#pragma once

#include <cstdint>

#include "libckpt_rt/capture/process_state.h"

namespace ckpt::child_notices {

// So many children stop themselves ahead of that (RestartStopped::kEarly). The program had its notices of
// them long ago; those that it had not are in the image. Below 0: -errno.
long take(uint32_t stopped_children);
void continue_again(const ContinuedChildren& all);
// Of signals that are blocked here, all that have come for the process.
void drop_pending(int signal);

}  // namespace ckpt::child_notices
