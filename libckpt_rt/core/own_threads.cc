#include "libckpt_rt/core/own_threads.h"

#include "libckpt_rt/core/user_settings.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

constinit OwnThreads own_threads;

bool OwnThreads::reserve() {
  return agent.reserve() && fault_handler.reserve() && writer.reserve() &&
         (!user_settings().dma || engine.reserve());
}

void OwnThreads::forget() {
  for (RawThread* t : kOwnThreads) t->forget();
}

}  // namespace ckpt
