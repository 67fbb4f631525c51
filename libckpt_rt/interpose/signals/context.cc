// See context.S.
#include <ucontext.h>

#include "libckpt_rt/interpose/real.h"
#include "libckpt_rt/interpose/signals/mask.h"
#include "libckpt_rt/core/preload_rules.h"

extern "C" [[gnu::visibility("hidden")]] void* ckpt_prepare_context(ucontext_t* next, int swaps) {
  using namespace ckpt;
  auto& mask = *reinterpret_cast<uint64_t*>(&next->uc_sigmask);
  // Only if it must be: a context may be shared, or read-only.
  if ((mask & checkpoint_bit()) != 0) mask &= ~checkpoint_bit();
  return real_function(swaps != 0 ? RealFunction::kSwapcontext : RealFunction::kSetcontext).address;
}
