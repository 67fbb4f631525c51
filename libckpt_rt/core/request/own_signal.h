// The signal that asks for a checkpoint and stops the program's threads.
//
// Owner:     libckpt_rt: one object in its data, so that an image holds it.
// Callers:   any thread reads. Written by the preload constructor, while one thread runs, and by the agent
//            while all threads of the program stand still for it (entry/moved_signal.h).
// See:       hooks::checkpoint_signal, the same number for interposed calls.
#pragma once

#include "base/units.h"

namespace ckpt {

struct OwnSignal {
  int number = 0;
  // The page whose name tells `ckpt` a number that is not the one that was set (entry/moved_signal.h); empty:
  // none.
  AddrRange sign{};
};

extern OwnSignal own_signal;

}  // namespace ckpt
