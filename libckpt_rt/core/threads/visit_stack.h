// A call on another stack, from which it may come back.
//
// Owner:     libckpt_rt. Callers: threads of the program, in our handler: its stack may be an alternate one
//            of a few KiB (sigaltstack(2)), beside which the program has other memory.
#pragma once

// fn(arg), with the stack that ends at stack_top (aligned to 16).
extern "C" void ckpt_visit_stack(void* stack_top, void (*fn)(void*), void* arg);
