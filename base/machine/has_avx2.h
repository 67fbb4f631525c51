// What the processor has. Not __builtin_cpu_supports(): its table is filled by a constructor of libgcc, in
// every program that is started, with a dozen cpuid instructions, each of which leaves a virtual machine (50
// us together).
//
// Owner:     base. Header only. Callers: any thread.
#pragma once

#include <cpuid.h>

#include <atomic>
#include <cstdint>

#include "base/machine/cpuid_allowed.h"

namespace ckpt {

namespace cpu_internal {

inline constinit std::atomic<int> avx2{-1};  // -1: not asked yet

inline bool ask_for_avx2() {
  const CpuidAllowed allowed;
  uint32_t a = 0, b = 0, c = 0, d = 0;
  constexpr uint32_t kOsSavesState = 1u << 27, kAvx = 1u << 28, kAvx2 = 1u << 5, kStateOfAvx = 6;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & kOsSavesState) == 0 || (c & kAvx) == 0) return false;
  uint32_t low = 0, high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if ((low & kStateOfAvx) != kStateOfAvx) return false;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & kAvx2) != 0;
}

}  // namespace cpu_internal

inline bool has_avx2() {
  // relaxed: all threads compute the same answer.
  int known = cpu_internal::avx2.load(std::memory_order_relaxed);
  if (known < 0) {
    known = cpu_internal::ask_for_avx2() ? 1 : 0;
    cpu_internal::avx2.store(known, std::memory_order_relaxed);
  }
  return known != 0;
}

}  // namespace ckpt
