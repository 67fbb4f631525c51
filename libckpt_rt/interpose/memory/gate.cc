#include "libckpt_rt/interpose/memory/gate.h"

#include <errno.h>

#include "base/clock.h"
#include "base/memory/fork_path.h"
#include "base/sys.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {
// The number of threads inside; kHeld while a MappingsHeld exists, kBarred while a MappingsBarred does.
constexpr uint32_t kHeld = 1u << 31, kBarred = 1u << 30, kShut = kHeld | kBarred;
CKPT_FORK_DATA constinit FutexWord gate{0};
constinit std::atomic<int> holder{0};  // the process whose agent or serving thread has shut the gate

int this_process() { return static_cast<int>(sys::call(__NR_getpid)); }
}  // namespace

void MappingChange::enter() {
  // A handler of the program may leave by siglongjmp, or come here again: what a thread takes while it is
  // inside is not looked at.
  lock_ranks::waits_for(LockRank::kMappingGate);
  // acquire, with the release that opens the gate: all that the agent did while it was shut comes before.
  while ((gate.fetch_add(1, std::memory_order_acquire) & kShut) != 0) {
    leave();
    constexpr timespec kLongest{1, 0};
    const uint32_t now = gate.load(std::memory_order_acquire);
    if ((now & kShut) == 0 || futex_wait(gate, now, &kLongest) != -ETIMEDOUT) continue;
    // In a child that a bare clone(2) made while the gate was shut, only the child itself can open it. In the
    // process itself the agent does, however late: a signal may have stopped it, or it has no processor.
    if (holder.load(std::memory_order_relaxed) != this_process()) gate.fetch_and(~kShut);
  }
}

void MappingChange::leave() {
  uint32_t now = gate.load(std::memory_order_relaxed);
  do {
    // Nobody is counted: a signal handler has forked inside, and this is the child.
    if ((now & ~kShut) == 0) return;
  } while (!gate.compare_exchange_weak(now, now - 1, std::memory_order_release, std::memory_order_relaxed));
  if ((now & kHeld) != 0 && (now & ~kShut) == 1) futex_wake(gate);
}

MappingsHeld::MappingsHeld() {
  lock_ranks::takes(LockRank::kMappingGate);
  const int64_t deadline = now_ns() + kPatienceNs;
  holder.store(this_process(), std::memory_order_relaxed);
  uint32_t now = gate.fetch_or(kHeld, std::memory_order_acq_rel) | kHeld;
  for (int64_t left; (now & ~kShut) != 0 && (left = deadline - now_ns()) > 0;
       now = gate.load(std::memory_order_acquire)) {
    const timespec limit{0, left};
    futex_wait(gate, now, &limit);
  }
  sure_ = (now & ~kShut) == 0;
}

MappingsHeld::~MappingsHeld() {
  gate.fetch_and(~kHeld, std::memory_order_release);
  futex_wake(gate);
  lock_ranks::released(LockRank::kMappingGate);
}

MappingsBarred::MappingsBarred() {
  holder.store(this_process(), std::memory_order_relaxed);
  gate.fetch_or(kBarred, std::memory_order_acq_rel);
}

MappingsBarred::~MappingsBarred() {
  gate.fetch_and(~kBarred, std::memory_order_release);
  futex_wake(gate);
}

CKPT_FORK_PATH void reset_gate_in_child() {
  if (gate.load(std::memory_order_relaxed) != 0) gate.store(0, std::memory_order_relaxed);
}
void reset_gate_after_restart() { gate.fetch_and(~kShut, std::memory_order_relaxed); }

}  // namespace ckpt
