// What a restarted process hears of its children while the tree is made, and what it is to hear of them: that
// one was continued, of which it had not been told.
//
// Owner:     libckpt_rt/entry. Callers: the leader at restart, alone, with all signals blocked, while its
//            children wait until all of the job stand ready.
// Never:     leaves the program a notice that the making of the tree has sent.
#pragma once

#include <cstdint>

#include "libckpt_rt/capture/process/process_state.h"

namespace ckpt::child_notices {

// So many children stop themselves ahead of that (RestartStopped::kEarly). The program had its notices of
// them long ago; those that it had not are in the image. Below 0: -errno; -EPIPE: the pipe fd has ended, so
// ckpt-restart is gone.
long take(uint32_t stopped_children, int fd);
// The pipe has ended. A child that is stopped does not see that, nor do the children of that child.
void end_children();
// Returns when none of these children has a SIGCONT of ours any more: each takes it as it waits for its byte.
void continue_again(const ContinuedChildren& all);
// Until the byte is there that fd is to give no program of the job runs, and SIGCONT is a parent's
// (continue_again): it is taken. What comes after that stays.
void take_until_ready(int fd);

}  // namespace ckpt::child_notices
