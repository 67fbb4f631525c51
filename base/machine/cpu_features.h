// What the processor can do, as far as a running program may have noticed: compared at restart, where
// every bit that was set when the image was taken must be set again.
//
// Owner:     base. Header only: collected by the library in the victim, compared by ckpt-restart.
// Callers:   any thread. Never: allocates or touches libc.
//
// Bits that tell of the machine and not of instructions (hypervisor, APIC ids, counts) are left out.
#pragma once

#include <cpuid.h>

#include <cstdint>

#include "base/machine/cpuid_allowed.h"

namespace ckpt {

struct CpuFeatures {
  uint32_t word[10] = {};  // see collect_cpu_features; bit sets only
};

// XCR0: the state components that the kernel saves in signal frames. 0 without XSAVE.
inline uint64_t read_xfeatures() {
  const CpuidAllowed allowed;
  uint32_t a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || (c & bit_OSXSAVE) == 0) return 0;
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t{high} << 32) | low;
}

inline bool has_protection_keys() {
  constexpr uint64_t kProtectionKeys = 1ull << 9;  // in XCR0, where the kernel has them in use
  return (read_xfeatures() & kProtectionKeys) != 0;
}

// Of the calling thread, two bits for each key (pkeys(7)): what it has no right to read, and to write. Where
// there are no keys this faults.
inline void set_protection_key_rights(uint32_t rights) {
  asm volatile(".byte 0x0f,0x01,0xef" : : "a"(rights), "c"(0), "d"(0) : "memory");  // wrpkru
}

// The calling thread may read and write memory with any protection key. A thread that was made in a signal
// handler has the rights of a handler: of memory with key 0 alone.
inline void open_protection_keys() {
  if (has_protection_keys()) set_protection_key_rights(0);
}

inline CpuFeatures collect_cpu_features() {
  const CpuidAllowed allowed;
  CpuFeatures f;
  uint32_t a = 0, b = 0, c = 0, d = 0;
  __cpuid(0, a, b, c, d);
  uint32_t highest = a;
  __cpuid(1, a, b, c, d);
  // Not: DTES64, MONITOR, DS-CPL, VMX, SMX, EIST, TM2, debug, xTPR, PDCM, PCID, DCA, x2APIC, TSC
  // deadline, hypervisor. Nor of edx: VME, DE, MCE, MTRR, MCA, PSN, DS, ACPI, SS, HTT, TM, PBE.
  constexpr uint32_t kEcx1 =
      ~((1u << 2) | (1u << 3) | (1u << 4) | (1u << 5) | (1u << 6) | (1u << 7) | (1u << 8) | (1u << 11) |
        (1u << 14) | (1u << 15) | (1u << 17) | (1u << 18) | (1u << 21) | (1u << 24) | (1u << 31));
  constexpr uint32_t kEdx1 = (1u << 0) | (1u << 4) | (1u << 8) | (1u << 15) | (1u << 19) | (1u << 23) |
                             (1u << 24) | (1u << 25) | (1u << 26);
  f.word[0] = c & kEcx1;
  f.word[1] = d & kEdx1;
  if (highest >= 7) {
    __cpuid_count(7, 0, a, b, c, d);
    uint32_t subleaves = a;
    // ebx without TSC_ADJUST, SGX, the FPU deprecations, SMEP, INVPCID, RDT, SMAP, processor trace.
    f.word[2] = b & ~((1u << 1) | (1u << 2) | (1u << 6) | (1u << 7) | (1u << 10) | (1u << 12) | (1u << 13) |
                      (1u << 15) | (1u << 20) | (1u << 25));
    // ecx: PREFETCHWT1, VBMI, PKU and OSPKE, WAITPKG, VBMI2, GFNI, VAES, VPCLMULQDQ, VNNI, BITALG,
    // VPOPCNTDQ, RDPID, CLDEMOTE, MOVDIRI, MOVDIR64B.
    f.word[3] = c & ((1u << 0) | (1u << 1) | (1u << 3) | (1u << 4) | (1u << 5) | (1u << 6) | (1u << 8) |
                     (1u << 9) | (1u << 10) | (1u << 11) | (1u << 12) | (1u << 14) | (1u << 22) | (1u << 25) |
                     (1u << 27) | (1u << 28));
    // edx: 4VNNIW, 4FMAPS, VP2INTERSECT, SERIALIZE, TSXLDTRK, AMX.
    f.word[4] = d & ((1u << 2) | (1u << 3) | (1u << 8) | (1u << 14) | (1u << 16) | (1u << 22) | (1u << 23) |
                     (1u << 24) | (1u << 25));
    if (subleaves >= 1) {
      __cpuid_count(7, 1, a, b, c, d);
      // eax: SHA512, SM3, SM4, RAO-INT, VNNI, BF16, CMPCCXADD, AMX-FP16, AVX-IFMA; edx: AVX-VNNI-INT8,
      // NE-CONVERT, AMX-COMPLEX, VNNI-INT16, PREFETCHI, AVX10.
      f.word[5] = a & ((1u << 0) | (1u << 1) | (1u << 2) | (1u << 3) | (1u << 4) | (1u << 5) | (1u << 7) |
                       (1u << 21) | (1u << 23));
      f.word[6] = d & ((1u << 4) | (1u << 5) | (1u << 8) | (1u << 10) | (1u << 14) | (1u << 19));
    }
  }
  if (highest >= 0xd) {
    __cpuid_count(0xd, 1, a, b, c, d);
    f.word[7] = a & 0x7;  // XSAVEOPT, XSAVEC, XGETBV with ecx 1; XSAVES is the kernel's
  }
  uint32_t extended = 0;
  __cpuid(0x80000000, extended, b, c, d);
  if (extended >= 0x80000001) {
    __cpuid(0x80000001, a, b, c, d);
    // ecx: LAHF, LZCNT, SSE4A, misaligned SSE, PREFETCHW, XOP, FMA4, TBM; edx: SYSCALL, RDTSCP.
    f.word[8] = c & ((1u << 0) | (1u << 5) | (1u << 6) | (1u << 7) | (1u << 8) | (1u << 11) | (1u << 16) |
                     (1u << 21));
    f.word[9] = d & ((1u << 11) | (1u << 27));
  }
  return f;
}

}  // namespace ckpt
