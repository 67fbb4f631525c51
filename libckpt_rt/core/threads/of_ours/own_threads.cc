#include "libckpt_rt/core/threads/of_ours/own_threads.h"

#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

constinit OwnThreads own_threads;

void OwnThreads::forget() {
  for (RawThread* t : kOwnThreads) t->forget();
}

}  // namespace ckpt
