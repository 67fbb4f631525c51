// Signal masks without the checkpoint signal.
//
// Owner:     libckpt_rt/interpose. Header only. Callers: any thread, in interposed calls.
// The program can never block, catch, ignore or wait for the checkpoint signal: if the program uses that
// number, the checkpoint signal gets another one (hooks::yield_signal). Reading a mask back: we have no TLS
// in which to remember whether the program "blocked" the checkpoint signal. So it is guessed: a mask with all
// other real-time signals was filled (sigfillset), and is reported with the checkpoint signal. See
// docs/interposition.md.
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

// Called with each set that the program gives, before the checkpoint signal is taken out of it. A program
// that names this signal in a set of at most kFew real-time signals uses it: then it gets the number.
inline void yield_if_named(uint64_t set) {
  constexpr uint64_t kRealTime = ~uint64_t{0} << 33;  // 34 to 64
  constexpr int kFew = 16;
  if ((set & checkpoint_bit()) != 0 && __builtin_popcountll(set & kRealTime) <= kFew) hooks::yield_signal();
}

// rt_sigprocmask as the program sees it. Either pointer may be null. -errno on failure.
long sigprocmask_for_program(int how, const uint64_t* set, uint64_t* old);

}  // namespace ckpt
