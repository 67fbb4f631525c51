// Going back: a pseudo-terminal of the program's own.
//
// Owner:     libckpt_rt, back*.cc. Callers: a parked thread, which has the program's descriptors, and all
//            signals blocked.
#pragma once

#include <cstddef>

namespace ckpt::back_terminal {

// Takes out what is in it, both ways, and sets it as it was. master: its descriptor; detail: MasterDetail. 0,
// or -errno.
long empty(int master, const std::byte* detail);

}  // namespace ckpt::back_terminal
