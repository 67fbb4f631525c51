// The time when a call with a timeout begins, at the price of a function call.
//
// Owner:     interposition. Callers: any thread, at any moment; before the constructor ran a system call
//            takes the vdso's place.
// Never:     goes through libc's clock_gettime: a program may replace that by another clock.
#pragma once

#include <time.h>

#include <cstdint>

namespace ckpt {

// ns; see program_time_in_handler (interrupted_call.h).
int64_t program_time(clockid_t clock);

// Not earlier than the present and at most one tick of the coarse clock later; a quarter of the price.
int64_t program_time_rounded_up();

}  // namespace ckpt
