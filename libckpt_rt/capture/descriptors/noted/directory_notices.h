// Directories of which the program has asked to be told what happens in them (fcntl(F_NOTIFY)): the kernel
// shows that nowhere.
//
// Owner:     libckpt_rt/interpose; in the library's data, so that an image has it.
// Callers:   note: threads of the program, behind fcntl(2), at any moment, also in handlers. take_again: the
//            leader at restart, when all descriptors are there. forget: a forked child, which the kernel
//            tells nothing.
// Never:     allocates, locks, touches errno.
#pragma once

#include <atomic>
#include <cstdint>

namespace ckpt::directory_notices {

// F_NOTIFY has succeeded with this descriptor and mask (DN_*); 0: no more.
void note(int fd, uint32_t mask);
// Asks again for each of which the descriptor is still what it was.
void take_again();

extern constinit std::atomic<bool> any;
void forget_all();
// On the way of every fork: nothing but a look, as a rule.
inline void forget() {
  if (any.load(std::memory_order_relaxed)) forget_all();
}
// More directories than there is room for: some will not be asked for again.
bool is_full();

}  // namespace ckpt::directory_notices
