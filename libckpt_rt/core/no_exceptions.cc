// Nothing of ours throws. In place of the parts of the C++ library that the formatter's code would link in,
// and of which one allocates a pool for exceptions in every program that is started.
//
// Owner:     libckpt_rt. Callers: nobody but code that is never reached.
#include <cstddef>

#include "libckpt_rt/core/preload_rules.h"

// The unwinder, linked in and never run, looks at these to see whether there are threads. Not every glibc has
// them in libc.so.6. Hidden and not defined, they are null in all of the library.
extern "C" {
[[gnu::weak]] int ckpt_no_once() __asm__("pthread_once");
[[gnu::weak]] int ckpt_no_key() __asm__("__pthread_key_create");
}
__asm__(".hidden pthread_once, __pthread_key_create");

namespace {
[[gnu::used]] int (*const kOfUnwinder[])() = {&ckpt_no_once, &ckpt_no_key};

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
