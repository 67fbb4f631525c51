// Values that live in registers for a million steps at a time.
//
// Owner: tests/programs/registers. Each function is one exercise and returns its result line, which
// does not say whether the processor had the registers in question.
#pragma once

#include "tests/programs/victim.h"

namespace registers {

std::string general(uint64_t iterations);
std::string sse(uint64_t iterations);
std::string avx(uint64_t iterations);
std::string avx512(uint64_t iterations);
std::string x87(uint64_t iterations);
std::string rounding(uint64_t iterations);
std::string segments(uint64_t iterations);

}  // namespace registers
