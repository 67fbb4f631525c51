// Contexts of asynchronous I/O (io_setup(2), libaio). A context is a ring of memory that the kernel maps,
// "/[aio]"; its id is the ring's address. The ring's tail counts the requests that have ended. Nobody shows
// which are under way, so submissions are counted:
//
//   under way = submitted - tail, modulo the ring's length: fewer requests than that can be under way
//
// program   setup, submit, destroy
// stop      drain: threads stand, so nothing is submitted; what is under way ends, or a second passes
// verdict   note: the ring at this place is known and idle; the image has its bytes as ordinary memory
// restart   make_again: reads of nothing move the tail of a new context to that of the old one; then the ring is moved to
//           the old one's place, by which the kernel changes its id
//
// A thread may stand anywhere in submit(). Its instruction pointer tells whether its requests are counted
// (aio_submit.S). A context that was made by a system call instruction of the program's own is not known: no
// restart is promised.
//
// Owner:     libckpt_rt; in the library's data, so that an image has it.
// Callers:   setup, submit, destroy: threads of the program. drain, note: the agent, threads standing.
//            make_again: the leader at restart. in_child: a forked child. To it the rings of its parent are
//            memory, no contexts.
// Never:     allocates, locks, touches errno.
// Source:    io_setup(2), fs/aio.c (aio_ring_mremap, refill_reqs_available).
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

#include "base/units.h"
#include "libckpt_rt/core/threads/thread_context.h"

namespace ckpt::aio_contexts {

// What /proc/PID/maps calls a ring.
inline constexpr std::string_view kPath = "/[aio]";

// System calls, with their results.
long setup(long requests, uint64_t *context);
long destroy(uint64_t context);
long submit(uint64_t context, long count, void *list);

enum class Drained {
  kIdle,     // nothing is under way in any context that is known
  kBusy,     // something still is in some context, which note() then refuses
  kBetween,  // a thread is where nobody can tell what it has submitted: stop
             // again
};
Drained drain(const ThreadSlot *stopped);
// False: it is not known, or not idle.
bool note(AddrRange ring);
// The first error, or 0.
long make_again();

// In the only thread of a forked child: no other is in a system call.
void in_child();

}  // namespace ckpt::aio_contexts
