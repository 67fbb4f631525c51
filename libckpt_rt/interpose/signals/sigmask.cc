// Signal masks and sets: the checkpoint signal is never blocked, waited for or read.
#include <signal.h>
#include <spawn.h>

#include "libckpt_rt/interpose/abi.h"
#include "libckpt_rt/interpose/program_memory.h"
#include "libckpt_rt/interpose/real.h"
#include "libckpt_rt/interpose/signals/mask.h"
#include "libckpt_rt/core/preload_rules.h"

using namespace ckpt;

namespace {

// The kernel's part of a libc sigset_t.
uint64_t& word_of(sigset_t* set) { return *reinterpret_cast<uint64_t*>(set); }
uint64_t word_of(const sigset_t* set) { return *reinterpret_cast<const uint64_t*>(set); }

long change_mask(int how, const sigset_t* set, sigset_t* old) {
  uint64_t wanted = 0;
  if (set != nullptr) wanted = word_of(set) & ~kLibcSignals;
  return sigprocmask_for_program(how, set != nullptr ? &wanted : nullptr,
                                 old != nullptr ? &word_of(old) : nullptr);
}

sigset_t without_ours(const sigset_t* set) {
  sigset_t copy = *set;
  word_of(&copy) &= ~checkpoint_bit();
  return copy;
}

}  // namespace

namespace ckpt {

long sigprocmask_for_program(int how, const uint64_t* set, uint64_t* old) {
  if (set != nullptr && how != SIG_UNBLOCK) yield_if_named(*set);
  uint64_t wanted = set != nullptr ? *set & ~checkpoint_bit() : 0;
  uint64_t found = 0;
  long r = sys::call(__NR_rt_sigprocmask, long{how}, set != nullptr ? &wanted : nullptr, &found, 8L);
  if (r == 0 && old != nullptr) *old = as_program_sees(found);
  return r;
}

}  // namespace ckpt

CKPT_INTERPOSE(int, sigprocmask, int how, const sigset_t* set, sigset_t* old) {
  return to_errno<int>(change_mask(how, set, old));
}

// Returns the error.
CKPT_INTERPOSE(int, pthread_sigmask, int how, const sigset_t* set, sigset_t* old) {
  return static_cast<int>(-change_mask(how, set, old));
}

CKPT_INTERPOSE(int, sighold, int signal) {
  if (signal < 1 || signal > 64) return to_errno<int>(-EINVAL);
  uint64_t bit = signal_bit(signal) & ~kLibcSignals;
  return to_errno<int>(sigprocmask_for_program(SIG_BLOCK, &bit, nullptr));
}

CKPT_INTERPOSE(int, sigrelse, int signal) {
  if (signal < 1 || signal > 64) return to_errno<int>(-EINVAL);
  uint64_t bit = signal_bit(signal) & ~kLibcSignals;
  return to_errno<int>(sigprocmask_for_program(SIG_UNBLOCK, &bit, nullptr));
}

// BSD: masks of the first 32 signals.
CKPT_INTERPOSE(int, sigblock, int mask) {
  uint64_t wanted = static_cast<unsigned>(mask) & ~kLibcSignals, old = 0;
  long r = sigprocmask_for_program(SIG_BLOCK, &wanted, &old);
  return r < 0 ? to_errno<int>(r) : static_cast<int>(old);
}

CKPT_INTERPOSE(int, sigsetmask, int mask) {
  uint64_t wanted = static_cast<unsigned>(mask) & ~kLibcSignals, old = 0;
  long r = sigprocmask_for_program(SIG_SETMASK, &wanted, &old);
  return r < 0 ? to_errno<int>(r) : static_cast<int>(old);
}

CKPT_INTERPOSE(int, siggetmask, void) { return ckpt_libc_sigblock(0); }

CKPT_INTERPOSE(int, sigpending, sigset_t* set) {
  uint64_t pending = 0;
  long r = sys::call(__NR_rt_sigpending, &pending, 8L);
  if (r == 0) word_of(set) = pending & ~checkpoint_bit();
  return to_errno<int>(r);
}

CKPT_INTERPOSE(int, signalfd, int fd, const sigset_t* set, int flags) {
  uint64_t wanted;
  if (!program_memory::read(wanted, set)) return to_errno<int>(-EFAULT);
  yield_if_named(wanted);
  wanted &= ~checkpoint_bit();
  return to_errno<int>(sys::call(__NR_signalfd4, long{fd}, &wanted, 8L, long{flags}));
}

// The mask with which a thread begins. libc keeps it in memory of its own.
CKPT_INTERPOSE(int, pthread_attr_setsigmask_np, pthread_attr_t* attributes, const sigset_t* set) {
  auto real = real_function(RealFunction::kPthreadAttrSetsigmask);
  if (set == nullptr) return real.as<int(pthread_attr_t*, const sigset_t*)>()(attributes, set);
  sigset_t copy = without_ours(set);
  return real.as<int(pthread_attr_t*, const sigset_t*)>()(attributes, &copy);
}

// The mask with which another program begins.
CKPT_INTERPOSE(int, posix_spawnattr_setsigmask, posix_spawnattr_t* attributes, const sigset_t* set) {
  attributes->__ss = without_ours(set);
  return 0;
}
