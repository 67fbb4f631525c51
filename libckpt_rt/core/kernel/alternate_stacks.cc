#include "libckpt_rt/core/kernel/alternate_stacks.h"

#include <atomic>
#include <cstdint>

#include "base/memory/large_table.h"
#include "base/sys.h"
#include "libckpt_rt/core/kernel/kernel_sigaction.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::alternate_stacks {

namespace {

constexpr unsigned kSlots = 1024, kTries = 8;

struct Slot {
  std::atomic<uintptr_t> start;  // set once
  std::atomic<int> tid;          // 0: nobody has it
};

CKPT_LARGE_TABLE constinit Slot slots[kSlots]{};
constinit std::atomic<bool> shared{false};

// make: where it is not known yet. nullptr: not known, and no room.
Slot* slot_of(const stack_t& stack, bool make) {
  const auto start = reinterpret_cast<uintptr_t>(stack.ss_sp);
  for (unsigned i = 0; i < kTries; ++i) {
    Slot& slot = slots[((start >> 4) * 0x9e3779b97f4a7c15ull >> 54) % kSlots ^ i];
    uintptr_t found = slot.start.load(std::memory_order_relaxed);
    if (found == 0 && make && slot.start.compare_exchange_strong(found, start, std::memory_order_relaxed))
      return &slot;
    if (found == start) return &slot;
    if (found == 0) return nullptr;
  }
  return nullptr;
}

// Of this process: after a fork the other threads have stayed behind.
bool is_alive(int tid) { return sys::call(__NR_tgkill, sys::call(__NR_getpid), long{tid}, 0L) == 0; }

bool is_a_stack(const stack_t& stack) { return (stack.ss_flags & SS_DISABLE) == 0 && stack.ss_sp != nullptr; }

}  // namespace

bool are_shared() { return shared.load(std::memory_order_relaxed); }

void before(const stack_t& wanted) {
  if (!is_a_stack(wanted) || are_shared()) return;
  Slot* slot = slot_of(wanted, true);
  if (slot == nullptr) return;
  const int tid = sys::gettid(), other = slot->tid.exchange(tid, std::memory_order_relaxed);
  // A thread that has freed its stack and has still to end looks the same: no harm in its own stack.
  if (other == 0 || other == tid || !is_alive(other)) return;
  shared.store(true, std::memory_order_relaxed);
  leave_alternate_stacks();
}

void after(const stack_t& had) {
  if (!is_a_stack(had)) return;
  Slot* slot = slot_of(had, false);
  int tid = sys::gettid();
  if (slot != nullptr) slot->tid.compare_exchange_strong(tid, 0, std::memory_order_relaxed);
}

}  // namespace ckpt::alternate_stacks
