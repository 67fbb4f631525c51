// The rseq areas that threads of the program have registered themselves, as tcmalloc and librseq do where
// libc does not (GLIBC_TUNABLES=glibc.pthread.rseq=0). The kernel tells nobody which area a thread has but a
// tracer: rseq(2).
//
// Owner:     libckpt_rt, in its own data: a table of kMost threads. A thread that finds no place in it is not
//            known.
// Callers:   note(): the interposed syscall(2), in the thread whose area it is. find(): that thread, also in
//            a handler in the middle of note(). A thread is told by its thread pointer, which the child of a
//            fork has as well.
// Never:     waits, or lets go of a place. The next thread with the same thread pointer writes over it; so
//            what find() tells may be of a thread that has ended, and the caller asks the kernel.
#pragma once

#include <cstdint>

namespace ckpt::own_rseq {

inline constexpr uint32_t kMost = 1024;

struct Area {
  uint64_t address = 0;
  uint32_t length = 0, signature = 0;
};

void note(uint64_t thread_pointer, const Area& area);
// address 0: none.
Area find(uint64_t thread_pointer);

}  // namespace ckpt::own_rseq
