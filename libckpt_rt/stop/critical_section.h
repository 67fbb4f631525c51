// Critical sections of the program (ckpt_rt.h): no stop is used for a checkpoint while a thread is in
// one. The stop is made, and undone when a thread turns out to be inside. So to enter and to leave costs a
// few atomic operations, and never waits for a checkpoint.
//
// Owner:     libckpt_rt. Callers: enter/leave: threads of the program. await_none: the agent.
#pragma once

#include <cstdint>

#include "base/result.h"

namespace ckpt::critical_section {

// False: too many threads are inside.
bool enter(int tid);
// False: this thread is in no section.
bool leave(int tid);
bool inside(int tid);

// With all threads stopped: is nobody inside?
bool none_inside();
// Waits until nobody is inside, at most until the deadline (CLOCK_MONOTONIC, ns). False: too late.
bool await_none(int64_t deadline_ns);
Error stayed_too_long();
void reset_in_child();  // a forked child is in no section

}  // namespace ckpt::critical_section
