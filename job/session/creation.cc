#include "job/session/creation.h"

#include "base/memory/fork_path.h"
#include "job/session/gate.h"
#include "libckpt_rt/core/process/fork/child.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::job::creation {

CKPT_FORK_DATA constinit FutexWord held{0};
CKPT_FORK_DATA constinit FutexWord end_held{0};

void wait_slowly(FutexWord& word) {
  know_child();
  // A child that shares our memory: not its business.
  if (!gate::is_here()) return;
  while (word.load(std::memory_order_acquire) != 0) futex_wait(word, 1);
}

void hold() { gate::shut(held); }
void release() { gate::open(held); }
void hold_end() { gate::shut(end_held); }
void release_end() { gate::open(end_held); }

void reset() {
  held.store(0, std::memory_order_relaxed);
  end_held.store(0, std::memory_order_relaxed);
}

}  // namespace ckpt::job::creation
