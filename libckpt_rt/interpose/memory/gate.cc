#include "libckpt_rt/interpose/memory/gate.h"

#include <errno.h>

#include "base/clock.h"
#include "base/fork_path.h"
#include "base/sys.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {
// Threads inside, and a bit while the agent holds it, another while it is barred.
constexpr uint32_t kHeld = 1u << 31, kBarred = 1u << 30, kShut = kHeld | kBarred;
CKPT_FORK_DATA constinit FutexWord gate{0};
constinit std::atomic<int> keeper{0};  // the process whose agent holds or bars it

int this_process() { return static_cast<int>(sys::call(__NR_getpid)); }
}  // namespace

void MappingChange::enter() {
  // acquire, with the release of the one who held: what it registered is registered.
  while ((gate.fetch_add(1, std::memory_order_acquire) & kShut) != 0) {
    leave();
    constexpr timespec kLongest{1, 0};
    const uint32_t now = gate.load(std::memory_order_acquire);
    if ((now & kShut) == 0 || futex_wait(gate, now, &kLongest) != -ETIMEDOUT) continue;
    // A child made by a bare clone(2) while the gate was held has nobody who opens it. The agent can be slow:
    // stopped with all others by a signal, or without a processor.
    if (keeper.load(std::memory_order_relaxed) != this_process()) gate.fetch_and(~kShut);
  }
}

void MappingChange::leave() {
  uint32_t now = gate.load(std::memory_order_relaxed);
  do {
    // In a child that a signal handler forked inside.
    if ((now & ~kShut) == 0) return;
  } while (!gate.compare_exchange_weak(now, now - 1, std::memory_order_release, std::memory_order_relaxed));
  if ((now & kHeld) != 0 && (now & ~kShut) == 1) futex_wake(gate);
}

MappingsHeld::MappingsHeld() {
  const int64_t deadline = now_ns() + kPatienceNs;
  keeper.store(this_process(), std::memory_order_relaxed);
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
}

MappingsBarred::MappingsBarred() {
  keeper.store(this_process(), std::memory_order_relaxed);
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
