// The processor that the caller runs on, without a system call: none could be refused or cost time.
//
// Source: the kernel's own getcpu(2) in the vDSO, which reads the limit of a segment that holds it.
// Owner: libckpt_rt/core/kernel. Callers: any thread, also in a signal handler.
#pragma once

#include <cstdint>

namespace ckpt {

// A hint: it may be another by the time it is used.
inline uint32_t current_processor() {
  constexpr uint32_t kSelector = 15 * 8 + 3, kProcessorBits = 12;  // __CPUNODE_SEG, VDSO_CPUNODE_BITS
  uint32_t limit = 0;
  asm volatile("lsl %1, %0" : "+r"(limit) : "r"(kSelector) : "cc");
  return limit & ((1u << kProcessorBits) - 1);
}

}  // namespace ckpt
