#include "libckpt_rt/interpose_gate.h"

#include "base/clock.h"

namespace ckpt {

namespace {
// Threads inside, and a bit while the agent holds it.
constexpr uint32_t kHeld = 1u << 31;
constinit FutexWord gate{0};
}  // namespace

void MappingChange::enter() {
  // acquire, with the release of the one who held: what it registered is registered.
  while ((gate.fetch_add(1, std::memory_order_acquire) & kHeld) != 0) {
    leave();
    const uint32_t now = gate.load(std::memory_order_acquire);
    if ((now & kHeld) != 0) futex_wait(gate, now);
  }
}

void MappingChange::leave() {
  if (gate.fetch_sub(1, std::memory_order_release) == (kHeld | 1)) futex_wake(gate);
}

MappingsHeld::MappingsHeld() {
  const int64_t deadline = now_ns() + kPatienceNs;
  uint32_t now = gate.fetch_or(kHeld, std::memory_order_acq_rel) | kHeld;
  for (int64_t left; now != kHeld && (left = deadline - now_ns()) > 0; now = gate.load(std::memory_order_acquire)) {
    const timespec limit{0, left};
    futex_wait(gate, now, &limit);
  }
  sure_ = now == kHeld;
}

MappingsHeld::~MappingsHeld() {
  gate.fetch_and(~kHeld, std::memory_order_release);
  futex_wake(gate);
}

void reset_gate_in_child() { gate.store(0, std::memory_order_relaxed); }
void reset_gate_after_restart() { gate.fetch_and(~kHeld, std::memory_order_relaxed); }

}  // namespace ckpt
