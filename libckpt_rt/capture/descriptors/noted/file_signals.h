// Signals that the kernel sends when something happens to an open file (fcntl(2): F_SETOWN_EX, F_SETSIG), as
// far as a restart cannot give them back while it opens files: to threads, which do not exist then.
//
// Owner:     libckpt_rt; in the library's data, so that an image has it.
// Callers:   note_choice: threads of the program, behind fcntl(2), also in handlers. begin, add_thread: the
//            agent, in the stop. take_again: the leader at restart, when all descriptors and threads are
//            there.
// Never:     allocates, locks, touches errno.
#pragma once

#include <atomic>

namespace ckpt::file_signals {

// The program has chosen a signal: one is looked for also where nobody is to get it. Not known of a
// descriptor that was inherited over an exec.
extern constinit std::atomic<bool> any_chosen;
inline void note_choice() { any_chosen.store(true, std::memory_order_relaxed); }

void begin();
// False: there is no room for more.
bool add_thread(int fd, int tid);
void take_again();

}  // namespace ckpt::file_signals
