// Nothing of ours throws. In place of the parts of the C++ library that the formatter's code would link in,
// and of which one allocates a pool for exceptions in every program that is started.
//
// Owner:     libckpt_rt. Callers: nobody but code that is never reached.
#include <cstddef>

#include "libckpt_rt/core/preload_rules.h"

namespace {
[[noreturn]] void never() { __builtin_trap(); }
}  // namespace

extern "C" {
void* __cxa_allocate_exception(size_t) noexcept { never(); }
void __cxa_free_exception(void*) noexcept { never(); }
void* __cxa_allocate_dependent_exception() noexcept { never(); }
void __cxa_free_dependent_exception(void*) noexcept { never(); }
}

namespace __gnu_cxx {
void __verbose_terminate_handler();
void __verbose_terminate_handler() { never(); }
}  // namespace __gnu_cxx
