// Signal masks without the checkpoint signal.
//
// Owner:     interposition. Header only. Callers: any thread, in interposed calls.
// The program can never block, catch, ignore or wait for the checkpoint signal: it gets another number when
// the program wants that one (hooks::yield_signal). Reading a mask back:
// there is no place to remember, for each thread, whether the program "blocked" it (no TLS of ours), so
// the mask is completed by what a program can have meant: when all other real-time signals are in it,
// it was filled (sigfillset), and the checkpoint signal is reported as well. See docs/interposition.md.
#pragma once

#include <cstdint>

#include "libckpt_rt/core/hooks.h"

namespace ckpt {

inline uint64_t signal_bit(int signal) { return uint64_t{1} << (signal - 1); }

inline uint64_t checkpoint_bit() {
  return signal_bit(hooks::checkpoint_signal.load(std::memory_order_relaxed));
}

inline bool is_checkpoint_signal(long signal) {
  return signal == hooks::checkpoint_signal.load(std::memory_order_relaxed);
}

// libc keeps these two for itself (cancellation, setxid) and takes them out of every mask.
inline constexpr uint64_t kLibcSignals = uint64_t{1} << 31 | uint64_t{1} << 32;

inline uint64_t as_program_sees(uint64_t kernel_mask) {
  constexpr uint64_t kRealTime = ~uint64_t{0} << 33;  // 34 to 64
  return (kernel_mask | checkpoint_bit() | ~kRealTime) == ~uint64_t{0} ? kernel_mask | checkpoint_bit()
                                                                       : kernel_mask;
}

// Before a set that the program gives goes to the kernel without our signal: a program that names it, among a
// few and not because it names all, uses it.
inline void yield_if_named(uint64_t set) {
  constexpr uint64_t kRealTime = ~uint64_t{0} << 33;  // 34 to 64
  constexpr int kFew = 16;
  if ((set & checkpoint_bit()) != 0 && __builtin_popcountll(set & kRealTime) <= kFew) hooks::yield_signal();
}

// rt_sigprocmask as the program sees it. Either pointer may be null. -errno on failure.
long sigprocmask_for_program(int how, const uint64_t* set, uint64_t* old);

}  // namespace ckpt
