// Signals that a checkpoint took out of their queues to read them, and could not put back: other processes of
// the program's user had used up RLIMIT_SIGPENDING meanwhile.
//
// Owner:     libckpt_rt, in its own data: an image's list of pending signals has them as well (add_to).
// Callers:   add(): the stop, when it puts signals back and all threads stand. The rest: the agent, which
//            waits until there is a place again; forget(): a forked child or the leader of a restart.
// Never:     drops one that has a value. Source: RLIMIT_SIGPENDING, getrlimit(2).
#pragma once

#include "libckpt_rt/core/threads/thread_context.h"

namespace ckpt::late_signals {

// False: there is no room for more.
bool add(const PendingSignal& signal);
bool any();
// Sends those for which there is a place; in order, for each thread.
void send();
void add_to(PendingSignals& pending);
void forget();

}  // namespace ckpt::late_signals
