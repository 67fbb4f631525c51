#include "tests/programs/registers/registers.h"

namespace registers {

using namespace victim;

namespace {

constexpr uint64_t kSteps = 1'000'000;

// `count` registers of `words` 64-bit words each.
void compare(const char* what, const uint64_t* in, const uint64_t* out, unsigned count, unsigned words) {
  for (unsigned i = 0; i < count * words; ++i) {
    require(in[i] == out[i], "{}: word {} of register {} holds {:x}, not {:x}", what, i % words, i / words,
            out[i], in[i]);
  }
}

void fill(uint64_t* in, unsigned n, uint64_t seed) {
  for (unsigned i = 0; i < n; ++i) in[i] = mix(seed * 1000 + i);
}

// Loads all registers, counts without touching memory, stores them.
__attribute__((noinline)) void hold_sse(const uint64_t* in, uint64_t* out) {
  asm volatile(
      ".irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n\tmovdqu 16*\\i(%[in]), %%xmm\\i\n\t.endr\n\t"
      "mov %[steps], %%rcx\n"
      "1:\n\tdec %%rcx\n\tjnz 1b\n\t"
      ".irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n\tmovdqu %%xmm\\i, 16*\\i(%[out])\n\t.endr\n\t"
      :
      : [in] "r"(in), [out] "r"(out), [steps] "i"(kSteps)
      : "rcx", "cc", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
        "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
}

__attribute__((noinline, target("avx"))) void hold_avx(const uint64_t* in, uint64_t* out) {
  asm volatile(
      ".irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n\tvmovdqu 32*\\i(%[in]), %%ymm\\i\n\t.endr\n\t"
      "mov %[steps], %%rcx\n"
      "1:\n\tdec %%rcx\n\tjnz 1b\n\t"
      ".irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n\tvmovdqu %%ymm\\i, 32*\\i(%[out])\n\t.endr\n\t"
      "vzeroupper\n\t"
      :
      : [in] "r"(in), [out] "r"(out), [steps] "i"(kSteps)
      : "rcx", "cc", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
        "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
}

__attribute__((noinline, target("avx512f,avx512bw"))) void hold_avx512(const uint64_t* in, uint64_t* out) {
  asm volatile(
      ".irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31\n\t"
      "vmovdqu64 64*\\i(%[in]), %%zmm\\i\n\t.endr\n\t"
      ".irp i,0,1,2,3,4,5,6,7\n\tkmovq 2048+8*\\i(%[in]), %%k\\i\n\t.endr\n\t"
      "mov %[steps], %%rcx\n"
      "1:\n\tdec %%rcx\n\tjnz 1b\n\t"
      ".irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31\n\t"
      "vmovdqu64 %%zmm\\i, 64*\\i(%[out])\n\t.endr\n\t"
      ".irp i,0,1,2,3,4,5,6,7\n\tkmovq %%k\\i, 2048+8*\\i(%[out])\n\t.endr\n\t"
      "vzeroupper\n\t"
      :
      : [in] "r"(in), [out] "r"(out), [steps] "i"(kSteps)
      : "rcx", "cc", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
        "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "xmm16", "xmm17", "xmm18", "xmm19", "xmm20",
        "xmm21", "xmm22", "xmm23", "xmm24", "xmm25", "xmm26", "xmm27", "xmm28", "xmm29", "xmm30", "xmm31",
        "k1", "k2", "k3", "k4", "k5", "k6", "k7");
}

using Hold = void (*)(const uint64_t*, uint64_t*);

std::string hold(const char* what, Hold function, unsigned count, unsigned words, unsigned extra,
                 uint64_t iterations) {
  run_threads(2, [&](unsigned t) {
    std::vector<uint64_t> in(count * words + extra), out(in.size());
    for (uint64_t n = 0; n < iterations / 2; ++n) {
      fill(in.data(), static_cast<unsigned>(in.size()), 2 * n + t);
      function(in.data(), out.data());
      compare(what, in.data(), out.data(), count, words);
      compare(what, in.data() + count * words, out.data() + count * words, extra, 1);
    }
  });
  return fmt::format("{} rounds", iterations);
}

std::string without(uint64_t iterations) { return fmt::format("{} rounds", iterations); }

}  // namespace

std::string sse(uint64_t iterations) { return hold("sse", hold_sse, 16, 2, 0, iterations); }

std::string avx(uint64_t iterations) {
  if (!__builtin_cpu_supports("avx")) return without(iterations);
  return hold("avx", hold_avx, 16, 4, 0, iterations);
}

std::string avx512(uint64_t iterations) {
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw")) return without(iterations);
  return hold("avx512", hold_avx512, 32, 8, 8, iterations);
}

}  // namespace registers
