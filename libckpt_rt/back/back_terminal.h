// Going back: a pseudo-terminal of the program's own.
//
// Owner:     libckpt_rt, back*.cc. Callers: a parked thread, which has the program's descriptors, and all
//            signals blocked.
#pragma once

#include <cstddef>
#include <span>

namespace ckpt::back_terminal {

// Takes out what is in it, both ways, and sets it as it was. master: its descriptor; detail: MasterDetail and
// the line that was begun. 0, or -errno.
long empty(int master, std::span<const std::byte> detail);

}  // namespace ckpt::back_terminal
