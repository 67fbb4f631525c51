// The stop of this process: the threads that stand, or stood at the image's instant.
//
// Owner:     libckpt_rt: one object, in the library's own data, so that an image holds it and a restarted
//            process continues from it.
// Callers:   the agent, the handlers of the checkpoint signal, the leader at restart.
// Never:     copied lazily: it is written while segments are copied, so it is saved in the pause
//            (memory_map.cc).
#pragma once

#include "libckpt_rt/core/threads/thread_context.h"
#include "libckpt_rt/stop/stop_world.h"

namespace ckpt {

struct StopState {
  StopWorld world;
  ThreadSlot* threads = nullptr;  // valid in an image, and at restart
  bool leader_exited = false;
  // Whose directory, umask and ids are the process's: the first one's, unless that has ended. Any other may
  // have its own (unshare(2)).
  int first_thread() const { return threads != nullptr && leader_exited ? threads->tid : sys::getpid(); }
  // Of every thread in each stop: the program's threads send each other signals (stop_world.h).
  bool look_at_signals = false;
};

extern StopState stop_state;
// The signals that were pending when the threads stood: apart, as the list is large, and used in a stop only.
extern PendingSignals pending_at_stop;

}  // namespace ckpt
