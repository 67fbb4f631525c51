// A thread may have forbidden itself to ask the processor what it can do (arch_prctl(2), ARCH_SET_CPUID): the
// instruction ends the process then. Threads that it makes have that from it, and so have ours.
//
// Owner:     base. Header only. Callers: any thread, around its use of cpuid. Never: touches libc.
#pragma once

#include "base/sys.h"

namespace ckpt {

// Of the calling thread. False also where the processor or the kernel knows no such thing.
inline bool is_cpuid_forbidden() {
  constexpr long kGetCpuid = 0x1011;  // ARCH_GET_CPUID, asm/prctl.h
  return sys::call(__NR_arch_prctl, kGetCpuid, 0L) == 0;
}

inline void allow_cpuid(bool allow) {
  constexpr long kSetCpuid = 0x1012;  // ARCH_SET_CPUID
  sys::call(__NR_arch_prctl, kSetCpuid, long{allow});
}

// As long as it lives the calling thread may ask.
class CpuidAllowed {
 public:
  CpuidAllowed() : was_forbidden_(is_cpuid_forbidden()) {
    if (was_forbidden_) allow_cpuid(true);
  }
  ~CpuidAllowed() {
    if (was_forbidden_) allow_cpuid(false);
  }
  CpuidAllowed(const CpuidAllowed&) = delete;
  CpuidAllowed& operator=(const CpuidAllowed&) = delete;

 private:
  bool was_forbidden_;
};

}  // namespace ckpt
