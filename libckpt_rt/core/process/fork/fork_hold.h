// Holds fork(2) of the program while the library maps memory that a child must not have.
//
// MADV_DONTFORK can be set only after a mapping was made. A child that is forked in between keeps the
// mapping: that of a ring (io_uring) for ever, and no image of the child could be restarted.
//
// A process that shares the program's memory (CLONE_VM, and a child of vfork) may be killed between begin()
// and end(). So there is a place for each thread inside, taken and given back by one store: whose thread is
// gone is inside no more. Where all places are taken, threads are counted only.
//
// Owner:     libckpt_rt. Its words are in the own page (own_page.h), which a child gets empty: to count costs
//            no copy of a page after the fork.
// Callers:   begin(), end(): threads of the program around fork and _Fork. hold(), release(): the agent,
//            while the program runs. any_inside(): the agent, in a stop. A bare clone(2) is not noticed.
// Never:     allocates, touches errno. The agent waits for no more than kLongestNs.
#pragma once

namespace ckpt::fork_hold {

void begin();
void end();
// Is a thread between begin() and end()? Called in a stop.
bool any_inside();
// Forgets threads that were inside fork(2): `ckpt back` has taken them to other places.
void reset();

// False: a fork takes too long. Then nothing is held.
[[nodiscard]] bool hold();
void release();

}  // namespace ckpt::fork_hold
