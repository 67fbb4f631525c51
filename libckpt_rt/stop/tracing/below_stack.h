// What lies below the stack of a tracee that is held: our signal's frame, and our handler, go there.
//
// Owner:     below_stack.cc, the bytes; so an image holds them. Callers: the tracing thread. Never: libc.
#pragma once

#include "libckpt_rt/stop/tracing/tracee_table.h"

namespace ckpt::tracing {

// A debugger that calls a function of its program writes there with what, and moves the stack pointer then:
// what is there is kept. t.registers are those of the stop. False: there is no room for a signal, which would
// end the program (SIGSEGV).
bool save_below(Tracee& t);
// In our handler: is it there? Not if the thread has an alternate stack: then nothing is given back, for
// behind a small stack lies what others write to.
void look_at_handler_stack(Tracee& t);
// Behind our handler.
void give_back_below(Tracee& t);

}  // namespace ckpt::tracing
