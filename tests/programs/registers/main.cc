#include "tests/programs/registers/registers.h"

int main(int argc, char** argv) {
  using namespace registers;
  return victim::run_victim(
      {"registers",
       "Keeps values in registers for a long time.",
       {{"general", "general registers", 1'000, general},
        {"sse", "xmm0 to xmm15", 1'000, sse},
        {"avx", "ymm0 to ymm15, where there are", 1'000, avx},
        {"avx512", "zmm0 to zmm31 and mask registers, where there are", 1'000, avx512},
        {"x87", "the x87 stack and its control word", 1'000, x87},
        {"rounding", "MXCSR and x87 rounding modes of each thread", 600'000, rounding},
        {"segments", "segments of the program's own, and a forbidden time-stamp counter", 600'000,
         segments}}},
      argc, argv);
}
