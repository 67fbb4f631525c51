#include "libckpt_rt/capture/process/membarrier.h"

#include <linux/membarrier.h>

#include "base/sys.h"
#include "libckpt_rt/core/preload_rules.h"

#ifndef MEMBARRIER_CMD_GET_REGISTRATIONS
#define MEMBARRIER_CMD_GET_REGISTRATIONS (1 << 9)
#endif

namespace ckpt {

uint32_t membarrier_registrations() {
  const long told = sys::call(__NR_membarrier, long{MEMBARRIER_CMD_GET_REGISTRATIONS}, 0L, 0L);
  if (told >= 0) return static_cast<uint32_t>(told);
  struct Barrier {
    int command, registration;
  };
  constexpr Barrier kBarriers[] = {
      {MEMBARRIER_CMD_PRIVATE_EXPEDITED, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED},
      {MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE},
      {MEMBARRIER_CMD_PRIVATE_EXPEDITED_RSEQ, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_RSEQ}};
  uint32_t found = 0;
  for (const Barrier& b : kBarriers) {
    if (sys::call(__NR_membarrier, long{b.command}, 0L, 0L) == 0)
      found |= static_cast<uint32_t>(b.registration);
  }
  // Whether other processes' barriers come to this one nothing shows. Barriers that come in vain do no harm.
  return found == 0 ? 0 : found | static_cast<uint32_t>(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED);
}

void register_for_membarrier(uint32_t registrations) {
  for (uint32_t bit = 0; bit < 32; ++bit) {
    if ((registrations & (1u << bit)) != 0) sys::call(__NR_membarrier, 1L << bit, 0L, 0L);
  }
}

}  // namespace ckpt
