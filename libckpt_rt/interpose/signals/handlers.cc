#include "libckpt_rt/interpose/signals/handlers.h"

#include <signal.h>

#include <atomic>

#include "base/sys.h"
#include "libckpt_rt/core/hooks.h"
#include "libckpt_rt/interpose/signals/mask.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {
namespace {

constexpr unsigned kHandlerSlots = 256;  // SLOTS in interpose/signals/handlers.S
constexpr uintptr_t kSlotBytes = 16;
constexpr uint64_t kRestarts = uint64_t{1} << 63;  // no address of a program has this bit
constexpr uint64_t kSaRestorer = 0x04000000;

// The function that has the slot: handler | kRestarts. 0: the slot is free. Set once.
constinit std::atomic<uint64_t> slot_keys[kHandlerSlots];

// The action that the program set for the checkpoint signal: only told back to the program.
constinit std::atomic<uintptr_t> own_handler, own_restorer;
constinit std::atomic<uint64_t> own_flags, own_mask;

// Former checkpoint signals, by the same bits as ckpt_former_signals, whose handler the program set without
// SA_SIGINFO: only told back to the program.
constinit std::atomic<uint64_t> without_information;

uint64_t former_bit(int signal) { return uint64_t{1} << (signal & 63); }

}  // namespace

extern "C" {
extern const char ckpt_handler_slots[], __restore_rt[];
// Where a slot jumps.
[[gnu::visibility("hidden")]] constinit std::atomic<uintptr_t> ckpt_handler_targets[kHandlerSlots];
// Signals that were ours: bit `signal` modulo 64.
[[gnu::visibility("hidden")]] constinit std::atomic<uint64_t> ckpt_former_signals;
[[gnu::visibility("hidden")]] int ckpt_is_late_request(int, void* information, void* context) {
  return hooks::took_late_request(information, context) ? 1 : 0;
}
}

void mark_former_signal(int signal) {
  ckpt_former_signals.fetch_or(former_bit(signal), std::memory_order_relaxed);
}

bool is_handler_slot(uintptr_t kernel_handler) {
  return kernel_handler - reinterpret_cast<uintptr_t>(ckpt_handler_slots) < kHandlerSlots * kSlotBytes;
}

bool slot_restarts(unsigned slot) {
  return (slot_keys[slot].load(std::memory_order_relaxed) & kRestarts) != 0;
}

uintptr_t slot_for_handler(uintptr_t handler, uint64_t flags) {
  if (handler <= 1 || is_handler_slot(handler)) return handler;
  const uint64_t key = handler | ((flags & SA_RESTART) != 0 ? kRestarts : 0);
  for (unsigned i = 0; i < kHandlerSlots; ++i) {
    uint64_t found = slot_keys[i].load(std::memory_order_relaxed);
    // relaxed: the system call that tells the kernel about the slot orders these stores before any
    // delivery through it.
    if (found == 0) slot_keys[i].compare_exchange_strong(found, key, std::memory_order_relaxed);
    if (found != 0 && found != key) continue;
    // Two threads may both write here: the same value.
    ckpt_handler_targets[i].store(handler, std::memory_order_relaxed);
    return reinterpret_cast<uintptr_t>(ckpt_handler_slots) + i * kSlotBytes;
  }
  return handler;
}

uintptr_t handler_behind(uintptr_t kernel_handler) {
  if (!is_handler_slot(kernel_handler)) return kernel_handler;
  unsigned slot =
      static_cast<unsigned>((kernel_handler - reinterpret_cast<uintptr_t>(ckpt_handler_slots)) / kSlotBytes);
  return slot_keys[slot].load(std::memory_order_relaxed) & ~kRestarts;
}

namespace {

// Does our handler stay on this signal, whatever the program sets? It does on the checkpoint signal. Our
// handler also stays on the former one, after the program took that number, until the program installs a
// handler there: an asker may just have sent it.
bool stays_ours(int signal, const KernelSigaction* action) {
  if (is_checkpoint_signal(signal)) return true;
  const uintptr_t own = hooks::own_handler.load(std::memory_order_relaxed);
  KernelSigaction found{};
  return own != 0 && (action == nullptr || action->handler <= 1) &&
         kernel_sigaction(signal, nullptr, &found) == 0 && found.handler == own;
}

}  // namespace

long sigaction_for_program(int signal, const KernelSigaction* action, KernelSigaction* old) {
  if (is_checkpoint_signal(signal) && action != nullptr && action->handler > 1) hooks::yield_signal();
  if (stays_ours(signal, action)) {
    KernelSigaction wanted = action != nullptr ? *action : KernelSigaction{};
    if (old != nullptr) *old = {own_handler, own_flags, own_restorer, own_mask};
    if (action != nullptr) {
      own_handler = wanted.handler;
      own_flags = wanted.flags;
      own_restorer = wanted.restorer;
      own_mask = wanted.mask;
    }
    return 0;
  }
  KernelSigaction told{}, found{};
  const bool was_without_information =
      (without_information.load(std::memory_order_relaxed) & former_bit(signal)) != 0;
  if (action != nullptr) {
    told = *action;
    without_information.fetch_and(~former_bit(signal), std::memory_order_relaxed);
    if ((ckpt_former_signals.load(std::memory_order_relaxed) & former_bit(signal)) != 0 && told.handler > 1 &&
        (told.flags & SA_SIGINFO) == 0) {
      // Without it the kernel leaves out what tells an asker's signal from the program's. The handler sees no
      // difference.
      told.flags |= SA_SIGINFO;
      without_information.fetch_or(former_bit(signal), std::memory_order_relaxed);
    }
    told.handler = slot_for_handler(told.handler, told.flags);
    told.mask &= ~checkpoint_bit();
    if (told.restorer == 0) {
      told.restorer = reinterpret_cast<uintptr_t>(__restore_rt);
      told.flags |= kSaRestorer;
    }
  }
  long r = sys::call(__NR_rt_sigaction, long{signal}, action != nullptr ? &told : nullptr, &found, 8L);
  if (r == 0 && old != nullptr) {
    // 0 until the checkpoint signal has moved: a default action keeps its flags and mask.
    const uintptr_t own = hooks::own_handler.load(std::memory_order_relaxed);
    *old = own != 0 && found.handler == own ? KernelSigaction{} : found;
    old->handler = handler_behind(old->handler);
    if (was_without_information) old->flags &= ~uint64_t{SA_SIGINFO};
    old->mask = as_program_sees(old->mask);
  }
  return r;
}

}  // namespace ckpt
