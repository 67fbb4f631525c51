#include "job/session/creation.h"

#include "base/fork_path.h"
#include "libckpt_rt/core/process/child.h"
#include "libckpt_rt/core/process/this_process.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::job::creation {

CKPT_FORK_DATA constinit FutexWord held{0};
CKPT_FORK_DATA constinit FutexWord end_held{0};

namespace {

void open_gate(FutexWord& word) {
  if (word.exchange(0, std::memory_order_release) != 0) futex_wake(word);
}

}  // namespace

void wait_slowly(FutexWord& word) {
  know_child();
  // A child that shares our memory: not its business.
  if (this_process.pid != sys::getpid()) return;
  while (word.load(std::memory_order_acquire) != 0) futex_wait(word, 1);
}

void hold() { held.store(1, std::memory_order_release); }
void release() { open_gate(held); }
void hold_end() { end_held.store(1, std::memory_order_release); }
void release_end() { open_gate(end_held); }

void reset() {
  held.store(0, std::memory_order_relaxed);
  end_held.store(0, std::memory_order_relaxed);
}

}  // namespace ckpt::job::creation
