// No fork(2) of the program while memory is mapped that a child must not have.
//
// What a mapping is to a child (MADV_DONTFORK) can only be said after it was made. A child that is forked in
// between keeps it: of a ring (io_uring) for ever, and no image of the child could be restarted.
//
// Owner:     libckpt_rt. Its words are in the own page (own_page.h), which a child gets empty: to count costs
//            no copy of a page after the fork.
// Callers:   begin(), end(): threads of the program around fork and _Fork. hold(), release(): the agent, while
//            the program runs. A bare clone(2) tells nobody.
// Never:     allocates, touches errno. The agent waits for no more than kLongestNs.
#pragma once

namespace ckpt::fork_hold {

void begin();
void end();
// Nobody forks, as far as is known: `ckpt back` has brought threads to other places.
void reset();

// False: a fork takes too long. Then nothing is held.
[[nodiscard]] bool hold();
void release();

}  // namespace ckpt::fork_hold
